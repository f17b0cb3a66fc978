"""One run at a time in an output folder: two would take turns at overwriting each other's checkpoints."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from devkit.errors import DevkitError
from devkit.workload.finetune.ranks import Ranks


@contextmanager
def claimed(output: Path, ranks: Ranks) -> Iterator[None]:
    """Keep other runs out of `output`, which exists. The system lets go of it however this process ends.

    Raises DevkitError in all processes when another run is in there.
    """
    held = ranks.shared(lambda: _lock(output))
    try:
        yield
    finally:
        if held is not None and ranks.is_first:
            os.close(held)


def _lock(output: Path) -> int | None:
    """The descriptor that holds the lock; None where the system or the file system knows none."""
    if os.name != "posix":
        return None
    import fcntl

    descriptor = os.open(output, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise DevkitError(
            f"another run is training into {output}",
            "Wait for it or end it. Several processes of one run are started by torchrun: srun and mpirun alone start "
            "as many runs.",
        ) from None
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
