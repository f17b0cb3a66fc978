"""YAML as people write it in Compose files: comments, order, quotes and blank lines are kept."""

import re
from collections.abc import Iterator
from typing import Any

import yaml

from devkit.render.splice.document import (
    CannotSplice,
    Entry,
    KeyPath,
    Shape,
    Syntax,
    TextEdit,
    TextNode,
    detect_newline,
    dump_json,
    find_entry,
    find_line_end,
    find_line_start,
    find_nodes,
    nest_value,
)
from devkit.render.splice.jsonc import insert_entry, remove_entry

_PLAIN = re.compile(r"[A-Za-z][\w./-]*")


class _Loader(yaml.SafeLoader):  # type: ignore[misc] # PyYAML has no types
    """Reads tags of Compose such as !reset as part of the value, instead of refusing the file."""


def _tagged(loader: _Loader, suffix: str, node: Any) -> object:  # noqa: ANN401 - a node of PyYAML
    if isinstance(node, yaml.MappingNode):
        return suffix, loader.construct_mapping(node, deep=True)
    if isinstance(node, yaml.SequenceNode):
        return suffix, loader.construct_sequence(node, deep=True)
    return suffix, loader.construct_scalar(node)


_Loader.add_multi_constructor("!", _tagged)


def load_compose_yaml(text: str) -> Any:  # noqa: ANN401 - any YAML value
    """Parse the text, with Compose's tags. Raises ValueError."""
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - a safe loader, which builds plain values only
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(str(error).partition("\n")[0]) from error


def _nodes(text: str) -> TextNode:
    composed = yaml.compose(text, _Loader)
    if composed is None:
        raise CannotSplice("it is empty")
    return _node(text, composed)


def _node(text: str, node: Any) -> TextNode:  # noqa: ANN401 - a node of PyYAML
    start, end = node.start_mark.index, node.end_mark.index
    if isinstance(node, yaml.MappingNode):
        entries = tuple(Entry(str(key.value), key.start_mark.index, _node(text, value)) for key, value in node.value)
        shape = Shape.OBJECT
    elif isinstance(node, yaml.SequenceNode):
        entries = tuple(
            Entry(str(number), item.start_mark.index, _node(text, item)) for number, item in enumerate(node.value)
        )
        shape = Shape.ARRAY
    else:
        return TextNode(start, start + len(text[start:end].rstrip()), Shape.SCALAR)
    # The end mark of a block is that of the next token, after comments that belong to another value.
    is_flow = bool(node.flow_style)
    return TextNode(
        start, end if is_flow else max((entry.value.end for entry in entries), default=end), shape, entries, is_flow
    )


def _set(text: str, top: TextNode, key: KeyPath, value: object) -> Iterator[TextEdit]:
    above, rest = find_nodes(top, key)
    node = above[-1]
    if rest and node.shape is not Shape.SCALAR:
        yield from insert_entry(text, node, rest, value) if node.is_flow else _block_insertion(text, node, rest, value)
        return
    depth = len(key) - len(rest)
    entry = find_entry(above[-2], key[depth - 1]) if depth else None
    if entry is None:
        raise CannotSplice("the whole document would be replaced")
    yield from _replaced(text, above[-2], entry, nest_value(rest, value))


def _replaced(text: str, parent: TextNode, entry: Entry, value: object) -> Iterator[TextEdit]:
    """Replace the value of a key, or an item."""
    old = entry.value
    is_list = isinstance(value, list) and not any(isinstance(item, (dict, list)) for item in value)
    is_simple = not isinstance(value, (dict, list)) or not value or (is_list and old.shape is Shape.ARRAY)
    if parent.is_flow or (is_simple and old.is_flow):
        pad = " " if old.start == old.end and text[old.start - 1 : old.start] == ":" else ""
        yield TextEdit(old.start, old.end, pad + (dump_json(value) if parent.is_flow else _scalar(value)))
    elif parent.shape is Shape.OBJECT:
        indent = " " * (entry.start - find_line_start(text, entry.start))
        shown = _block({entry.key: value}, indent, detect_newline(text))
        key_text = text[entry.start : text.index(":", entry.start)]
        yield TextEdit(entry.start, max(old.end, entry.start + len(key_text) + 1), shown.removeprefix(indent))
    else:
        indent = " " * (old.start - find_line_start(text, old.start))
        yield TextEdit(old.start, old.end, _block(value, indent, detect_newline(text)).removeprefix(indent))


def _block_insertion(text: str, node: TextNode, key: KeyPath, value: object) -> Iterator[TextEdit]:
    first, newline = node.entries[0], detect_newline(text)
    place = find_line_end(text, node.end)
    if node.shape is Shape.OBJECT:
        indent = " " * (first.start - find_line_start(text, first.start))
        shown = _block({key[0]: nest_value(key[1:], value)}, indent, newline)
    else:
        shown = _block(
            [nest_value(key[1:], value)], text[find_line_start(text, _dash(text, first)) : _dash(text, first)], newline
        )
    yield TextEdit(place, place, newline + shown)


def _remove(text: str, top: TextNode, key: KeyPath) -> Iterator[TextEdit]:
    above, _ = find_nodes(top, key[:-1])
    node = above[-1]
    entry = find_entry(node, key[-1])
    if entry is None:
        raise CannotSplice("it comes from another part of the document")
    if node.is_flow:
        yield from remove_entry(text, node, key[-1])
    elif len(node.entries) == 1:
        yield from _emptied(text, above, key, node)
    else:
        yield from _block_removal(text, node, entry)


def _emptied(text: str, above: list[TextNode], key: KeyPath, node: TextNode) -> Iterator[TextEdit]:
    """Replace a block that loses its last entry by {} or []."""
    parent = find_entry(above[-2], key[-2]) if len(above) > 1 else None
    if parent is None or above[-2].shape is not Shape.OBJECT:
        raise CannotSplice("nothing would be left")
    colon = text.index(":", parent.start + len(parent.key)) + 1
    yield TextEdit(colon, node.end, " {}" if node.shape is Shape.OBJECT else " []")


def _block_removal(text: str, node: TextNode, entry: Entry) -> Iterator[TextEdit]:
    start = _dash(text, entry) if node.shape is Shape.ARRAY else entry.start
    begin = find_line_start(text, start)
    after = next((other.start for other in node.entries if other.start > entry.start), None)
    if text[begin:start].strip() and after is not None:
        # The first key of an item is on the line of its dash: the next key moves up to it.
        yield TextEdit(start, after, "")
        return
    end = find_line_end(text, max(entry.value.end, start))
    end += len(detect_newline(text)) if end < len(text) else 0
    yield TextEdit(begin, end, "")


def _dash(text: str, entry: Entry) -> int:
    """Return the offset of an item's dash."""
    return text.rindex("-", 0, entry.start)


def _scalar(value: object) -> str:
    """Format a scalar, or a list of scalars, without quotes where the text is unambiguous."""
    if isinstance(value, list):
        return f"[{', '.join(_scalar(item) for item in value)}]"
    if isinstance(value, str) and _PLAIN.fullmatch(value) and yaml.safe_load(value) == value:
        return value
    return dump_json(value)


def _block(value: object, indent: str, newline: str) -> str:
    """Format a value in block style, each line indented."""
    dumped = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=10_000).rstrip("\n")
    return newline.join(indent + line for line in dumped.split("\n"))


YAML = Syntax(_nodes, load_compose_yaml, _set, _remove)
