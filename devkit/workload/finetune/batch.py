"""What travels from the data to the training step."""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TypeAlias

import torch

from devkit.workload.finetune.layout import Layout as Layout

IGNORED = -100
"""The label whose prediction is not counted: padding, prompts, and the first token after a text's border."""

FILLER = 0
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
class Row:
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


def moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """`tensor`, of a batch, on `device`.

    To a GPU by way of pinned memory: a copy from any other would first wait for all that the GPU has still to do.
    Source: https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html
    """
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)


def collated(rows: Sequence[Row], layout: Layout) -> MicroBatch:
    """One micro-batch of these rows. Without rows it holds one padding token, which counts for nothing.

    A process whose share of a step is empty needs such a batch: the others wait for its part of the exchange.
    """
    tokens = sum(row.tokens for row in rows)
    rows = rows or (Row((Example((FILLER,), (0,)),)),)
    if layout is Layout.PADDED and any(len(row.examples) > 1 for row in rows):
        raise ValueError("padded rows hold one text each; packed rows need the layout flat or blocks")
    counted = sum(row.learned for row in rows)
    borders = mask = None
    if layout is Layout.FLAT:
        examples = [each for row in rows for each in row.examples]
        ids, labels, positions = (part.unsqueeze(0) for part in _end_to_end(examples))
        borders = torch.tensor([0, *accumulate(len(each.ids) for each in examples)], dtype=torch.int32)
    else:
        longest = max(row.tokens for row in rows)
        filled = [_filled(_end_to_end(row.examples), longest) for row in rows]
        ids, labels, positions = (torch.stack(parts) for parts in zip(*filled, strict=True))
        if layout is Layout.PADDED:
            lengths = torch.tensor([row.tokens for row in rows])
            mask = (torch.arange(longest) < lengths.unsqueeze(1)).long()
    return MicroBatch(ids, labels, positions, borders, mask, counted=counted, tokens=tokens)


Parts: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Ids, labels and positions, each of shape [tokens]."""


def _end_to_end(examples: Sequence[Example]) -> Parts:
    ids = torch.cat([_column(each.ids, torch.int32) for each in examples]).long()
    counted = torch.cat([_column(each.counted, torch.int8) for each in examples]).bool()
    lengths = [len(each.ids) for each in examples]
    positions = torch.cat([torch.arange(length) for length in lengths])
    labels = torch.full_like(ids, IGNORED)
    # A text's first token is no prediction: what stands before it belongs to another text.
    learned = counted[1:] & (positions[1:] > 0)
    labels[:-1] = torch.where(learned, ids[1:], IGNORED)
    return ids, labels, positions


def _column(values: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    if isinstance(values, array | memoryview):
        return torch.frombuffer(values, dtype=dtype)
    return torch.tensor([int(each) for each in values], dtype=dtype)


def _filled(parts: Parts, length: int) -> Parts:
    ids, labels, positions = parts
    missing = length - len(ids)
    return (
        torch.nn.functional.pad(ids, (0, missing), value=FILLER),
        torch.nn.functional.pad(labels, (0, missing), value=IGNORED),
        torch.cat([positions, torch.arange(missing)]),
    )
