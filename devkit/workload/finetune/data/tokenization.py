"""Tokenization: from records to examples of at most one row, with a loss mask.

Texts begin with the tokenizer's beginning of text, once, and end with its end of text, which is trained on: a model
that never saw the end of an answer does not stop. No token is added to the vocabulary.

Chats are rendered by the tokenizer's own chat template. Trained on is what the model would have to write: from where
the template asks for an answer to the end of the answer's turn, the end-of-turn token included.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import islice, pairwise
from typing import Any, TypeAlias

from devkit.errors import DevkitError
from devkit.text import format_count, to_one_line
from devkit.workload.finetune.data.batches import Example
from devkit.workload.finetune.data.records import (
    ASSISTANT,
    ChatRecord,
    Message,
    PromptRecord,
    Record,
    RecordKind,
    TextRecord,
)
from devkit.workload.finetune.model.files import Tokenizer

CharSpan: TypeAlias = tuple[int, int]
"""From a character up to, and without, another."""

TOKENIZER_BATCH = 1000
"""Records that are passed to the tokenizer together."""

MAX_PIECE_CHARS = 1 << 20
"""Characters of plain text that are tokenized in one call. Longer texts are cut at line ends first."""

TURN_END_WINDOW = 3
"""Tokens at the end of a turn among which its end-of-turn token must be: a line break or two may follow."""

CONTEXT_LENGTH_FIELDS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
"""Names of a model's context length in configurations."""

CHATML_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""The template of tokenizers that have none.
Source: https://github.com/openai/openai-python/blob/release-v0.28.0/chatml.md"""

TEMPLATE_DATE = date(2024, 7, 26)
"""The date that templates write into a chat: always this one, which Llama's falls back to by itself. With today's date,
a run that resumes after midnight would find other data than it began with.
Source: https://huggingface.co/meta-llama/Llama-3.1-8B-Instruct (tokenizer_config.json)"""

_CLOCK = "strftime_now"
"""The function by which transformers' templates get the date."""

_STOPPED_CLOCK = (
    f"{{% macro {_CLOCK}(format) %}}{{{{ format"
    + "".join(f".replace('%{code}', '{TEMPLATE_DATE.strftime(f'%{code}')}')" for code in "aAbBdHjmMSyY")
    + " }}{% endmacro %}{{ '' }}"
)
"""Prepended to a template that asks for the date. It ends in an expression, because Jinja drops a line break that
follows a block. A Python function would not do: transformers passes plain data only to templates."""

_GENERATION_BLOCK = re.compile(r"\{%-?\s*generation\b")
"""Found in templates that mark the assistant's turns.
Source: https://huggingface.co/docs/transformers/main/en/chat_templating_writing"""


@dataclass(frozen=True)
class TokenizedRecords:
    """Examples in the order of their records, each with something to train on, and notes for people."""

    examples: list[Example]
    notes: list[str]


@dataclass
class _Counts:
    """Counts of records by what happened to them."""

    cut: int = 0
    windows: int = 0
    truncated: int = 0
    left_out: int = 0
    split_by_answer: int = 0
    tokenized_in_parts: int = 0

    def notes(self, *, has_end: bool, sequence: int) -> Iterator[str]:
        if not has_end:
            yield "the tokenizer has no end-of-text token: texts end without one, and the model does not learn to stop"
        if self.cut:
            texts, windows = format_count(self.cut, "text"), format_count(self.windows, "window")
            yield f"cut {texts} of more than {sequence} tokens into {windows}"
        if self.truncated:
            yield f"truncated {format_count(self.truncated, 'record')} after {sequence} tokens"
        if self.left_out:
            yield f"left out {format_count(self.left_out, 'record')} with nothing to train on within {sequence} tokens"
        if self.split_by_answer:
            yield (
                f"made an example of each answer in {format_count(self.split_by_answer, 'chat')}: the chat template "
                "writes earlier answers differently once more turns follow"
            )
        if self.tokenized_in_parts:
            yield (
                f"tokenized {format_count(self.tokenized_in_parts, 'record')} in parts, because a token would cross "
                "the border between prompt and completion"
            )


def tokenize_records(
    records: Iterable[Record],
    tokenizer: Tokenizer,
    *,
    sequence: int,
    completion_only: bool = True,
    on_progress: Callable[[int], object] = lambda records: None,
) -> TokenizedRecords:
    """Tokenize records into examples of at most `sequence` tokens.

    Plain text is cut into windows that share one token, so that each token but the first is trained on exactly once.
    Prompts and chats are truncated at the right, and left out if nothing remains to train on. A tokenizer without a
    chat template is given one when the first chat comes.

    Args:
        completion_only: mask prompts, and the turns of everyone but the assistant, out of the loss.
        on_progress: called with the number of records done: 0 once there are TOKENIZER_BATCH, then after each batch.

    Raises:
        DevkitError: nothing is left to train on.
    """
    if sequence < 2:
        raise DevkitError(f"rows of {sequence} tokens leave nothing to predict", "Give --sequence 2 or more.")
    text_tokenizer = TextTokenizer(tokenizer)
    counts = _Counts()
    notes: list[str] = []
    examples: list[Example] = []
    rest = iter(records)
    done = 0
    while batch := list(islice(rest, TOKENIZER_BATCH)):
        if done or len(batch) == TOKENIZER_BATCH:
            on_progress(done)
        done += len(batch)
        if any(isinstance(record, ChatRecord) for record in batch):
            note = ensure_chat_template(tokenizer, begins_with=tokenizer.decode(text_tokenizer.beginning))
            notes += [note] if note else []
        texts: list[TrainingText] = []
        for record in batch:
            rendered = _render(record, tokenizer, completion_only=completion_only)
            counts.split_by_answer += len(rendered) > 1
            texts += rendered
        for tokens in text_tokenizer.tokenize(texts):
            examples += _cut_to_rows(tokens, sequence, counts)
    if not examples:
        raise DevkitError(
            f"there is nothing to train on within {sequence} tokens: the prompts fill all of them",
            "Give a larger --sequence, or shorter prompts.",
        )
    return TokenizedRecords(
        examples, [*notes, *counts.notes(has_end=text_tokenizer.end is not None, sequence=sequence)]
    )


def _cut_to_rows(tokens: "TokenizedText", sequence: int, counts: _Counts) -> Iterator[Example]:
    """Yield examples of at most `sequence` tokens; none if nothing in them is trained on."""
    counts.tokenized_in_parts += tokens.in_parts
    if tokens.kind is RecordKind.TEXT:
        # The last token of a window is the first of the next one, which is predicted from nothing there.
        starts = range(0, max(1, len(tokens.ids) - 1), sequence - 1)
        counts.cut += len(starts) > 1
        counts.windows += len(starts) if len(starts) > 1 else 0
    else:
        starts = range(1)
        counts.truncated += len(tokens.ids) > sequence
    for start in starts:
        end = start + sequence
        example = Example.compact(tokens.ids[start:end], tokens.loss_mask[start:end])
        if example.target_count:
            yield example
        else:
            counts.left_out += 1


@dataclass(frozen=True)
class TrainingText:
    """A text before it is tokenized, and the spans of it that are trained on, in order."""

    text: str
    trained: tuple[CharSpan, ...]
    kind: RecordKind

    @property
    def is_fully_trained(self) -> bool:
        """True if all of the text is trained on."""
        return self.trained == ((0, len(self.text)),)


def _render(record: Record, tokenizer: Tokenizer, *, completion_only: bool) -> list[TrainingText]:
    match record:
        case TextRecord(text=text):
            return [TrainingText(text, ((0, len(text)),), RecordKind.TEXT)]
        case PromptRecord(prompt=prompt, completion=completion):
            start = len(prompt) if completion_only else 0
            text = prompt + completion
            return [TrainingText(text, ((start, len(text)),), RecordKind.PROMPT)]
        case ChatRecord():
            return render_chat(record, tokenizer, completion_only=completion_only)


def ensure_chat_template(tokenizer: Tokenizer, *, begins_with: str = "") -> str | None:
    """Give a tokenizer without a chat template ChatML's, and return a note; None if it has one of its own.

    The tokenizer keeps it, so that saving it with the adapter saves the template of the training.
    `begins_with` is the tokenizer's beginning of text.
    """
    if tokenizer.chat_template:
        return None
    tokenizer.chat_template = (f"{{{{ {begins_with!r} }}}}" if begins_with else "") + CHATML_TEMPLATE
    return "the tokenizer has no chat template: chats are written in ChatML, which its model has not been trained with"


def render_chat(record: ChatRecord, tokenizer: Tokenizer, *, completion_only: bool = True) -> list[TrainingText]:
    """Render a chat with its answers as one text; or a text for each answer, if the template makes that necessary.

    Some templates write an earlier turn differently once more turns follow: they drop its reasoning. Then no single
    text holds every answer as the model will have to write it, and each answer is trained on after what led to it.
    Raises DevkitError where the template fails on this chat, or answers are not found.
    """
    whole = _apply_template(record, len(record.messages), tokenizer)
    if not completion_only:
        return [TrainingText(whole, ((0, len(whole)),), RecordKind.CHAT)]
    template = tokenizer.chat_template
    if tokenizer.is_fast and isinstance(template, str) and _GENERATION_BLOCK.search(template):
        return [TrainingText(whole, tuple(_marked_spans(record, whole, tokenizer)), RecordKind.CHAT)]
    answers = [
        number
        for number, message in enumerate(record.messages)
        if message["role"] == ASSISTANT and number >= record.first_trained_turn
    ]
    spans = [_span_in_chat(record, number, whole, tokenizer) for number in answers]
    if None not in spans:
        return [TrainingText(whole, tuple(span for span in spans if span is not None), RecordKind.CHAT)]
    return [_render_up_to_answer(record, number, tokenizer) for number in answers]


def _span_in_chat(record: ChatRecord, number: int, whole: str, tokenizer: Tokenizer) -> CharSpan | None:
    """Return the span of the answer `number` in the whole chat; None if the chat writes it differently."""
    is_last = number + 1 == len(record.messages)
    up_to = whole if is_last else _apply_template(record, number + 1, tokenizer)
    start = _start_of_answer(record, number, up_to, tokenizer)
    return None if start is None or not whole.startswith(up_to) else (start, len(up_to))


def _render_up_to_answer(record: ChatRecord, number: int, tokenizer: Tokenizer) -> TrainingText:
    text = _apply_template(record, number + 1, tokenizer)
    start = _start_of_answer(record, number, text, tokenizer)
    if start is None:
        raise DevkitError(
            f"{record.place}: answers are not found: the chat template begins them differently from its generation "
            "prompt",
            "Mark them in the template with {% generation %}, or train on all of a chat: --no-completion-only.",
        )
    return TrainingText(text, ((start, len(text)),), RecordKind.CHAT)


def _start_of_answer(record: ChatRecord, number: int, up_to: str, tokenizer: Tokenizer) -> int | None:
    """Return the start of the answer: after the generation prompt, else after the turns before it."""
    for with_prompt in (True, False):
        before = _apply_template(record, number, tokenizer, add_generation_prompt=with_prompt) if number else ""
        if before and up_to.startswith(before):
            return len(before)
    return None if number else 0


def _marked_spans(record: ChatRecord, whole: str, tokenizer: Tokenizer) -> list[CharSpan]:
    """Return the spans that the template marks as the assistant's, by the tokens of its mask."""
    found = _call_template(
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
    skipped = sum(message["role"] == ASSISTANT for message in record.messages[: record.first_trained_turn])
    spans = [(offsets[start][0], offsets[end][1]) for start, end in zip(starts, ends, strict=True)]
    return [(start, min(end, len(whole))) for start, end in spans[skipped:]]


def _apply_template(
    record: ChatRecord, turns: int, tokenizer: Tokenizer, *, add_generation_prompt: bool = False
) -> str:
    text: str = _call_template(
        record, record.messages[:turns], tokenizer, tokenize=False, add_generation_prompt=add_generation_prompt
    )
    return text


def _call_template(
    record: ChatRecord,
    messages: Sequence[Message],
    tokenizer: Tokenizer,
    **arguments: object,
) -> Any:  # noqa: ANN401 - a text, or tokens
    template = tokenizer.chat_template
    # None means the tokenizer's own: it has no date in it, or is several templates by name.
    dated = _STOPPED_CLOCK + template if isinstance(template, str) and _CLOCK in template else None
    try:
        return tokenizer.apply_chat_template(
            list(messages), tools=list(record.tools) or None, chat_template=dated, **arguments
        )
    except Exception as error:
        # A template is a program that came with the model: it raises what it likes, and mostly on purpose.
        raise DevkitError(
            f"{record.place}: the chat template refuses these messages: {to_one_line(str(error))[:200]}",
            "Many templates want user and assistant in turns, beginning with the user.",
        ) from error


@dataclass(frozen=True)
class TokenizedText:
    """A text as token ids, and a loss mask with 1 for each token that is trained on.

    `in_parts` is True if a token would have crossed the border between prompt and completion, so that both sides were
    tokenized separately: as they are when the model answers.
    """

    ids: list[int]
    loss_mask: list[int]
    kind: RecordKind
    in_parts: bool = False


class TextTokenizer:
    """A tokenizer of transformers, with the tokens that its texts begin and end with."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        # The tokens that the tokenizer puts before a text; those after it do not matter, as we add an end.
        with_special, bare = list(tokenizer("a")["input_ids"]), self._encode(["a"])[0]
        places = range(len(with_special) - len(bare) + 1)
        starts = (with_special[:place] for place in places if with_special[place : place + len(bare)] == bare)
        self.beginning: list[int] = next(starts, [])
        self.end: int | None = tokenizer.eos_token_id
        added: dict[int, Any] = getattr(tokenizer, "added_tokens_decoder", {})
        self._special = {*tokenizer.all_special_ids, *(each for each, token in added.items() if token.special)}

    def tokenize(self, texts: Sequence[TrainingText]) -> list[TokenizedText]:
        """Tokenize the texts, in order, all in one call: the tokenizer works on many at a time."""
        full = [text for text in texts if text.is_fully_trained]
        # Long texts are encoded in pieces.
        pieces = [_cut_into_pieces(text.text) for text in full]
        encoded = iter(self._encode([piece for each in pieces for piece in each]))
        ids = [[token for _ in each for token in next(encoded)] for each in pieces]
        full_tokens = iter(
            [TokenizedText(each, [1] * len(each), text.kind) for text, each in zip(full, ids, strict=True)]
        )
        masked_tokens = iter(self._encode_masked([text for text in texts if not text.is_fully_trained]))
        return [self._add_ends(next(full_tokens if text.is_fully_trained else masked_tokens), text) for text in texts]

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        if not texts:
            return []
        found = self.tokenizer(list(texts), add_special_tokens=False, return_attention_mask=False, verbose=False)
        return [list(each) for each in found["input_ids"]]

    def _encode_masked(self, texts: Sequence[TrainingText]) -> list[TokenizedText]:
        if not texts:
            return []
        if not self.tokenizer.is_fast:
            return [self._encode_in_parts(text) for text in texts]
        found = self.tokenizer(
            [text.text for text in texts],
            add_special_tokens=False,
            return_attention_mask=False,
            return_offsets_mapping=True,
            verbose=False,
        )
        each = zip(texts, found["input_ids"], found["offset_mapping"], strict=True)
        return [self._mask_by_offsets(text, ids, offsets) for text, ids, offsets in each]

    def _mask_by_offsets(self, text: TrainingText, ids: Sequence[int], offsets: Sequence[CharSpan]) -> TokenizedText:
        loss_mask = [0] * len(ids)
        spans = iter(text.trained)
        span = next(spans, None)
        for place, (start, end) in enumerate(offsets):
            while span is not None and start >= span[1]:
                span = next(spans, None)
            if span is None:
                break
            if start < span[0] < end:
                return self._encode_in_parts(text)
            loss_mask[place] = int(span[0] <= start < end)
        return TokenizedText(list(ids), loss_mask, text.kind)

    def _encode_in_parts(self, text: TrainingText) -> TokenizedText:
        """Cut the text at the borders of the trained spans, and tokenize each piece by itself."""
        borders = sorted({0, len(text.text), *(border for span in text.trained for border in span)})
        pieces = [(start, end) for start, end in pairwise(borders) if start < end]
        ids = self._encode([text.text[start:end] for start, end in pieces])
        trained = [int(any(start <= piece[0] < end for start, end in text.trained)) for piece in pieces]
        loss_mask = [mark for mark, each in zip(trained, ids, strict=True) for _ in each]
        return TokenizedText([token for each in ids for token in each], loss_mask, text.kind, in_parts=True)

    def _add_ends(self, tokens: TokenizedText, text: TrainingText) -> TokenizedText:
        """Add the beginning and end of text, unless they are there, or a chat template writes its own."""
        has_beginning = text.kind is RecordKind.CHAT or tokens.ids[: len(self.beginning)] == self.beginning
        beginning = [] if has_beginning else self.beginning
        end = [self.end] if self.end is not None and tokens.ids[-1:] != [self.end] else []
        if text.kind is RecordKind.CHAT:
            ends_with_answer = bool(text.trained) and text.trained[-1][1] == len(text.text)
            if not ends_with_answer or self._special & set(tokens.ids[-TURN_END_WINDOW:]):
                end = []
        return TokenizedText(
            [*beginning, *tokens.ids, *end],
            [*[0] * len(beginning), *tokens.loss_mask, *[1] * len(end)],
            tokens.kind,
            tokens.in_parts,
        )


def _cut_into_pieces(text: str) -> list[str]:
    """Cut `text` into pieces of at most MAX_PIECE_CHARS, after line ends where there are any."""
    pieces = []
    start = 0
    while len(text) - start > MAX_PIECE_CHARS:
        cut = text.rfind("\n", start, start + MAX_PIECE_CHARS) + 1 or start + MAX_PIECE_CHARS
        pieces.append(text[start:cut])
        start = cut
    return [*pieces, text[start:]]


def find_context_length(config: Any) -> int | None:  # noqa: ANN401 - of transformers; fields differ by model
    """Return the model's context length in tokens; None if its configuration does not say."""
    text = config.get_text_config()
    return next((found for name in CONTEXT_LENGTH_FIELDS if isinstance(found := getattr(text, name, None), int)), None)


def require_context_length(sequence: int, config: Any) -> None:  # noqa: ANN401 - of transformers
    """Raise DevkitError if rows of `sequence` tokens exceed the model's context length."""
    context_length = find_context_length(config)
    if context_length is not None and sequence > context_length:
        raise DevkitError(
            f"rows of {sequence} tokens are longer than this model's context length of {context_length}",
            f"Give --sequence {context_length} or less.",
        )


def require_vocabulary_size(examples: Sequence[Example], config: Any) -> None:  # noqa: ANN401 - of transformers
    """Raise DevkitError if the tokenizer makes token ids that are outside of the model's vocabulary."""
    size = int(config.get_text_config().vocab_size)
    largest = max(max(example.ids) for example in examples)
    if largest >= size:
        raise DevkitError(
            f"the tokenizer makes token {largest}, and the model's vocabulary has {size} tokens",
            "Use the tokenizer that came with the model.",
        )
