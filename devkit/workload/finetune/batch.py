"""What travels from the data to the training step."""

from dataclasses import dataclass

import torch

IGNORED = -100
"""The label whose prediction is not counted: padding, prompts, and the first token after a text's border."""


@dataclass(frozen=True)
class Example:
    """One text as token ids; `counted[i]` says whether predicting `ids[i]` from what stands before it is learned."""

    ids: list[int]
    counted: list[bool]


@dataclass(frozen=True)
class Row:
    """Texts laid end to end; one alone where nothing is packed. No token of one may see a token of another."""

    examples: tuple[Example, ...]

    @property
    def tokens(self) -> int:
        """How many token ids the row holds, without padding."""
        return sum(len(each.ids) for each in self.examples)


@dataclass(frozen=True)
class MicroBatch:
    """One forward pass. All tensors have shape [rows, tokens] and lie on the CPU.

    `labels[r, t]` is the token that position t must predict, already shifted by one; IGNORED where none is counted.
    `positions` start again at 0 with each text. `borders` are the cumulative lengths of the texts over the flattened
    batch, [texts + 1], int32, where rows are packed and nothing is padded; None where rows are padded to equal length
    and `mask` (1 for a token, 0 for padding) tells them apart.
    """

    ids: torch.Tensor
    labels: torch.Tensor
    positions: torch.Tensor
    borders: torch.Tensor | None
    mask: torch.Tensor | None
    counted: int
    tokens: int
