"""Chats as text by the tokenizer's own template, and where in that text the assistant speaks. Torch-free.

What is learned of a chat is what the model would have to write: from where the template asks for an answer to where
the answer's turn ends, the mark of its end included.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, TypeAlias

from devkit.errors import DevkitError
from devkit.text import on_one_line
from devkit.workload.finetune.records import ASSISTANT, ChatRecord, Message

Tokenizer: TypeAlias = Any
"""A tokenizer of transformers, of any of its kinds."""

Span: TypeAlias = tuple[int, int]
"""From a character up to, and without, another."""

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""The template of tokenizers that have none.
Source: https://github.com/openai/openai-python/blob/release-v0.28.0/chatml.md"""

THE_DAY = date(2024, 7, 26)
"""The day that templates write into a chat: always this one, which Llama's falls back to by itself. With today's, a run
that goes on after midnight would find other data than it began with.
Source: https://huggingface.co/meta-llama/Llama-3.1-8B-Instruct (tokenizer_config.json)"""

_CLOCK = "strftime_now"
"""What transformers gives templates to ask for the day."""

_STOPPED_CLOCK = (
    f"{{% macro {_CLOCK}(format) %}}{{{{ format"
    + "".join(f".replace('%{code}', '{THE_DAY.strftime(f'%{code}')}')" for code in "aAbBdHjmMSyY")
    + " }}{% endmacro %}{{ '' }}"
)
"""Stands before a template that asks for the day. It ends in an expression, because Jinja drops a line break that
follows a block. A function of our own would not do: transformers hands templates plain data alone."""

_MARKS_ANSWERS = re.compile(r"\{%-?\s*generation\b")
"""A template that itself says where the assistant speaks.
Source: https://huggingface.co/docs/transformers/main/en/chat_templating_writing"""


@dataclass(frozen=True)
class Rendered:
    """A chat as text, and where what is learned stands in it."""

    text: str
    learned: tuple[Span, ...]


def give_template(tokenizer: Tokenizer, *, begins_with: str = "") -> str | None:
    """Give a tokenizer without a chat template ChatML's, and say so; None where it has one of its own.

    The tokenizer keeps it, so that who saves it with the adapter saves the template that was trained with.
    `begins_with` is what its texts begin with.
    """
    if tokenizer.chat_template:
        return None
    tokenizer.chat_template = (f"{{{{ {begins_with!r} }}}}" if begins_with else "") + CHATML
    return "the tokenizer has no chat template: chats are written in ChatML, which its model has not been trained with"


def _marks_answers(tokenizer: Tokenizer) -> bool:
    """Whether the template itself says where the assistant speaks, and the tokenizer can tell its tokens' places."""
    template = tokenizer.chat_template
    return tokenizer.is_fast and isinstance(template, str) and _MARKS_ANSWERS.search(template) is not None


def rendered(record: ChatRecord, tokenizer: Tokenizer) -> list[Rendered]:
    """The chat with its answers, as one text; or a text for each answer, where the template makes that necessary.

    Some templates write an earlier turn differently once more turns follow: they drop its reasoning. Then no single
    text holds every answer as the model will have to write it, and each answer is learned after what led to it.
    Raises DevkitError where the template fails on this chat, or answers are not found.
    """
    whole = _text(record, len(record.messages), tokenizer)
    if _marks_answers(tokenizer):
        return [Rendered(whole, tuple(_marked(record, whole, tokenizer)))]
    answers = [
        number
        for number, message in enumerate(record.messages)
        if message["role"] == ASSISTANT and number >= record.learned_from
    ]
    spans = [_span(record, number, whole, tokenizer) for number in answers]
    if None not in spans:
        return [Rendered(whole, tuple(span for span in spans if span is not None))]
    return [_answer_alone(record, number, tokenizer) for number in answers]


def rendered_whole(record: ChatRecord, tokenizer: Tokenizer) -> Rendered:
    """The chat as one text, all of which is learned."""
    text = _text(record, len(record.messages), tokenizer)
    return Rendered(text, ((0, len(text)),))


def _span(record: ChatRecord, number: int, whole: str, tokenizer: Tokenizer) -> Span | None:
    """Where the answer `number` stands in the whole text; None where that is written otherwise."""
    is_last = number + 1 == len(record.messages)
    up_to = whole if is_last else _text(record, number + 1, tokenizer)
    start = _start(record, number, up_to, tokenizer)
    return None if start is None or not whole.startswith(up_to) else (start, len(up_to))


def _answer_alone(record: ChatRecord, number: int, tokenizer: Tokenizer) -> Rendered:
    text = _text(record, number + 1, tokenizer)
    start = _start(record, number, text, tokenizer)
    if start is None:
        raise DevkitError(
            f"{record.place}: the chat template does not begin an answer as it asks for one, so answers are not found",
            "Mark them in the template with {% generation %}, or learn from all of a chat: --no-completion-only.",
        )
    return Rendered(text, ((start, len(text)),))


def _start(record: ChatRecord, number: int, up_to: str, tokenizer: Tokenizer) -> int | None:
    """Where the answer begins: behind what the template writes to ask for it, else behind the turns before it."""
    for asks in (True, False):
        before = _text(record, number, tokenizer, asks=asks) if number else ""
        if before and up_to.startswith(before):
            return len(before)
    return None if number else 0


def _text(record: ChatRecord, turns: int, tokenizer: Tokenizer, *, asks: bool = False) -> str:
    text: str = _applied(record, record.messages[:turns], tokenizer, tokenize=False, add_generation_prompt=asks)
    return text


def _marked(record: ChatRecord, whole: str, tokenizer: Tokenizer) -> list[Span]:
    """Where the template itself says that the assistant speaks, told by the tokens that it marks."""
    found = _applied(
        record,
        record.messages,
        tokenizer,
        tokenize=True,
        return_dict=True,
        return_assistant_tokens_mask=True,
        tokenizer_kwargs={"return_offsets_mapping": True},
    )
    marks, offsets = [0, *found["assistant_masks"], 0], found["offset_mapping"]
    starts = [place for place in range(len(offsets)) if marks[place + 1] and not marks[place]]
    ends = [place for place in range(len(offsets)) if marks[place + 1] and not marks[place + 2]]
    passed_over = sum(message["role"] == ASSISTANT for message in record.messages[: record.learned_from])
    spans = [(offsets[start][0], offsets[end][1]) for start, end in zip(starts, ends, strict=True)]
    return [(start, min(end, len(whole))) for start, end in spans[passed_over:]]


def _dated(template: object) -> object:
    """The template with its clock stopped; as it is where it asks for no day, or is several by name."""
    return _STOPPED_CLOCK + template if isinstance(template, str) and _CLOCK in template else None


def _applied(record: ChatRecord, messages: Sequence[Message], tokenizer: Tokenizer, **how: object) -> Any:  # noqa: ANN401
    try:
        return tokenizer.apply_chat_template(
            list(messages), tools=list(record.tools) or None, chat_template=_dated(tokenizer.chat_template), **how
        )
    except Exception as error:
        # A template is a program that came with the model: it raises what it likes, and mostly on purpose.
        raise DevkitError(
            f"{record.place}: the chat template refuses these messages: {on_one_line(str(error))[:200]}",
            "Many templates want user and assistant in turns, beginning with the user.",
        ) from error
