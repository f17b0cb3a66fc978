"""JSON with comments and trailing commas, as editors and dev container tools read it: one tree to read and to edit.

The doctor reads files through it and `devkit init` edits them through it, so that both mean the same by the same text.
Like VS Code's jsonc-parser it accepts a raw control character, such as a tab, inside a string: dev container tools
start with such a file. Anything else that is not JSON is refused with its line and column. `format_json` writes JSON for
people: what fits on a line is on one line.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from devkit.errors import DevkitError

MAX_DEPTH = 60


class JsonKind(StrEnum):
    """The type of a JSON value; `ABSENT` is what a path finds that leads to none."""

    ABSENT = "absent"
    TEXT = "text"
    NUMBER = "number"
    BOOL = "bool"
    NULL = "null"
    OBJECT = "object"
    LIST = "list"


@dataclass(frozen=True)
class JsonValue:
    """One value of a document, and the part of the text that it takes: `text[start:end]`.

    `text` is a string without its quotes and escapes, and any other scalar as written. `line` counts from 1.
    """

    kind: JsonKind
    start: int
    end: int
    line: int
    text: str = ""
    members: tuple["JsonMember", ...] = ()
    items: tuple["JsonValue", ...] = ()

    def to_python(self) -> object:
        """Return the value as `json.loads` would; of a key that occurs twice the last counts."""
        if self.kind is JsonKind.OBJECT:
            return {member.key: member.value.to_python() for member in self.members}
        if self.kind is JsonKind.LIST:
            return [item.to_python() for item in self.items]
        return self.text if self.kind is JsonKind.TEXT else json.loads(self.text)


@dataclass(frozen=True)
class JsonMember:
    """A key with its value. `start` and `line` are the key's."""

    key: str
    start: int
    line: int
    value: JsonValue


class InvalidJsonc(ValueError):  # noqa: N818 - named like packaging's InvalidRequirement
    """A text that is not JSON with comments. `line` and `column` count from 1."""

    def __init__(self, problem: str, line: int, column: int) -> None:
        super().__init__(f"line {line}, column {column}: {problem}")
        self.problem = problem
        self.line = line
        self.column = column


_BLANK = re.compile(r"(?:[\s\ufeff]|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_TOKEN = re.compile(
    r'(?P<text>"(?:[^"\\\n]|\\.)*")'
    r"|(?P<mark>[{}\[\],:])"
    r"|(?P<number>-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?)(?![\w.])"
    r"|(?P<word>true|false|null)\b",
    re.DOTALL | re.ASCII,
)


def skip_blanks(text: str, start: int) -> int:
    """Return where the next token begins: behind white space and comments."""
    found = _BLANK.match(text, start)
    return found.end() if found else start


def parse_json_object(text: str | bytes, name: str, hint: str) -> dict[str, Any]:
    """Parse a file that holds a JSON object. Raises DevkitError with this hint for anything else."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DevkitError(f"{name} is not JSON: {format_json_error(error)}", hint) from error
    if not isinstance(document, dict):
        raise DevkitError(f"{name} is not a JSON object", hint)
    return document


def format_json_error(error: ValueError | RecursionError) -> str:
    """Format the place and reason of an error of `json.loads`; of a file that is empty or a web page, only that."""
    if isinstance(error, json.JSONDecodeError):
        start = error.doc.lstrip()[:1]
        starts = {"": "it is empty", "<": "it is a web page"}
        # Raw line breaks are refused before, so that only the end of the file leaves a string open.
        is_cut = error.msg.startswith("Unterminated") or not error.doc[error.pos :].strip()
        if error.doc.startswith(("<<<<<<<", "=======", ">>>>>>>"), error.pos):
            return f"line {error.lineno}: a merge conflict is not resolved"
        says = "it ends too early" if is_cut else explain_json_error(error)
        return starts.get(start, f"line {error.lineno}, column {error.colno}: {says}")
    if isinstance(error, UnicodeDecodeError):
        return f"it is not UTF-8 text (byte {error.start + 1})"
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


_CORRECTIONS = {
    "Illegal trailing comma": "remove the comma before the closing bracket",
    "Expecting property name": "put the key in double quotes",
    "Expecting ',' delimiter": "a comma is missing before it",
    "Expecting value": "put text in double quotes, and write true, false or null in small letters",
}
"""Beginnings of json's errors -> what to write."""


def explain_json_error(error: json.JSONDecodeError) -> str:
    """Return what to write at the place of the error."""
    if error.pos == 0 and error.msg.startswith("Expecting value"):
        return "it begins with neither { nor ["
    if (quote := error.doc[error.pos : error.pos + 1]) and quote in "“”„«»‘’":  # noqa: RUF001 - those of a word processor
        return f'write " in place of {quote}'
    is_last = error.doc[error.pos : error.pos + 1] in ("]", "}") and error.doc[: error.pos].rstrip().endswith(",")
    said = "Illegal trailing comma" if is_last else error.msg
    plain = f"{said[0].lower()}{said[1:]}".removesuffix(" at")
    return next((says for start, says in _CORRECTIONS.items() if said.startswith(start)), plain)


def parse_jsonc(text: str) -> JsonValue:
    """Parse a document. Raises InvalidJsonc."""
    return _Parser(text).document()


def load_jsonc(text: str) -> Any:  # noqa: ANN401 - any JSON value
    """Return what the text means. Raises InvalidJsonc, which is a ValueError."""
    return parse_jsonc(text).to_python()


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    start: int
    line: int


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(self._scan())
        self._next = 0

    def document(self) -> JsonValue:
        value = self._value(0)
        token = self._tokens[self._next]
        if token.kind != "end":
            raise self._error(f"expected the end of the file, got {token.text}", token)
        return value

    def _scan(self) -> Iterator[_Token]:
        place, line = 0, 1
        while True:
            start = skip_blanks(self._text, place)
            line += self._text.count("\n", place, start)
            if start == len(self._text):
                yield _Token("end", "", start, line)
                return
            found = _TOKEN.match(self._text, start)
            if found is None:
                problem = f"unexpected {self._text[start : start + 12].splitlines()[0]!r}"
                raise self._error(problem, _Token("", "", start, line))
            yield _Token(found.lastgroup or "", found[0], start, line)
            place = found.end()
            line += found[0].count("\n")

    def _error(self, problem: str, token: _Token) -> InvalidJsonc:
        column = token.start - (self._text.rfind("\n", 0, token.start) + 1) + 1
        return InvalidJsonc(problem, token.line, column)

    def _take(self) -> _Token:
        token = self._tokens[self._next]
        self._next += 1
        return token

    def _value(self, depth: int) -> JsonValue:
        token = self._take()
        if depth > MAX_DEPTH:
            raise self._error("nested too deeply", token)
        start, end, line = token.start, token.start + len(token.text), token.line
        if token.kind == "text":
            return JsonValue(JsonKind.TEXT, start, end, line, self._unquoted(token))
        if token.kind == "number":
            return JsonValue(JsonKind.NUMBER, start, end, line, token.text)
        if token.kind == "word":
            kind = JsonKind.NULL if token.text == "null" else JsonKind.BOOL
            return JsonValue(kind, start, end, line, token.text)
        if token.text == "{":
            members = tuple(self._members(depth))
            return JsonValue(JsonKind.OBJECT, start, self._take().start + 1, line, members=members)
        if token.text == "[":
            items = tuple(self._items(depth))
            return JsonValue(JsonKind.LIST, start, self._take().start + 1, line, items=items)
        raise self._error(f"expected a value, got {token.text or 'the end of the file'}", token)

    def _members(self, depth: int) -> Iterator[JsonMember]:
        while self._tokens[self._next].text != "}":
            token = self._take()
            if token.kind != "text":
                raise self._error(f"expected a key in quotes, got {token.text or 'the end of the file'}", token)
            key = self._unquoted(token)
            self._expect(":")
            yield JsonMember(key, token.start, token.line, self._value(depth + 1))
            if self._tokens[self._next].text != "}":
                self._expect(",")

    def _items(self, depth: int) -> Iterator[JsonValue]:
        while self._tokens[self._next].text != "]":
            yield self._value(depth + 1)
            if self._tokens[self._next].text != "]":
                self._expect(",")

    def _expect(self, mark: str) -> None:
        token = self._take()
        if token.text != mark:
            wanted = {",": "a comma", ":": "a colon"}[mark]
            raise self._error(f"expected {wanted}, got {token.text or 'the end of the file'}", token)

    def _unquoted(self, token: _Token) -> str:
        try:
            text: str = json.loads(token.text, strict=False)
        except ValueError as error:
            raise self._error(f"{token.text[:20]} is not a JSON string", token) from error
        return text


_COLUMNS = 120


def format_json(value: object, *, width: int = _COLUMNS, listed: int = 1, deepest: int = 99, level: int = 0) -> str:
    """Format a value as JSON, in lines where it does not fit into `width` columns.

    Args:
        listed: the levels whose entries have their own lines, however short. Below, entries without entries of their
            own share lines.
        deepest: below this level a value is on one line, however long.
        level: the level of `value`.
    """
    line = json.dumps(value, ensure_ascii=False)
    is_short = level >= listed and 2 * level + len(line) <= width
    if not isinstance(value, dict | list) or not value or is_short or level > deepest:
        return line
    inner = {"width": width, "listed": listed, "deepest": deepest, "level": level + 1}
    if isinstance(value, dict):
        entries = [
            f"{json.dumps(key, ensure_ascii=False)}: {format_json(each, **inner)}" for key, each in value.items()
        ]
    else:
        entries = [format_json(each, **inner) for each in value]
    indent = "  " * level
    values = value.values() if isinstance(value, dict) else value
    if level >= listed and not any(isinstance(each, dict | list) for each in values):
        entries = _fill(entries, _COLUMNS - len(indent))
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    body = ",\n".join(f"{indent}  {entry}" for entry in entries)
    return f"{opening}\n{body}\n{indent}{closing}"


def _fill(entries: list[str], width: int) -> list[str]:
    lines = entries[:1]
    for entry in entries[1:]:
        if len(lines[-1]) + len(entry) + 4 <= width:
            lines[-1] += f", {entry}"
        else:
            lines.append(entry)
    return lines
