"""Keep a workspace until it has been idle for a while: `devkit launch --idle SECONDS [COMMAND …]`. Linux only.

Work is time of a processor, or input and output of a terminal. A process that waits is none: an editor that somebody left
open does not keep a GPU.
"""

import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from devkit.workload.launch import PREEMPTED_EXIT_CODE

BUSY_SHARE = 0.05
"""The share of one core from which on processes work. Editors that wait take about a hundredth."""
CHECK_S = 60.0
_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)


class Activity:
    """Work of this user's processes and terminals since it was last read."""

    def __init__(self) -> None:
        self._ticks, self._read_at = _read_ticks(), time.time()

    def is_busy(self) -> bool:
        """Read it anew."""
        before, since = self._ticks, self._read_at
        self._ticks, self._read_at = _read_ticks(), time.time()
        worked = sum(max(0, ticks - before.get(pid, 0)) for pid, ticks in self._ticks.items())
        share = worked / os.sysconf("SC_CLK_TCK") / max(0.01, self._read_at - since)
        return share >= BUSY_SHARE or _find_last_input() >= since


def keep_until_idle(limit_s: float, command: Sequence[str] = ()) -> int:
    """Run the command, or wait as process 1 for those who enter. Returns 0 after `limit_s` without work.

    A request to stop ends it with 75, so that a scheduler starts the workspace elsewhere.
    """
    # An interactive shell ignores SIGTERM, and the keyboard's interrupt is for what runs in it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    child = 0
    if command:
        child = os.posix_spawnp(command[0], list(command), os.environ, setsigmask=[], setsigdef=[signal.SIGINT])
    step_s = min(CHECK_S, limit_s / 4)
    activity, worked_at, checked_at = Activity(), time.monotonic(), time.monotonic()
    while True:
        found = signal.sigtimedwait(_SIGNALS, step_s)
        if found is not None and found.si_signo != signal.SIGCHLD:
            _hang_up(child)
            return PREEMPTED_EXIT_CODE
        ended = _reap(child)
        if ended is not None:
            return ended
        now = time.monotonic()
        if now - checked_at < step_s:
            continue
        checked_at = now
        if activity.is_busy():
            worked_at = now
        elif now - worked_at >= limit_s:
            sys.stderr.write(f"devkit: idle for {limit_s:.0f} s: the workspace ends\n")
            _hang_up(child)
            return 0


def _read_ticks() -> dict[int, int]:
    """Return the processor time of each of this user's other processes, with that of their ended children."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        if int(process.name) == os.getpid():
            continue
        try:
            if process.stat().st_uid == os.getuid():
                # Fields 14 to 17, counted after the name, which may hold spaces.
                fields = (process / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
                found[int(process.name)] = sum(map(int, fields[11:15]))
        except OSError:
            continue
    return found


def _find_last_input() -> float:
    """Return when a terminal of this user was last typed at or written to."""
    try:
        terminals = [each.stat() for each in os.scandir("/dev/pts")]
    except OSError:
        return 0.0
    return max((max(each.st_atime, each.st_mtime) for each in terminals if each.st_uid == os.getuid()), default=0.0)


def _reap(child: int) -> int | None:
    """Reap what has ended: process 1 inherits orphans. Returns the exit code of the command once it has ended."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return None
        if not pid:
            return None
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _hang_up(child: int) -> None:
    if child:
        os.kill(child, signal.SIGHUP)
