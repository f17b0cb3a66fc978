"""Records to examples: token ids of at most one row, with what is learned of them.

Texts begin with what the tokenizer begins texts with, once, and end with its end of text, which is learned: a model
that never saw the end of an answer does not stop. No token is added to the vocabulary.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from devkit.errors import DevkitError
from devkit.text import count_of
from devkit.workload.finetune.batch import Example
from devkit.workload.finetune.chat import Tokenizer, give_template, rendered, rendered_whole
from devkit.workload.finetune.records import ChatRecord, Kind, PromptRecord, Record, TextRecord
from devkit.workload.finetune.tokens_writer import Draft, Tokens, Writer

AT_ONCE = 1000
"""Records that are handed to the tokenizer together."""

POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
"""What configurations call the number of tokens that a model has positions for."""


@dataclass(frozen=True)
class Tokenised:
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


def tokenised(
    records: Iterable[Record],
    tokenizer: Tokenizer,
    *,
    sequence: int,
    completion_only: bool = True,
    counted: Callable[[int], object] = lambda records: None,
) -> Tokenised:
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
    writer = Writer(tokenizer)
    counts = _Counts()
    notes: list[str] = []
    examples: list[Example] = []
    for some in _some_at_once(records, counted):
        if any(isinstance(record, ChatRecord) for record in some):
            note = give_template(tokenizer, begins_with=tokenizer.decode(writer.beginning))
            notes += [note] if note else []
        drafts = [each for record in some for each in _drafts(record, writer, counts, completion_only=completion_only)]
        for tokens in writer.tokens(drafts):
            examples += _fitted(tokens, sequence, counts)
    if not examples:
        raise DevkitError(
            f"there is nothing to learn within {sequence} tokens: what is read before it fills all of them",
            "Give a larger --sequence, or shorter prompts.",
        )
    return Tokenised(examples, [*notes, *_notes(counts, writer, sequence)])


def _some_at_once(records: Iterable[Record], counted: Callable[[int], object]) -> Iterator[list[Record]]:
    rest = iter(records)
    done = 0
    while some := list(islice(rest, AT_ONCE)):
        if done or len(some) == AT_ONCE:
            counted(done)
        done += len(some)
        yield some


def _drafts(record: Record, writer: Writer, counts: _Counts, *, completion_only: bool) -> list[Draft]:
    match record:
        case TextRecord(text=text):
            return [Draft(text, ((0, len(text)),), Kind.TEXT)]
        case PromptRecord(prompt=prompt, completion=completion):
            start = len(prompt) if completion_only else 0
            text = prompt + completion
            return [Draft(text, ((start, len(text)),), Kind.PROMPT)]
        case ChatRecord() if not completion_only:
            parts = [rendered_whole(record, writer.tokenizer)]
        case ChatRecord():
            parts = rendered(record, writer.tokenizer)
    counts.split += len(parts) > 1
    return [Draft(part.text, part.learned, Kind.CHAT) for part in parts]


def _fitted(tokens: Tokens, sequence: int, counts: _Counts) -> Iterator[Example]:
    """The tokens as examples of at most `sequence` of them; none where nothing is learned."""
    counts.apart += tokens.apart
    if tokens.kind is Kind.TEXT:
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


def _notes(counts: _Counts, writer: Writer, sequence: int) -> Iterator[str]:
    if writer.end is None:
        yield "the tokenizer has no end-of-text token: texts end without one, and the model does not learn to stop"
    if counts.cut:
        longer = count_of(counts.cut, "text")
        yield f"cut {longer} of more than {sequence} tokens into {count_of(counts.windows, 'window')}"
    if counts.shortened:
        yield f"cut off {count_of(counts.shortened, 'record')} after {sequence} tokens"
    if counts.left_out:
        yield f"left out {count_of(counts.left_out, 'record')} with nothing to learn within {sequence} tokens"
    if counts.split:
        yield (
            f"made an example of each answer in {count_of(counts.split, 'chat')}: the chat template writes earlier "
            "answers differently once more turns follow"
        )
    if counts.apart:
        yield (
            f"tokenised {count_of(counts.apart, 'record')} in parts, "
            "because a token would lie across the border between what is read and what is learned"
        )


def require_positions(sequence: int, config: Any) -> None:  # noqa: ANN401 - of transformers; fields differ by model
    """Raises DevkitError where rows are longer than the model has positions for."""
    text = config.get_text_config()
    most = next((found for name in POSITIONS if isinstance(found := getattr(text, name, None), int)), None)
    if most is not None and sequence > most:
        raise DevkitError(
            f"rows of {sequence} tokens are longer than this model reads: {most}",
            f"Give --sequence {most} or less.",
        )


def require_vocabulary(examples: Sequence[Example], config: Any) -> None:  # noqa: ANN401 - of transformers
    """Raises DevkitError where the tokenizer writes token ids that the model does not have."""
    size = int(config.get_text_config().vocab_size)
    largest = max(max(example.ids) for example in examples)
    if largest >= size:
        raise DevkitError(
            f"the tokenizer writes token {largest}, and the model has {size} of them",
            "Take the tokenizer that came with the model.",
        )
