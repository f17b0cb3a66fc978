"""Prompts as token ids, with the chat template that the model was tuned on where it has one."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from devkit.errors import DevkitError
from devkit.text import to_one_line
from devkit.workload.finetune.model.loading import Tokenizer
from devkit.workload.generation.files import Prompt, require_utf8


def encode_prompt(prompt: Prompt, tokenizer: Tokenizer, *, raw: bool) -> list[int]:
    """The ids that the model answers. `raw` gives a text as it stands, and leaves a chat as its template makes it."""
    if prompt.messages or (tokenizer.chat_template and not raw):
        return encode_chat(prompt.to_messages(), tokenizer)
    ids: list[int] = tokenizer(prompt.text)["input_ids"]
    if not ids:
        raise DevkitError("the prompt has no tokens, and the model no token to start from", "Write a prompt.")
    # Some tokenizers end every text; what is to be gone on from has no end yet.
    return ids[:-1] if len(ids) > 1 and ids[-1] == tokenizer.eos_token_id else ids


def encode_chat(messages: Sequence[dict[str, Any]], tokenizer: Tokenizer) -> list[int]:
    """The ids of a chat, up to where the assistant's next turn begins. Raises DevkitError."""
    require_chat_template(tokenizer)
    try:
        text = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
    except Exception as error:
        # A template is a program that came with the model: it raises what it likes, and mostly on purpose.
        raise DevkitError(
            f"the model's chat template refuses this chat: {to_one_line(str(error))}",
            "Many templates want user and assistant by turns, and some know no system role.",
        ) from error
    require_utf8(text, "the chat")
    # The template writes every special token itself.
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def require_chat_template(tokenizer: Tokenizer) -> None:
    """Refuse a chat with a model that says nothing of how its chats are written."""
    if not tokenizer.chat_template:
        raise DevkitError(
            "the model has no chat template, so it was not made for chats",
            "Give a prompt as text; or put the template it was tuned on into chat_template.jinja beside its tokenizer.",
        )


def find_turn_end(tokenizer: Tokenizer) -> str:
    """What the chat template writes behind an answer, without space around it; "" where there is nothing."""
    if not tokenizer.chat_template:
        return ""
    marker = "the-answer"
    turns = [{"role": "user", "content": "x"}, {"role": "assistant", "content": marker}]
    try:
        text: str = tokenizer.apply_chat_template(turns, tokenize=False)
    except Exception:  # noqa: BLE001 - a template that refuses this chat may take others
        return ""
    end = text.rpartition(marker)[2].strip()
    # Some write more than one mark; the first ends the turn.
    return next((token for token in tokenizer.all_special_tokens if end.startswith(token)), end)


# An answer shown while it is made.

REPLACEMENT_CHARACTER = "\ufffd"
"""What a tokenizer makes of bytes that are no whole character yet."""


class TextStreamer:
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
        sure = len(text.rstrip(REPLACEMENT_CHARACTER))
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
