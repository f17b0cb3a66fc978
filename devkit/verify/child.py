"""The proof's child process: its events, its end, and its certain death at the deadline."""

import json
import queue
import signal
import subprocess
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from devkit.verify.process import KILL_GRACE_S, LOG_LINES, kill_group, read_lines, start

_SLICE_S = 0.1
_LAST_WORDS_S = 3.0


@dataclass(frozen=True)
class ChildEnd:
    """How the process ended. `code` is its exit status, negative for a signal; `log` the last lines of its stderr."""

    code: int
    timed_out: bool
    log: tuple[str, ...]

    @property
    def words(self) -> str:
        """The end in words: "the process was ended by SIGSEGV"."""
        if self.timed_out:
            return "the time ran out and the process was killed"
        if self.code < 0:
            return f"the process was ended by {_signal_name(-self.code)}"
        return f"the process ended with exit status {self.code}"


def _signal_name(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
    return f"{name}, most often because memory ran out" if name == "SIGKILL" else name


class ProofChild:
    """A running proof, as a context: leaving it, by whatever way, kills the whole process group."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._process = start(argv)
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._log: deque[str] = deque(maxlen=LOG_LINES)
        self._timed_out = False
        self._output = read_lines(self._process.stdout, self._lines.put, at_end=lambda: self._lines.put(None))
        self._errors = read_lines(self._process.stderr, self._log.append)

    def __enter__(self) -> "ProofChild":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        kill_group(self._process)

    def events(self, *, ends_at: float) -> Iterator[dict[str, Any]]:
        """Events until the process ends or the monotonic clock reads `ends_at`. Other output is passed over."""
        reads_until = ends_at
        while (left_s := reads_until - time.monotonic()) > 0:
            try:
                line = self._lines.get(timeout=min(_SLICE_S, left_s))
            except queue.Empty:
                if self._process.poll() is not None and reads_until == ends_at:
                    # Its last words may still lie in the pipe; but what it leaves behind may hold that open.
                    kill_group(self._process)
                    reads_until = min(ends_at, time.monotonic() + _LAST_WORDS_S)
                continue
            if line is None:
                return
            if (event := _event(line)) is not None:
                yield event
        self._timed_out = self._process.poll() is None

    def end(self, *, ends_at: float) -> ChildEnd:
        """Wait for the process, at most to `ends_at`, then kill what is left of its group."""
        if not self._timed_out:
            try:
                self._process.wait(max(0.0, ends_at - time.monotonic()))
            except subprocess.TimeoutExpired:
                self._timed_out = True
        died = kill_group(self._process)
        self._errors.join(KILL_GRACE_S)
        log = tuple(self._log)
        if not died:
            log = (*log, "the process did not die of SIGKILL: the driver holds it in the kernel")
        return ChildEnd(self._process.returncode if died else 0, self._timed_out, log)


def _event(line: str) -> dict[str, Any] | None:
    if not line.startswith("{"):
        return None
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and "event" in event else None
