"""Child programs: their command lines, and the JSON lines that they print."""

import signal
from pathlib import Path
from typing import Any

from devkit.probe.documents import parse_object_or_empty
from devkit.probe.host import Host, ProgramResult

CHILDREN_FOLDER = Path(__file__).parent
MAX_OUTPUT_CHARACTERS = 300
"""Characters of a program's own words that a reason repeats."""

_KILLED = 9
"""SIGKILL, which `signal` does not name on Windows."""


def build_child_command(host: Host, program: str, *arguments: str) -> list[str]:
    """Build the command line that runs `devkit/probe/children/<program>.py`.

    By path, so that it works from a bare checkout too; with `-P`, so that neither the current directory, which may be
    anybody's project, nor this folder is on the module path.
    """
    return [host.python, "-P", str(CHILDREN_FOLDER / f"{program}.py"), *arguments]


def merge_json_lines(done: ProgramResult) -> dict[str, Any]:
    """Return the latest value of every key that a child printed."""
    return {key: value for line in parse_json_lines(done) for key, value in line.items()}


def find_crash_signal(code: int) -> int:
    """Return the signal of a crash, else 0: SIGINT, SIGTERM and SIGKILL come from outside, or from a lack of memory."""
    number = find_signal(code)
    return 0 if number in (signal.SIGINT, signal.SIGTERM, _KILLED) else number


def format_signal(number: int) -> str:
    """Format a signal's number as its name: SIGSEGV for 11."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def find_last_line(done: ProgramResult) -> str:
    """Return the last line that a child printed, on standard error if there is any."""
    lines = (done.err.strip() or done.out.strip()).splitlines()
    return lines[-1][:MAX_OUTPUT_CHARACTERS] if lines else "no output"


def parse_json_lines(done: ProgramResult) -> tuple[dict[str, Any], ...]:
    """Parse the JSON objects that a child printed, one per line. A truncated or foreign line is left out."""
    # A line is cut off where the child was killed while it wrote.
    return tuple(filter(None, map(parse_object_or_empty, done.out.splitlines())))


def find_signal(code: int) -> int:
    """Return the signal of an exit status: -11 from the system, 139 through a shell; 0 without a signal."""
    if code < 0:
        return -code
    return code - 128 if 128 < code < 160 else 0
