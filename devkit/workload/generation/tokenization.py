"""Prompts to token ids, by the model's chat template where it has one, and token ids to streamed text."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from devkit.errors import DevkitError
from devkit.text import to_one_line
from devkit.workload.finetune.model.loading import Tokenizer
from devkit.workload.generation.files import Prompt, require_utf8


def encode_prompt(prompt: Prompt, tokenizer: Tokenizer, *, raw: bool) -> list[int]:
    """Encode a prompt. `raw` leaves out the chat template for a text, but not for a chat."""
    if prompt.messages or (tokenizer.chat_template and not raw):
        return encode_chat(prompt.to_messages(), tokenizer)
    ids: list[int] = tokenizer(prompt.text)["input_ids"]
    if not ids:
        raise DevkitError("the prompt has no tokens, and the model no token to start from", "Write a prompt.")
    # Some tokenizers end every text; a text to be continued has no end yet.
    return ids[:-1] if len(ids) > 1 and ids[-1] == tokenizer.eos_token_id else ids


def encode_chat(messages: Sequence[dict[str, Any]], tokenizer: Tokenizer) -> list[int]:
    """Encode a chat, up to where the assistant's next turn begins. Raises DevkitError."""
    require_chat_template(tokenizer)
    try:
        text = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
    except Exception as error:
        # A template is a program that came with the model: it may raise anything, mostly on purpose.
        raise DevkitError(
            f"the model's chat template refuses this chat: {to_one_line(str(error))}",
            "Many templates require user and assistant to alternate, and some have no system role.",
        ) from error
    require_utf8(text, "the chat")
    # The template writes every special token itself.
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def require_chat_template(tokenizer: Tokenizer) -> None:
    """Raise DevkitError for a model without a chat template."""
    if not tokenizer.chat_template:
        raise DevkitError(
            "the model has no chat template, so it was not made for chats",
            "Give a prompt as text; or put the template it was tuned on into chat_template.jinja next to its tokenizer.",
        )


def find_turn_end(tokenizer: Tokenizer) -> str:
    """Return what the chat template writes after an answer, without surrounding space; "" for nothing."""
    if not tokenizer.chat_template:
        return ""
    marker = "the-answer"
    turns = [{"role": "user", "content": "x"}, {"role": "assistant", "content": marker}]
    try:
        text: str = tokenizer.apply_chat_template(turns, tokenize=False)
    except Exception:  # noqa: BLE001 - a template that refuses this chat may take others
        return ""
    end = text.rpartition(marker)[2].strip()
    # Some write more than one token; the first ends the turn.
    return next((token for token in tokenizer.all_special_tokens if end.startswith(token)), end)


REPLACEMENT_CHARACTER = "\ufffd"
"""A tokenizer decodes bytes that are not yet a whole character to it."""


class TextStreamer:
    """Passes on the text of one answer, piece by piece, as soon as no later token can change it.

    transformers' `generate` calls `put` with the prompt first and then with each token.
    """

    def __init__(self, tokenizer: Tokenizer, show: Callable[[str], None], stops: Sequence[str] = ()) -> None:
        self._tokenizer, self._show, self._stops = tokenizer, show, tuple(stops)
        self._ids: list[int] = []
        self._shown = 0
        self._had_prompt = False

    def put(self, value: torch.Tensor) -> None:
        """Take the prompt's ids, or the next token's."""
        if not self._had_prompt:
            self._had_prompt = True
            return
        self._ids += value.flatten().tolist()
        text = self._decode()
        self._show_up_to(text, self._find_settled(text))

    def end(self) -> None:
        """Show what was held back: no more tokens come."""
        text = self._decode()
        self._show_up_to(text, len(text))

    def _decode(self) -> str:
        text: str = self._tokenizer.decode(self._ids, skip_special_tokens=True)
        cuts = [start for stop in self._stops if (start := text.find(stop)) >= 0]
        return text[: min(cuts)] if cuts else text

    def _find_settled(self, text: str) -> int:
        """Return how much of the text is final: no part of a character, and no beginning of a stop text."""
        settled = len(text.rstrip(REPLACEMENT_CHARACTER))
        for stop in self._stops:
            for length in range(min(len(stop) - 1, settled), 0, -1):
                if text[:settled].endswith(stop[:length]):
                    settled -= length
                    break
        return settled

    def _show_up_to(self, text: str, end: int) -> None:
        if end > self._shown:
            self._show(text[self._shown : end])
            self._shown = end
