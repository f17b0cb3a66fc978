"""Changes of documents as changes of their text: what is not touched keeps its bytes, comments and layout included.

A parser finds where each value stands; a change is then a handful of cuts. Afterwards the new text is parsed and
compared with what was wanted, so that a layout which these cuts do not understand is refused and never damaged.
"""

import copy
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

KeyPath = Sequence[str]
"""Where a value is in a document: names of keys, and numbers of list items as text."""


class CannotSplice(Exception):  # noqa: N818 - a refusal, not a bug
    """The document cannot be changed without touching more than was asked. The text says why."""


class Shape(StrEnum):
    """What a value is, as far as its text is concerned."""

    OBJECT = "object"
    ARRAY = "array"
    SCALAR = "scalar"


@dataclass(frozen=True)
class TextNode:
    """A value in a text: where it begins and ends. `is_flow` when it stands in brackets or is a scalar."""

    start: int
    end: int
    shape: Shape
    entries: tuple["Entry", ...] = ()
    is_flow: bool = True


@dataclass(frozen=True)
class Entry:
    """A member of an object or an item of an array; an item's `start` is where its value begins."""

    key: str
    start: int
    value: TextNode


@dataclass(frozen=True)
class TextEdit:
    """Replace what stands from `start` to `end` by `text`."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Syntax:
    """A format: how to find the values in a text, what the text means, and how to set and remove."""

    nodes: Callable[[str], TextNode]
    loads: Callable[[str], Any]
    set_: Callable[[str, TextNode, KeyPath, Any], Iterable[TextEdit]]
    remove: Callable[[str, TextNode, KeyPath], Iterable[TextEdit]]


def set_value(text: str, key: KeyPath, value: object, syntax: Syntax) -> str:
    """`text` with the value at `key` set; missing parents are made. Raises CannotSplice.

    Of a list only the items that differ are touched, so that the others keep their comments.
    """
    before = _meaning(text, syntax)
    wanted = copy_with_value(before, key, value)
    items = _items_to_set(_at(before, key), value)
    if items:
        for place, item in items:
            text = set_value(text, (*key, str(place)), item, syntax)
        return text
    return _checked(apply_text_edits(text, syntax.set_(text, syntax.nodes(text), key, value)), wanted, syntax)


def _items_to_set(now: object, value: object) -> list[tuple[int, object]]:
    """Which items turn one list into the other; none where more than an exchange and an addition is asked."""
    if not isinstance(now, list) or not isinstance(value, list) or not now or len(value) < len(now):
        return []
    if value[: len(now)] != now and len(value) != len(now):
        return []
    return [(place, item) for place, item in enumerate(value) if place >= len(now) or now[place] != item]


def _at(document: object, key: KeyPath) -> object:
    for name in key:
        document = _inner(document, name)
    return document


def remove_value(text: str, key: KeyPath, syntax: Syntax) -> str:
    """`text` without what stands at `key`; the same text when nothing does. Raises CannotSplice."""
    before = _meaning(text, syntax)
    wanted = copy_without_value(before, key)
    if wanted == before:
        return text
    return _checked(apply_text_edits(text, syntax.remove(text, syntax.nodes(text), key)), wanted, syntax)


def find_nodes(node: TextNode, key: KeyPath) -> tuple[list[TextNode], KeyPath]:
    """The nodes from the top down as far as `key` leads, and the rest of the key, empty when it leads all the way."""
    above = [node]
    for place, name in enumerate(key):
        inner = find_entry(above[-1], name)
        if inner is None:
            return above, key[place:]
        above.append(inner.value)
    return above, ()


def find_entry(node: TextNode, name: str) -> Entry | None:
    """The member called `name`, or the item of that number. A key that stands twice counts as its last."""
    return next((entry for entry in reversed(node.entries) if entry.key == name), None)


def nest_value(key: KeyPath, value: object) -> object:
    """`value` inside of the objects that `key` names."""
    for name in reversed(key):
        value = {name: value}
    return value


def copy_with_value(document: object, key: KeyPath, value: object) -> object:
    """A copy of the document with the value at `key` set. Raises CannotSplice where the key leads through a scalar."""
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
    """A copy of the document without what stands at `key`, the same when nothing does."""
    copied: Any = copy.deepcopy(document)
    inner = copied
    for name in key[:-1]:
        inner = _inner(inner, name)
    if isinstance(inner, dict):
        inner.pop(key[-1], None)
    elif isinstance(inner, list) and key[-1].isdecimal() and int(key[-1]) < len(inner):
        del inner[int(key[-1])]
    return copied


def _inner(document: object, name: str) -> object:
    if isinstance(document, dict):
        return document.get(name)
    if isinstance(document, list) and name.isdecimal() and int(name) < len(document):
        return document[int(name)]
    return None


def dump_json(value: object, *, indent: int | None = None) -> str:
    """A value as JSON text."""
    return json.dumps(value, indent=indent, ensure_ascii=False)


def find_line_start(text: str, place: int) -> int:
    """Where the line of `place` begins."""
    return text.rfind("\n", 0, place) + 1


def find_line_end(text: str, place: int) -> int:
    """Where the line of `place` ends, before its line end."""
    end = text.find("\n", place)
    end = len(text) if end < 0 else end
    return end - 1 if end > place and text[end - 1] == "\r" else end


def detect_newline(text: str) -> str:
    """The line end that the text uses."""
    return "\r\n" if "\r\n" in text else "\n"


def detect_indent(text: str, place: int) -> str:
    """The blanks at the start of the line of `place`."""
    start = find_line_start(text, place)
    line = text[start : find_line_end(text, start)]
    return line[: len(line) - len(line.lstrip(" \t"))]


def _meaning(text: str, syntax: Syntax) -> object:
    try:
        meaning: object = syntax.loads(text)
    except ValueError as error:
        raise CannotSplice(f"it does not parse: {error}") from error
    return meaning


def apply_text_edits(text: str, cuts: Iterable[TextEdit]) -> str:
    """The text with every cut made."""
    # From the end, so that places before a cut stay right; of two at one place, the first stands first.
    numbered = sorted(enumerate(cuts), key=lambda pair: (pair[1].start, pair[1].end, pair[0]), reverse=True)
    for _, cut in numbered:
        text = text[: cut.start] + cut.text + text[cut.end :]
    return text


def _checked(text: str, wanted: object, syntax: Syntax) -> str:
    try:
        is_right = syntax.loads(text) == wanted
    except ValueError:
        is_right = False
    if not is_right:
        raise CannotSplice("its layout does not allow this change alone")
    return text
