"""Signals that ask a run to stop: obeyed at once before the first step, then where nothing is lost.

Importable without torch.
"""

import contextlib
import logging
import os
import signal
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Self

from devkit.errors import DevkitError
from devkit.workload.environment import count_usable_cpus

if TYPE_CHECKING:
    from devkit.workload.finetune.distributed import Ranks

# How processes of one run leave: with their exit code kept, and one word for all. Importable without torch.

EXIT_FILE_VARIABLE = "DEVKIT_EXIT_FILE"
"""The variable that names a file of this machine: each process of a run adds a line to it, its exit code.

torchrun leaves with 1 whatever its processes' codes are. Whoever started torchrun reads here whether they were
preempted (75) or failed; `devkit export` writes commands that do.
"""


def write_exit_code(code: int) -> None:
    """Write the code down where somebody asked for it. What cannot be written is only not known there."""
    path = os.environ.get(EXIT_FILE_VARIABLE)
    if not path:
        return
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(descriptor, f"{code}\n".encode())
        finally:
            os.close(descriptor)


TORCHRUN_VARIABLE = "TORCHELASTIC_RUN_ID"
"""What torchrun sets. It ends the other processes of a node when one of them has failed.
Source: https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables"""

LOCAL_RANK0_REPORT_S = 10.0
"""How long a process waits for the first of its node to tell what both find wrong."""


class ReportedElsewhere(DevkitError):  # noqa: N818 - no error of its own: another process tells it
    """What another process of the run tells: this one leaves with the same exit code and says nothing."""


class ReportedByLocalRank0(ReportedElsewhere):
    """What the first process of the node finds wrong as well, and tells: they do not know of each other yet."""


def wait_for_local_rank0() -> None:
    """Where torchrun started this process, leave it to the first one of its node to tell what all of them find wrong.

    The first to leave has torchrun end the others. So whoever is not the first waits to be ended, with its code
    written down already. It comes back from here when the first is not heard of: it is to tell after all.
    """
    if TORCHRUN_VARIABLE in os.environ and os.environ.get("LOCAL_RANK", "0") != "0":
        time.sleep(LOCAL_RANK0_REPORT_S)


def is_reported_elsewhere(error: DevkitError) -> bool:
    """Whether another process tells `error`, so that this one leaves without a word."""
    if isinstance(error, ReportedByLocalRank0) and TORCHRUN_VARIABLE in os.environ:
        wait_for_local_rank0()
        return False
    return isinstance(error, ReportedElsewhere)


@contextlib.contextmanager
def report_once_per_node() -> Iterator[None]:
    """Have the first process of a node tell what all of them find wrong before they know of each other.

    torchrun numbers a node's processes in LOCAL_RANK.
    Source: https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables
    """
    try:
        yield
    except ReportedElsewhere:
        raise
    except DevkitError as error:
        if os.environ.get("LOCAL_RANK", "0") == "0":
            raise
        raise ReportedByLocalRank0(error.message, error.hint) from None


# How this process is set up before libraries start: quiet, and no larger than what it was given.


def configure_libraries() -> None:
    """Choose what libraries read when they start. Whatever the user set stays. Call it before torch computes."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    if "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:
        # Passes of differing length otherwise leave holes that none of them fits into.
        # https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf
        os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    for name in ("bitsandbytes", "transformers", "torchao"):
        logging.getLogger(name).setLevel(logging.ERROR)
    # They tell of what this program does on purpose, or says in words of its own.
    warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated")
    warnings.filterwarnings("ignore", message="MatMul8bitLt: inputs will be cast")
    warnings.filterwarnings("ignore", message="fan_in_fan_out is set to False but the target module is")
    warnings.filterwarnings("ignore", message="Paged optimizers are not supported on CPU")
    _set_up_torch()


def _set_up_torch() -> None:
    import torch
    from transformers.utils import logging as transformers_logging

    if "OMP_NUM_THREADS" not in os.environ:
        # torch counts the machine's processors, not those that a container may use.
        torch.set_num_threads(min(torch.get_num_threads(), count_usable_cpus()))
    transformers_logging.disable_progress_bar()


PREEMPTED_EXIT_CODE = 75
"""Exit code of a run that a signal ended after a checkpoint: EX_TEMPFAIL of sysexits.h, "try again later".

No shell, scheduler or container engine gives this code by itself, so that `podFailurePolicy.onExitCodes` of Kubernetes
and a Slurm script's `scontrol requeue` can tell it from a failure. torchrun turns every code into 1: behind it, and
wherever only success and failure count, `latest` beside `run.json` says how far the run got.
"""

INTERRUPTED_EXIT_CODE = 130
"""Exit code after Ctrl-C, as everywhere in devkit."""

_NAMES = ("SIGHUP", "SIGUSR1", "SIGTERM", "SIGINT")
STOP_SIGNALS = tuple(signal.Signals[name] for name in _NAMES if hasattr(signal, name))
"""Those that ask a run to stop, the stronger later: where processes got different ones, the last counts.

SIGHUP because a lost terminal or ssh connection sends it, and torchrun passes it on; under nohup it stays ignored.
"""


class StoppedBySignal(BaseException):
    """A signal came before the first step, when there is nothing to save. No library takes it for an error."""

    def __init__(self, number: int) -> None:
        self.signal = signal.Signals(number)
        super().__init__(self.signal.name)


@contextmanager
def raise_on_signal() -> Iterator[None]:
    """While it is entered, a signal raises Stopped wherever the program is.

    Reading texts and loading a model may take longer than whoever sent the signal waits.
    """

    def leave(number: int, _frame: FrameType | None) -> None:
        raise StoppedBySignal(number)

    before = {each: signal.signal(each, leave) for each in _heeded()}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _heeded() -> tuple[signal.Signals, ...]:
    """Ignored from the start means that somebody above decided so: nohup, or a shell for its background job."""
    return tuple(each for each in STOP_SIGNALS if signal.getsignal(each) is not signal.SIG_IGN)


class DeferredSignals:
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

    def agree_on_signal(self, ranks: "Ranks") -> signal.Signals | None:
        """The signal that any process of the run got; every process gets the same answer, and all must ask."""
        if self._launcher is not None and os.getppid() != self._launcher:
            # torchrun was killed: nobody would end this process, nor see how it ended.
            self._noted = max(self._noted, STOP_SIGNALS.index(signal.SIGTERM) + 1)
        strongest = int(ranks.largest(self._noted))
        return STOP_SIGNALS[strongest - 1] if strongest else None

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._noted = max(self._noted, STOP_SIGNALS.index(signal.Signals(number)) + 1)
        if number == signal.SIGINT:
            # The system's own way from here on: it ends the process also in the middle of a long kernel.
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def exit_code_for_signal(asked: signal.Signals) -> int:
    """How a run leaves that saved its state and ends because of `asked`."""
    return INTERRUPTED_EXIT_CODE if asked is signal.SIGINT else PREEMPTED_EXIT_CODE
