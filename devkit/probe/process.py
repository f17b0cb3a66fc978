"""Run a program without ever being held up by it."""

import atexit
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import IO

from devkit.facts.record import record

NOT_FOUND = 127
NOT_EXECUTABLE = 126
TIMED_OUT = 124
CALL_DEADLINE_S = 5.0

MOST_OUTPUT_BYTES = 4 << 20
"""What is kept of each stream; a program that prints more is still drained, so that it does not block."""

_SYSTEM_PATH = ("/usr/local/sbin", "/usr/sbin", "/sbin")
_SLICE_S = 0.05
_GRACE_S = 0.1
_LONGEST_START_S = 2.0


@record
class Done:
    """A finished command: its exit status and what it printed. 127 is "no such program", 124 "took too long"."""

    code: int
    out: str
    err: str


class _Tap(threading.Thread):
    """Empties one stream in the background and keeps its beginning."""

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__(daemon=True)
        self._stream = stream
        self._kept = bytearray()
        self.start()

    def run(self) -> None:
        with self._stream:
            while chunk := self._stream.read(65536):
                room = MOST_OUTPUT_BYTES - len(self._kept)
                self._kept += chunk[: max(0, room)]

    def text(self) -> str:
        """What has come so far, as text with plain line ends."""
        return bytes(self._kept).decode(errors="replace").replace("\r\n", "\n")


def run_program(argv: Sequence[str], *, deadline_s: float) -> Done:
    """Run `argv` without a shell, in the C locale and its own process group, for at most `deadline_s` seconds.

    At the deadline the group gets SIGKILL and the call returns what was printed so far, with code 124. A child that
    cannot die, because a wedged driver holds it in the kernel, is left to a background thread. Ctrl-C kills it too.
    A negative code is the signal that ended the program.
    """
    try:
        process = _started(argv)
    except (FileNotFoundError, NotADirectoryError) as error:
        return Done(NOT_FOUND, "", str(error))
    except OSError as error:
        return Done(NOT_EXECUTABLE, "", str(error))
    taps = tuple(_Tap(stream) for stream in (process.stdout, process.stderr) if stream is not None)
    try:
        ended = _wait(process, taps, ends_at=time.monotonic() + deadline_s)
    except BaseException:
        _kill_group(process)
        raise
    if ended:
        _LIVE.discard(process)
    code = process.returncode if ended else TIMED_OUT
    _end_group(process, taps, ended=ended)
    out, err = (tap.text() for tap in taps)
    return Done(code, out, err)


def _started(argv: Sequence[str]) -> subprocess.Popen[bytes]:
    """The program, started and noted. Raises OSError when it cannot be, and when this process is leaving."""
    with _STARTING:
        if _ENDING.is_set():
            raise InterruptedError("this process is leaving")
        process = _start(argv)
        _LIVE.add(process)
    return process


def _start(argv: Sequence[str]) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "LC_ALL": "C", "LANGUAGE": "C"}
    flags = 0
    if sys.platform == "win32":
        flags = subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW
    else:
        # Users' PATH often lacks the system directories where modinfo, ldconfig and dkms live.
        environment["PATH"] = os.pathsep.join((environment.get("PATH", os.defpath), *_SYSTEM_PATH))
    return subprocess.Popen(
        list(argv),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        env=environment,
        start_new_session=True,
        creationflags=flags,
    )


def _wait(process: subprocess.Popen[bytes], taps: tuple[_Tap, ...], *, ends_at: float) -> bool:
    """Whether the program ended in time. Streams end with it, unless it left a child behind that holds them."""
    for tap in taps:
        while tap.is_alive() and (left_s := ends_at - time.monotonic()) > 0 and process.poll() is None:
            tap.join(min(_SLICE_S, left_s))
    try:
        process.wait(max(0.0, ends_at - time.monotonic()))
    except subprocess.TimeoutExpired:
        return False
    return True


def _end_group(process: subprocess.Popen[bytes], taps: tuple[_Tap, ...], *, ended: bool) -> None:
    """Collect what is still in the streams, and kill whoever is left in the group; within `_GRACE_S` or so."""
    if ended:
        _join(taps)
    if not ended or any(tap.is_alive() for tap in taps):
        _kill_group(process)
        _join(taps)
    if ended:
        return
    try:
        process.wait(_GRACE_S / 2)
    except subprocess.TimeoutExpired:
        threading.Thread(target=process.wait, daemon=True).start()
    else:
        _LIVE.discard(process)


def _join(taps: tuple[_Tap, ...]) -> None:
    ends_at = time.monotonic() + _GRACE_S
    for tap in taps:
        tap.join(max(0.0, ends_at - time.monotonic()))


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    if sys.platform == "win32":
        process.kill()
        return
    import signal

    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return  # nobody is left in the group


_LIVE: set[subprocess.Popen[bytes]] = set()
_ENDING = threading.Event()
"""Set when this process leaves: a probe's thread may still start its next program at that moment."""

_STARTING = threading.Lock()
"""Held while a program starts and is noted, so that none is alive and not in `_LIVE` when they are killed."""


@atexit.register
def _kill_live() -> None:
    # Children have their own session, so Ctrl-C at the terminal does not reach them.
    _ENDING.set()
    # A start that the kernel holds up must not hold up the exit, too; a busy machine takes a while for any.
    _STARTING.acquire(timeout=_LONGEST_START_S)
    for process in list(_LIVE):
        _kill_group(process)
