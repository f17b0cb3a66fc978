"""Which rows a step learns from, and which of them fall to which process. Importable without torch.

Everything here is a function of the seed and the step: a resumed run needs no state but the step it had reached, and
has nothing to skip over.
"""

import random
from collections.abc import Sequence
from functools import lru_cache


def steps_per_epoch(rows: int, batch: int) -> int:
    """Steps that pass over all rows once; the last may have fewer rows than `batch`."""
    return -(-rows // batch)


@lru_cache(maxsize=2)
def order(rows: int, *, seed: int, epoch: int) -> tuple[int, ...]:
    """All rows in the order of this epoch.

    Sorted by random keys, because Python promises the numbers of `random()` from one release to the next, and of no
    other method. Source: https://docs.python.org/3/library/random.html#notes-on-reproducibility
    """
    source = random.Random(f"devkit rows, seed {seed}, epoch {epoch}")  # noqa: S311 - an order, not a secret
    keys = [source.random() for _ in range(rows)]
    return tuple(sorted(range(rows), key=keys.__getitem__))


def rows_of_step(step: int, *, rows: int, batch: int, seed: int) -> tuple[int, ...]:
    """The rows that step `step`, counted from 0, learns from."""
    epoch, within = divmod(step, steps_per_epoch(rows, batch))
    return order(rows, seed=seed, epoch=epoch)[within * batch : (within + 1) * batch]


def dealt(lengths: Sequence[int], *, rank: int, world: int, micro_batch: int) -> list[list[int]]:
    """The share of process `rank`, as indices into `lengths` by forward pass; a pass may be empty.

    Every process gets equally many passes, as an exchange between them demands. Rows of like length go together, so
    that little is padded; longest first, so that memory is asked for once; and the processes take turns at the longest.
    """
    longest_first = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    passes = max(1, -(-len(lengths) // (world * micro_batch)))
    share, longer = divmod(len(lengths), passes * world)
    first_longer = passes * world - longer
    """The passes from here on take one row more: their rows are the shorter ones."""
    mine = []
    start = 0
    for slot in range(passes * world):
        size = share + (slot >= first_longer)
        turn, place = divmod(slot, world)
        if rank == (place if turn % 2 == 0 else world - 1 - place):
            mine.append(longest_first[start : start + size])
        start += size
    return mine
