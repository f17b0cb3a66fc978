"""The programs of devkit's own that probes run as child processes."""

import signal
from pathlib import Path
from typing import Any

from devkit.probe.host import Done, Host
from devkit.probe.shapes import json_of

FOLDER = Path(__file__).parent
MOST_WORDS = 300
"""Characters of a program's own words that a reason repeats."""


def asking(host: Host, program: str, *arguments: str) -> list[str]:
    """The command line that runs `devkit/probe/<program>.py`.

    By path, so that it works from a bare checkout too; with `-P`, so that neither the current directory, which may be
    anybody's project, nor this folder, whose `docker.py` would hide the SDK, stands on the module path.
    """
    return [host.python, "-P", str(FOLDER / f"{program}.py"), *arguments]


def lines_of(done: Done) -> tuple[dict[str, Any], ...]:
    """The JSON objects that a child printed, one a line. A line that was cut off, or is not its own, is left out."""
    return tuple(words for line in done.out.splitlines() if (words := _parsed(line)))


def _parsed(line: str) -> dict[str, Any]:
    try:
        words = json_of(line)
    except ValueError:
        return {}  # cut off: the child was killed while it wrote this line
    return words if isinstance(words, dict) else {}


def signal_number(code: int) -> int:
    """The signal behind an exit status: -11 from the system, 139 through a shell; 0 when it was none."""
    if code < 0:
        return -code
    return code - 128 if 128 < code < 160 else 0


def crash_number(code: int) -> int:
    """The signal with which a program's own fault ended it, else 0: the others come from outside, or from no memory."""
    number = signal_number(code)
    return 0 if number in (signal.SIGINT, signal.SIGTERM, _KILLED) else number


_KILLED = 9
"""SIGKILL, which `signal` does not name on Windows."""


def signal_name(number: int) -> str:
    """SIGSEGV for 11."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def last_line(done: Done) -> str:
    """The last thing a child said, for want of anything better."""
    lines = (done.err.strip() or done.out.strip()).splitlines()
    return lines[-1][:MOST_WORDS] if lines else "no output"
