"""Child processes of verify: their output is read without blocking, and they are ended in any case."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Any, NoReturn, TypeVar

Progress = Callable[[str], None]
"""Prints one line about what is going on."""

MAX_LOG_LINES = 40
MAX_OUTPUT_LINES = 10_000
KILL_GRACE_S = 5.0
_STOP_GRACE_S = 15.0
_SLICE_S = 0.2
_POLL_S = 0.02

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class CompletedCommand:
    """A finished command: exit status (None after a timeout), its stdout, and the last lines of its stderr."""

    code: int | None
    out: str
    log: tuple[str, ...]

    @property
    def last_line(self) -> str:
        """The last line of its stderr that is not blank, else of its stdout."""
        lines = [line.strip() for line in (*self.out.splitlines()[-MAX_LOG_LINES:], *self.log) if line.strip()]
        return lines[-1] if lines else "it printed nothing"


def run_streaming(
    argv: Sequence[str],
    *,
    progress: Progress,
    timeout_s: float | None = None,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    inherited: Mapping[str, str] | None = None,
    shows_output: bool = False,
    is_canceled: Callable[[], bool] = bool,
) -> CompletedCommand:
    """Run a command, pass each line of its stderr to `progress` as it comes, and keep its stdout.

    `environment` is added to `inherited`, by default this process's own; `shows_output` passes the lines of its stdout to `progress`, too.
    However this call ends, the command is ended: first by SIGTERM, so that it can clean up, then by SIGKILL.
    """
    process = start_process(argv, folder, environment, inherited)
    out: deque[str] = deque(maxlen=MAX_OUTPUT_LINES)
    log: deque[str] = deque(maxlen=MAX_LOG_LINES)

    def take(line: str) -> None:
        log.append(line)
        progress(line)

    def take_output(line: str) -> None:
        out.append(line)
        if shows_output:
            progress(line)

    readers = (read_lines_in_background(process.stdout, take_output), read_lines_in_background(process.stderr, take))
    ends_at = None if timeout_s is None else time.monotonic() + timeout_s
    code = None
    try:
        while code is None and not is_canceled() and (ends_at is None or time.monotonic() < ends_at):
            # In slices, so that signals are handled on every platform.
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(_SLICE_S)
    finally:
        terminate_group(process)
        for reader in readers:
            reader.join(KILL_GRACE_S)
    return CompletedCommand(code, "\n".join(out), tuple(log))


def run_side_by_side(
    commands: Iterable[tuple[Key, Sequence[str], Path]], *, at_once: int, timeout_s: float, ends_at: float
) -> Iterator[tuple[Key, CompletedCommand]]:
    """Run commands, each with a key and in a folder, a few at once, and yield each when it has ended.

    None lives for more than `timeout_s` seconds, nor when the monotonic clock reads `ends_at`, nor when the caller stops.
    """
    waiting = deque(commands)
    running: dict[Key, _RunningCommand] = {}
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                key, argv, folder = waiting.popleft()
                running[key] = _RunningCommand(start_process(argv, folder), min(ends_at, time.monotonic() + timeout_s))
            time.sleep(_POLL_S)
            for key in [key for key, command in running.items() if command.has_ended()]:
                yield key, running.pop(key).finish()
    finally:
        for command in running.values():
            kill_group(command.process)


class _RunningCommand:
    """A process whose output is read in the background."""

    def __init__(self, process: subprocess.Popen[str], ends_at: float) -> None:
        self.process, self._ends_at = process, ends_at
        self._out: deque[str] = deque(maxlen=MAX_OUTPUT_LINES)
        self._log: deque[str] = deque(maxlen=MAX_LOG_LINES)
        streams = ((process.stdout, self._out), (process.stderr, self._log))
        self._readers = [read_lines_in_background(stream, lines.append) for stream, lines in streams]

    def has_ended(self) -> bool:
        return self.process.poll() is not None or time.monotonic() > self._ends_at

    def finish(self) -> CompletedCommand:
        code = self.process.poll()
        kill_group(self.process)
        for reader in self._readers:
            reader.join(KILL_GRACE_S)
        return CompletedCommand(code, "\n".join(self._out), tuple(self._log))


def start_process(
    argv: Sequence[str],
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    inherited: Mapping[str, str] | None = None,
) -> subprocess.Popen[str]:
    """Start a command as the leader of a new process group, without input, in `folder` if one is given.

    `environment` is added to `inherited`, by default this process's own. Raises OSError when it cannot be started.
    """
    return subprocess.Popen(
        list(argv),
        cwd=folder,
        env={**(os.environ if inherited is None else inherited), **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
        creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
    )


def read_lines_in_background(
    stream: IO[str] | None, take: Callable[[str], None], at_end: Callable[[], None] = lambda: None
) -> threading.Thread:
    """Pass a stream's lines to `take` in a thread, so that a full pipe never blocks the process that writes it."""

    def read() -> None:
        if stream is not None:
            with stream:
                for line in stream:
                    take(line.rstrip("\n"))
        at_end()

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return thread


def terminate_group(process: subprocess.Popen[Any]) -> None:
    """End a process and its group: SIGTERM with time to clean up, then SIGKILL for what is left."""
    if process.poll() is None:
        _signal_group(process, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_GRACE_S)
    kill_group(process)


def kill_group(process: subprocess.Popen[Any]) -> bool:
    """Send SIGKILL to a process and its group. Returns False when it survives: a hung driver holds it in the kernel."""
    _signal_group(process, getattr(signal, "SIGKILL", signal.SIGTERM))
    try:
        process.wait(KILL_GRACE_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def _signal_group(process: subprocess.Popen[Any], number: signal.Signals) -> None:
    if sys.platform == "win32":
        process.kill()
        return
    try:
        os.killpg(process.pid, number)
    except (ProcessLookupError, PermissionError):
        return


@contextmanager
def interrupt_on_termination() -> Iterator[None]:
    """Let SIGTERM and a closed terminal end devkit as Ctrl-C does: after cleaning up, with exit code 130."""

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    # One that is ignored, as nohup does, stays ignored.
    previous = {
        number: signal.signal(number, interrupt) for number in numbers if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
