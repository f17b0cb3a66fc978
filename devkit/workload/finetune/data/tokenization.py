"""Chats as text by the tokenizer's own template, and where in that text the assistant speaks. Torch-free.

What is learned of a chat is what the model would have to write: from where the template asks for an answer to where
the answer's turn ends, the mark of its end included.
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

Tokenizer: TypeAlias = Any
"""A tokenizer of transformers, of any of its kinds."""

CharSpan: TypeAlias = tuple[int, int]
"""From a character up to, and without, another."""

CHATML_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""The template of tokenizers that have none.
Source: https://github.com/openai/openai-python/blob/release-v0.28.0/chatml.md"""

TEMPLATE_DATE = date(2024, 7, 26)
"""The day that templates write into a chat: always this one, which Llama's falls back to by itself. With today's, a run
that goes on after midnight would find other data than it began with.
Source: https://huggingface.co/meta-llama/Llama-3.1-8B-Instruct (tokenizer_config.json)"""

_CLOCK = "strftime_now"
"""What transformers gives templates to ask for the day."""

_STOPPED_CLOCK = (
    f"{{% macro {_CLOCK}(format) %}}{{{{ format"
    + "".join(f".replace('%{code}', '{TEMPLATE_DATE.strftime(f'%{code}')}')" for code in "aAbBdHjmMSyY")
    + " }}{% endmacro %}{{ '' }}"
)
"""Stands before a template that asks for the day. It ends in an expression, because Jinja drops a line break that
follows a block. A function of our own would not do: transformers hands templates plain data alone."""

_MARKS_ANSWERS = re.compile(r"\{%-?\s*generation\b")
"""A template that itself says where the assistant speaks.
Source: https://huggingface.co/docs/transformers/main/en/chat_templating_writing"""


@dataclass(frozen=True)
class RenderedChat:
    """A chat as text, and where what is learned stands in it."""

    text: str
    learned: tuple[CharSpan, ...]


def ensure_chat_template(tokenizer: Tokenizer, *, begins_with: str = "") -> str | None:
    """Give a tokenizer without a chat template ChatML's, and say so; None where it has one of its own.

    The tokenizer keeps it, so that who saves it with the adapter saves the template that was trained with.
    `begins_with` is what its texts begin with.
    """
    if tokenizer.chat_template:
        return None
    tokenizer.chat_template = (f"{{{{ {begins_with!r} }}}}" if begins_with else "") + CHATML_TEMPLATE
    return "the tokenizer has no chat template: chats are written in ChatML, which its model has not been trained with"


def _marks_answers(tokenizer: Tokenizer) -> bool:
    """Whether the template itself says where the assistant speaks, and the tokenizer can tell its tokens' places."""
    template = tokenizer.chat_template
    return tokenizer.is_fast and isinstance(template, str) and _MARKS_ANSWERS.search(template) is not None


def render_chat(record: ChatRecord, tokenizer: Tokenizer) -> list[RenderedChat]:
    """The chat with its answers, as one text; or a text for each answer, where the template makes that necessary.

    Some templates write an earlier turn differently once more turns follow: they drop its reasoning. Then no single
    text holds every answer as the model will have to write it, and each answer is learned after what led to it.
    Raises DevkitError where the template fails on this chat, or answers are not found.
    """
    whole = _text(record, len(record.messages), tokenizer)
    if _marks_answers(tokenizer):
        return [RenderedChat(whole, tuple(_marked(record, whole, tokenizer)))]
    answers = [
        number
        for number, message in enumerate(record.messages)
        if message["role"] == ASSISTANT and number >= record.learned_from
    ]
    spans = [_span(record, number, whole, tokenizer) for number in answers]
    if None not in spans:
        return [RenderedChat(whole, tuple(span for span in spans if span is not None))]
    return [_answer_alone(record, number, tokenizer) for number in answers]


def render_full_chat(record: ChatRecord, tokenizer: Tokenizer) -> RenderedChat:
    """The chat as one text, all of which is learned."""
    text = _text(record, len(record.messages), tokenizer)
    return RenderedChat(text, ((0, len(text)),))


def _span(record: ChatRecord, number: int, whole: str, tokenizer: Tokenizer) -> CharSpan | None:
    """Where the answer `number` stands in the whole text; None where that is written otherwise."""
    is_last = number + 1 == len(record.messages)
    up_to = whole if is_last else _text(record, number + 1, tokenizer)
    start = _start(record, number, up_to, tokenizer)
    return None if start is None or not whole.startswith(up_to) else (start, len(up_to))


def _answer_alone(record: ChatRecord, number: int, tokenizer: Tokenizer) -> RenderedChat:
    text = _text(record, number + 1, tokenizer)
    start = _start(record, number, text, tokenizer)
    if start is None:
        raise DevkitError(
            f"{record.place}: the chat template does not begin an answer as it asks for one, so answers are not found",
            "Mark them in the template with {% generation %}, or learn from all of a chat: --no-completion-only.",
        )
    return RenderedChat(text, ((start, len(text)),))


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


def _marked(record: ChatRecord, whole: str, tokenizer: Tokenizer) -> list[CharSpan]:
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
            f"{record.place}: the chat template refuses these messages: {to_one_line(str(error))[:200]}",
            "Many templates want user and assistant in turns, beginning with the user.",
        ) from error


# Texts to token ids, by one tokenizer of transformers, with what is learned of them. Torch-free.

MAX_PIECE_CHARS = 1 << 20
"""Characters of plain text that are tokenised in one go. Longer ones are cut at line ends first."""

TURN_END_WINDOW = 3
"""How near its end a turn must have a token that means its end: a line break or two may follow."""


@dataclass(frozen=True)
class TrainingText:
    """A text before it is tokenised. `learned` is where in it what is learned stands, in order."""

    text: str
    learned: tuple[CharSpan, ...]
    kind: RecordKind

    @property
    def is_whole(self) -> bool:
        """Whether all of it is learned."""
        return self.learned == ((0, len(self.text)),)


@dataclass(frozen=True)
class TokenizedText:
    """A text as token ids, and 1 for each that is learned.

    `apart` is whether a token would have lain across the border between what is read and what is learned, so that both
    sides were tokenised by themselves: as they are when the model answers.
    """

    ids: list[int]
    learned: list[int]
    kind: RecordKind
    apart: bool = False


class TextTokenizer:
    """One tokenizer, and what its texts begin and end with."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.beginning = self._beginning()
        self.end: int | None = tokenizer.eos_token_id
        added: dict[int, Any] = getattr(tokenizer, "added_tokens_decoder", {})
        self._special = {*tokenizer.all_special_ids, *(each for each, token in added.items() if token.special)}

    def tokenize(self, drafts: Sequence[TrainingText]) -> list[TokenizedText]:
        """The drafts as tokens, in order. All are handed to the tokenizer at once: it works on many at a time."""
        whole = [draft for draft in drafts if draft.is_whole]
        ids = self._long([draft.text for draft in whole])
        wholly = iter(
            [TokenizedText(each, [1] * len(each), draft.kind) for draft, each in zip(whole, ids, strict=True)]
        )
        partly = iter(self._partly([draft for draft in drafts if not draft.is_whole]))
        return [self._between_ends(next(wholly if draft.is_whole else partly), draft) for draft in drafts]

    def _beginning(self) -> list[int]:
        """What the tokenizer puts before a text. What it puts behind is not asked for: every text gets an end."""
        with_more = list(self.tokenizer("a")["input_ids"])
        bare = self._ids(["a"])[0]
        places = range(len(with_more) - len(bare) + 1)
        return next((with_more[:place] for place in places if with_more[place : place + len(bare)] == bare), [])

    def _ids(self, texts: Sequence[str]) -> list[list[int]]:
        if not texts:
            return []
        found = self.tokenizer(list(texts), add_special_tokens=False, return_attention_mask=False, verbose=False)
        return [list(each) for each in found["input_ids"]]

    def _long(self, texts: Sequence[str]) -> list[list[int]]:
        pieces = [_pieces(text) for text in texts]
        ids = iter(self._ids([piece for each in pieces for piece in each]))
        return [[token for _ in each for token in next(ids)] for each in pieces]

    def _partly(self, drafts: Sequence[TrainingText]) -> list[TokenizedText]:
        if not drafts:
            return []
        if not self.tokenizer.is_fast:
            return [self._apart(draft) for draft in drafts]
        found = self.tokenizer(
            [draft.text for draft in drafts],
            add_special_tokens=False,
            return_attention_mask=False,
            return_offsets_mapping=True,
            verbose=False,
        )
        each = zip(drafts, found["input_ids"], found["offset_mapping"], strict=True)
        return [self._told_apart(draft, ids, offsets) for draft, ids, offsets in each]

    def _told_apart(self, draft: TrainingText, ids: Sequence[int], offsets: Sequence[CharSpan]) -> TokenizedText:
        learned = [0] * len(ids)
        spans = iter(draft.learned)
        span = next(spans, None)
        for place, (start, end) in enumerate(offsets):
            while span is not None and start >= span[1]:
                span = next(spans, None)
            if span is None:
                break
            if start < span[0] < end:
                return self._apart(draft)
            learned[place] = int(span[0] <= start < end)
        return TokenizedText(list(ids), learned, draft.kind)

    def _apart(self, draft: TrainingText) -> TokenizedText:
        """The text cut where what is learned begins and ends, each piece tokenised by itself."""
        borders = sorted({0, len(draft.text), *(border for span in draft.learned for border in span)})
        pieces = [(start, end) for start, end in pairwise(borders) if start < end]
        ids = self._ids([draft.text[start:end] for start, end in pieces])
        learned = [int(any(start <= piece[0] < end for start, end in draft.learned)) for piece in pieces]
        marks = [mark for mark, each in zip(learned, ids, strict=True) for _ in each]
        return TokenizedText([token for each in ids for token in each], marks, draft.kind, apart=True)

    def _between_ends(self, tokens: TokenizedText, draft: TrainingText) -> TokenizedText:
        before = [] if draft.kind is RecordKind.CHAT else self._missing_beginning(tokens.ids)
        behind = self._missing_end(tokens, draft)
        ids = [*before, *tokens.ids, *behind]
        learned = [*[0] * len(before), *tokens.learned, *[1] * len(behind)]
        return TokenizedText(ids, learned, tokens.kind, tokens.apart)

    def _missing_beginning(self, ids: list[int]) -> list[int]:
        return [] if ids[: len(self.beginning)] == self.beginning else self.beginning

    def _missing_end(self, tokens: TokenizedText, draft: TrainingText) -> list[int]:
        """The end of text, unless it is there, or the turn of a chat ends otherwise."""
        if self.end is None or tokens.ids[-1:] == [self.end]:
            return []
        if draft.kind is RecordKind.CHAT:
            ends_with_answer = bool(draft.learned) and draft.learned[-1][1] == len(draft.text)
            if not ends_with_answer or self._special & set(tokens.ids[-TURN_END_WINDOW:]):
                return []
        return [self.end]


def _pieces(text: str) -> list[str]:
    """`text` in pieces of at most PIECE characters, cut behind line ends where there are any."""
    pieces = []
    start = 0
    while len(text) - start > MAX_PIECE_CHARS:
        cut = text.rfind("\n", start, start + MAX_PIECE_CHARS) + 1 or start + MAX_PIECE_CHARS
        pieces.append(text[start:cut])
        start = cut
    return [*pieces, text[start:]]


# Records to examples: token ids of at most one row, with what is learned of them.
#
# Texts begin with what the tokenizer begins texts with, once, and end with its end of text, which is learned: a model
# that never saw the end of an answer does not stop. No token is added to the vocabulary.

TOKENIZER_BATCH = 1000
"""Records that are handed to the tokenizer together."""

CONTEXT_LENGTH_FIELDS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
"""What configurations call the number of tokens that a model has positions for."""


@dataclass(frozen=True)
class TokenizedRecords:
    """Examples in the order of their records, each with something to learn, and what a person should know of them."""

    examples: list[Example]
    notes: list[str]


@dataclass
class _Counts:
    """What happened to records on the way."""

    cut: int = 0
    windows: int = 0
    shortened: int = 0
    left_out: int = 0
    split: int = 0
    apart: int = 0


def tokenize_records(
    records: Iterable[Record],
    tokenizer: Tokenizer,
    *,
    sequence: int,
    completion_only: bool = True,
    counted: Callable[[int], object] = lambda records: None,
) -> TokenizedRecords:
    """Examples of the records, no longer than `sequence` tokens.

    Plain text is cut into windows that share one token, so that each token but the first is learned exactly once.
    Prompts and chats are cut off at the right, and left out where nothing is left to learn. With `completion_only`
    prompts and the turns of everybody but the assistant are read and not learned.
    A tokenizer without a chat template is given one when the first chat comes.
    `counted` is told how many records are done: 0 once there are as many as AT_ONCE, and after each of these.
    Raises DevkitError where nothing is left.
    """
    if sequence < 2:
        raise DevkitError(f"rows of {sequence} tokens leave nothing to predict", "Give --sequence 2 or more.")
    writer = TextTokenizer(tokenizer)
    counts = _Counts()
    notes: list[str] = []
    examples: list[Example] = []
    for some in _some_at_once(records, counted):
        if any(isinstance(record, ChatRecord) for record in some):
            note = ensure_chat_template(tokenizer, begins_with=tokenizer.decode(writer.beginning))
            notes += [note] if note else []
        drafts = [each for record in some for each in _drafts(record, writer, counts, completion_only=completion_only)]
        for tokens in writer.tokenize(drafts):
            examples += _fitted(tokens, sequence, counts)
    if not examples:
        raise DevkitError(
            f"there is nothing to learn within {sequence} tokens: what is read before it fills all of them",
            "Give a larger --sequence, or shorter prompts.",
        )
    return TokenizedRecords(examples, [*notes, *_notes(counts, writer, sequence)])


def _some_at_once(records: Iterable[Record], counted: Callable[[int], object]) -> Iterator[list[Record]]:
    rest = iter(records)
    done = 0
    while some := list(islice(rest, TOKENIZER_BATCH)):
        if done or len(some) == TOKENIZER_BATCH:
            counted(done)
        done += len(some)
        yield some


def _drafts(record: Record, writer: TextTokenizer, counts: _Counts, *, completion_only: bool) -> list[TrainingText]:
    match record:
        case TextRecord(text=text):
            return [TrainingText(text, ((0, len(text)),), RecordKind.TEXT)]
        case PromptRecord(prompt=prompt, completion=completion):
            start = len(prompt) if completion_only else 0
            text = prompt + completion
            return [TrainingText(text, ((start, len(text)),), RecordKind.PROMPT)]
        case ChatRecord() if not completion_only:
            parts = [render_full_chat(record, writer.tokenizer)]
        case ChatRecord():
            parts = render_chat(record, writer.tokenizer)
    counts.split += len(parts) > 1
    return [TrainingText(part.text, part.learned, RecordKind.CHAT) for part in parts]


def _fitted(tokens: TokenizedText, sequence: int, counts: _Counts) -> Iterator[Example]:
    """The tokens as examples of at most `sequence` of them; none where nothing is learned."""
    counts.apart += tokens.apart
    if tokens.kind is RecordKind.TEXT:
        # The last token of a window is the first of the next, which is predicted from nothing there.
        starts = range(0, max(1, len(tokens.ids) - 1), sequence - 1)
        counts.cut += len(starts) > 1
        counts.windows += len(starts) if len(starts) > 1 else 0
    else:
        starts = range(1)
        counts.shortened += len(tokens.ids) > sequence
    for start in starts:
        end = start + sequence
        example = Example.compact(tokens.ids[start:end], tokens.learned[start:end])
        if example.learned:
            yield example
        else:
            counts.left_out += 1


def _notes(counts: _Counts, writer: TextTokenizer, sequence: int) -> Iterator[str]:
    if writer.end is None:
        yield "the tokenizer has no end-of-text token: texts end without one, and the model does not learn to stop"
    if counts.cut:
        longer = format_count(counts.cut, "text")
        yield f"cut {longer} of more than {sequence} tokens into {format_count(counts.windows, 'window')}"
    if counts.shortened:
        yield f"cut off {format_count(counts.shortened, 'record')} after {sequence} tokens"
    if counts.left_out:
        yield f"left out {format_count(counts.left_out, 'record')} with nothing to learn within {sequence} tokens"
    if counts.split:
        yield (
            f"made an example of each answer in {format_count(counts.split, 'chat')}: the chat template writes earlier "
            "answers differently once more turns follow"
        )
    if counts.apart:
        yield (
            f"tokenised {format_count(counts.apart, 'record')} in parts, "
            "because a token would lie across the border between what is read and what is learned"
        )


def require_context_length(sequence: int, config: Any) -> None:  # noqa: ANN401 - of transformers; fields differ by model
    """Raises DevkitError where rows are longer than the model has positions for."""
    text = config.get_text_config()
    most = next((found for name in CONTEXT_LENGTH_FIELDS if isinstance(found := getattr(text, name, None), int)), None)
    if most is not None and sequence > most:
        raise DevkitError(
            f"rows of {sequence} tokens are longer than this model reads: {most}",
            f"Give --sequence {most} or less.",
        )


def require_vocabulary_size(examples: Sequence[Example], config: Any) -> None:  # noqa: ANN401 - of transformers
    """Raises DevkitError where the tokenizer writes token ids that the model does not have."""
    size = int(config.get_text_config().vocab_size)
    largest = max(max(example.ids) for example in examples)
    if largest >= size:
        raise DevkitError(
            f"the tokenizer writes token {largest}, and the model has {size} of them",
            "Take the tokenizer that came with the model.",
        )
