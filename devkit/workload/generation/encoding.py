"""Prompts as token ids, with the chat template that the model was tuned on where it has one."""

from collections.abc import Sequence
from typing import Any

from devkit.errors import DevkitError
from devkit.text import on_one_line
from devkit.workload.finetune.model import Tokenizer
from devkit.workload.generation.prompts import Prompt, require_characters


def encoded(prompt: Prompt, tokenizer: Tokenizer, *, raw: bool) -> list[int]:
    """The ids that the model answers. `raw` gives a text as it stands, and leaves a chat as its template makes it."""
    if prompt.messages or (tokenizer.chat_template and not raw):
        return encoded_chat(prompt.as_chat(), tokenizer)
    ids: list[int] = tokenizer(prompt.text)["input_ids"]
    if not ids:
        raise DevkitError("the prompt has no tokens, and the model no token to start from", "Write a prompt.")
    # Some tokenizers end every text; what is to be gone on from has no end yet.
    return ids[:-1] if len(ids) > 1 and ids[-1] == tokenizer.eos_token_id else ids


def encoded_chat(messages: Sequence[dict[str, Any]], tokenizer: Tokenizer) -> list[int]:
    """The ids of a chat, up to where the assistant's next turn begins. Raises DevkitError."""
    require_template(tokenizer)
    try:
        text = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
    except Exception as error:
        # A template is a program that came with the model: it raises what it likes, and mostly on purpose.
        raise DevkitError(
            f"the model's chat template refuses this chat: {on_one_line(str(error))}",
            "Many templates want user and assistant by turns, and some know no system role.",
        ) from error
    require_characters(text, "the chat")
    # The template writes every special token itself.
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def require_template(tokenizer: Tokenizer) -> None:
    """Refuse a chat with a model that says nothing of how its chats are written."""
    if not tokenizer.chat_template:
        raise DevkitError(
            "the model has no chat template, so it was not made for chats",
            "Give a prompt as text; or put the template it was tuned on into chat_template.jinja beside its tokenizer.",
        )


def turn_end(tokenizer: Tokenizer) -> str:
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
