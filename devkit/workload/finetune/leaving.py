"""How processes of one run leave: with their exit code kept, and one word for all. Importable without torch."""

import contextlib
import os
import time
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


LAUNCHED = "TORCHELASTIC_RUN_ID"
"""What torchrun sets. It ends the other processes of a node when one of them has failed.
Source: https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables"""

LAST_WORD_S = 10.0
"""How long a process waits for the first of its node to tell what both find wrong."""


class ToldByAnother(DevkitError):  # noqa: N818 - no error of its own: another process tells it
    """What another process of the run tells: this one leaves with the same exit code and says nothing."""


class ToldByTheFirst(ToldByAnother):
    """What the first process of the node finds wrong as well, and tells: they do not know of each other yet."""


def give_way() -> None:
    """Where torchrun started this process, leave it to the first one of its node to tell what all of them find wrong.

    The first to leave has torchrun end the others. So whoever is not the first waits to be ended, with its code
    written down already. It comes back from here when the first is not heard of: it is to tell after all.
    """
    if LAUNCHED in os.environ and os.environ.get("LOCAL_RANK", "0") != "0":
        time.sleep(LAST_WORD_S)


def is_told(error: DevkitError) -> bool:
    """Whether another process tells `error`, so that this one leaves without a word."""
    if isinstance(error, ToldByTheFirst) and LAUNCHED in os.environ:
        give_way()
        return False
    return isinstance(error, ToldByAnother)


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
        raise ToldByTheFirst(error.message, error.hint) from None
