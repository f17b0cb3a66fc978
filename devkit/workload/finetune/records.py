"""Training records: texts, prompts with completions, and chats, read from what `--data` names. Torch-free.

The formats, of which the first whose fields are all present applies; other fields are ignored:

    {"messages": [{"role": "user", "content": "..."}, ...]}        a chat; optionally with "tools"
    {"conversations": [{"from": "human", "value": "..."}, ...]}    a chat in ShareGPT's format
    {"prompt": "...", "completion": "..."}                         both texts, or both lists of messages
    {"instruction": "...", "input": "...", "output": "..."}        a chat of two turns in Alpaca's format
    {"text": "..."}                                                plain text

DPO and reward models read pairs (`parse_pair`), and GRPO reads prompts (`parse_prompt`).

Formats with a prompt and an answer come first: data sets often repeat the same as plain text. JSON errors are reported
with file, line and column. Parquet and the hub are read by the libraries that own these formats; neither is required, and
where one is missing, the error names it.
"""

import importlib
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from math import isnan
from pathlib import Path
from typing import Any, TypeAlias

from devkit.errors import DevkitError
from devkit.estimate.settings import Objective
from devkit.formats.jsonc import explain_json_error
from devkit.probe.package_indexes import require_addresses
from devkit.reading import suggest_path
from devkit.text import format_bytes, format_count, join_words, to_one_line

RECORD_FORMATS_HINT = (
    'One of: {"text": ...}, {"prompt": ..., "completion": ...}, {"messages": [{"role": ..., "content": ...}]}, '
    '{"instruction": ..., "output": ...}, {"conversations": [{"from": ..., "value": ...}]}.'
)

TEXT_HINT = "Write a text there, or remove the record."

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
    def lack(self) -> str:
        """What it lacks to be trained on, "" for nothing."""
        return "" if self.text.strip() else "holds no text"


@dataclass(frozen=True)
class PromptRecord:
    """A prompt, and the completion that is trained on. They are joined as they are."""

    prompt: str
    completion: str
    place: RecordLocation
    kind = RecordKind.PROMPT

    @property
    def lack(self) -> str:
        """What it lacks to be trained on, "" for nothing."""
        return "" if self.completion.strip() else "has an empty completion"


@dataclass(frozen=True)
class ChatRecord:
    """Turns of a chat, of which the assistant's are trained on, from the turn `first_trained_turn` on."""

    messages: tuple[Message, ...]
    place: RecordLocation
    tools: tuple[Any, ...] = ()
    first_trained_turn: int = 0
    kind = RecordKind.CHAT

    @property
    def lack(self) -> str:
        """What it lacks to be trained on, "" for nothing."""
        roles = {each["role"] for each in self.messages[self.first_trained_turn :]}
        return "" if ASSISTANT in roles else f'has no answer by "{ASSISTANT}"'


@dataclass(frozen=True)
class PairRecord:
    """Two answers to one prompt, of which `chosen` is the better one; each is a record with the prompt before it."""

    chosen: PromptRecord | ChatRecord
    rejected: PromptRecord | ChatRecord
    place: RecordLocation
    kind = RecordKind.PAIR

    @property
    def lack(self) -> str:
        """What it lacks to be trained on, "" for nothing."""
        is_empty = self.chosen.lack or self.rejected.lack or self.chosen == self.rejected
        return "has an empty answer, or two equal ones" if is_empty else ""


@dataclass(frozen=True)
class QuestionRecord:
    """A prompt that is answered in training, a text or turns; `fields` are the record's, for the reward function."""

    prompt: str | tuple[Message, ...]
    fields: Mapping[str, Any]
    place: RecordLocation
    kind = RecordKind.QUESTION

    @property
    def lack(self) -> str:
        """What it lacks to be trained on, "" for nothing."""
        is_asked = self.prompt.strip() if isinstance(self.prompt, str) else self.prompt
        return "" if is_asked else "has an empty prompt"


Record: TypeAlias = TextRecord | PromptRecord | ChatRecord | PairRecord | QuestionRecord

PAIR_HINT = 'A pair is {"prompt": ..., "chosen": ..., "rejected": ...}, all of them texts or lists of messages.'
PROMPT_HINT = 'A prompt is {"prompt": ...}, a text or a list of messages; your reward function gets other fields.'


def parse_pair(entry: object, place: RecordLocation) -> PairRecord:
    """Parse a preference pair: texts, or lists of messages. Raises DevkitError.

    Answers that are lists share their first turns where the prompt is not a list.
    """
    sides = ("chosen", "rejected")
    fields = require_fields(entry, sides, place, PAIR_HINT)
    if not any(isinstance(fields[name], list) for name in sides):
        prompt = _text(require_fields(entry, ("prompt",), place, PAIR_HINT), "prompt", place)
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
    fields = require_fields(entry, ("prompt",), place, PROMPT_HINT)
    is_chat = isinstance(fields["prompt"], list)
    prompt = _messages(fields["prompt"], "prompt", place) if is_chat else _text(fields, "prompt", place)
    return QuestionRecord(prompt, fields, place)


def require_fields(entry: object, names: tuple[str, ...], place: RecordLocation, hint: str) -> dict[str, Any]:
    """Return the fields that are not null. Raises DevkitError where one of `names` is not among them."""
    if not isinstance(entry, Mapping):
        raise DevkitError(f"{place}: expected a record object, got {_json_type(entry)}", hint)
    for name in names:
        if entry.get(name) is None:
            lack = "is null" if name in entry else f"is missing, with {format_field_names(entry)}"
            raise DevkitError(f'{place}: "{name}" {lack}', hint)
    return {name: value for name, value in entry.items() if value is not None}


def parse_record(entry: object, place: RecordLocation) -> Record:
    """Parse the entry at `place`. Raises DevkitError for an entry of no known format, or of wrong types."""
    fields = require_fields(entry, (), place, RECORD_FORMATS_HINT)
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
    assert isinstance(entry, Mapping)  # noqa: S101 - it has fields
    is_pair = {"chosen", "rejected"} <= entry.keys()
    hint = "Pairs are for --objective dpo and reward." if is_pair else RECORD_FORMATS_HINT
    raise DevkitError(f"{place}: unknown record format, with {format_field_names(entry)}", hint)


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
        raise DevkitError(f'{where} has no "role", with {format_field_names(message)}', hint)
    if "content" not in message and "tool_calls" not in message:
        raise DevkitError(f'{where} has no "content"', hint)
    return message | {"content": _content(message.get("content", ""), where)}


def _content(content: object, where: str) -> str:
    """Return the text of a message, or its parts joined: some data sets write every content as a list of parts."""
    if isinstance(content, str):
        return require_utf8(content, where)
    if not isinstance(content, list):
        raise DevkitError(f"{where} has {_json_type(content)} as its content, but must have a text", TEXT_HINT)
    for part in content:
        if not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, Mapping) else _json_type(part)
            raise DevkitError(
                f"{where} has content of type {to_one_line(str(kind))[:40]}", "devkit trains on text only."
            )
    return require_utf8("".join(part["text"] for part in content), where)


def _text(fields: Mapping[str, Any], name: str, place: RecordLocation) -> str:
    value = fields[name]
    if not isinstance(value, str):
        raise DevkitError(f'{place}: "{name}" is {_json_type(value)}, but must be a text', TEXT_HINT)
    return require_utf8(value, f'{place}: "{name}"')


def require_utf8(text: str, where: str) -> str:
    """Return `text`. Raises DevkitError for half a character, which JSON can hold, and which Python decodes invalid UTF-8 to."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DevkitError(
            f"{where} is not UTF-8: {text[error.start]!a} at character {error.start + 1}",
            "The text was cut in the middle of a character, or written in another encoding. Convert it to UTF-8.",
        ) from error
    return text


def _non_empty_list(value: object, name: str, place: RecordLocation) -> Sequence[object]:
    if not isinstance(value, list):
        raise DevkitError(
            f'{place}: "{name}" is {_json_type(value)}, but must be a list of messages', RECORD_FORMATS_HINT
        )
    if not value:
        raise DevkitError(f'{place}: "{name}" is empty', "A chat needs at least one assistant turn.")
    if len(value) > MAX_TURNS:
        raise DevkitError(
            f'{place}: "{name}" has more than {MAX_TURNS:,} turns', "Split the chat into several records."
        )
    return value


def format_field_names(entry: Mapping[str, Any]) -> str:
    """Format the names of a record's fields, of very many the first ones."""
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


JSON_LIST_HINT = "A .json file is a list of records. Was the file truncated?"

JSON_LINES_HINT = (
    "Every line of a .jsonl file is one JSON object, without commas or brackets between the lines; a line break in a text is "
    "written \\n."
)

RECORD_LIST_KEYS = ("data", "train", "records", "examples")
"""Keys under which a .json file that is one object may have its list of records."""

BYTE_ORDER_MARKS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}

DEFAULT_SPLIT = "train"

PARQUET_BATCH_ROWS = 100
MAX_BATCH_BYTES = 1 << 30
MAX_UNPACKED_BYTES, MAX_EXPANSION = 256 << 20, 1000
"""What a table may unpack to, and how many times its own size beyond that: text seldom packs to a tenth of its bytes."""
MAX_LINE_BYTES = 16 << 20
"""A line is read whole; a device or a damaged file may have one without an end, and JSON takes twenty times its text."""
MAX_JSON_BYTES, MAX_JSON_MEMORY_BYTES = 1 << 30, 8 << 30
"""A .json file is parsed as a whole, which takes twenty times its text at worst."""
MAX_TURNS = 10_000

READ_ERRORS = (OSError, ValueError, KeyError, TypeError)
"""Errors of these libraries for a file that was cut off or damaged; Arrow's own errors derive from the first two."""

CONVERSION_HINT = (
    "Unpack archives. pandas writes a table as JSON lines: to_json(FILE, orient='records', lines=True); a data set of the "
    "library datasets: to_parquet(FILE)."
)

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

    A source is a file, a folder whose readable files are taken in the order of their names, or the id of a data set on
    the hub. Within one source all records are of one kind.
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
        empty, first = 0, ""
        for source in self.sources:
            path = Path(source)
            entries = READERS_BY_SUFFIX[path.suffix.lower()](path) if path.exists() else read_hub_dataset(source)
            for record in _require_one_kind(self._parse(*each) for each in entries):
                if record.lack:
                    empty, first = empty + 1, first or f"{record.place} {record.lack}"
                else:
                    kinds[record.kind] += 1
                    yield record
        if not kinds:
            cause = f"none of {format_count(empty, 'record')} has anything: {first}" if first else "it has no records"
            raise DevkitError(f"nothing to train on in {join_words(self._names)}: {cause}", RECORD_FORMATS_HINT)
        counts = join_words(f"{number} {kind}" for kind, number in sorted(kinds.items()))
        noun = "record" if kinds.total() == 1 else "records"
        self.summary = f"{counts} {noun} in {format_count(len(self.sources), 'source')}"
        if first:
            self.summary += f", {empty} more without anything to train on left out (the first: {first})"


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
    _require_readable(path)
    if path.exists():
        if path.suffix.lower() not in READERS_BY_SUFFIX:
            raise DevkitError(f"{name} is not a file type that devkit reads", f"{READABLE}\n{CONVERSION_HINT}")
        return [f"{path}"]
    if _HUB_ID.fullmatch(name) and Path(name).suffix.lower() not in READERS_BY_SUFFIX:
        return [name]
    hint = suggest_path(path, "Check the path; a data set on the hub is owner/name.")
    raise DevkitError(f"no file or folder {name}", hint)


def _find_sources_in(folder: Path) -> list[str]:
    found: list[str] = []
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(each for each in folders if not each.startswith("."))
        for file in sorted(each for each in files if not each.startswith(".")):
            path = Path(place) / file
            if path.suffix.lower() in READERS_BY_SUFFIX:
                _require_readable(path)
                found.append(f"{path}")
    if not found:
        raise DevkitError(f"nothing to read in {folder}", f"{READABLE}\n{CONVERSION_HINT}")
    return found


def _require_readable(path: Path) -> None:
    """Raise DevkitError for a link to nothing, and for a file that blocks its reader or can be read only once."""
    if path.is_symlink() and not path.exists():
        raise DevkitError(f"{path} is a link to {path.readlink()}, which does not exist", "Repair or remove the link.")
    if path.is_fifo() or path.is_socket():
        raise DevkitError(
            f"{path} is a pipe or a socket, not a file", f"Write it to a file first: cat {path} > FILE.jsonl"
        )


def read_text_lines(path: Path, *, max_bytes: int = MAX_LINE_BYTES) -> Iterator[tuple[int, str]]:
    """Read a UTF-8 file line by line: numbers from 1, and lines without their ends or a byte order mark.

    Raises DevkitError, with the line, for a file that is not text.
    """
    _require_readable(path)
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
        with _explain_json(f"{path}:{number}", hint=JSON_LINES_HINT):
            entry = json.loads(line, object_pairs_hook=_object)
        yield entry, RecordLocation(f"{path}", number)


def read_json_records(path: Path) -> Entries:
    """Read the entries of a .json file: a list, one object with the list, a single record, or JSON lines."""
    if path.stat().st_size > MAX_JSON_BYTES:
        raise DevkitError(
            f"{path} is larger than {format_bytes(MAX_JSON_BYTES)}", "Write one object per line to a .jsonl file."
        )
    text = "\n".join(line for _, line in read_text_lines(path, max_bytes=MAX_JSON_BYTES)).strip()
    first, _, rest = text.partition("\n")
    if rest and _is_json(first):
        yield from read_json_lines(path)
        return
    with _explain_json(f"{path}", hint=JSON_LIST_HINT, by_line=True), bounded_memory(MAX_JSON_MEMORY_BYTES):
        document = json.loads(text, object_pairs_hook=_object) if text else []
    if isinstance(document, dict):
        lists = (document[name] for name in RECORD_LIST_KEYS if isinstance(document.get(name), list))
        document = next(lists, [document])
    if not isinstance(document, list):
        raise DevkitError(f"{path} does not contain a list of records", "Write [{...}, {...}], or one object per line.")
    for number, entry in enumerate(document, start=1):
        yield entry, RecordLocation(f"{path}", number, "record")


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
        shown = f"{explain_json_error(error)} (here: {rest})" if rest else "it ends too early"
        raise DevkitError(f"{place}: not JSON: {shown}", hint) from error
    except RecursionError as error:
        raise DevkitError(f"{where}: nested too deeply to be a record", hint) from error
    except MemoryError as error:
        raise DevkitError(f"{where}: its records take more memory than devkit gives them", hint) from error
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
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise DevkitError(f"{path} needs pyarrow, which is not installed", "pip install pyarrow") from error
    try:
        file = parquet.ParquetFile(path)
    except READ_ERRORS as error:
        raise _unreadable(f"{path}", error) from error
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


def read_hub_dataset(name: str) -> Entries:
    """Read the rows of a data set on the hub: owner/name, or owner/name:split; without a split those of "train"."""
    require_addresses(["HF_ENDPOINT"])
    repository, _, split = name.partition(":")
    try:
        datasets = importlib.import_module("datasets")
    except ImportError as error:
        raise DevkitError(
            f"no file or folder {name}", "If it is a data set on the hub, run pip install datasets, which reads it."
        ) from error
    try:
        found = datasets.load_dataset(repository, split=split or DEFAULT_SPLIT)
    except (OSError, ValueError) as error:
        hint = "If it is private or gated, log in with `hf auth login` or set HF_TOKEN. Without a network, give files."
        hint = "Specify a split, as in owner/name:split." if isinstance(error, ValueError) else hint
        raise DevkitError(f"the data set {repository}: {to_one_line(str(error))[:200]}", hint) from error
    yield from _number_rows(iter(found), name)


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
READABLE = f"devkit reads files that end in {join_words(READERS_BY_SUFFIX, 'or')}."
