"""Child processes of verify: their output is read without blocking, and they are ended in any case."""

import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Any, NoReturn

from devkit.workload.finetune.process import STOP_SIGNALS, handle_signals

Progress = Callable[[str], None]
"""Prints one line about what is going on."""

MAX_LOG_LINES = 40
MAX_OUTPUT_LINES = 10_000
KILL_GRACE_S = 5.0
_SLICE_S = 0.2


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
    However this call ends, the command and its process group are ended: first by SIGTERM, so that it can clean up for
    `grace_s` seconds, then by SIGKILL. Raises OSError when it cannot be started.
    """
    process = subprocess.Popen(
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
    log, out = deque[str](maxlen=MAX_LOG_LINES), deque[str](maxlen=MAX_OUTPUT_LINES)
    # Read in the background, so that a full pipe never blocks the command.
    streams = ((process.stderr, log, progress), (process.stdout, out, on_output))
    readers = [threading.Thread(target=_read_lines, args=each, daemon=True) for each in streams]
    for reader in readers:
        reader.start()
    ends_at = time.monotonic() + (math.inf if timeout_s is None else timeout_s)
    code = None
    try:
        while code is None and not is_canceled() and time.monotonic() < ends_at:
            # In slices, so that signals are handled on every platform.
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(_SLICE_S)
    finally:
        if grace_s and process.poll() is None:
            _signal_group(process, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(grace_s)
        _signal_group(process, getattr(signal, "SIGKILL", signal.SIGTERM))
        with suppress(subprocess.TimeoutExpired):
            process.wait(KILL_GRACE_S)
        for reader in readers:
            reader.join(KILL_GRACE_S)
    if process.returncode is None:
        log.append("SIGKILL did not end the process: the driver holds it in the kernel")
    return CompletedCommand(code, "\n".join(out), tuple(log))


def _read_lines(stream: IO[str], lines: deque[str], listener: Progress | None) -> None:
    with stream:
        for line in stream:
            lines.append(line.rstrip("\n"))
            if listener:
                listener(lines[-1])


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

    with handle_signals(interrupt, [each for each in STOP_SIGNALS if each.name in ("SIGTERM", "SIGHUP")]):
        yield
