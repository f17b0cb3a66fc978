"""Signals that ask a run to stop: obeyed at once before the first step, then where nothing is lost.

Importable without torch.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from devkit.workload.finetune.ranks import Ranks

PREEMPTED = 75
"""Exit code of a run that a signal ended after a checkpoint: EX_TEMPFAIL of sysexits.h, "try again later".

No shell, scheduler or container engine gives this code by itself, so that `podFailurePolicy.onExitCodes` of Kubernetes
and a Slurm script's `scontrol requeue` can tell it from a failure. torchrun turns every code into 1: behind it, and
wherever only success and failure count, `latest` beside `run.json` says how far the run got.
"""

INTERRUPTED = 130
"""Exit code after Ctrl-C, as everywhere in devkit."""

_NAMES = ("SIGHUP", "SIGUSR1", "SIGTERM", "SIGINT")
SIGNALS = tuple(signal.Signals[name] for name in _NAMES if hasattr(signal, name))
"""Those that ask a run to stop, the stronger later: where processes got different ones, the last counts.

SIGHUP because a lost terminal or ssh connection sends it, and torchrun passes it on; under nohup it stays ignored.
"""


class Stopped(BaseException):
    """A signal came before the first step, when there is nothing to save. No library takes it for an error."""

    def __init__(self, number: int) -> None:
        self.signal = signal.Signals(number)
        super().__init__(self.signal.name)


@contextmanager
def at_once() -> Iterator[None]:
    """While it is entered, a signal raises Stopped wherever the program is.

    Reading texts and loading a model may take longer than whoever sent the signal waits.
    """

    def leave(number: int, _frame: FrameType | None) -> None:
        raise Stopped(number)

    before = {each: signal.signal(each, leave) for each in _heeded()}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _heeded() -> tuple[signal.Signals, ...]:
    """Ignored from the start means that somebody above decided so: nohup, or a shell for its background job."""
    return tuple(each for each in SIGNALS if signal.getsignal(each) is not signal.SIG_IGN)


class Stopping:
    """While it is entered, signals are only noted. Ctrl-C pressed again leaves at once, without a checkpoint.

    Processes that are forked meanwhile (workers that load data) inherit handlers that note and do nothing, so that a
    signal to the whole group leaves them at work for the step and the checkpoint that are still to come.
    """

    def __init__(self) -> None:
        self._noted = 0
        self._before: dict[signal.Signals, Any] = {}
        self._launcher = os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else None

    def __enter__(self) -> Self:
        self._before = {each: signal.signal(each, self._note) for each in _heeded()}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)
        self._before.clear()

    def asked(self, ranks: "Ranks") -> signal.Signals | None:
        """The signal that any process of the run got; every process gets the same answer, and all must ask."""
        if self._launcher is not None and os.getppid() != self._launcher:
            # torchrun was killed: nobody would end this process, nor see how it ended.
            self._noted = max(self._noted, SIGNALS.index(signal.SIGTERM) + 1)
        strongest = int(ranks.largest(self._noted))
        return SIGNALS[strongest - 1] if strongest else None

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._noted = max(self._noted, SIGNALS.index(signal.Signals(number)) + 1)
        if number == signal.SIGINT:
            # The system's own way from here on: it ends the process also in the middle of a long kernel.
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def exit_code(asked: signal.Signals) -> int:
    """How a run leaves that saved its state and ends because of `asked`."""
    return INTERRUPTED if asked is signal.SIGINT else PREEMPTED
