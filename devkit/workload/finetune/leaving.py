"""How processes of one run leave: with their exit code kept, and one word for all. Importable without torch."""

import contextlib
import os
from collections.abc import Iterator

from devkit.errors import DevkitError

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


class ToldByAnother(DevkitError):  # noqa: N818 - no error of its own: another process tells it
    """What another process of the run tells: this one leaves with the same exit code and says nothing."""


@contextlib.contextmanager
def told_once_a_node() -> Iterator[None]:
    """Have the first process of a node tell what all of them find wrong before they know of each other.

    torchrun numbers a node's processes in LOCAL_RANK.
    Source: https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables
    """
    try:
        yield
    except ToldByAnother:
        raise
    except DevkitError as error:
        if os.environ.get("LOCAL_RANK", "0") == "0":
            raise
        raise ToldByAnother(error.message, error.hint) from None
