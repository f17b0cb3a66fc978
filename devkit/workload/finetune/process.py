"""This process of a run: how it is set up, the signals that stop it, and the exit code it leaves with.

Importable without torch.
"""

import contextlib
import logging
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from types import FrameType
from typing import Self

from devkit.errors import DevkitError, ExitCode
from devkit.workload.launch import LOST_EXIT_CODE, PREEMPTED_EXIT_CODE, TORCHRUN_VARIABLE

STOP_SIGNALS = tuple(
    signal.Signals[name] for name in ("SIGHUP", "SIGUSR1", "SIGTERM", "SIGINT") if hasattr(signal, name)
)
"""Signals that stop a run, the stronger later: where ranks got different ones, the last one counts.

SIGHUP because a lost terminal or ssh connection sends it, and torchrun forwards it; under nohup it stays ignored.
"""


class RunOutcome(StrEnum):
    """The outcome of a run."""

    DONE = "done"
    INTERRUPTED = "interrupted"
    PREEMPTED = "preempted"
    NOT_FINITE = "not-finite"
    OUT_OF_MEMORY = "out-of-memory"

    @classmethod
    def from_signal(cls, number: signal.Signals) -> "RunOutcome":
        """Return the outcome of a run that a signal ends."""
        return cls.INTERRUPTED if number is signal.SIGINT else cls.PREEMPTED

    @property
    def exit_code(self) -> int:
        """The exit code that a run with this outcome leaves."""
        known = {"done": 0, "interrupted": ExitCode.INTERRUPTED, "preempted": PREEMPTED_EXIT_CODE}
        return known.get(self, ExitCode.ANSWER_IS_NO)


class _TimeIsUpError(BaseException):
    """The end of `limit_time`. Jinja takes an exception for a value that it cannot compute ahead, and computes it again."""


@contextlib.contextmanager
def limit_time(timeout_s: float) -> Iterator[None]:
    """Raise TimeoutError in the block after this many seconds, if the system has timers and only in the main thread."""
    # Windows has no such timer, and other threads get no signals: Ctrl-C ends those.
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(_number: int, _frame: FrameType | None) -> None:
        raise _TimeIsUpError

    previous = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, timeout_s)
    try:
        yield
    except _TimeIsUpError:
        raise TimeoutError(f"did not finish within {timeout_s:.0f} s") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def configure_libraries() -> None:
    """Set what libraries read when they start, unless the user has set it. Call it before torch computes."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    # Waiting threads spin for up to 17 ms by default, which on a machine that others use as well takes the processors
    # from the thread that they wait for: a step took ten times as long. libgomp reads it when torch is imported.
    # https://gcc.gnu.org/onlinedocs/libgomp/GOMP_005fSPINCOUNT.html
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    if "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:
        # Batches of differing length otherwise fragment the memory until none of them fits.
        # https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf
        os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    for name in ("bitsandbytes", "transformers", "torchao"):
        logging.getLogger(name).setLevel(logging.ERROR)
    # Warnings about what this program does on purpose, or reports in its own words.
    warnings.filterwarnings("ignore", message=r"`\w*gradient_checkpointing\w*` is deprecated")
    warnings.filterwarnings("ignore", message="MatMul8bitLt: inputs will be cast")
    warnings.filterwarnings("ignore", message="fan_in_fan_out is set to False but the target module is")
    warnings.filterwarnings("ignore", message="Paged optimizers are not supported on CPU")

    import torch
    from transformers.utils import logging as transformers_logging

    from devkit.workload.environment import count_usable_cpus

    if "OMP_NUM_THREADS" not in os.environ:
        # torch counts the machine's processors, not those that a container may use.
        torch.set_num_threads(min(torch.get_num_threads(), count_usable_cpus()))
    transformers_logging.disable_progress_bar()


class ReportedElsewhere(DevkitError):  # noqa: N818 - not a separate error: another rank reports it
    """An error that another rank reports: this one exits with the same code and prints nothing."""


class LostProcess(DevkitError):  # noqa: N818 - what happened
    """Another process of the run was lost: no setting is wrong, and the same command resumes."""

    exit_code = LOST_EXIT_CODE


class StoppedBySignal(BaseException):
    """A signal before the first step, when there is nothing to save. No library mistakes it for an error."""

    def __init__(self, number: int) -> None:
        self.signal = signal.Signals(number)
        super().__init__(self.signal.name)


@contextlib.contextmanager
def handle_signals(
    handler: Callable[[int, FrameType | None], None], numbers: Iterable[signal.Signals] = STOP_SIGNALS
) -> Iterator[None]:
    """Handle the signals within the block, but for one that is ignored, as under nohup and in a shell's background job."""
    handled = [each for each in numbers if signal.getsignal(each) is not signal.SIG_IGN]
    before = {each: signal.signal(each, handler) for each in handled}
    try:
        yield
    finally:
        for each, previous in before.items():
            signal.signal(each, previous)


@contextlib.contextmanager
def raise_on_signal() -> Iterator[None]:
    """Raise StoppedBySignal as soon as a signal arrives, wherever the program is.

    Reading data and loading a model may take longer than the sender of the signal waits.
    """

    def stop(number: int, _frame: FrameType | None) -> None:
        raise StoppedBySignal(number)

    with handle_signals(stop):
        yield


class DeferredSignals(contextlib.ExitStack):
    """A context in which signals are only recorded. A second Ctrl-C ends the process without a checkpoint.

    Processes that are forked meanwhile (data workers) inherit handlers that record and do nothing, so that a signal to
    the whole process group leaves them working for the step and the checkpoint that are still to come.
    """

    def __init__(self) -> None:
        super().__init__()
        self._strongest = 0
        self._launcher = os.getppid() if TORCHRUN_VARIABLE in os.environ else None

    def __enter__(self) -> Self:
        self.enter_context(handle_signals(self._record))
        return self

    def agree_on_signal(self, maximum: Callable[[float], float]) -> signal.Signals | None:
        """Return the strongest signal that any rank got, the same on every rank; all ranks must call.

        `maximum` is the maximum over all ranks, `Ranks.max`.
        """
        if self._launcher is not None and os.getppid() != self._launcher:
            # torchrun was killed: nothing would end this process, or see how it ended.
            self._strongest = max(self._strongest, STOP_SIGNALS.index(signal.SIGTERM) + 1)
        strongest = int(maximum(self._strongest))
        return STOP_SIGNALS[strongest - 1] if strongest else None

    def _record(self, number: int, _frame: FrameType | None) -> None:
        self._strongest = max(self._strongest, STOP_SIGNALS.index(signal.Signals(number)) + 1)
        if number == signal.SIGINT:
            # From here on the default action: it ends the process also in the middle of a long kernel.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
