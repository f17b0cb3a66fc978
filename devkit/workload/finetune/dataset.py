"""The dataset of a run: from --data and --eval-data to examples, rows, and the micro-batches of each rank and step.

Every rank reads and tokenizes all of it, with the same result: a token takes five bytes. Texts begin with the
tokenizer's beginning of text, once, and end with its end of text, which is trained on: a model that never saw the end of
an answer does not stop. No token is added to the vocabulary. Chats are rendered by the tokenizer's own chat template, in
Jinja's sandbox and for a limited time. Trained on is what the model would have to write: from where the template asks for
an answer to the end of the answer's turn, the end-of-turn token included.

Rows and their order are a function of the seed and the step: a resumed run needs no state of the data but its step, and
has nothing to skip.
"""

import random
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property, lru_cache
from itertools import accumulate, islice, pairwise
from typing import Any, TypeAlias

import torch
from torch.nn.utils.rnn import pad_sequence

from devkit.errors import DevkitError
from devkit.text import format_count, to_one_line
from devkit.workload.finetune.events import Events, ReadingProgress
from devkit.workload.finetune.files import Tokenizer
from devkit.workload.finetune.process import limit_time
from devkit.workload.finetune.records import (
    ASSISTANT,
    ChatRecord,
    Message,
    PairRecord,
    PromptRecord,
    QuestionRecord,
    Record,
    RecordKind,
    RecordReader,
    TextRecord,
    bounded_memory,
)
from devkit.workload.finetune.settings import FinetuneSettings

IGNORE_INDEX = -100
"""The label that the loss ignores: padding, prompts, and the first token after a text's border."""

PAD_ID = 0
"""The token id of padding. Any id would do: nothing attends to it, and no label predicts it."""


@dataclass(frozen=True)
class Example:
    """A text as token ids; `loss_mask[i]` is 1 if the prediction of `ids[i]` from the tokens before it is trained on.

    The first token has nothing before it and never counts, whatever `loss_mask[0]` is.
    """

    ids: Sequence[int]
    loss_mask: Sequence[int]

    @classmethod
    def compact(cls, ids: Iterable[int], loss_mask: Iterable[int]) -> "Example":
        """Return the example in five bytes a token, where lists take sixteen and more: a data set stays in memory."""
        return cls(array("i", ids), array("b", loss_mask))

    @property
    def length(self) -> int:
        """Tokens of its row."""
        return len(self.ids)

    @cached_property
    def target_count(self) -> int:
        """Number of predictions that are trained on."""
        return sum(map(bool, self.loss_mask[1:]))


@dataclass(frozen=True)
class BatchRow:
    """Texts that are packed into one row, or a single one. No token of one may attend to a token of another."""

    examples: tuple[Example, ...]

    @cached_property
    def length(self) -> int:
        """Tokens of the row, without padding."""
        return sum(len(each.ids) for each in self.examples)

    @property
    def target_count(self) -> int:
        """Number of predictions that are trained on."""
        return sum(each.target_count for each in self.examples)


@dataclass(frozen=True)
class MicroBatch:
    """The input of one forward pass. All tensors have shape [rows, tokens] and are on the CPU.

    `labels[r, t]` is the token that position t must predict, already shifted by one; IGNORE_INDEX if not trained on.
    `positions` start again at 0 with each text, and with the padding behind the last text of a row.
    `cu_seqlens` are the cumulative lengths of the texts, [texts + 1], int32, of a flat batch; None otherwise.
    `attention_mask` (1 for a token, 0 for padding) is that of padded rows; None otherwise.
    `target_count` and `token_count` leave padding out.
    """

    ids: torch.Tensor
    labels: torch.Tensor
    positions: torch.Tensor
    cu_seqlens: torch.Tensor | None
    attention_mask: torch.Tensor | None
    target_count: int
    token_count: int


def move_to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Move a tensor of a batch to `device`; to a GPU through pinned memory.

    A copy from other memory would first wait for all work that is queued on the GPU.
    Source: https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html
    """
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)


def collate(rows: Sequence[BatchRow], *, flat: bool) -> MicroBatch:
    """Collate rows into one micro-batch. Without rows it holds one padding token, which counts for nothing.

    A rank whose part of a step is empty needs such a batch: the others wait for it in collectives.

    Args:
        flat: concatenate all texts to one row of any length, for attention that gets their borders. Otherwise there is
            one text a row, padded to equal length.
    """
    token_count = sum(row.length for row in rows)
    rows = rows or (BatchRow((Example((PAD_ID,), (0,)),)),)
    target_count = sum(row.target_count for row in rows)
    examples = [each for row in rows for each in row.examples]
    cu_seqlens = attention_mask = None
    if flat:
        ids, labels, positions = (part.unsqueeze(0) for part in _concatenate(examples))
        cu_seqlens = torch.tensor([0, *accumulate(len(each.ids) for each in examples)], dtype=torch.int32)
    else:
        if len(examples) > len(rows):
            raise ValueError("padded rows hold one text each; packed rows are flat")
        lengths = torch.tensor([len(each.ids) for each in examples]).unsqueeze(1)
        texts, targets, _ = map(list, zip(*(_concatenate([each]) for each in examples), strict=True))
        ids = pad_sequence(texts, batch_first=True, padding_value=PAD_ID)
        labels = pad_sequence(targets, batch_first=True, padding_value=IGNORE_INDEX)
        columns = torch.arange(ids.shape[1])
        is_token = columns < lengths
        attention_mask, positions = is_token.long(), torch.where(is_token, columns, columns - lengths)
    return MicroBatch(ids, labels, positions, cu_seqlens, attention_mask, target_count, token_count)


def _concatenate(examples: Sequence[Example]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return ids, labels and positions, each of shape [tokens]."""
    ids = torch.cat([_as_tensor(each.ids, torch.int32) for each in examples]).long()
    loss_mask = torch.cat([_as_tensor(each.loss_mask, torch.int8) for each in examples]).bool()
    positions = torch.cat([torch.arange(len(each.ids)) for each in examples])
    labels = torch.full_like(ids, IGNORE_INDEX)
    # A text's first token is not a prediction: the token before it belongs to another text.
    labels[:-1] = torch.where(loss_mask[1:] & (positions[1:] > 0), ids[1:], IGNORE_INDEX)
    return ids, labels, positions


def _as_tensor(values: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    if isinstance(values, array):
        return torch.frombuffer(values, dtype=dtype)
    return torch.tensor([int(each) for each in values], dtype=dtype)


def pack_rows(lengths: Sequence[int], row_length: int) -> list[list[int]]:
    """Pack texts into rows of at most `row_length` tokens: indices into `lengths`, each exactly once.

    Best fit decreasing: the longest text first, each into the fullest row that still has space for it, which never
    takes more than 11/9 of the fewest possible rows and four more. The same lengths always give the same rows.
    Source: Johnson, Demers, Ullman, Garey, Graham, "Worst-case performance bounds for simple one-dimensional packing
    algorithms", SIAM Journal on Computing 3 (1974). Raises ValueError for a text that is empty or longer than a row.
    """
    wrong = next((length for length in lengths if not 0 < length <= row_length), None)
    if wrong is not None:
        raise ValueError(f"a text of {wrong} tokens does not fit into rows of {row_length}")
    rows: list[list[int]] = []
    with_space: list[list[int]] = [[] for _ in range(row_length + 1)]
    """The rows by the space that they have left."""
    spaces = 0
    """Bit n is set if some row has space for exactly n more tokens: the best fit is one shift away."""
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        length = lengths[index]
        fitting = spaces >> length
        if fitting:
            space = length + (fitting & -fitting).bit_length() - 1
            row = with_space[space].pop()
            if not with_space[space]:
                spaces ^= 1 << space
        else:
            space, row = row_length, len(rows)
            rows.append([])
        rows[row].append(index)
        with_space[space - length].append(row)
        spaces |= 1 << (space - length)
    return rows


@lru_cache(maxsize=2)
def epoch_permutation(rows: int, *, seed: int, epoch: int) -> tuple[int, ...]:
    """Return all rows in the order of this epoch.

    Sorted by random keys, because Python promises the numbers of `random()` from one release to the next, and of no
    other method. Source: https://docs.python.org/3/library/random.html#notes-on-reproducibility
    """
    source = random.Random(f"devkit rows, seed {seed}, epoch {epoch}")  # noqa: S311 - an order, not a secret
    keys = [source.random() for _ in range(rows)]
    return tuple(sorted(range(rows), key=keys.__getitem__))


def micro_batches_of_rank(lengths: Sequence[int], *, rank: int, world_size: int, micro_batch: int) -> list[list[int]]:
    """Return the micro-batches of a rank as indices into `lengths`; a micro-batch may be empty.

    Every rank gets equally many, as collectives demand. Rows of similar length go together, so that little is padded;
    longest first, so that memory is allocated once; and the ranks take turns at the longest.
    """
    longest_first = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    passes = max(1, -(-len(lengths) // (world_size * micro_batch)))
    share, longer = divmod(len(lengths), passes * world_size)
    first_longer = passes * world_size - longer
    """The micro-batches from here on have one row more: their rows are the shorter ones."""
    own = []
    start = 0
    for slot in range(passes * world_size):
        size = share + (slot >= first_longer)
        turn, place = divmod(slot, world_size)
        if rank == (place if turn % 2 == 0 else world_size - 1 - place):
            own.append(longest_first[start : start + size])
        start += size
    return own


class BatchLoader:
    """Examples as rows, distributed over steps, ranks and micro-batches: a deterministic DataLoader.

    The rows of a step depend on the seed and the step alone. World size and micro-batch change nothing but rounding,
    given that losses are divided by `count_targets(step)`.
    """

    def __init__(
        self,
        examples: Sequence[Example],
        *,
        batch: int,
        sequence: int,
        seed: int = 0,
        pack: bool = False,
        flat: bool = False,
    ) -> None:
        """`batch` is in rows, over all ranks; `sequence` is the longest row in tokens."""
        if not examples:
            raise DevkitError("nothing to train on: no examples remain", "Provide data with at least one text.")
        self.batch = batch
        self.sequence = sequence
        self.seed = seed
        self.flat = flat
        self.pack = pack
        self.text_count = len(examples)
        if pack:
            packed = pack_rows([len(each.ids) for each in examples], sequence)
            self.rows = [BatchRow(tuple(examples[index] for index in row)) for row in packed]
        else:
            self.rows = [BatchRow((each,)) for each in examples]

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps that pass over all rows once; the last may have fewer rows than `batch`."""
        return -(-len(self.rows) // self.batch)

    @property
    def notes(self) -> list[str]:
        """Notes for people before the run: packing efficiency, and a smaller last step."""
        notes = []
        if self.pack:
            efficiency = sum(row.length for row in self.rows) / (len(self.rows) * self.sequence)
            notes.append(
                f"packed {format_count(self.text_count, 'text')} into {format_count(len(self.rows), 'row')} of at most "
                f"{self.sequence} tokens, {efficiency:.1%} full"
            )
        rest = len(self.rows) % self.batch
        if len(self.rows) < self.batch:
            shown = format_count(len(self.rows), "row")
            notes.append(f"each step trains on {shown} instead of {self.batch}: the data set has no more")
        elif rest:
            shown = format_count(rest, "row")
            notes.append(f"the last step of each epoch trains on {shown} instead of {self.batch}: no row is left out")
        return notes

    def load_step(self, step: int, *, rank: int = 0, world_size: int = 1, micro_batch: int = 1) -> list[MicroBatch]:
        """Return the micro-batches of a rank in step `step`, counted from 0.

        All ranks get equally many of at most `micro_batch` rows; one without rows holds a padding token.
        """
        rows = self._rows_of(step)
        lengths = [row.length for row in rows]
        own = micro_batches_of_rank(lengths, rank=rank, world_size=world_size, micro_batch=micro_batch)
        return [collate([rows[index] for index in indices], flat=self.flat) for indices in own]

    def count_targets(self, step: int) -> int:
        """Return the number of predictions that step `step` trains on, over all ranks: the divisor of its loss."""
        return sum(row.target_count for row in self._rows_of(step))

    def _rows_of(self, step: int) -> list[BatchRow]:
        epoch, within = divmod(step, self.steps_per_epoch)
        order = epoch_permutation(len(self.rows), seed=self.seed, epoch=epoch)
        return [self.rows[index] for index in order[within * self.batch : (within + 1) * self.batch]]


TIMEOUT_S = 5.0
"""A template takes milliseconds; one with loops in loops takes years, and the sandbox bounds each loop alone."""

MAX_TEMPLATE_BYTES = 256 << 20
"""A template may multiply texts, too, which no clock interrupts."""


def render_chat_template(tokenizer: Any, messages: Sequence[Any], *, place: object = "", **arguments: object) -> Any:  # noqa: ANN401 - a text, or tokens
    """Render messages by the tokenizer's chat template. Raises DevkitError, with the place of the messages.

    A template is a program that came with the model: it raises what it likes, and mostly on purpose.
    """
    try:
        with limit_time(TIMEOUT_S), bounded_memory(MAX_TEMPLATE_BYTES):
            return tokenizer.apply_chat_template(list(messages), **arguments)
    except Exception as error:
        cause = str(error) if not isinstance(error, MemoryError) else "it takes more memory than a chat could"
        raise DevkitError(
            f"{f'{place}: ' if place else ''}the chat template rejects these messages: {to_one_line(cause)[:200]}",
            "Many templates require user and assistant to alternate, beginning with the user, and some have no system role.",
        ) from error


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
"""The date that templates write into a chat: always this one, which Llama's falls back to by default. With today's date,
a run that resumes after midnight would find different data than it began with.
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


_NOTES = {
    "cut": ("text", "more than {sequence} tokens, cut into windows"),
    "truncated": ("record", "truncated after {sequence} tokens"),
    "left_out": ("record", "left out, with nothing to train on within {sequence} tokens"),
    "split": ("chat", "each answer an example, as the chat template renders earlier answers differently later"),
    "in_parts": ("record", "tokenized in parts, as a token would cross the boundary between prompt and completion"),
}
"""What happens to records -> what they are called, and what is said of them."""


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
        raise DevkitError(f"rows of {sequence} tokens leave nothing to predict", "Give --max-length 2 or more.")
    text_tokenizer = TextTokenizer(tokenizer)
    counts: Counter[str] = Counter()
    notes: list[str] = []
    if text_tokenizer.end is None:
        notes.append("the tokenizer has no end-of-text token, so the model does not learn to stop")
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
            counts["split"] += len(rendered) > 1
            texts += rendered
        for tokens in text_tokenizer.tokenize(texts):
            examples += _cut_to_rows(tokens, sequence, counts)
    if not examples:
        raise DevkitError(
            f"nothing to train on within {sequence} tokens: the prompts fill all of them",
            "Use a larger --max-length, or shorter prompts.",
        )
    for what, (noun, says) in _NOTES.items():
        if counts[what]:
            notes.append(f"{format_count(counts[what], noun)}: {says.format(sequence=sequence)}")
    return TokenizedRecords(examples, notes)


def _cut_to_rows(tokens: "TokenizedText", sequence: int, counts: Counter[str]) -> Iterator[Example]:
    """Yield examples of at most `sequence` tokens; none if nothing in them is trained on."""
    counts["in_parts"] += tokens.in_parts
    if tokens.kind is RecordKind.TEXT:
        # The last token of a window is the first of the next one, which is predicted from nothing there.
        starts = range(0, max(1, len(tokens.ids) - 1), sequence - 1)
        counts["cut"] += len(starts) > 1
    else:
        starts = range(1)
        counts["truncated"] += len(tokens.ids) > sequence
    for start in starts:
        end = start + sequence
        example = Example.compact(tokens.ids[start:end], tokens.loss_mask[start:end])
        if example.target_count:
            yield example
        else:
            counts["left_out"] += 1


@dataclass(frozen=True)
class TrainingText:
    """A text before it is tokenized, and the spans of it that are trained on, in order."""

    text: str
    trained: tuple[CharSpan, ...]
    kind: RecordKind

    @property
    def is_fully_trained(self) -> bool:
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
        case PairRecord() | QuestionRecord():
            raise TypeError("pairs and prompts are not one text")


def ensure_chat_template(tokenizer: Tokenizer, *, begins_with: str = "") -> str | None:
    """Give a tokenizer without a chat template ChatML's, and return a note; None if it already has one.

    The tokenizer keeps it, so that saving it with the adapter saves the template of the training.
    `begins_with` is the tokenizer's beginning of text.
    """
    if tokenizer.chat_template:
        return None
    tokenizer.chat_template = (f"{{{{ {begins_with!r} }}}}" if begins_with else "") + CHATML_TEMPLATE
    return "the tokenizer has no chat template: chats use ChatML, which the model was not trained with"


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
    rendered = [_render_up_to_answer(record, number, whole, tokenizer) for number in answers]
    if all(whole.startswith(each.text) for each in rendered):
        return [TrainingText(whole, tuple(each.trained[0] for each in rendered), RecordKind.CHAT)]
    return rendered


def _render_up_to_answer(record: ChatRecord, number: int, whole: str, tokenizer: Tokenizer) -> TrainingText:
    """Render the chat up to an answer, which begins after the generation prompt, else after the turns before it."""
    is_last = number + 1 == len(record.messages)
    text = whole if is_last else _apply_template(record, number + 1, tokenizer)
    for with_prompt in (True, False):
        before = _apply_template(record, number, tokenizer, add_generation_prompt=with_prompt) if number else ""
        if text.startswith(before) and (before or not number):
            return TrainingText(text, ((len(before), len(text)),), RecordKind.CHAT)
    raise DevkitError(
        f"{record.place}: answers are not found, because the chat template begins them differently from its "
        "generation prompt",
        "Mark them in the template with {% generation %}, or train on all of a chat: --no-completion-only.",
    )


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


def _call_template(record: ChatRecord, messages: Sequence[Message], tokenizer: Tokenizer, **arguments: object) -> Any:  # noqa: ANN401 - a text, or tokens
    template = tokenizer.chat_template
    # None means the tokenizer's own: it has no date in it, or is several templates by name.
    dated = _STOPPED_CLOCK + template if isinstance(template, str) and _CLOCK in template else None
    tools = list(record.tools) or None
    return render_chat_template(tokenizer, messages, place=record.place, tools=tools, chat_template=dated, **arguments)


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
        with_special, bare = list(tokenizer("a")["input_ids"]), self._encode(["a"])["input_ids"][0]
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
        encoded = iter(self._encode([piece for each in pieces for piece in each])["input_ids"])
        ids = [[token for _ in each for token in next(encoded)] for each in pieces]
        full_tokens = iter(
            [TokenizedText(each, [1] * len(each), text.kind) for text, each in zip(full, ids, strict=True)]
        )
        masked_tokens = iter(self._encode_masked([text for text in texts if not text.is_fully_trained]))
        return [self._add_ends(next(full_tokens if text.is_fully_trained else masked_tokens), text) for text in texts]

    def _encode(self, texts: Sequence[str], **more: bool) -> Any:  # noqa: ANN401 - a BatchEncoding of transformers
        if not texts:
            return {"input_ids": [], "offset_mapping": []}
        return self.tokenizer(list(texts), add_special_tokens=False, return_attention_mask=False, verbose=False, **more)

    def _encode_masked(self, texts: Sequence[TrainingText]) -> list[TokenizedText]:
        if not self.tokenizer.is_fast:
            return [self._encode_in_parts(text) for text in texts]
        found = self._encode([text.text for text in texts], return_offsets_mapping=True)
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
        """Cut the text at the borders of the trained spans, and tokenize each piece separately."""
        borders = sorted({0, len(text.text), *(border for span in text.trained for border in span)})
        pieces = [(start, end) for start, end in pairwise(borders) if start < end]
        ids = self._encode([text.text[start:end] for start, end in pieces])["input_ids"]
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


def require_vocabulary_size(examples: Sequence[Example], config: Any) -> None:  # noqa: ANN401 - of transformers
    """Raise DevkitError if the tokenizer produces token ids that are outside the model's vocabulary."""
    size = int(config.get_text_config().vocab_size)
    largest = max(max(example.ids) for example in examples)
    if largest >= size:
        raise DevkitError(
            f"the tokenizer produces token {largest}, but the model's vocabulary has {size} tokens",
            "Use the tokenizer that came with the model.",
        )


@dataclass(frozen=True)
class Dataset:
    """Examples to train on, held-out examples to evaluate on, and notes for people.

    `chat_template` is how chats were rendered, which a program that talks to the trained model needs.
    """

    train: Sequence[Example]
    held_out: Sequence[Example]
    notes: tuple[str, ...]
    chat_template: str | None = None


def build_dataset(
    settings: FinetuneSettings,
    tokenizer: Tokenizer,
    config: Any,  # noqa: ANN401 - of transformers
    events: Events,
    tokenize: Callable[..., TokenizedRecords] = tokenize_records,
) -> Dataset:
    """Read and tokenize all data for the model of `config`, by `tokenize`; `events` get the progress.

    Raises DevkitError for data that cannot be trained on.
    """
    examples, notes = _tokenize(settings.data, tokenizer, settings, events, tokenize)
    require_vocabulary_size(examples, config)
    if settings.sequence == find_context_length(config):
        notes = (*notes, f"rows have at most {settings.sequence} tokens, which is this model's context length")
    if not settings.eval_data:
        return Dataset(*_split(examples, settings), notes, tokenizer.chat_template)
    held_out, more = _tokenize(settings.eval_data, tokenizer, settings, events, tokenize)
    notes = (*notes, *(f"held-out data: {note}" for note in more))
    return Dataset(examples, held_out, notes, tokenizer.chat_template)


def limit_to_context_length(settings: FinetuneSettings, config: Any) -> FinetuneSettings:  # noqa: ANN401 - of transformers
    """Return the settings with the default sequence length limited to the model's context length.

    Raises DevkitError if the user set a longer one.
    """
    context_length = find_context_length(config)
    if context_length is None or settings.sequence <= context_length:
        return settings
    if settings.sequence == FinetuneSettings.sequence:
        return replace(settings, sequence=context_length)
    raise DevkitError(
        f"rows of {settings.sequence} tokens are longer than this model's context length of {context_length}",
        f"Give --max-length {context_length} or less.",
    )


def _tokenize(
    names: tuple[str, ...],
    tokenizer: Tokenizer,
    settings: FinetuneSettings,
    events: Events,
    tokenize: Callable[..., TokenizedRecords],
) -> tuple[Sequence[Example], tuple[str, ...]]:
    records = RecordReader(names, settings.objective)
    tokenized = tokenize(
        records,
        tokenizer,
        sequence=settings.sequence,
        completion_only=settings.completion_only,
        on_progress=ReadingProgress(events),
    )
    return tokenized.examples, (records.summary, *tokenized.notes)


def _split(examples: Sequence[Example], settings: FinetuneSettings) -> tuple[Sequence[Example], Sequence[Example]]:
    """Split off the share to hold out, spread evenly over the data."""
    wanted = round(len(examples) * settings.eval_share)
    if settings.eval_share > 0 and not 0 < wanted < len(examples):
        raise DevkitError(
            f"eval_share {settings.eval_share:g} of {len(examples)} texts leaves nothing on one side",
            "Give more texts, or --eval-data.",
        )
    held_out = {index * len(examples) // wanted for index in range(wanted)}
    train = [each for index, each in enumerate(examples) if index not in held_out]
    return train, [examples[index] for index in sorted(held_out)]
