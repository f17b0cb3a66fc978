"""Training records: texts, prompts with completions, and chats, parsed from the usual formats. Torch-free.

The formats, of which the first whose fields are all present applies; other fields are ignored:

    {"messages": [{"role": "user", "content": "..."}, ...]}        a chat; optionally with "tools"
    {"conversations": [{"from": "human", "value": "..."}, ...]}    a chat in ShareGPT's format
    {"prompt": "...", "completion": "..."}                         both texts, or both lists of messages
    {"instruction": "...", "input": "...", "output": "..."}        a chat of two turns in Alpaca's format
    {"text": "..."}                                                plain text

Formats with a prompt and an answer come first: data sets often repeat the same as plain text.
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


Record: TypeAlias = TextRecord | PromptRecord | ChatRecord


def parse_record(entry: object, place: RecordLocation) -> Record:
    """Parse the entry at `place`. Raises DevkitError for an entry of no known format, or of wrong types."""
    if not isinstance(entry, Mapping):
        raise DevkitError(f"{place}: this is {_json_type(entry)}, and a record is an object", RECORD_FORMATS_HINT)
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
        return DevkitError(f'{place}: "{empty[0]}" is null', "Write a text there, or leave the record out.")
    near = {
        str(name): match[0]
        for name in entry
        if name not in RECORD_FIELDS and (match := get_close_matches(str(name).lower(), RECORD_FIELDS, n=1, cutoff=0.8))
    }
    meant = [f'Is "{to_one_line(name)[:40]}" meant to be "{field}"?' for name, field in near.items()]
    return DevkitError(
        f"{place}: no known format of record, with {_field_names(entry)}", "\n".join([*meant, RECORD_FORMATS_HINT])
    )


def _chat(messages: tuple[Message, ...], fields: Mapping[str, Any], place: RecordLocation) -> ChatRecord:
    tools = fields.get("tools", [])
    if not isinstance(tools, list):
        raise DevkitError(f'{place}: "tools" is {_json_type(tools)}, and must be a list', "Give a list of functions.")
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
                f'{where} is from "{speaker}", which is unknown', f"Known are {join_words(SHAREGPT_ROLES)}."
            )
        messages.append(_message({"role": role, "content": turn.get("value")}, where))
    return tuple(messages)


def _message(turn: object, where: str) -> Message:
    hint = 'A message is {"role": "user", "content": "..."}.'
    if not isinstance(turn, Mapping):
        raise DevkitError(f"{where} is {_json_type(turn)}, and must be an object", hint)
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
            f"{where} has {_json_type(content)} as its content, and must have a text", _text_hint(content)
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
        raise DevkitError(f'{place}: "{name}" is {_json_type(value)}, and must be a text', _text_hint(value))
    return _require_encodable(value, f'{place}: "{name}"')


def _require_encodable(text: str, where: str) -> str:
    """Return `text` if UTF-8 can encode it: half a surrogate pair, as JSON's escapes allow, cannot be encoded."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        escape = f"\\u{ord(text[error.start]):04x}"
        raise DevkitError(
            f"{where} holds half a character: {escape} alone at character {error.start + 1}",
            "The text was cut within a character, or written in the wrong encoding. Write it again as UTF-8.",
        ) from error
    return text


def _non_empty_list(value: object, name: str, place: RecordLocation) -> Sequence[object]:
    if not isinstance(value, list):
        is_encoded = isinstance(value, str) and value.lstrip().startswith("[")
        hint = "It is JSON inside a text: write the list itself, without quotes." if is_encoded else RECORD_FORMATS_HINT
        raise DevkitError(f'{place}: "{name}" is {_json_type(value)}, and must be a list of messages', hint)
    if not value:
        raise DevkitError(f'{place}: "{name}" is empty', "A chat has at least one turn of the assistant.")
    return value


def _text_hint(value: object) -> str:
    """Return a hint how a value of another type becomes a text."""
    match value:
        case float() if isnan(value):
            return "A table has NaN for a missing value: write a text there, or leave the record out."
        case bytes():
            return "The column holds bytes: write it as text (in Arrow and Parquet the type string)."
        case list() | Mapping():
            return "Write what is to be trained on as one text."
        case _:
            return "Write it in quotes."


def _field_names(entry: Mapping[str, Any]) -> str:
    if not entry:
        return "no fields at all"
    return f"the fields {join_words(to_one_line(str(name))[:40] for name in list(entry)[:8])}"


def _json_type(value: object) -> str:
    """Return a value's type in the words of JSON."""
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
