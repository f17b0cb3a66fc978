"""The exit code of a run where the launcher above it would lose it. Importable without torch."""

import contextlib
import os

EXIT_FILE = "DEVKIT_EXIT_FILE"
"""The variable that names a file of this machine: each process of a run adds a line to it, its exit code.

torchrun leaves with 1 whatever its processes' codes are. Whoever started torchrun reads here whether they were
preempted (75) or failed; `devkit export` writes commands that do.
"""


def leave_word(code: int) -> None:
    """Write the code down where somebody asked for it. What cannot be written is only not known there."""
    path = os.environ.get(EXIT_FILE)
    if not path:
        return
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(descriptor, f"{code}\n".encode())
        finally:
            os.close(descriptor)
