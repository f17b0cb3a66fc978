"""What one entry of training data says, in whichever of the usual forms it stands. Importable without torch.

The forms, as they are told apart (the first whose fields are all there counts; other fields are passed over):

    {"messages": [{"role": "user", "content": "..."}, ...]}        a chat; "tools" may stand beside it
    {"conversations": [{"from": "human", "value": "..."}, ...]}    a chat, as ShareGPT writes it
    {"prompt": "...", "completion": "..."}                         both texts, or both lists of messages
    {"instruction": "...", "input": "...", "output": "..."}        a chat of two turns, as Alpaca writes it
    {"text": "..."}                                                plain text

Forms that say what is asked and what is answered come first: data sets often carry the same once more as plain text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from math import isnan
from typing import Any, TypeAlias

from devkit.errors import DevkitError
from devkit.text import join_words, to_one_line

RECORD_FORMATS_HINT = (
    'One of: {"text": ...}, {"prompt": ..., "completion": ...}, {"messages": [{"role": ..., "content": ...}]}, '
    '{"instruction": ..., "output": ...}, {"conversations": [{"from": ..., "value": ...}]}.'
)

RECORD_FORMATS = (("messages",), ("conversations",), ("prompt", "completion"), ("instruction", "output"), ("text",))
RECORD_FIELDS = tuple(name for form in RECORD_FORMATS for name in form)
"""What tells the forms apart."""

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
"""Who speaks in ShareGPT's form -> the role of chat templates."""

Message: TypeAlias = dict[str, Any]
"""A turn as chat templates take it: "role", "content", and what else the data gives, such as "tool_calls"."""


class RecordKind(StrEnum):
    """How a record is learned from: as a text, as an answer to a prompt, or as the answers in a chat."""

    TEXT = "text"
    PROMPT = "prompt"
    CHAT = "chat"


@dataclass(frozen=True)
class RecordLocation:
    """Where a record stands: a file and its line, or a data set and its row."""

    source: str
    number: int | None = None
    unit: str = "line"

    def __str__(self) -> str:
        if self.number is None:
            return self.source
        return f"{self.source}:{self.number}" if self.unit == "line" else f"{self.source}, {self.unit} {self.number}"


@dataclass(frozen=True)
class TextRecord:
    """A text, all of which is learned. One longer than a row is cut into windows."""

    text: str
    place: RecordLocation
    kind = RecordKind.TEXT

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to learn."""
        return not self.text.strip()


@dataclass(frozen=True)
class PromptRecord:
    """A text whose beginning is given, and whose rest is learned. They are joined as they stand."""

    prompt: str
    completion: str
    place: RecordLocation
    kind = RecordKind.PROMPT

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to learn."""
        return not self.completion.strip()


@dataclass(frozen=True)
class ChatRecord:
    """Turns of a chat, of which the assistant's are learned, from the turn `learned_from` on."""

    messages: tuple[Message, ...]
    place: RecordLocation
    tools: tuple[Any, ...] = ()
    learned_from: int = 0
    kind = RecordKind.CHAT

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to learn."""
        return not any(each["role"] == ASSISTANT for each in self.messages[self.learned_from :])


Record: TypeAlias = TextRecord | PromptRecord | ChatRecord


def parse_record(entry: object, place: RecordLocation) -> Record:
    """The record that stands at `place`. Raises DevkitError for an entry of no known form, or of wrong types."""
    if not isinstance(entry, Mapping):
        raise DevkitError(f"{place}: this is {_kind_of(entry)}, and a record is an object", RECORD_FORMATS_HINT)
    fields = {name: value for name, value in entry.items() if value is not None}
    if "messages" in fields:
        return _chat(_messages(fields["messages"], "messages", place), fields, place)
    if "conversations" in fields:
        return _chat(_turns(fields["conversations"], place), fields, place)
    if {"prompt", "completion"} <= fields.keys():
        return _prompt(fields, place)
    if {"instruction", "output"} <= fields.keys():
        return _instruction(fields, place)
    if "text" in fields:
        return TextRecord(_text(fields, "text", place), place)
    raise _unknown(entry, place)


def _unknown(entry: Mapping[str, Any], place: RecordLocation) -> DevkitError:
    """An entry of no form: one with nothing in a field of it, or with a name that is nearly one of a form's."""
    empty = [name for form in RECORD_FORMATS if set(form) <= entry.keys() for name in form if entry[name] is None]
    if empty:
        return DevkitError(f'{place}: "{empty[0]}" is null', "Write a text there, or leave the record out.")
    near = {
        str(name): match[0]
        for name in entry
        if name not in RECORD_FIELDS and (match := get_close_matches(str(name).lower(), RECORD_FIELDS, n=1, cutoff=0.8))
    }
    meant = [f'Is "{to_one_line(name)[:40]}" meant to be "{field}"?' for name, field in near.items()]
    return DevkitError(
        f"{place}: no known form of record, with {_names(entry)}", "\n".join([*meant, RECORD_FORMATS_HINT])
    )


def _chat(messages: tuple[Message, ...], fields: Mapping[str, Any], place: RecordLocation) -> ChatRecord:
    tools = fields.get("tools", [])
    if not isinstance(tools, list):
        raise DevkitError(f'{place}: "tools" is {_kind_of(tools)}, and must be a list', "Give a list of functions.")
    return ChatRecord(messages, place, tools=tuple(tools))


def _prompt(fields: Mapping[str, Any], place: RecordLocation) -> Record:
    prompt, completion = fields["prompt"], fields["completion"]
    if isinstance(prompt, list) and isinstance(completion, list):
        asked = _messages(prompt, "prompt", place)
        return ChatRecord(asked + _messages(completion, "completion", place), place, learned_from=len(asked))
    return PromptRecord(_text(fields, "prompt", place), _text(fields, "completion", place), place)


def _instruction(fields: Mapping[str, Any], place: RecordLocation) -> ChatRecord:
    asked = _text(fields, "instruction", place)
    given = _text(fields, "input", place) if "input" in fields else ""
    system = _text(fields, "system", place) if "system" in fields else ""
    turns = [{"role": "system", "content": system}] if system else []
    turns += [
        {"role": "user", "content": f"{asked}\n\n{given}" if given else asked},
        {"role": ASSISTANT, "content": _text(fields, "output", place)},
    ]
    return ChatRecord(tuple(turns), place)


def _messages(value: object, name: str, place: RecordLocation) -> tuple[Message, ...]:
    messages = tuple(
        _message(turn, f"{place}: {name}[{number}]") for number, turn in enumerate(_list(value, name, place))
    )
    if not messages:
        raise DevkitError(f'{place}: "{name}" is empty', "A chat has at least one turn of the assistant.")
    return messages


def _message(turn: object, where: str) -> Message:
    hint = 'A message is {"role": "user", "content": "..."}.'
    if not isinstance(turn, Mapping):
        raise DevkitError(f"{where} is {_kind_of(turn)}, and must be an object", hint)
    message = {name: value for name, value in turn.items() if value is not None}
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise DevkitError(f'{where} has no "role", with {_names(message)}', hint)
    if "content" not in message and "tool_calls" not in message:
        raise DevkitError(f'{where} has no "content"', hint)
    return message | {"content": _content(message.get("content", ""), where)}


def _content(content: object, where: str) -> str:
    """Text, or parts of text put together: some data sets write every content as a list of parts."""
    if isinstance(content, str):
        return _unbroken(content, where)
    if not isinstance(content, list):
        raise DevkitError(f"{where} has {_kind_of(content)} for its content, and must have a text", _as_text(content))
    for part in content:
        if not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, Mapping) else _kind_of(part)
            raise DevkitError(
                f"{where} has content of type {to_one_line(str(kind))[:40]}", "Only text can be learned from."
            )
    return _unbroken("".join(part["text"] for part in content), where)


def _turns(value: object, place: RecordLocation) -> tuple[Message, ...]:
    found = []
    for number, turn in enumerate(_list(value, "conversations", place)):
        where = f"{place}: conversations[{number}]"
        if not isinstance(turn, Mapping) or "from" not in turn:
            found.append(_message(turn, where))
            continue
        role = SHAREGPT_ROLES.get(str(turn["from"]))
        if role is None:
            who = to_one_line(str(turn["from"]))[:40]
            raise DevkitError(
                f'{where} is from "{who}", which is nobody known', f"Known are {join_words(SHAREGPT_ROLES)}."
            )
        found.append(_message({"role": role, "content": turn.get("value")}, where))
    if not found:
        raise DevkitError(f'{place}: "conversations" is empty', "A chat has at least one turn of the assistant.")
    return tuple(found)


def _text(fields: Mapping[str, Any], name: str, place: RecordLocation) -> str:
    value = fields[name]
    if not isinstance(value, str):
        raise DevkitError(f'{place}: "{name}" is {_kind_of(value)}, and must be a text', _as_text(value))
    return _unbroken(value, f'{place}: "{name}"')


def _unbroken(text: str, where: str) -> str:
    """`text`, where it can be written in UTF-8: half a surrogate pair, as JSON's escapes allow, cannot."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        escape = f"\\u{ord(text[error.start]):04x}"
        raise DevkitError(
            f"{where} holds half a character: {escape} alone at character {error.start + 1}",
            "The text was cut within a character, or written in the wrong encoding. Write it again as UTF-8.",
        ) from error
    return text


def _list(value: object, name: str, place: RecordLocation) -> Sequence[object]:
    if not isinstance(value, list):
        is_packed = isinstance(value, str) and value.lstrip().startswith("[")
        hint = (
            "It holds JSON as a text: write the list itself, without quotes around it."
            if is_packed
            else RECORD_FORMATS_HINT
        )
        raise DevkitError(f'{place}: "{name}" is {_kind_of(value)}, and must be a list of messages', hint)
    return value


def _as_text(value: object) -> str:
    """How something else becomes a text."""
    match value:
        case float() if isnan(value):
            return "NaN stands where a table has nothing: write a text there, or leave the record out."
        case bytes():
            return "The column holds bytes: write it as text (in Arrow and Parquet the type string)."
        case list() | Mapping():
            return "Write what is to be read of it as one text."
        case _:
            return "Write it in quotes."


def _names(entry: Mapping[str, Any]) -> str:
    if not entry:
        return "no fields at all"
    return f"the fields {join_words(to_one_line(str(name))[:40] for name in list(entry)[:8])}"


def _kind_of(value: object) -> str:
    """A value's type in the words of JSON."""
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case float() if isnan(value):
            return "NaN"
        case int() | float():
            return "a number"
        case str():
            return "a text"
        case list() | tuple():
            return "a list"
        case Mapping():
            return "an object"
        case _:
            return "bytes" if isinstance(value, bytes) else f"a {type(value).__name__}"
