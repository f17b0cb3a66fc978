"""An answer shown while it is made."""

from collections.abc import Callable, Sequence

import torch

from devkit.workload.finetune.model import Tokenizer

UNFINISHED = "\ufffd"
"""What a tokenizer makes of bytes that are no whole character yet."""


class Words:
    """Hands on the text of one answer, piece by piece, as soon as no later token can change it.

    Made to be given to `generate`, which calls `put` with the prompt first and then with each token.
    """

    def __init__(self, tokenizer: Tokenizer, show: Callable[[str], None], stops: Sequence[str] = ()) -> None:
        self._tokenizer, self._show, self._stops = tokenizer, show, tuple(stops)
        self._ids: list[int] = []
        self._shown = 0
        self._had_prompt = False

    def put(self, value: torch.Tensor) -> None:
        """The prompt's ids, or the next token's."""
        if not self._had_prompt:
            self._had_prompt = True
            return
        self._ids += value.flatten().tolist()
        self._hand_on(self._settled())

    def end(self) -> None:
        """Nothing more comes: what was held back is text after all."""
        self._hand_on(len(self._whole()))

    def _whole(self) -> str:
        text: str = self._tokenizer.decode(self._ids, skip_special_tokens=True)
        cuts = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        return text[: min(cuts)] if cuts else text

    def _settled(self) -> int:
        """How much of the text is sure: not half a character, and not what may become a stop text."""
        text = self._whole()
        sure = len(text.rstrip(UNFINISHED))
        for stop in self._stops:
            for length in range(min(len(stop) - 1, sure), 0, -1):
                if text[:sure].endswith(stop[:length]):
                    sure -= length
                    break
        return sure

    def _hand_on(self, end: int) -> None:
        if end > self._shown:
            self._show(self._whole()[self._shown : end])
            self._shown = end
