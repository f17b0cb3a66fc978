"""JSON and JSON with comments, as editors and dev containers use it: comments and trailing commas are kept."""

import re
from collections.abc import Iterator
from typing import Any

from devkit.formats.jsonc import JsonKind, JsonValue, parse_jsonc, skip_blanks
from devkit.render.splice.document import (
    Entry,
    KeyPath,
    Shape,
    Syntax,
    TextEdit,
    TextNode,
    detect_indent,
    detect_newline,
    dump_json,
    find_line_start,
    find_nodes,
    nest_value,
)

_SAME_LINE = re.compile(r"[ \t]*(?:/\*[^\n]*?\*/[ \t]*)*(?://[^\n]*)?")
_COMMENT = re.compile(r'"(?:[^"\\\n]|\\.)*"|(//[^\r\n]*|/\*.*?\*/)', re.DOTALL)
_SHORT = 60


def load_jsonc(text: str) -> Any:  # noqa: ANN401 - any JSON value
    """Return what the text means. Raises InvalidJsonc, which is a ValueError."""
    return parse_jsonc(text).to_python()


def _to_text_node(value: JsonValue) -> TextNode:
    if value.kind is JsonKind.OBJECT:
        entries = tuple(Entry(member.key, member.start, _to_text_node(member.value)) for member in value.members)
        return TextNode(value.start, value.end, Shape.OBJECT, entries)
    if value.kind is JsonKind.LIST:
        entries = tuple(Entry(str(number), item.start, _to_text_node(item)) for number, item in enumerate(value.items))
        return TextNode(value.start, value.end, Shape.ARRAY, entries)
    return TextNode(value.start, value.end, Shape.SCALAR)


def _compute_set_edits(text: str, top: TextNode, key: KeyPath, value: object) -> Iterator[TextEdit]:
    above, rest = find_nodes(top, key)
    node = above[-1]
    if not rest or node.shape is Shape.SCALAR:
        # Of scalars only null can get members: every other one would be lost, and was refused before.
        inner = nest_value(rest, value)
        yield TextEdit(node.start, node.end, _format_value(text, inner, detect_indent(text, node.start), at=node))
    else:
        yield from insert_entry(text, node, rest, value)


def insert_entry(text: str, node: TextNode, key: KeyPath, value: object) -> Iterator[TextEdit]:
    """Insert a new entry at the end of an object or array in brackets."""
    name = f"{dump_json(key[0])}: " if node.shape is Shape.OBJECT else ""
    inner = nest_value(key[1:], value)
    last = node.entries[-1].value.end if node.entries else node.start + 1
    outer = detect_indent(text, node.start)
    if "\n" not in text or ("\n" not in text[node.start : node.end] and node.entries):
        yield TextEdit(last, last, f"{', ' if node.entries else ''}{name}{dump_json(inner)}")
    elif node.entries:
        indent = detect_indent(text, node.entries[0].start)
        yield from _append_after_last(text, node, indent + name + _format_value(text, inner, indent, at=node))
    else:
        newline, indent = detect_newline(text), outer + _detect_indent_step(text, node)
        shown = f"{newline}{indent}{name}{_format_value(text, inner, indent, at=node)}"
        is_bare = not text[last : node.end - 1].strip() and "\n" not in text[last : node.end]
        yield TextEdit(last, node.end - 1, f"{shown}{newline}{outer}") if is_bare else TextEdit(last, last, shown)


def _append_after_last(text: str, node: TextNode, shown: str) -> Iterator[TextEdit]:
    last = node.entries[-1].value.end
    comma = skip_blanks(text, last)
    has_comma = text[comma : comma + 1] == ","
    rest = _SAME_LINE.match(text, comma + 1 if has_comma else last)
    place = rest.end() if rest else last
    place -= text[place - 1 : place] == "\r"
    if not has_comma:
        yield TextEdit(last, last, ",")
    yield TextEdit(place, place, f"{detect_newline(text)}{shown}{',' if has_comma else ''}")


def remove_entry(text: str, node: TextNode, name: str) -> Iterator[TextEdit]:
    """Remove an entry from an object or array in brackets, with its comma and the comment after it."""
    place = max(number for number, entry in enumerate(node.entries) if entry.key == name)
    start, end = node.entries[place].start, node.entries[place].value.end
    comma = skip_blanks(text, end)
    has_comma = text[comma : comma + 1] == ","
    if has_comma:
        end = comma + 1
    elif place:
        separator = skip_blanks(text, node.entries[place - 1].value.end)
        yield TextEdit(separator, separator + 1, "")
    rest = _SAME_LINE.match(text, end)
    to = rest.end() if rest else end
    begin = find_line_start(text, start)
    if not text[begin:start].strip() and text[to : to + 1] in ("\r", "\n"):
        yield TextEdit(begin, text.index("\n", to) + 1, "")
    elif has_comma:
        yield TextEdit(start, len(text) - len(text[end:].lstrip(" \t")), "")
    else:
        yield TextEdit(begin + len(text[begin:start].rstrip(" \t")), end, "")


def _detect_indent_step(text: str, node: TextNode) -> str:
    """Return the indentation of this document's members."""
    for entry in node.entries:
        own, outer = detect_indent(text, entry.start), detect_indent(text, node.start)
        if len(own) > len(outer):
            return own[len(outer) :]
    guess = re.search(r"\n([ \t]+)\S", text)
    return guess[1] if guess else "  "


def _format_value(text: str, value: object, indent: str, *, at: TextNode) -> str:
    """Format a value: short ones on one line, others with the document's own indentation."""
    flat = dump_json(value)
    if not isinstance(value, (dict, list)) or (len(flat) <= _SHORT and not isinstance(value, dict)) or "\n" not in text:
        return flat
    shown = dump_json(value, indent=1)
    step = _detect_indent_step(text, at)
    lines = [line.lstrip(" ") for line in shown.split("\n")]
    depths = [len(line) - len(line.lstrip(" ")) for line in shown.split("\n")]
    return detect_newline(text).join(
        line if not number else indent + step * depth + line
        for number, (line, depth) in enumerate(zip(lines, depths, strict=True))
    )


JSONC = Syntax(
    lambda text: _to_text_node(parse_jsonc(text)),
    load_jsonc,
    _compute_set_edits,
    lambda text, top, key: remove_entry(text, find_nodes(top, key[:-1])[0][-1], key[-1]),
    lambda text: (found[1] for found in _COMMENT.finditer(text) if found[1]),
)
