"""Training records: texts, prompts with completions, and chats, read from what `--data` names. Torch-free.

The formats, of which the first whose fields are all present applies; other fields are ignored:

    {"messages": [{"role": "user", "content": "..."}, ...]}        a chat; optionally with "tools"
    {"conversations": [{"from": "human", "value": "..."}, ...]}    a chat in ShareGPT's format
    {"prompt": "...", "completion": "..."}                         both texts, or both lists of messages
    {"instruction": "...", "input": "...", "output": "..."}        a chat of two turns in Alpaca's format
    {"text": "..."}                                                plain text

DPO and reward models read pairs (`parse_pair`), and GRPO reads prompts (`parse_prompt`).

Formats with a prompt and an answer come first: data sets often repeat the same as plain text. JSON errors are reported
with file, line and column. Parquet, saved data sets and the hub are read by the libraries that own these formats;
none of them is required, and where one is missing, the error names it.
"""

import codecs
import importlib
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from itertools import count
from math import isnan
from pathlib import Path
from typing import Any, TypeAlias

from devkit.errors import DevkitError
from devkit.estimate.settings import Objective
from devkit.reading import find_similar_paths, read_chunks
from devkit.text import format_bytes, format_count, join_words, suggest, to_one_line
from devkit.workload.finetune.files import HubRepository, explain_hub_error

RECORD_FORMATS_HINT = (
    'One of: {"text": ...}, {"prompt": ..., "completion": ...}, {"messages": [{"role": ..., "content": ...}]}, '
    '{"instruction": ..., "output": ...}, {"conversations": [{"from": ..., "value": ...}]}.'
)

RECORD_FORMATS = (("messages",), ("conversations",), ("prompt", "completion"), ("instruction", "output"), ("text",))
RECORD_FIELDS = tuple(name for form in RECORD_FORMATS for name in form)
"""The fields by which formats are recognized."""

ASSISTANT = "assistant"

SHAREGPT_ROLES = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": ASSISTANT,
    "chatgpt": ASSISTANT,
    "assistant": ASSISTANT,
    "tool": "tool",
    "observation": "tool",
    "function_response": "tool",
}
"""Speaker in ShareGPT's format -> role of chat templates."""

Message: TypeAlias = dict[str, Any]
"""A turn as chat templates take it: "role", "content", and other fields of the data, such as "tool_calls"."""


class RecordKind(StrEnum):
    """The part of a record that is trained on: all of a text, the completion of a prompt, or the answers of a chat."""

    TEXT = "text"
    PROMPT = "prompt"
    CHAT = "chat"
    PAIR = "pair"
    QUESTION = "question"


@dataclass(frozen=True)
class RecordLocation:
    """The origin of a record: a file and its line, or a data set and its row."""

    source: str
    number: int | None = None
    unit: str = "line"

    def __str__(self) -> str:
        if self.number is None:
            return self.source
        return f"{self.source}:{self.number}" if self.unit == "line" else f"{self.source}, {self.unit} {self.number}"


@dataclass(frozen=True)
class TextRecord:
    """A text, all of which is trained on. One longer than a row is cut into windows."""

    text: str
    place: RecordLocation
    kind = RecordKind.TEXT

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to train on."""
        return not self.text.strip()


@dataclass(frozen=True)
class PromptRecord:
    """A prompt, and the completion that is trained on. They are joined as they are."""

    prompt: str
    completion: str
    place: RecordLocation
    kind = RecordKind.PROMPT

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to train on."""
        return not self.completion.strip()


@dataclass(frozen=True)
class ChatRecord:
    """Turns of a chat, of which the assistant's are trained on, from the turn `first_trained_turn` on."""

    messages: tuple[Message, ...]
    place: RecordLocation
    tools: tuple[Any, ...] = ()
    first_trained_turn: int = 0
    kind = RecordKind.CHAT

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to train on."""
        return not any(each["role"] == ASSISTANT for each in self.messages[self.first_trained_turn :])


@dataclass(frozen=True)
class PairRecord:
    """Two answers to one prompt, of which `chosen` is the better one; each is a record with the prompt before it."""

    chosen: PromptRecord | ChatRecord
    rejected: PromptRecord | ChatRecord
    place: RecordLocation
    kind = RecordKind.PAIR

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to prefer."""
        return self.chosen.is_empty or self.rejected.is_empty or self.chosen == self.rejected


@dataclass(frozen=True)
class QuestionRecord:
    """A prompt that is answered in training, a text or turns; `fields` are the record's, for the reward function."""

    prompt: str | tuple[Message, ...]
    fields: Mapping[str, Any]
    place: RecordLocation
    kind = RecordKind.QUESTION

    @property
    def is_empty(self) -> bool:
        """True if nothing is asked."""
        return not (self.prompt.strip() if isinstance(self.prompt, str) else self.prompt)


Record: TypeAlias = TextRecord | PromptRecord | ChatRecord | PairRecord | QuestionRecord

PAIR_HINT = 'A pair is {"prompt": ..., "chosen": ..., "rejected": ...}, all of them texts or lists of messages.'
PROMPT_HINT = 'A prompt is {"prompt": ...}, a text or a list of messages; your reward function gets other fields.'


def parse_pair(entry: object, place: RecordLocation) -> PairRecord:
    """Parse a preference pair: texts, or lists of messages. Raises DevkitError.

    Answers that are lists share their first turns where the prompt is not a list.
    """
    sides = ("chosen", "rejected")
    fields = _require_fields(entry, sides, place, PAIR_HINT)
    if not any(isinstance(fields[name], list) for name in sides):
        prompt = _text(_require_fields(entry, ("prompt",), place, PAIR_HINT), "prompt", place)
        better, worse = (PromptRecord(prompt, _text(fields, name, place), place) for name in sides)
        return PairRecord(better, worse, place)
    chosen, rejected = (_messages(fields[name], name, place) for name in sides)
    if isinstance(fields.get("prompt"), list):
        question = _messages(fields["prompt"], "prompt", place)
        first, chosen, rejected = len(question), (*question, *chosen), (*question, *rejected)
    else:
        turns = enumerate(zip(chosen, rejected, strict=False))
        first = next((number for number, (one, other) in turns if one != other), min(len(chosen), len(rejected)))
    good, bad = (ChatRecord(each, place, first_trained_turn=first) for each in (chosen, rejected))
    return PairRecord(good, bad, place)


def parse_prompt(entry: object, place: RecordLocation) -> QuestionRecord:
    """Parse a prompt of GRPO. Raises DevkitError."""
    fields = _require_fields(entry, ("prompt",), place, PROMPT_HINT)
    is_chat = isinstance(fields["prompt"], list)
    prompt = _messages(fields["prompt"], "prompt", place) if is_chat else _text(fields, "prompt", place)
    return QuestionRecord(prompt, fields, place)


def _require_fields(entry: object, names: tuple[str, ...], place: RecordLocation, hint: str) -> dict[str, Any]:
    """Return the fields that are not null. Raises DevkitError where one of `names` is not among them."""
    if not isinstance(entry, Mapping):
        raise DevkitError(f"{place}: expected a record object, got {_json_type(entry)}", hint)
    for name in names:
        if entry.get(name) is None:
            lack = "is null" if name in entry else f"is missing, with {_field_names(entry)}"
            raise DevkitError(f'{place}: "{name}" {lack}', hint)
    return {name: value for name, value in entry.items() if value is not None}


def parse_record(entry: object, place: RecordLocation) -> Record:
    """Parse the entry at `place`. Raises DevkitError for an entry of no known format, or of wrong types."""
    if not isinstance(entry, Mapping):
        raise DevkitError(f"{place}: expected a record object, got {_json_type(entry)}", RECORD_FORMATS_HINT)
    fields = {name: value for name, value in entry.items() if value is not None}
    if "messages" in fields:
        return _chat(_messages(fields["messages"], "messages", place), fields, place)
    if "conversations" in fields:
        return _chat(_sharegpt_messages(fields["conversations"], place), fields, place)
    if {"prompt", "completion"} <= fields.keys():
        prompt, completion = fields["prompt"], fields["completion"]
        if isinstance(prompt, list) and isinstance(completion, list):
            question = _messages(prompt, "prompt", place)
            answer = _messages(completion, "completion", place)
            return ChatRecord(question + answer, place, first_trained_turn=len(question))
        return PromptRecord(_text(fields, "prompt", place), _text(fields, "completion", place), place)
    if {"instruction", "output"} <= fields.keys():
        return _alpaca_chat(fields, place)
    if "text" in fields:
        return TextRecord(_text(fields, "text", place), place)
    raise _unknown_format(entry, place)


def _unknown_format(entry: Mapping[str, Any], place: RecordLocation) -> DevkitError:
    """Explain an entry of no format: one with a null in a required field, or with a nearly correct field name."""
    empty = [name for form in RECORD_FORMATS if set(form) <= entry.keys() for name in form if entry[name] is None]
    if empty:
        return DevkitError(f'{place}: "{empty[0]}" is null', "Write a text there, or remove the record.")
    near = {
        str(name): match[0]
        for name in entry
        if name not in RECORD_FIELDS and (match := get_close_matches(str(name).lower(), RECORD_FIELDS, n=1, cutoff=0.8))
    }
    meant = [f'Is "{to_one_line(name)[:40]}" meant to be "{field}"?' for name, field in near.items()]
    if {"chosen", "rejected"} <= entry.keys():
        meant = ["Pairs are for --objective dpo and reward."]
    return DevkitError(
        f"{place}: unknown record format, with {_field_names(entry)}", "\n".join([*meant, RECORD_FORMATS_HINT])
    )


def _chat(messages: tuple[Message, ...], fields: Mapping[str, Any], place: RecordLocation) -> ChatRecord:
    tools = fields.get("tools", [])
    if not isinstance(tools, list):
        raise DevkitError(f'{place}: "tools" is {_json_type(tools)}, but must be a list', "Give a list of functions.")
    return ChatRecord(messages, place, tools=tuple(tools))


def _alpaca_chat(fields: Mapping[str, Any], place: RecordLocation) -> ChatRecord:
    instruction = _text(fields, "instruction", place)
    if "input" in fields and (given := _text(fields, "input", place)):
        instruction = f"{instruction}\n\n{given}"
    turns = [{"role": "user", "content": instruction}]
    if "system" in fields and (system := _text(fields, "system", place)):
        turns.insert(0, {"role": "system", "content": system})
    return ChatRecord((*turns, {"role": ASSISTANT, "content": _text(fields, "output", place)}), place)


def _messages(value: object, name: str, place: RecordLocation) -> tuple[Message, ...]:
    turns = _non_empty_list(value, name, place)
    return tuple(_message(turn, f"{place}: {name}[{number}]") for number, turn in enumerate(turns))


def _sharegpt_messages(value: object, place: RecordLocation) -> tuple[Message, ...]:
    messages = []
    for number, turn in enumerate(_non_empty_list(value, "conversations", place)):
        where = f"{place}: conversations[{number}]"
        if not isinstance(turn, Mapping) or "from" not in turn:
            messages.append(_message(turn, where))
            continue
        role = SHAREGPT_ROLES.get(str(turn["from"]))
        if role is None:
            speaker = to_one_line(str(turn["from"]))[:40]
            raise DevkitError(
                f'{where} is from "{speaker}", an unknown role', f"Known are {join_words(SHAREGPT_ROLES)}."
            )
        messages.append(_message({"role": role, "content": turn.get("value")}, where))
    return tuple(messages)


def _message(turn: object, where: str) -> Message:
    hint = 'A message is {"role": "user", "content": "..."}.'
    if not isinstance(turn, Mapping):
        raise DevkitError(f"{where} is {_json_type(turn)}, but must be an object", hint)
    message = {name: value for name, value in turn.items() if value is not None}
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise DevkitError(f'{where} has no "role", with {_field_names(message)}', hint)
    if "content" not in message and "tool_calls" not in message:
        raise DevkitError(f'{where} has no "content"', hint)
    return message | {"content": _content(message.get("content", ""), where)}


def _content(content: object, where: str) -> str:
    """Return the text of a message, or its parts joined: some data sets write every content as a list of parts."""
    if isinstance(content, str):
        return _require_encodable(content, where)
    if not isinstance(content, list):
        raise DevkitError(
            f"{where} has {_json_type(content)} as its content, but must have a text", _text_hint(content)
        )
    for part in content:
        if not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, Mapping) else _json_type(part)
            raise DevkitError(
                f"{where} has content of type {to_one_line(str(kind))[:40]}", "devkit trains on text only."
            )
    return _require_encodable("".join(part["text"] for part in content), where)


def _text(fields: Mapping[str, Any], name: str, place: RecordLocation) -> str:
    value = fields[name]
    if not isinstance(value, str):
        raise DevkitError(f'{place}: "{name}" is {_json_type(value)}, but must be a text', _text_hint(value))
    return _require_encodable(value, f'{place}: "{name}"')


def _require_encodable(text: str, where: str) -> str:
    """Return `text` if UTF-8 can encode it: half a surrogate pair, as JSON's escapes allow, cannot be encoded."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        escape = f"\\u{ord(text[error.start]):04x}"
        raise DevkitError(
            f"{where} contains half a character: {escape} alone at character {error.start + 1}",
            "The text was cut in the middle of a character, or written in the wrong encoding. Write it again as UTF-8.",
        ) from error
    return text


def _non_empty_list(value: object, name: str, place: RecordLocation) -> Sequence[object]:
    if not isinstance(value, list):
        is_encoded = isinstance(value, str) and value.lstrip().startswith("[")
        hint = "It is JSON inside a text: write the list itself, without quotes." if is_encoded else RECORD_FORMATS_HINT
        raise DevkitError(f'{place}: "{name}" is {_json_type(value)}, but must be a list of messages', hint)
    if not value:
        raise DevkitError(f'{place}: "{name}" is empty', "A chat needs at least one assistant turn.")
    if len(value) > MAX_TURNS:
        raise DevkitError(
            f'{place}: "{name}" has more than {MAX_TURNS:,} turns', "Split the chat into several records."
        )
    return value


def _text_hint(value: object) -> str:
    """Return a hint how a value of another type becomes a text."""
    match value:
        case float() if isnan(value):
            return "A table contains NaN for a missing value: write a text there, or remove the record."
        case bytes():
            return "The column holds bytes: write it as text (in Arrow and Parquet the type string)."
        case list() | Mapping():
            return "Write the training text as one string."
        case _:
            return "Write it in quotes."


def _field_names(entry: Mapping[str, Any]) -> str:
    if not entry:
        return "no fields at all"
    return f"the fields {join_words(to_one_line(str(name))[:40] for name in list(entry)[:8])}"


def _json_type(value: object) -> str:
    """Return a value's type in the words of JSON."""
    if isinstance(value, float) and isnan(value):
        return "NaN"
    return "an object" if isinstance(value, Mapping) else _JSON_TYPES.get(type(value), f"a {type(value).__name__}")


_JSON_TYPES: dict[type, str] = {
    **{type(None): "null", bool: "true or false", int: "a number", float: "a number"},
    **{str: "a text", list: "a list", tuple: "a list", bytes: "bytes"},
}


JSON_LIST_HINT = "A .json file is a list of records."

JSON_LINES_HINT = "Every line of a .jsonl file is one JSON object, without commas or brackets between the lines."

RECORD_LIST_KEYS = ("data", "train", "records", "examples")
"""Keys under which a .json file that is one object may have its list of records."""

_OPEN = "Unterminated string"
"""The beginning of Python's message for a text without an end. Source: CPython, json/decoder.py."""

BYTE_ORDER_MARKS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}

SAVED_DATASET_FILES = ("dataset_info.json", "state.json")
SAVED_SPLITS_FILE = "dataset_dict.json"
"""Files that `save_to_disk` of the library datasets leaves in a folder.
Source: https://huggingface.co/docs/datasets/process#save"""

DEFAULT_SPLIT = "train"

PARQUET_BATCH_ROWS = 100
MAX_BATCH_BYTES = 1 << 30
MAX_UNPACKED_BYTES, MAX_EXPANSION = 256 << 20, 1000
"""What a table may unpack to, and how many times its own size beyond that: text seldom packs to a tenth of its bytes."""
MAX_LINE_BYTES = 16 << 20
"""A line is read whole; a device or a damaged file may have one without an end, and JSON takes twenty times its text."""
MAX_JSON_BYTES = 1 << 30
"""The text of a .json file is read whole, and its records are parsed one by one."""
MAX_TURNS = 10_000

READ_ERRORS = (OSError, ValueError, KeyError, TypeError)
"""Errors of these libraries for a file that was cut off or damaged; Arrow's own errors derive from the first two."""

_TO_JSON_LINES = '.to_json("{jsonl}", orient="records", lines=True)'
_UNPACKERS = {".gz": "gunzip", ".bz2": "bunzip2", ".xz": "unxz", ".zst": "unzstd", ".zip": "unzip"}
_ADVICE_BY_SUFFIX = {
    **{suffix: f"Unpack it first: {program} {{name}}" for suffix, program in _UNPACKERS.items()},
    ".csv": f'As JSON lines: pandas.read_csv("{{name}}"){_TO_JSON_LINES}',
    ".tsv": f'As JSON lines: pandas.read_csv("{{name}}", sep="\\t"){_TO_JSON_LINES}',
}
"""Suffix of a file that devkit does not read -> how to make one that it reads."""

_SPACES = re.compile(r"[ \t\n\r]*")

_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*(:\w[\w.-]*)?")

Entries = Iterator[tuple[Any, RecordLocation]]
"""Entries before they are parsed, with their locations."""


PARSERS: dict[Objective, Callable[[object, RecordLocation], Record]] = {
    Objective.SFT: parse_record,
    Objective.DPO: parse_pair,
    Objective.REWARD: parse_pair,
    Objective.GRPO: parse_prompt,
}
"""Objective -> how its data are parsed."""


class RecordReader:
    """The records of all sources that have something to train on, in order, read again with each iteration.

    `summary` is one line about the last iteration that ended: 12 chat records in 1 source, 2 more without anything to
    train on left out (the first: ...).

    A source is a file, a folder whose readable files are taken in the order of their names, a folder saved by the
    library datasets, or the id of a data set on the hub. Within one source all records are of one kind.
    """

    def __init__(self, names: Sequence[str], objective: Objective = Objective.SFT) -> None:
        """Find the sources. Raises DevkitError for a name of nothing."""
        self._parse = PARSERS[objective]
        if not names:
            raise DevkitError("no data was given", "Give --data FILE, a folder, or the id of a data set on the hub.")
        self._names = tuple(names)
        self.sources = tuple(source for name in names for source in _find_sources(name))
        self.summary = ""

    def __iter__(self) -> Iterator[Record]:
        """Read all records. Raises DevkitError at the first invalid record, and where nothing can be trained on."""
        kinds: Counter[RecordKind] = Counter()
        empty, first_empty = 0, None
        for source in self.sources:
            for record in _require_one_kind(self._parse(*each) for each in _read_source(source)):
                if record.is_empty:
                    empty, first_empty = empty + 1, first_empty or record
                else:
                    kinds[record.kind] += 1
                    yield record
        lack, hint = _explain_empty(first_empty) if first_empty is not None else ("", RECORD_FORMATS_HINT)
        if not kinds:
            cause = "it has no records"
            if first_empty is not None:
                cause = f"{first_empty.place} {lack}"
                cause = cause if empty == 1 else f"none of {empty} records has anything; {cause}"
            raise DevkitError(f"nothing to train on in {join_words(self._names)}: {cause}", hint)
        counts = join_words(f"{number} {kind}" for kind, number in sorted(kinds.items()))
        noun = "record" if kinds.total() == 1 else "records"
        self.summary = f"{counts} {noun} in {format_count(len(self.sources), 'source')}"
        files = [os.path.realpath(source) if Path(source).exists() else source for source in self.sources]
        if repeated := [name for name, times in Counter(files).items() if times > 1]:
            self.summary += f", {join_words(repeated)} more than once"
        if first_empty is not None:
            first = f"{first_empty.place} {lack}"
            self.summary += f", {empty} more without anything to train on left out (the first: {first})"


def _explain_empty(record: Record) -> tuple[str, str]:
    """Return what an empty record lacks, and a hint."""
    match record:
        case TextRecord():
            return "holds no text", "Give a text that is not empty."
        case PromptRecord():
            return "has an empty completion", "Training uses the completion, after the prompt."
        case PairRecord(chosen=chosen, rejected=rejected):
            if chosen == rejected:
                return "has two equal answers", "Give an answer that is worse than the chosen one."
            return _explain_empty(chosen if chosen.is_empty else rejected)
        case QuestionRecord():
            return "has an empty prompt", PROMPT_HINT
        case ChatRecord(messages=messages):
            roles = join_words(dict.fromkeys(to_one_line(each["role"])[:40] for each in messages))
            return (
                f'has no answer by "assistant", only turns by {roles}',
                'Training uses the messages with the role "assistant".',
            )


def _require_one_kind(records: Iterable[Record]) -> Iterator[Record]:
    first: Record | None = None
    for record in records:
        first = first or record
        if record.kind is not first.kind:
            raise DevkitError(
                f"{record.place} is a {record.kind} record, but {first.place} is a {first.kind} record",
                "Use only one kind of record per file; --data accepts several files.",
            )
        yield record


def _find_sources(name: str) -> list[str]:
    path = Path(name).expanduser()
    if path.is_dir():
        return _find_sources_in(path)
    _require_link_target(path)
    _refuse_pipe(path)
    if path.exists():
        if path.suffix.lower() not in READERS_BY_SUFFIX:
            raise DevkitError(f"{name} is not a file type that devkit reads", _conversion_hint(path))
        return [f"{path}"]
    if _HUB_ID.fullmatch(name) and Path(name).suffix.lower() not in READERS_BY_SUFFIX:
        return [name]
    if not path.parent.is_dir():
        raise DevkitError(f"no file or folder {name}", f"The folder {path.parent} does not exist either.")
    hint = suggest(find_similar_paths(path), "Check the path; a data set on the hub is owner/name.")
    raise DevkitError(f"no file or folder {name}", hint)


def _find_sources_in(folder: Path) -> list[str]:
    found: list[str] = []
    others: Counter[str] = Counter()
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(each for each in folders if not each.startswith("."))
        if SAVED_SPLITS_FILE in files or set(SAVED_DATASET_FILES) <= set(files):
            found.append(place)
            folders.clear()
            continue
        for file in sorted(each for each in files if not each.startswith(".")):
            suffix = Path(file).suffix.lower()
            if suffix in READERS_BY_SUFFIX:
                _require_link_target(Path(place) / file)
                _refuse_pipe(Path(place) / file)
                found.append(f"{Path(place) / file}")
            else:
                others[suffix or "no suffix"] += 1
    if not found:
        shown = join_words(f"{number} with {suffix}" for suffix, number in others.most_common(5))
        holds = f"it contains files of other kinds: {shown}" if others else "it contains no files"
        raise DevkitError(
            f"nothing to read in {folder}: {holds}", f"devkit reads files in {join_words(READERS_BY_SUFFIX, 'or')}."
        )
    return found


def _require_link_target(path: Path) -> None:
    if path.is_symlink() and not path.exists():
        raise DevkitError(f"{path} is a link to {path.readlink()}, which does not exist", "Repair or remove the link.")


def _refuse_pipe(path: Path) -> None:
    """Raise DevkitError for a file that blocks its reader or can be read only once."""
    if path.is_fifo() or path.is_socket():
        raise DevkitError(
            f"{path} is a pipe or a socket, not a file", f"Write it to a file first: cat {path} > FILE.jsonl"
        )


def _conversion_hint(path: Path) -> str:
    """Return a hint how a file of another kind becomes a readable one."""
    kinds = f"devkit reads files that end in {join_words(READERS_BY_SUFFIX, 'or')}."
    advice = _ADVICE_BY_SUFFIX.get(path.suffix.lower())
    if advice is None:
        return f"{kinds} Copy a text file with another name to one that ends in .txt."
    return f"{advice.format(name=path.name, jsonl=path.with_suffix('.jsonl').name)}\n{kinds}"


def _read_source(source: str) -> Entries:
    path = Path(source)
    if path.is_dir():
        return read_saved_dataset(path)
    return READERS_BY_SUFFIX[path.suffix.lower()](path) if path.exists() else read_hub_dataset(source)


def read_text_lines(path: Path, *, max_bytes: int = MAX_LINE_BYTES) -> Iterator[tuple[int, str]]:
    """Read a UTF-8 file line by line: numbers from 1, and lines without their ends or a byte order mark.

    Raises DevkitError, with the line, for a file that is not text.
    """
    _refuse_pipe(path)
    try:
        file = path.open("rb")
    except OSError as error:
        raise DevkitError(f"{path} cannot be read: {error.strerror}", "Check the path and its permissions.") from error
    with file:
        for number, raw in enumerate(iter(lambda: file.readline(max_bytes + 1), b""), start=1):
            if len(raw) > max_bytes:
                raise DevkitError(
                    f"{path}:{number} is longer than {format_bytes(max_bytes)}",
                    "Each record is one line: split it, or write it as Parquet.",
                )
            if number == 1 and (encoding := BYTE_ORDER_MARKS.get(raw[:2])) is not None:
                raise DevkitError(
                    f"{path} is {encoding}, but must be UTF-8", f"iconv -f {encoding} -t UTF-8 {path.name}"
                )
            line = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
            if b"\0" in line:
                raise DevkitError(
                    f"{path}:{number} holds a NUL byte",
                    "The file is binary, or was damaged when a disk filled up: write it again.",
                )
            try:
                yield number, line.decode("utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                byte = f"byte 0x{line[error.start]:02x} at byte {error.start + 1} of the line"
                raise DevkitError(
                    f"{path}:{number} is not UTF-8: {byte}", "Convert the file: iconv -f ORIGINAL-ENCODING -t UTF-8."
                ) from error


def read_text_file(path: Path) -> Entries:
    """Read a text file as one entry, whatever ends its lines."""
    yield {"text": "\n".join(line for _, line in read_text_lines(path))}, RecordLocation(f"{path}")


def read_json_lines(path: Path) -> Entries:
    """Read the entries of a file of JSON lines; blank lines are skipped. Raises DevkitError for the first bad line."""
    for number, line in read_text_lines(path):
        text = line.strip()
        if not text:
            continue
        hint = JSON_LINES_HINT
        if text.endswith((",", "[")) or text.startswith(("[", "]")):
            hint = f"{hint} Put a list in brackets into a .json file."
        elif "'" in text and '"' not in text:
            hint = f"{hint} JSON puts strings in double quotes."
        with _explain_json(f"{path}:{number}", hint=hint):
            entry = json.loads(line, object_pairs_hook=_object)
        yield entry, RecordLocation(f"{path}", number)


def read_json_records(path: Path) -> Entries:
    """Read the entries of a .json file: a list, one object with the list, a single record, or JSON lines."""
    text = _read_whole(path)
    start = _skip_spaces(text, 0)
    if start == len(text):
        return
    if text[start] == "[":
        entries: Iterable[Any] = _parse_list(text, start + 1, path)
    else:
        end = text.find("\n", start)
        if end > 0 and _skip_spaces(text, end) < len(text) and _is_json(text[start:end]):
            yield from read_json_lines(path)
            return
        if len(text) > MAX_LINE_BYTES:
            raise DevkitError(
                f"{path} is a single value of more than {format_bytes(MAX_LINE_BYTES)}",
                "devkit reads a list of records one by one: write [{...}, {...}], or one object per line.",
            )
        with _explain_json(f"{path}", hint=JSON_LIST_HINT, by_line=True):
            document = json.loads(text, object_pairs_hook=_object)
        if not isinstance(document, dict):
            raise DevkitError(
                f"{path} does not contain a list of records", "Write [{...}, {...}], or one object per line."
            )
        entries = _find_record_list(document, path)
    for number, entry in enumerate(entries, start=1):
        yield entry, RecordLocation(f"{path}", number, "record")


def _read_whole(path: Path) -> str:
    """Read a UTF-8 file. Raises DevkitError as `read_text_lines`, and for one that is too large for a memory."""
    _refuse_pipe(path)
    try:
        text = "".join(codecs.iterdecode(read_chunks(path, MAX_JSON_BYTES), "utf-8-sig"))
    except UnicodeDecodeError:
        text = "\0"
    except OSError as error:
        raise DevkitError(
            f"{path} cannot be read: {error.strerror}", "Write one object per line to a .jsonl file."
        ) from error
    if "\0" in text:
        for _ in read_text_lines(path, max_bytes=MAX_JSON_BYTES):
            pass
    return text


def _parse_list(text: str, place: int, path: Path) -> Iterator[Any]:
    """Parse the values of a list that begins before `place` one by one: together they take twenty times their text."""
    decoder = json.JSONDecoder(object_pairs_hook=_object)
    is_first, is_open = True, True
    while is_open:
        values: list[Any] = []
        with _explain_json(f"{path}", hint=JSON_LIST_HINT, by_line=True), bounded_memory(MAX_BATCH_BYTES >> 2):
            while is_open and len(values) < PARQUET_BATCH_ROWS:
                place = _skip_spaces(text, place)
                is_open = not text.startswith("]", place)
                if not is_first and is_open:
                    if not text.startswith(",", place):
                        raise json.JSONDecodeError("Expecting ',' delimiter", text, place)
                    place = _skip_spaces(text, place + 1)
                if is_open:
                    value, place = decoder.raw_decode(text, place)
                    values.append(value)
                is_first = False
            if not is_open and _skip_spaces(text, place + 1) < len(text):
                raise json.JSONDecodeError("Extra data", text, _skip_spaces(text, place + 1))
        yield from values


def _skip_spaces(text: str, place: int) -> int:
    return _SPACES.match(text, place).end()  # type: ignore[union-attr] # matches nothing, too


def _find_record_list(document: dict[str, Any], path: Path) -> list[Any]:
    """Return the records in one object, or the object itself if it is a record."""
    for name in RECORD_LIST_KEYS:
        if isinstance(document.get(name), list):
            return list(document[name])
    lists = [name for name, value in document.items() if isinstance(value, list) and value]
    if lists and document.keys().isdisjoint(RECORD_FIELDS):
        raise DevkitError(
            f'{path} is one object, with a list under "{to_one_line(lists[0])[:40]}"',
            f"A list of records is expected under {join_words(RECORD_LIST_KEYS, 'or')}: rename the key.",
        )
    return [document]


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


@contextmanager
def _explain_json(where: str, *, hint: str, by_line: bool = False) -> Iterator[None]:
    """Raise DevkitError for what parsing JSON within the block raises."""
    try:
        yield
    except json.JSONDecodeError as error:
        place = f"{where}:{error.lineno}:{error.colno}" if by_line else f"{where}:{error.colno}"
        rest = to_one_line(error.doc[error.pos : error.pos + 200].strip())[:30]
        cause = f"{error.msg[0].lower()}{error.msg[1:]} (here: {rest})"
        if not rest:
            cause = "it ends too early"
        elif error.msg.startswith(_OPEN):
            cause = f"this text has no closing quote on its line (here: {rest})"
        if error.msg.startswith(_OPEN):
            hint = "A line break within a text is written \\n. Or the file was truncated here: write it again."
        raise DevkitError(f"{place}: not JSON: {cause}", hint) from error
    except RecursionError as error:
        raise DevkitError(f"{where}: nested too deeply to be a record", hint) from error
    except MemoryError as error:
        raise DevkitError(f"{where}: a record takes more memory than a text could", hint) from error
    except ValueError as error:
        raise DevkitError(f"{where}: {to_one_line(str(error))}", hint) from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f'the key "{to_one_line(twice)[:40]}" occurs twice in one object, so one value would be lost')
    return found


def read_parquet_rows(path: Path) -> Entries:
    """Read the rows of a Parquet file, a few at a time."""
    parquet = _import_library("pyarrow.parquet", f"{path}")
    file = _open(path, lambda: parquet.ParquetFile(path))
    # Threads would reserve more addresses than there may be.
    batches = file.iter_batches(batch_size=PARQUET_BATCH_ROWS, use_threads=False)
    yield from _number_rows(_unpack(path, batches), f"{path}")


def _unpack(path: Path, batches: Iterator[Any]) -> Iterator[Any]:
    """Yield the rows of Arrow's batches. Raises DevkitError for a file that unpacks to more than a memory should hold."""
    unpacked, size = 0, path.stat().st_size
    while True:
        try:
            with bounded_memory():
                batch = next(batches, None)
                rows = [] if batch is None else batch.to_pylist()
        except MemoryError as error:
            raise _unpacks_to(path, MAX_BATCH_BYTES) from error
        if batch is None:
            return
        # Columns with a dictionary hold a text once, and rows each time.
        texts = sum(len(value) for row in rows for value in row.values() if isinstance(value, str | bytes))
        unpacked += max(batch.nbytes, texts)
        if unpacked > max(MAX_UNPACKED_BYTES, MAX_EXPANSION * size):
            raise _unpacks_to(path, unpacked)
        yield from rows


def _unpacks_to(path: Path, unpacked: int) -> DevkitError:
    return DevkitError(
        f"{path} has {format_bytes(path.stat().st_size)} but unpacks to {format_bytes(unpacked)} or more",
        "The file looks made to exhaust memory. If you trust it, write its records as JSON lines.",
    )


@contextmanager
def bounded_memory(max_bytes: int = MAX_BATCH_BYTES) -> Iterator[None]:
    """Let this process, on Linux, reserve so much more: the size of what comes is known only once it is there."""
    if sys.platform != "linux":
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limits = [pages * resource.getpagesize() + max_bytes, soft, hard]
    resource.setrlimit(resource.RLIMIT_AS, (min(each for each in limits if each != resource.RLIM_INFINITY), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def read_saved_dataset(folder: Path) -> Entries:
    """Read the rows of a folder that `save_to_disk` wrote; of several splits, those of "train"."""
    datasets = _import_library("datasets", f"{folder}")
    found = _open(folder, lambda: datasets.load_from_disk(f"{folder}"))
    if isinstance(found, dict):
        if DEFAULT_SPLIT not in found:
            raise DevkitError(
                f'{folder} has no split "{DEFAULT_SPLIT}"',
                f"Give the folder of one of its splits: {join_words((f'{folder / name}' for name in found), 'or')}.",
            )
        found = found[DEFAULT_SPLIT]
    yield from _number_rows(iter(found), f"{folder}")


def read_hub_dataset(name: str) -> Entries:
    """Read the rows of a data set on the hub: owner/name, or owner/name:split; without a split those of "train"."""
    repository, _, split = name.partition(":")
    try:
        datasets = importlib.import_module("datasets")
    except ImportError as error:
        raise DevkitError(
            f"no file or folder {name}", "If it is a data set on the hub, run pip install datasets, which reads it."
        ) from error
    try:
        found = datasets.load_dataset(repository, split=split or DEFAULT_SPLIT)
    except Exception as error:
        explained = _explain_dataset_error(repository, error)
        if explained is None:
            raise
        raise explained from error
    yield from _number_rows(iter(found), name)


def _explain_dataset_error(repository: str, error: Exception) -> DevkitError | None:
    """Explain an error of the library datasets by the hub's own response; None for an error of neither.

    By a new request, because the library drops the response and keeps a text that is the same for data sets that are
    gated and that do not exist. Source: datasets 5.2, load.py, dataset_module_factory (`raise e1 from None`).
    """
    from huggingface_hub import errors, get_hf_file_metadata, hf_hub_url

    try:
        get_hf_file_metadata(hf_hub_url(repository, "README.md", repo_type="dataset"))
    except errors.EntryNotFoundError:
        pass
    except Exception as response:  # noqa: BLE001 - judged by the caller that knows all of the hub's
        return explain_hub_error(HubRepository(repository, is_data=True), response, nearest=())
    cause = f"{repository}: {to_one_line(str(error))[:200]}"
    return DevkitError(cause, "Specify a split, as in owner/name:split.") if isinstance(error, ValueError) else None


def _import_library(name: str, wanted_for: str) -> Any:  # noqa: ANN401 - optional, and its types may not be installed
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise DevkitError(
            f"the package {package}, which reads {wanted_for}, is not installed",
            "Run pip install datasets, or write the records as JSON lines.",
        ) from error


def _open(path: Path, opening: Callable[[], Any]) -> Any:  # noqa: ANN401 - what an optional library returns
    try:
        return opening()
    except READ_ERRORS as error:
        raise _unreadable(f"{path}", error) from error


def _number_rows(rows: Iterator[Any], source: str) -> Entries:
    for number in count():
        try:
            row = next(rows)
        except StopIteration:
            return
        except READ_ERRORS as error:
            raise _unreadable(source, error) from error
        yield row, RecordLocation(source, number, "row")


def _unreadable(source: str, error: Exception) -> DevkitError:
    cause = to_one_line(str(error))[:200] or type(error).__name__
    return DevkitError(f"{source} cannot be read: {cause}", "Check that it was written completely.")


READERS_BY_SUFFIX: dict[str, Callable[[Path], Entries]] = {
    ".txt": read_text_file,
    ".jsonl": read_json_lines,
    ".ndjson": read_json_lines,
    ".json": read_json_records,
    ".parquet": read_parquet_rows,
}
