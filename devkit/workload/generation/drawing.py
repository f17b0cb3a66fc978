"""The next token where chance decides: drawn by its place and not in turn, so that nothing beside an answer matters."""

import random
from collections.abc import Sequence

import torch
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from devkit.workload.generation.settings import Decoding

BELOW_THE_WHOLE = 1 - 1e-6
"""Rounding must not draw what lies behind the last token that may come."""


class Drawn(LogitsProcessor):  # type: ignore[misc] # untyped library
    """Leaves each row one token: the one that chance chooses, as `decoding` narrows it down.

    `numbers` are the prompts', one a row, and `prompt` is their length in tokens, with padding. What is drawn depends
    on the seed, the number and the place in the answer alone: not on what is answered beside it, or was before.
    """

    def __init__(self, decoding: Decoding, numbers: Sequence[int], *, prompt: int) -> None:
        self._seed, self._numbers, self._prompt = decoding.seed, tuple(numbers), prompt
        self._narrow = LogitsProcessorList([TemperatureLogitsWarper(decoding.temperature)])
        if decoding.top_k:
            self._narrow.append(TopKLogitsWarper(decoding.top_k))
        if decoding.top_p < 1:
            self._narrow.append(TopPLogitsWarper(decoding.top_p))

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """`scores`, [rows, vocabulary], with one finite number in each row."""
        place = input_ids.shape[1] - self._prompt
        reached = self._narrow(input_ids, scores.float()).softmax(-1).cumsum(-1)
        chances = [_chance(self._seed, number, place) * BELOW_THE_WHOLE for number in self._numbers]
        wanted = torch.tensor(chances, device=scores.device).unsqueeze(1) * reached[:, -1:]
        # A token that may not come reaches no further than the one before it, and is passed over.
        chosen = (reached > wanted).int().argmax(-1, keepdim=True)
        return torch.full_like(scores, -torch.inf).scatter_(1, chosen, 0.0)


def _chance(seed: int, number: int, place: int) -> float:
    """From 0 to below 1. Python promises these numbers from one release to the next; torch promises none."""
    return random.Random(f"devkit answers, seed {seed}, prompt {number}, token {place}").random()  # noqa: S311 - no secret
