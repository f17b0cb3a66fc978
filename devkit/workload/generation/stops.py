"""When an answer ends before its last token: at a text, at the user's wish."""

from collections.abc import Callable, Sequence

import torch
from transformers import StoppingCriteria

from devkit.workload.finetune.model import Tokenizer

MARGIN_TOKENS = 4
"""A stop text may begin in the middle of a token and end in another."""


class AtText(StoppingCriteria):  # type: ignore[misc] # untyped library
    """Ends a row as soon as its answer, behind the `prompt` first tokens, holds one of the texts."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str], *, prompt: int) -> None:
        self._tokenizer, self._stops, self._prompt = tokenizer, stops, prompt
        # A token is at least a byte, so this many hold every stop text that ends with the newest one.
        self._window = max(len(stop.encode()) for stop in stops) + MARGIN_TOKENS

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **_: object) -> torch.Tensor:
        """One truth value a row."""
        tails = self._tokenizer.batch_decode(input_ids[:, max(self._prompt, input_ids.shape[1] - self._window) :])
        ended = [any(stop in tail for stop in self._stops) for tail in tails]
        return torch.tensor(ended, device=input_ids.device)


class AtWish(StoppingCriteria):  # type: ignore[misc] # untyped library
    """Ends every row as soon as somebody asked for it."""

    def __init__(self, asked: Callable[[], bool]) -> None:
        self._asked = asked

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **_: object) -> torch.Tensor:
        """The same truth value for all rows."""
        return torch.full((input_ids.shape[0],), self._asked(), device=input_ids.device)


def cut_at(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """`text` up to the first of `stops`, and whether there was one."""
    found = [place for stop in stops if (place := text.find(stop)) >= 0]
    return (text[: min(found)], True) if found else (text, False)
