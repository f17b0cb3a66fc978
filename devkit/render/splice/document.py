"""Changes of a document as edits of its text: everything else keeps its bytes, comments and layout included.

A parser finds the offsets of each value; a change is then a handful of text edits. Afterwards the new text is parsed
and compared with the wanted document, so that a layout which the edits do not understand is refused and never damaged.
"""

import copy
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from enum import StrEnum
from typing import Any

KeyPath = Sequence[str]
"""The path of a value in a document: names of keys, and numbers of list items as text."""


class CannotSplice(Exception):  # noqa: N818 - a refusal, not a bug
    """The document cannot be changed without touching more than the value. The text gives the reason."""


class Shape(StrEnum):
    """The kinds of values in a text."""

    OBJECT = "object"
    ARRAY = "array"
    SCALAR = "scalar"


@dataclass(frozen=True)
class TextNode:
    """A value in a text, by its offsets. `is_flow` for a scalar and for a value in brackets."""

    start: int
    end: int
    shape: Shape
    entries: tuple["Entry", ...] = ()
    is_flow: bool = True


@dataclass(frozen=True)
class Entry:
    """A member of an object or an item of an array; the `start` of an item is that of its value."""

    key: str
    start: int
    value: TextNode


@dataclass(frozen=True)
class TextEdit:
    """A replacement of the text between two offsets."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Syntax:
    """A format: functions that find the values and the comments of a text, parse it, and compute the edits of a value."""

    nodes: Callable[[str], TextNode]
    loads: Callable[[str], Any]
    set_: Callable[[str, TextNode, KeyPath, Any], Iterable[TextEdit]]
    remove: Callable[[str, TextNode, KeyPath], Iterable[TextEdit]]
    comments: Callable[[str], Iterable[str]]


def set_value(text: str, key: KeyPath, value: object, syntax: Syntax) -> str:
    """Set the value at `key`, with missing parents. Raises CannotSplice, also where a comment would be lost.

    Of a list or an object only the entries that differ are touched, so that the others keep their comments. An entry that
    is removed takes its own comment along.
    """
    before = now = _load(text, syntax)
    wanted = copy_with_value(before, key, value)
    for name in key:
        now = _get_inner(now, name)
    changes = _find_entry_changes(now, value)
    if changes is not None:
        for name, inner in changes:
            if inner is _REMOVED:
                text = remove_value(text, (*key, name), syntax)
            else:
                text = set_value(text, (*key, name), inner, syntax)
        return text
    after = _verify(apply_text_edits(text, syntax.set_(text, syntax.nodes(text), key, value)), wanted, syntax)
    if lost := Counter(syntax.comments(text)) - Counter(syntax.comments(after)):
        raise CannotSplice(f"the comment {next(iter(lost))!r} would be lost")
    return after


_REMOVED = object()


def _find_entry_changes(now: object, value: object) -> list[tuple[str, object]] | None:
    """Return the entries to set and remove, in order, to turn one list or object into the other.

    None where that is no way: the two are of different types, or items would be inserted before others.
    """
    if isinstance(now, dict) and isinstance(value, dict):
        removed: list[tuple[str, object]] = [(str(name), _REMOVED) for name in now if name not in value]
        return removed + [(str(name), value[name]) for name in value if name not in now or now[name] != value[name]]
    if isinstance(now, list) and isinstance(value, list):
        changes = list(_find_item_changes(now, value))
        return None if (-1, None) in changes else [(str(number), item) for number, item in changes]
    return None


def _find_item_changes(now: list[object], value: list[object]) -> Iterator[tuple[int, object]]:
    """Yield the items to set and remove, from the end, so that the numbers before stay right; -1 for an insertion."""
    appended: list[tuple[int, object]] = []
    matcher = SequenceMatcher(None, [repr(item) for item in now], [repr(item) for item in value], autojunk=False)
    for tag, start, end, first, last in reversed(matcher.get_opcodes()):
        if tag == "equal":
            continue
        shared = min(end - start, last - first)
        added = value[first + shared : last]
        if added and end < len(now):
            yield -1, None
        appended += enumerate(added, len(value) - len(added))
        yield from ((number, _REMOVED) for number in reversed(range(start + shared, end)))
        yield from ((start + place, value[first + place]) for place in range(shared))
    yield from appended


def remove_value(text: str, key: KeyPath, syntax: Syntax) -> str:
    """Remove the value at `key`, if any. Raises CannotSplice."""
    before = _load(text, syntax)
    wanted = copy_without_value(before, key)
    if wanted == before:
        return text
    return _verify(apply_text_edits(text, syntax.remove(text, syntax.nodes(text), key)), wanted, syntax)


def find_nodes(node: TextNode, key: KeyPath) -> tuple[list[TextNode], KeyPath]:
    """Return the nodes along `key` from the top down, and the rest of the key, empty when all of it was found."""
    above = [node]
    for depth, name in enumerate(key):
        inner = find_entry(above[-1], name)
        if inner is None:
            return above, key[depth:]
        above.append(inner.value)
    return above, ()


def find_entry(node: TextNode, name: str) -> Entry | None:
    """Find the member called `name`, or the item of that number. Of a duplicate key the last one counts."""
    return next((entry for entry in reversed(node.entries) if entry.key == name), None)


def nest_value(key: KeyPath, value: object) -> object:
    """Return `value` inside of the objects that `key` names."""
    for name in reversed(key):
        value = {name: value}
    return value


def copy_with_value(document: object, key: KeyPath, value: object) -> object:
    """Copy the document with the value at `key` set. Raises CannotSplice where the key leads through a scalar."""
    if not key:
        return value
    first, *rest = key
    if document is None:
        document = {}
    if isinstance(document, dict):
        return {**document, first: copy_with_value(document.get(first), rest, value)}
    if isinstance(document, list) and first.isdecimal() and int(first) <= len(document):
        items = [*document, None] if int(first) == len(document) else list(document)
        items[int(first)] = copy_with_value(items[int(first)], rest, value)
        return items
    raise CannotSplice(f"there is no place for {first!r}")


def copy_without_value(document: object, key: KeyPath) -> object:
    """Copy the document without the value at `key`, if any."""
    copied: Any = copy.deepcopy(document)
    inner = copied
    for name in key[:-1]:
        inner = _get_inner(inner, name)
    if isinstance(inner, dict):
        inner.pop(key[-1], None)
    elif isinstance(inner, list) and key[-1].isdecimal() and int(key[-1]) < len(inner):
        del inner[int(key[-1])]
    return copied


def _get_inner(document: object, name: str) -> object:
    if isinstance(document, dict):
        return document.get(name)
    if isinstance(document, list) and name.isdecimal() and int(name) < len(document):
        return document[int(name)]
    return None


def dump_json(value: object, *, indent: int | None = None) -> str:
    """Return a value as JSON text."""
    return json.dumps(value, indent=indent, ensure_ascii=False)


def find_line_start(text: str, offset: int) -> int:
    """Return the offset of the start of the line."""
    return text.rfind("\n", 0, offset) + 1


def find_line_end(text: str, offset: int) -> int:
    """Return the offset of the end of the line, before its line end."""
    end = text.find("\n", offset)
    end = len(text) if end < 0 else end
    return end - 1 if end > offset and text[end - 1] == "\r" else end


def detect_newline(text: str) -> str:
    """Return the line end that the text uses."""
    return "\r\n" if "\r\n" in text else "\n"


def detect_indent(text: str, offset: int) -> str:
    """Return the blanks at the start of the line."""
    start = find_line_start(text, offset)
    line = text[start : find_line_end(text, start)]
    return line[: len(line) - len(line.lstrip(" \t"))]


def apply_text_edits(text: str, edits: Iterable[TextEdit]) -> str:
    """Return the text with every edit made; of two insertions at one offset, the first stays first."""
    # From the end, so that the offsets before an edit stay right.
    numbered = sorted(enumerate(edits), key=lambda pair: (pair[1].start, pair[1].end, pair[0]), reverse=True)
    for _, edit in numbered:
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text


def _load(text: str, syntax: Syntax) -> object:
    try:
        document: object = syntax.loads(text)
    except ValueError as error:
        raise CannotSplice(f"it does not parse: {error}") from error
    return document


def _verify(text: str, wanted: object, syntax: Syntax) -> str:
    try:
        is_right = syntax.loads(text) == wanted
    except ValueError:
        is_right = False
    if not is_right:
        raise CannotSplice("its layout does not allow this change alone")
    return text
