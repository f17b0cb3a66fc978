"""Run a command as process 1 of a job: `devkit launch COMMAND …`, with its signals and exit code.

Process 1 gets no signal that it does not handle, so that a program started as one would not hear that it is to stop.
torchrun exits with 1 whatever its processes' exit codes are: the code is the one that they wrote (EXIT_FILE_VARIABLE).
POSIX only, and without an import that takes time: a signal before the handlers are set is lost.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from types import FrameType

EXIT_FILE_VARIABLE = "DEVKIT_EXIT_FILE"
"""The variable that names a file of this machine: each process of a run appends its exit code on a line."""

PREEMPTED_EXIT_CODE = 75
"""Exit code of a run that a signal ended after a checkpoint: EX_TEMPFAIL of sysexits.h, "try again later".

No shell, scheduler or container engine uses this code itself, so `podFailurePolicy.onExitCodes` of Kubernetes
and a Slurm script's `scontrol requeue` can distinguish it from a failure. torchrun turns every code into 1: behind it,
and wherever only success and failure count, `latest` beside `run.json` says how far the run got.
"""

LOST_EXIT_CODE = 69
"""Exit code of a run that lost one of its processes: EX_UNAVAILABLE of sysexits.h. Another attempt may well succeed."""

_NOT_EXECUTABLE = 126
_NOT_FOUND = 127
_SIGNALED = 128
_LAUNCHER = "torchrun"
TORCHRUN_VARIABLE = "TORCHELASTIC_RUN_ID"
"""A variable that torchrun sets. It ends the other processes of a node when one of them has failed.
Source: https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables"""


class _Child:
    """The command, and the signals on their way to it. `is_stopping` is true after a request to stop."""

    def __init__(self) -> None:
        self.pid = 0
        self.is_stopping = False
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            self._handle(number, self._stop)
        self._handle(signal.SIGINT, lambda *_: self.send(signal.SIGINT))

    def _handle(self, number: signal.Signals, handler: object) -> None:
        # An ignored signal stays ignored, as under nohup.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)  # type: ignore[arg-type] # of the right form

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        """Forward the first request to stop: schedulers signal each process themselves, and every signal ends a wait."""
        if not self.is_stopping:
            self.is_stopping = True
            self.send(signal.SIGTERM)

    def send(self, number: signal.Signals) -> None:
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def start(self, command: Sequence[str]) -> None:
        """Start it. Raises OSError for a command that cannot be started."""
        self.pid = os.posix_spawnp(command[0], list(command), os.environ)
        if self.is_stopping:
            self.send(signal.SIGTERM)

    def wait(self) -> int:
        """Return its exit code as a shell has it. Process 1 inherits orphans: they are reaped on the way."""
        while True:
            pid, status = os.waitpid(-1, 0)
            if pid == self.pid:
                self.pid = 0
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else _SIGNALED - code


def launch(command: Sequence[str]) -> int:
    """Run the command, and return the exit code of the job.

    torchrun's own code says nothing: where no process wrote one, all of them were killed. Two codes become 75, start
    again: a request to stop that came before the command was started, and one that ended torchrun before it could hear
    it. Nothing was lost by either. Below torchrun, the code is written down for the launcher above it.
    """
    child = _Child()
    if TORCHRUN_VARIABLE in os.environ:
        code = _run(child, command)
        write_exit_code(code)
        return code
    with _open_exit_file() as exit_file:
        if child.is_stopping:
            return PREEMPTED_EXIT_CODE
        code = _run(child, command)
        if not code:
            return 0
        if os.path.basename(command[0]) == _LAUNCHER:  # noqa: PTH119
            if child.is_stopping and code == _SIGNALED + signal.SIGTERM:
                code = PREEMPTED_EXIT_CODE
            elif exit_file:
                # A process that writes nothing was killed.
                code = LOST_EXIT_CODE
        return _read_first_failure(exit_file) or code


def write_exit_code(code: int) -> None:
    """Append `code` to the file that EXIT_FILE_VARIABLE names; a file that cannot be written is ignored."""
    path = os.environ.get(EXIT_FILE_VARIABLE)
    if not path:
        return
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(descriptor, f"{code}\n".encode())
        finally:
            os.close(descriptor)


def _run(child: _Child, command: Sequence[str]) -> int:
    try:
        child.start(command)
    except OSError as error:
        sys.stderr.write(f"devkit: {command[0]}: {error.strerror}\n")
        return _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE
    return child.wait()


@contextlib.contextmanager
def _open_exit_file() -> Iterator[str]:
    """Name the file for the exit codes of the processes to the command; "" where no folder takes it."""
    os.environ.pop(EXIT_FILE_VARIABLE, None)
    path = f"{os.environ.get('TMPDIR', '/tmp')}/devkit-exit-{os.urandom(8).hex()}"  # noqa: S108 - a new name each time
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))
    except OSError:
        yield ""
        return
    os.environ[EXIT_FILE_VARIABLE] = path
    try:
        yield path
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)  # noqa: PTH108


def _read_first_failure(path: str) -> int:
    """Return the first exit code in the file that is none of success; 0 without one."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:  # noqa: PTH123
            codes = [line.strip() for line in file]
    except OSError:
        return 0
    return next((int(code) for code in codes if code.isascii() and code.isdigit() and not code.startswith("0")), 0)
