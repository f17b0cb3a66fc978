"""Rows and micro-batches: packing, the order of rows, and what each rank trains on in each step.

Everything here is a function of the seed and the step: a resumed run needs no state of the data but its step, and has
nothing to skip.
"""

import heapq
import random
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import TypeAlias

import torch

from devkit.errors import DevkitError
from devkit.estimate.settings import Attention
from devkit.text import format_count

IGNORE_INDEX = -100
"""The label that the loss ignores: padding, prompts, and the first token after a text's border."""

PAD_ID = 0
"""The token id of padding. Any id would do: nothing attends to it, and no label predicts it."""


class BatchLayout(StrEnum):
    """The way in which rows become the tensors of a micro-batch.

    FLAT concatenates all texts to one row of any length, for attention that gets their borders: nothing is padded.
    BLOCKS keeps rows apart, for attention that finds the borders in the positions, and pads them to equal length.
    PADDED has one text a row, padded to equal length.
    """

    FLAT = "flat"
    BLOCKS = "blocks"
    PADDED = "padded"


def choose_layout(attention: Attention, *, pack: bool) -> BatchLayout:
    """Return the layout for this attention implementation."""
    if attention is Attention.VARLEN or (attention is Attention.FLASH and pack):
        return BatchLayout.FLAT
    return BatchLayout.BLOCKS if pack else BatchLayout.PADDED


@dataclass(frozen=True)
class Example:
    """A text as token ids; `loss_mask[i]` is 1 if the prediction of `ids[i]` from the tokens before it is trained on.

    The first token has nothing before it and never counts, whatever `loss_mask[0]` is.
    """

    ids: Sequence[int]
    loss_mask: Sequence[int]

    @classmethod
    def compact(cls, ids: Iterable[int], loss_mask: Iterable[int]) -> "Example":
        """Return the example in five bytes a token, where lists take sixteen and more: a data set stays in memory."""
        return cls(array("i", ids), array("b", loss_mask))

    @cached_property
    def target_count(self) -> int:
        """Number of predictions that are trained on."""
        return sum(map(bool, self.loss_mask[1:]))


@dataclass(frozen=True)
class BatchRow:
    """Texts that are packed into one row, or a single one. No token of one may attend to a token of another."""

    examples: tuple[Example, ...]

    @cached_property
    def token_count(self) -> int:
        """Number of token ids in the row, without padding."""
        return sum(len(each.ids) for each in self.examples)

    @property
    def target_count(self) -> int:
        """Number of predictions that are trained on."""
        return sum(each.target_count for each in self.examples)


@dataclass(frozen=True)
class MicroBatch:
    """The input of one forward pass. All tensors have shape [rows, tokens] and are on the CPU.

    `labels[r, t]` is the token that position t must predict, already shifted by one; IGNORE_INDEX if not trained on.
    `positions` start again at 0 with each text, and with the padding behind the last text of a row.
    `cu_seqlens` are the cumulative lengths of the texts, [texts + 1], int32, in the layout FLAT; None otherwise.
    `attention_mask` (1 for a token, 0 for padding) exists in the layout PADDED; None otherwise.
    `target_count` and `token_count` leave padding out.
    """

    ids: torch.Tensor
    labels: torch.Tensor
    positions: torch.Tensor
    cu_seqlens: torch.Tensor | None
    attention_mask: torch.Tensor | None
    target_count: int
    token_count: int


def move_to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Move a tensor of a batch to `device`; to a GPU through pinned memory.

    A copy from other memory would first wait for all work that is queued on the GPU.
    Source: https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html
    """
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)


def collate(rows: Sequence[BatchRow], layout: BatchLayout) -> MicroBatch:
    """Collate rows into one micro-batch. Without rows it holds one padding token, which counts for nothing.

    A rank whose part of a step is empty needs such a batch: the others wait for it in collectives.
    """
    token_count = sum(row.token_count for row in rows)
    rows = rows or (BatchRow((Example((PAD_ID,), (0,)),)),)
    if layout is BatchLayout.PADDED and any(len(row.examples) > 1 for row in rows):
        raise ValueError("padded rows hold one text each; packed rows need the layout flat or blocks")
    target_count = sum(row.target_count for row in rows)
    cu_seqlens = attention_mask = None
    if layout is BatchLayout.FLAT:
        examples = [each for row in rows for each in row.examples]
        ids, labels, positions = (part.unsqueeze(0) for part in _concatenate(examples))
        cu_seqlens = torch.tensor([0, *accumulate(len(each.ids) for each in examples)], dtype=torch.int32)
    else:
        longest = max(row.token_count for row in rows)
        padded = [_pad(_concatenate(row.examples), longest) for row in rows]
        ids, labels, positions = (torch.stack(parts) for parts in zip(*padded, strict=True))
        if layout is BatchLayout.PADDED:
            lengths = torch.tensor([row.token_count for row in rows])
            attention_mask = (torch.arange(longest) < lengths.unsqueeze(1)).long()
    return MicroBatch(ids, labels, positions, cu_seqlens, attention_mask, target_count, token_count)


TokenTensors: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Ids, labels and positions, each of shape [tokens]."""


def _concatenate(examples: Sequence[Example]) -> TokenTensors:
    ids = torch.cat([_as_tensor(each.ids, torch.int32) for each in examples]).long()
    loss_mask = torch.cat([_as_tensor(each.loss_mask, torch.int8) for each in examples]).bool()
    positions = torch.cat([torch.arange(len(each.ids)) for each in examples])
    labels = torch.full_like(ids, IGNORE_INDEX)
    # A text's first token is no prediction: the token before it belongs to another text.
    labels[:-1] = torch.where(loss_mask[1:] & (positions[1:] > 0), ids[1:], IGNORE_INDEX)
    return ids, labels, positions


def _as_tensor(values: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    if isinstance(values, array | memoryview):
        return torch.frombuffer(values, dtype=dtype)
    return torch.tensor([int(each) for each in values], dtype=dtype)


def _pad(tensors: TokenTensors, length: int) -> TokenTensors:
    ids, labels, positions = tensors
    missing = length - len(ids)
    return (
        torch.nn.functional.pad(ids, (0, missing), value=PAD_ID),
        torch.nn.functional.pad(labels, (0, missing), value=IGNORE_INDEX),
        torch.cat([positions, torch.arange(missing)]),
    )


def pack_rows(lengths: Sequence[int], row_length: int) -> list[list[int]]:
    """Pack texts into rows of at most `row_length` tokens: indices into `lengths`, each exactly once.

    Best fit decreasing: the longest text first, each into the fullest row that still has space for it, which never
    takes more than 11/9 of the fewest possible rows and four more. The same lengths always give the same rows.
    Source: Johnson, Demers, Ullman, Garey, Graham, "Worst-case performance bounds for simple one-dimensional packing
    algorithms", SIAM Journal on Computing 3 (1974). Raises ValueError for a text that is empty or longer than a row.
    """
    wrong = next((length for length in lengths if not 0 < length <= row_length), None)
    if wrong is not None:
        raise ValueError(f"a text of {wrong} tokens does not fit into rows of {row_length}")
    rows: list[list[int]] = []
    with_space: list[list[int]] = [[] for _ in range(row_length + 1)]
    """The rows by the space that they have left."""
    spaces = 0
    """Bit n is set if some row has space for exactly n more tokens: the best fit is one shift away."""
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        length = lengths[index]
        fitting = spaces >> length
        if fitting:
            space = length + (fitting & -fitting).bit_length() - 1
            row = with_space[space].pop()
            if not with_space[space]:
                spaces ^= 1 << space
        else:
            space, row = row_length, len(rows)
            rows.append([])
        rows[row].append(index)
        with_space[space - length].append(row)
        spaces |= 1 << (space - length)
    return rows


def packing_efficiency(*, tokens: int, rows: int, row_length: int) -> float:
    """Return the share of the rows' capacity that holds tokens, between 0 and 1."""
    return tokens / (rows * row_length) if rows else 0.0


def steps_per_epoch(rows: int, batch: int) -> int:
    """Return the number of steps that pass over all rows once; the last may have fewer rows than `batch`."""
    return -(-rows // batch)


@lru_cache(maxsize=2)
def epoch_permutation(rows: int, *, seed: int, epoch: int) -> tuple[int, ...]:
    """Return all rows in the order of this epoch.

    Sorted by random keys, because Python promises the numbers of `random()` from one release to the next, and of no
    other method. Source: https://docs.python.org/3/library/random.html#notes-on-reproducibility
    """
    source = random.Random(f"devkit rows, seed {seed}, epoch {epoch}")  # noqa: S311 - an order, not a secret
    keys = [source.random() for _ in range(rows)]
    return tuple(sorted(range(rows), key=keys.__getitem__))


def rows_of_step(step: int, *, rows: int, batch: int, seed: int) -> tuple[int, ...]:
    """Return the rows of step `step`, counted from 0."""
    epoch, within = divmod(step, steps_per_epoch(rows, batch))
    return epoch_permutation(rows, seed=seed, epoch=epoch)[within * batch : (within + 1) * batch]


def micro_batches_of_rank(lengths: Sequence[int], *, rank: int, world_size: int, micro_batch: int) -> list[list[int]]:
    """Return the micro-batches of a rank as indices into `lengths`; a micro-batch may be empty.

    Every rank gets equally many, as collectives demand. Rows of similar length go together, so that little is padded;
    longest first, so that memory is allocated once; and the ranks take turns at the longest.
    """
    longest_first = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    passes = max(1, -(-len(lengths) // (world_size * micro_batch)))
    share, longer = divmod(len(lengths), passes * world_size)
    first_longer = passes * world_size - longer
    """The micro-batches from here on have one row more: their rows are the shorter ones."""
    own = []
    start = 0
    for slot in range(passes * world_size):
        size = share + (slot >= first_longer)
        turn, place = divmod(slot, world_size)
        if rank == (place if turn % 2 == 0 else world_size - 1 - place):
            own.append(longest_first[start : start + size])
        start += size
    return own


class BatchLoader:
    """Examples as rows, distributed over steps, ranks and micro-batches: a deterministic DataLoader.

    The rows of a step depend on the seed and the step alone. World size and micro-batch change nothing but rounding,
    given that losses are divided by `count_targets(step)`.
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
        """`batch` is in rows, over all ranks; `sequence` is the longest row in tokens."""
        if not examples:
            raise DevkitError("there is nothing to train on: no example is left", "Give data with at least one text.")
        if pack and layout is BatchLayout.PADDED:
            raise ValueError("packed rows need the layout flat or blocks")
        self.batch = batch
        self.sequence = sequence
        self.seed = seed
        self.layout = layout
        self.pack = pack
        self.text_count = len(examples)
        if pack:
            packed = pack_rows([len(each.ids) for each in examples], sequence)
            self.rows = [BatchRow(tuple(examples[index] for index in row)) for row in packed]
        else:
            self.rows = [BatchRow((each,)) for each in examples]
        self.token_count = sum(row.token_count for row in self.rows)
        self._prefetched: tuple[tuple[int, int, int, int], list[MicroBatch]] | None = None

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps that pass over all rows once."""
        return steps_per_epoch(len(self.rows), self.batch)

    @property
    def notes(self) -> list[str]:
        """Notes for people before the run: packing efficiency, and a smaller last step."""
        notes = []
        if self.pack:
            efficiency = packing_efficiency(tokens=self.token_count, rows=len(self.rows), row_length=self.sequence)
            notes.append(
                f"packed {format_count(self.text_count, 'text')} into {format_count(len(self.rows), 'row')} of at most "
                f"{self.sequence} tokens, {efficiency:.1%} full"
            )
        rest = len(self.rows) % self.batch
        if len(self.rows) < self.batch:
            shown = format_count(len(self.rows), "row")
            notes.append(f"each step trains on {shown} instead of {self.batch}: the dataset has no more")
        elif rest:
            shown = format_count(rest, "row")
            notes.append(f"the last step of each epoch trains on {shown} instead of {self.batch}: no row is left out")
        return notes

    def load_step(self, step: int, *, rank: int = 0, world_size: int = 1, micro_batch: int = 1) -> list[MicroBatch]:
        """Return the micro-batches of a rank in step `step`, counted from 0.

        All ranks get equally many of at most `micro_batch` rows; one without rows holds a padding token.
        """
        key = (step, rank, world_size, micro_batch)
        prefetched, self._prefetched = self._prefetched, None
        return prefetched[1] if prefetched is not None and prefetched[0] == key else self._collate_step(*key)

    def prefetch(self, step: int, *, rank: int = 0, world_size: int = 1, micro_batch: int = 1) -> None:
        """Collate a step's micro-batches now, for the next call of `load_step`."""
        key = (step, rank, world_size, micro_batch)
        self._prefetched = (key, self._collate_step(*key))

    def _collate_step(self, step: int, rank: int, world_size: int, micro_batch: int) -> list[MicroBatch]:
        rows = self._rows_of(step)
        lengths = [row.token_count for row in rows]
        own = micro_batches_of_rank(lengths, rank=rank, world_size=world_size, micro_batch=micro_batch)
        return [collate([rows[index] for index in indices], self.layout) for indices in own]

    def count_targets(self, step: int) -> int:
        """Return the number of predictions that step `step` trains on, over all ranks: the divisor of its loss."""
        return sum(row.target_count for row in self._rows_of(step))

    def build_largest_batch(self, micro_batch: int) -> MicroBatch:
        """Build a micro-batch as large as any of `micro_batch` rows can be, with a target at every position."""
        longest = heapq.nlargest(micro_batch, self.rows, key=lambda row: row.token_count)
        batch = collate(longest, self.layout)
        return replace(batch, labels=batch.ids.clone(), target_count=batch.ids.numel())

    def _rows_of(self, step: int) -> list[BatchRow]:
        chosen = rows_of_step(step, rows=len(self.rows), batch=self.batch, seed=self.seed)
        return [self.rows[index] for index in chosen]
