"""What travels from the data to the training step."""

import heapq
import random
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import TypeAlias

import torch

from devkit.errors import DevkitError
from devkit.text import format_count
from devkit.workload.finetune.decisions import BatchLayout as BatchLayout

IGNORE_INDEX = -100
"""The label whose prediction is not counted: padding, prompts, and the first token after a text's border."""

PAD_ID = 0
"""The token id that padding holds. Any id would do: nothing attends to it, and no label asks for it."""


@dataclass(frozen=True)
class Example:
    """One text as token ids; `counted[i]` says whether predicting `ids[i]` from what stands before it is learned.

    The first token has nothing before it and is never counted, whatever `counted[0]` says.
    """

    ids: Sequence[int]
    counted: Sequence[int]

    @classmethod
    def compact(cls, ids: Iterable[int], counted: Iterable[int]) -> "Example":
        """The same in five bytes a token, where lists take sixteen and more: a data set of them stays in memory."""
        return cls(array("i", ids), array("b", counted))

    @cached_property
    def learned(self) -> int:
        """How many of its predictions are counted."""
        return sum(map(bool, self.counted[1:]))


@dataclass(frozen=True)
class BatchRow:
    """Texts laid end to end; one alone where nothing is packed. No token of one may see a token of another."""

    examples: tuple[Example, ...]

    @cached_property
    def tokens(self) -> int:
        """How many token ids the row holds, without padding."""
        return sum(len(each.ids) for each in self.examples)

    @property
    def learned(self) -> int:
        """How many of its predictions are counted."""
        return sum(each.learned for each in self.examples)


@dataclass(frozen=True)
class MicroBatch:
    """One forward pass. All tensors have shape [rows, tokens] and lie on the CPU.

    `labels[r, t]` is the token that position t must predict, already shifted by one; IGNORED where none is counted.
    `positions` start again at 0 with each text, and with the padding behind the last text of a row.
    `borders` are the cumulative lengths of the texts, [texts + 1], int32, in the layout FLAT; None otherwise.
    `mask` (1 for a token, 0 for padding) stands in the layout PADDED; None otherwise.
    `counted` and `tokens` leave padding out.
    """

    ids: torch.Tensor
    labels: torch.Tensor
    positions: torch.Tensor
    borders: torch.Tensor | None
    mask: torch.Tensor | None
    counted: int
    tokens: int


def move_to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """`tensor`, of a batch, on `device`.

    To a GPU by way of pinned memory: a copy from any other would first wait for all that the GPU has still to do.
    Source: https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html
    """
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)


def collate(rows: Sequence[BatchRow], layout: BatchLayout) -> MicroBatch:
    """One micro-batch of these rows. Without rows it holds one padding token, which counts for nothing.

    A process whose share of a step is empty needs such a batch: the others wait for its part of the exchange.
    """
    tokens = sum(row.tokens for row in rows)
    rows = rows or (BatchRow((Example((PAD_ID,), (0,)),)),)
    if layout is BatchLayout.PADDED and any(len(row.examples) > 1 for row in rows):
        raise ValueError("padded rows hold one text each; packed rows need the layout flat or blocks")
    counted = sum(row.learned for row in rows)
    borders = mask = None
    if layout is BatchLayout.FLAT:
        examples = [each for row in rows for each in row.examples]
        ids, labels, positions = (part.unsqueeze(0) for part in _end_to_end(examples))
        borders = torch.tensor([0, *accumulate(len(each.ids) for each in examples)], dtype=torch.int32)
    else:
        longest = max(row.tokens for row in rows)
        filled = [_filled(_end_to_end(row.examples), longest) for row in rows]
        ids, labels, positions = (torch.stack(parts) for parts in zip(*filled, strict=True))
        if layout is BatchLayout.PADDED:
            lengths = torch.tensor([row.tokens for row in rows])
            mask = (torch.arange(longest) < lengths.unsqueeze(1)).long()
    return MicroBatch(ids, labels, positions, borders, mask, counted=counted, tokens=tokens)


TokenTensors: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Ids, labels and positions, each of shape [tokens]."""


def _end_to_end(examples: Sequence[Example]) -> TokenTensors:
    ids = torch.cat([_column(each.ids, torch.int32) for each in examples]).long()
    counted = torch.cat([_column(each.counted, torch.int8) for each in examples]).bool()
    lengths = [len(each.ids) for each in examples]
    positions = torch.cat([torch.arange(length) for length in lengths])
    labels = torch.full_like(ids, IGNORE_INDEX)
    # A text's first token is no prediction: what stands before it belongs to another text.
    learned = counted[1:] & (positions[1:] > 0)
    labels[:-1] = torch.where(learned, ids[1:], IGNORE_INDEX)
    return ids, labels, positions


def _column(values: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    if isinstance(values, array | memoryview):
        return torch.frombuffer(values, dtype=dtype)
    return torch.tensor([int(each) for each in values], dtype=dtype)


def _filled(parts: TokenTensors, length: int) -> TokenTensors:
    ids, labels, positions = parts
    missing = length - len(ids)
    return (
        torch.nn.functional.pad(ids, (0, missing), value=PAD_ID),
        torch.nn.functional.pad(labels, (0, missing), value=IGNORE_INDEX),
        torch.cat([positions, torch.arange(missing)]),
    )


# Laying texts of differing length into rows of equal room. Importable without torch.


def pack_rows(lengths: Sequence[int], room: int) -> list[list[int]]:
    """Which texts share a row: indices into `lengths`, each exactly once, no row longer than `room`.

    Best fit decreasing: the longest text first, each into the fullest row that still has room for it, which never
    takes more than 11/9 of the fewest possible rows and four more. The same lengths always give the same rows.
    Source: Johnson, Demers, Ullman, Garey, Graham, "Worst-case performance bounds for simple one-dimensional packing
    algorithms", SIAM Journal on Computing 3 (1974). Raises ValueError where a text is empty or longer than `room`.
    """
    wrong = next((length for length in lengths if not 0 < length <= room), None)
    if wrong is not None:
        raise ValueError(f"a text of {wrong} tokens does not go into rows of {room}")
    rows: list[list[int]] = []
    with_space: list[list[int]] = [[] for _ in range(room + 1)]
    """The rows that still have so much room."""
    spaces = 0
    """Bit n is set where some row has room for exactly n more tokens: the best fit is one shift away."""
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        length = lengths[index]
        fitting = spaces >> length
        if fitting:
            space = length + (fitting & -fitting).bit_length() - 1
            row = with_space[space].pop()
            if not with_space[space]:
                spaces ^= 1 << space
        else:
            space, row = room, len(rows)
            rows.append([])
        rows[row].append(index)
        with_space[space - length].append(row)
        spaces |= 1 << (space - length)
    return rows


def packing_efficiency(*, tokens: int, rows: int, room: int) -> float:
    """Which share of the rows' room holds tokens, between 0 and 1."""
    return tokens / (rows * room) if rows else 0.0


# Which rows a step learns from, and which of them fall to which process. Importable without torch.
#
# Everything here is a function of the seed and the step: a resumed run needs no state but the step it had reached, and
# has nothing to skip over.


def steps_per_epoch(rows: int, batch: int) -> int:
    """Steps that pass over all rows once; the last may have fewer rows than `batch`."""
    return -(-rows // batch)


@lru_cache(maxsize=2)
def epoch_permutation(rows: int, *, seed: int, epoch: int) -> tuple[int, ...]:
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
    return epoch_permutation(rows, seed=seed, epoch=epoch)[within * batch : (within + 1) * batch]


def micro_batches_of_rank(lengths: Sequence[int], *, rank: int, world: int, micro_batch: int) -> list[list[int]]:
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


# The rows of a run, and what each process learns from in each step.


class BatchLoader:
    """Examples as rows, dealt to steps, processes and forward passes.

    The rows of a step depend on the seed and the step alone. How many processes share them, and in how many passes
    each works through its share, changes nothing but rounding, given that losses are divided by `counted(step)`.
    """

    def __init__(
        self,
        examples: Sequence[Example],
        *,
        batch: int,
        sequence: int,
        seed: int = 0,
        pack: bool = False,
        layout: BatchLayout = BatchLayout.PADDED,
    ) -> None:
        """`batch` is in rows, over all processes; `sequence` is the longest row in tokens."""
        if not examples:
            raise DevkitError("there is nothing to learn from: no example is left", "Give data with at least one text.")
        if pack and layout is BatchLayout.PADDED:
            raise ValueError("packed rows need the layout flat or blocks")
        self.batch = batch
        self.sequence = sequence
        self.seed = seed
        self.layout = layout
        self.packs = pack
        self.texts = len(examples)
        if pack:
            shared = pack_rows([len(each.ids) for each in examples], sequence)
            self.rows = [BatchRow(tuple(examples[index] for index in row)) for row in shared]
        else:
            self.rows = [BatchRow((each,)) for each in examples]
        self._ready: tuple[tuple[int, int, int, int], list[MicroBatch]] | None = None
        self.tokens = sum(row.tokens for row in self.rows)

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps that pass over all rows once."""
        return steps_per_epoch(len(self.rows), self.batch)

    @property
    def efficiency(self) -> float:
        """Which share of `sequence` tokens a row fills, on average."""
        return packing_efficiency(tokens=self.tokens, rows=len(self.rows), room=self.sequence)

    @property
    def notes(self) -> list[str]:
        """What a person should know of the rows before the run: how full, and whether the last step is smaller."""
        notes = []
        if self.packs:
            notes.append(
                f"packed {format_count(self.texts, 'text')} into {format_count(len(self.rows), 'row')} of at most "
                f"{self.sequence} tokens, {self.efficiency:.1%} full"
            )
        rest = len(self.rows) % self.batch
        if len(self.rows) < self.batch:
            shown = format_count(len(self.rows), "row")
            notes.append(f"each step learns from {shown} instead of {self.batch}: the data makes no more")
        elif rest:
            shown = format_count(rest, "row")
            notes.append(f"the last step of each epoch learns from {shown} instead of {self.batch}: no row is left out")
        return notes

    def step(self, step: int, *, rank: int = 0, world: int = 1, micro_batch: int = 1) -> list[MicroBatch]:
        """What process `rank` of `world` learns from in step `step`, counted from 0, pass by pass.

        All processes get equally many passes of at most `micro_batch` rows; one without rows holds a padding token.
        """
        place = (step, rank, world, micro_batch)
        ready, self._ready = self._ready, None
        return ready[1] if ready is not None and ready[0] == place else self._step(*place)

    def prefetch(self, step: int, *, rank: int = 0, world: int = 1, micro_batch: int = 1) -> None:
        """Make a step's batches now, to be handed out when `step` is asked for them next."""
        place = (step, rank, world, micro_batch)
        self._ready = (place, self._step(*place))

    def _step(self, step: int, rank: int, world: int, micro_batch: int) -> list[MicroBatch]:
        rows = self._rows_of(step)
        shares = micro_batches_of_rank([row.tokens for row in rows], rank=rank, world=world, micro_batch=micro_batch)
        return [collate([rows[index] for index in share], self.layout) for share in shares]

    def counted(self, step: int) -> int:
        """How many predictions step `step` learns from, over all processes: what its summed loss is divided by."""
        return sum(row.learned for row in self._rows_of(step))

    def build_largest_batch(self, micro_batch: int) -> MicroBatch:
        """A pass as large as any of `micro_batch` rows that can come up, with a prediction counted at every place."""
        longest = heapq.nlargest(micro_batch, self.rows, key=lambda row: row.tokens)
        batch = collate(longest, self.layout)
        return replace(batch, labels=batch.ids.clone(), counted=batch.ids.numel())

    def _rows_of(self, step: int) -> list[BatchRow]:
        chosen = rows_of_step(step, rows=len(self.rows), batch=self.batch, seed=self.seed)
        return [self.rows[index] for index in chosen]
