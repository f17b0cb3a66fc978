"""The proof's child process: its events, its end, and its certain death at the deadline."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any

LOG_LINES = 40
_SLICE_S = 0.1
_GRACE_S = 5.0


@dataclass(frozen=True)
class ChildEnd:
    """How the process ended. `code` is its exit status, negative for a signal; `log` the last lines of its stderr."""

    code: int
    timed_out: bool
    log: tuple[str, ...]

    @property
    def words(self) -> str:
        """The end in words: "ended by SIGSEGV", "exit status 3"."""
        if self.timed_out:
            return "the time ran out and the process was killed"
        if self.code < 0:
            return f"the process was ended by {_signal_name(-self.code)}"
        return f"the process ended with exit status {self.code}"


def _signal_name(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    return f"{name} (memory ran out, most often)" if number == 9 else name


class ProofChild:
    """A running proof, as a context: leaving it, by whatever way, kills the whole process group."""

    def __init__(self, argv: Sequence[str]) -> None:
        flags = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
        self._process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
            creationflags=flags,
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._log: deque[str] = deque(maxlen=LOG_LINES)
        self._timed_out = False
        self._readers = (
            _reader(self._process.stdout, self._lines.put, at_end=lambda: self._lines.put(None)),
            _reader(self._process.stderr, self._log.append),
        )

    def __enter__(self) -> "ProofChild":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def events(self, *, ends_at: float) -> Iterator[dict[str, Any]]:
        """Events until the process ends or the monotonic clock reads `ends_at`. Other output is passed over."""
        while (left_s := ends_at - time.monotonic()) > 0:
            try:
                line = self._lines.get(timeout=min(_SLICE_S, left_s))
            except queue.Empty:
                if self._process.poll() is not None and not self._readers[0].is_alive():
                    return
                continue
            if line is None:
                return
            if (event := _event(line)) is not None:
                yield event
        self._timed_out = True

    def end(self, *, ends_at: float) -> ChildEnd:
        """Wait for the process, at most to `ends_at`, then kill what is left of its group."""
        if not self._timed_out:
            try:
                self._process.wait(max(0.0, ends_at - time.monotonic()))
            except subprocess.TimeoutExpired:
                self._timed_out = True
        self.kill()
        self._readers[1].join(_GRACE_S)
        code = self._process.returncode if self._process.returncode is not None else 0
        return ChildEnd(code, self._timed_out, tuple(self._log))

    def kill(self) -> None:
        """SIGKILL to the group. One that a wedged driver holds in the kernel cannot die; it is left behind."""
        kill_group(self._process)
        try:
            self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self._log.append("the process did not die within 5 s of SIGKILL: the driver holds it in the kernel")


def kill_group(process: subprocess.Popen[Any]) -> None:
    """SIGKILL to a process that leads its own group, and to all in the group; quiet when all are gone."""
    if sys.platform == "win32":
        process.kill()
        return
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _reader(
    stream: IO[str] | None, take: Callable[[str], None], at_end: Callable[[], None] = lambda: None
) -> threading.Thread:
    def read() -> None:
        if stream is not None:
            for line in stream:
                take(line.rstrip("\n"))
        at_end()

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return thread


def _event(line: str) -> dict[str, Any] | None:
    if not line.startswith("{"):
        return None
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and "event" in event else None
