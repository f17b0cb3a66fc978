"""Edits of texts that keep every other byte: replaced stretches, and values set and removed in JSON with comments.

A parser finds the offsets of each value; a change is then a handful of text edits. The edited text is parsed again and
compared with the wanted document, so a layout that the edits do not understand is refused and never damaged.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from devkit.formats.jsonc import JsonKind, JsonMember, JsonValue, load_jsonc, parse_jsonc, skip_blanks

KeyPath = Sequence[str]
"""The path of a value: names of keys, and numbers of list items as text; "-" is the place behind the last item."""

_SAME_LINE = re.compile(r"[ \t]*(?:/\*[^\n]*?\*/[ \t]*)*(?://[^\n]*)?")
_COMMENT = re.compile(r'"(?:[^"\\\n]|\\.)*"|(//[^\r\n]*|/\*.*?\*/)', re.DOTALL)


class CannotEdit(Exception):  # noqa: N818 - a refusal, not a bug
    """The document cannot be changed without touching more than the value. The text gives the reason."""


@dataclass(frozen=True)
class TextEdit:
    """A replacement of the text between two offsets."""

    start: int
    end: int
    text: str


def apply_text_edits(text: str, edits: Iterable[TextEdit]) -> str:
    """Return the text with every edit made; of two insertions at one offset, the first stays first."""
    # From the end, so that the offsets before an edit stay right.
    numbered = sorted(enumerate(edits), key=lambda pair: (pair[1].start, pair[1].end, pair[0]), reverse=True)
    for _, edit in numbered:
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text


def detect_newline(text: str) -> str:
    """Return the line end that the text uses."""
    return "\r\n" if "\r\n" in text else "\n"


def set_value(text: str, key: KeyPath, value: object) -> str:
    """Set the value at `key`, with missing parents. Raises CannotEdit, also where a comment would be lost."""
    before = _load(text)
    wanted = copy_with(before, key, value)
    if wanted == before:
        return text
    node, rest = _find_node(parse_jsonc(text), key)
    if rest and node.kind in (JsonKind.OBJECT, JsonKind.LIST):
        edits = list(_insert_entry(text, node, rest, value))
    else:
        edits = [TextEdit(node.start, node.end, _dump(_nest_value(rest, value)))]
    after = _verify(apply_text_edits(text, edits), wanted)
    if lost := Counter(_find_comments(text)) - Counter(_find_comments(after)):
        raise CannotEdit(f"the comment {next(iter(lost))!r} would be lost")
    return after


def remove_value(text: str, key: KeyPath) -> str:
    """Remove the value at `key`, if any, with the comment behind it. Raises CannotEdit."""
    before = _load(text)
    wanted = copy_with(before, key, MISSING)
    if wanted == before:
        return text
    node, _ = _find_node(parse_jsonc(text), key[:-1])
    return _verify(apply_text_edits(text, _remove_entry(text, node, key[-1])), wanted)


MISSING = object()
"""The value of a key that is not there; null is a value."""


def copy_with(document: object, key: KeyPath, value: object) -> object:
    """Copy the document with the value at `key` set, or without it for MISSING. Raises CannotEdit where it has no place."""
    if not key:
        return value
    if document is None:
        document = [] if key[0] == "-" else {}
    if not isinstance(document, (dict, list)):
        raise CannotEdit(f"no place was found for {key[0]!r}")
    is_list = isinstance(document, list)
    entries = dict(zip(map(str, range(len(document))), document, strict=True)) if is_list else dict(document)
    name = str(len(entries)) if is_list and key[0] == "-" else key[0]
    if name not in entries and value is MISSING:
        return document
    if is_list and name not in entries and name != str(len(entries)):
        raise CannotEdit(f"the item {name!r} does not exist")
    entries[name] = copy_with(entries.get(name), key[1:], value)
    if entries[name] is MISSING:
        del entries[name]
    return list(entries.values()) if is_list else entries


def _load(text: str) -> object:
    try:
        document: object = load_jsonc(text)
    except ValueError as error:
        raise CannotEdit(f"it does not parse: {error}") from error
    return document


def _verify(text: str, wanted: object) -> str:
    try:
        is_right = load_jsonc(text) == wanted
    except ValueError:
        is_right = False
    if not is_right:
        raise CannotEdit("its layout does not allow only this change")
    return text


def _find_comments(text: str) -> Iterator[str]:
    return (found[1] for found in _COMMENT.finditer(text) if found[1])


def _list_entries(node: JsonValue) -> list[JsonMember]:
    """Return the members of an object, or the items of a list with their numbers as keys."""
    items = (JsonMember(str(number), item.start, item.line, item) for number, item in enumerate(node.items))
    return [*node.members, *items]


def _find_node(node: JsonValue, key: KeyPath) -> tuple[JsonValue, KeyPath]:
    """Return the innermost node along `key`, and the rest of the key. Of a duplicate key the last one counts."""
    for depth, name in enumerate(key):
        inner = next((entry.value for entry in reversed(_list_entries(node)) if entry.key == name), None)
        if inner is None:
            return node, key[depth:]
        node = inner
    return node, ()


def _nest_value(key: KeyPath, value: object) -> object:
    """Return `value` inside of the objects and lists that `key` names."""
    for name in reversed(key):
        value = [value] if name == "-" else {name: value}
    return value


def _insert_entry(text: str, node: JsonValue, key: KeyPath, value: object) -> Iterator[TextEdit]:
    """Insert a new entry at the end of an object or a list."""
    name = f"{_dump(key[0])}: " if node.kind is JsonKind.OBJECT else ""
    shown, entries = name + _dump(_nest_value(key[1:], value)), _list_entries(node)
    last = entries[-1].value.end if entries else node.start + 1
    if "\n" not in text[node.start : node.end]:
        yield TextEdit(last, last, f"{', ' if entries else ''}{shown}")
    elif entries:
        yield from _append_after(text, last, _detect_indent(text, entries[0].start) + shown)
    else:
        indent = _detect_indent(text, node.start)
        step = re.search(r"\n([ \t]+)\S", text)
        yield TextEdit(last, last, f"{detect_newline(text)}{indent}{step[1] if step else '  '}{shown}")


def _append_after(text: str, last: int, shown: str) -> Iterator[TextEdit]:
    comma = skip_blanks(text, last)
    has_comma = text[comma : comma + 1] == ","
    rest = _SAME_LINE.match(text, comma + 1 if has_comma else last)
    place = rest.end() if rest else last
    place -= text[place - 1 : place] == "\r"
    if not has_comma:
        yield TextEdit(last, last, ",")
    yield TextEdit(place, place, f"{detect_newline(text)}{shown}{',' if has_comma else ''}")


def _remove_entry(text: str, node: JsonValue, name: str) -> Iterator[TextEdit]:
    """Remove an entry from an object or a list, with its comma and the comment after it."""
    entries = _list_entries(node)
    place = max(number for number, entry in enumerate(entries) if entry.key == name)
    start, end = entries[place].start, entries[place].value.end
    comma = skip_blanks(text, end)
    has_comma = text[comma : comma + 1] == ","
    if has_comma:
        end = comma + 1
    elif place:
        separator = skip_blanks(text, entries[place - 1].value.end)
        yield TextEdit(separator, separator + 1, "")
    rest = _SAME_LINE.match(text, end)
    to = rest.end() if rest else end
    begin = _find_line_start(text, start)
    if not text[begin:start].strip() and text[to : to + 1] in ("\r", "\n"):
        yield TextEdit(begin, text.index("\n", to) + 1, "")
    elif has_comma:
        yield TextEdit(start, len(text) - len(text[end:].lstrip(" \t")), "")
    else:
        yield TextEdit(begin + len(text[begin:start].rstrip(" \t")), end, "")


def _dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _find_line_start(text: str, offset: int) -> int:
    return text.rfind("\n", 0, offset) + 1


def _detect_indent(text: str, offset: int) -> str:
    """Return the blanks at the start of the line."""
    return re.compile(r"[ \t]*").match(text, _find_line_start(text, offset))[0]  # type: ignore[index] # matches always
