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
from itertools import zip_longest
from pathlib import Path
from types import FrameType
from typing import IO, Any, NoReturn, TypeVar

Progress = Callable[[str], None]
"""Prints one line about what is going on."""

MAX_LOG_LINES = 40
MAX_OUTPUT_LINES = 10_000
KILL_GRACE_S = 5.0
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
    progress: Progress | None = None,
    timeout_s: float | None = None,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    inherited: Mapping[str, str] | None = None,
    on_output: Progress | None = None,
    grace_s: float = 15.0,
    is_canceled: Callable[[], bool] = bool,
) -> CompletedCommand:
    """Run a command, pass each line of its stderr to `progress` as it comes, and keep its stdout.

    `environment` is added to `inherited`, by default this process's own; `on_output` gets the lines of its stdout.
    However this call ends, the command is ended: first by SIGTERM, so that it can clean up for `grace_s` seconds, then by
    SIGKILL.
    """
    running = _RunningCommand(start_process(argv, folder, environment, inherited), progress, on_output)
    process = running.process
    ends_at = None if timeout_s is None else time.monotonic() + timeout_s
    code = None
    try:
        while code is None and not is_canceled() and (ends_at is None or time.monotonic() < ends_at):
            # In slices, so that signals are handled on every platform.
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(_SLICE_S)
    finally:
        if grace_s and process.poll() is None:
            _signal_group(process, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(grace_s)
        done = running.finish(code)
    return done


def run_side_by_side(
    commands: Iterable[tuple[Key, Sequence[str], Path]], *, at_once: int, timeout_s: float, ends_at: float
) -> Iterator[tuple[Key, CompletedCommand]]:
    """Run commands, each with a key and in a folder, a few at once, and yield each when it has ended.

    None lives for more than `timeout_s` seconds, nor when the monotonic clock reads `ends_at`, nor when the caller stops.
    """
    waiting = deque(commands)
    running: dict[Key, tuple[_RunningCommand, float]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                key, argv, folder = waiting.popleft()
                command = _RunningCommand(start_process(argv, folder))
                running[key] = command, min(ends_at, time.monotonic() + timeout_s)
            time.sleep(_POLL_S)
            for key, (command, until) in list(running.items()):
                if command.process.poll() is not None or time.monotonic() > until:
                    del running[key]
                    yield key, command.finish(command.process.poll())
    finally:
        for command, _ in running.values():
            kill_group(command.process)


class _RunningCommand:
    """A process whose output is read in the background, so that a full pipe never blocks it."""

    def __init__(self, process: subprocess.Popen[str], *listeners: Progress | None) -> None:
        """`listeners` get the lines of its stderr, and of its stdout."""
        self.process = process
        self._log: deque[str] = deque(maxlen=MAX_LOG_LINES)
        self._out: deque[str] = deque(maxlen=MAX_OUTPUT_LINES)
        streams = ((process.stderr, self._log), (process.stdout, self._out))
        self._readers = [
            threading.Thread(target=_read_lines, args=(stream, lines, listener), daemon=True)
            for (stream, lines), listener in zip_longest(streams, listeners)
        ]
        for reader in self._readers:
            reader.start()

    def finish(self, code: int | None) -> CompletedCommand:
        """Kill what is left of the process and its group, and return the rest."""
        died = kill_group(self.process)
        for reader in self._readers:
            reader.join(KILL_GRACE_S)
        late = () if died else ("SIGKILL did not end the process: the driver holds it in the kernel",)
        return CompletedCommand(code, "\n".join(self._out), (*self._log, *late))


def _read_lines(stream: IO[str], lines: deque[str], listener: Progress | None) -> None:
    with stream:
        for line in stream:
            lines.append(line.rstrip("\n"))
            if listener:
                listener(lines[-1])


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
