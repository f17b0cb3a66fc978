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
_COMMENT = re.compile(r"#[^\r\n]*")


class _Loader(yaml.SafeLoader):  # type: ignore[misc] # PyYAML has no types
    """A loader that reads tags of Compose such as !reset as part of the value, instead of refusing the file."""

    def construct_tagged(self, suffix: str, node: Any) -> object:  # noqa: ANN401 - a node of PyYAML
        """Return the tag and the value."""
        if isinstance(node, yaml.MappingNode):
            return suffix, self.construct_mapping(node, deep=True)
        if isinstance(node, yaml.SequenceNode):
            return suffix, self.construct_sequence(node, deep=True)
        return suffix, self.construct_scalar(node)


_Loader.add_multi_constructor("!", _Loader.construct_tagged)


def load_compose_yaml(text: str) -> Any:  # noqa: ANN401 - any YAML value
    """Parse the text, with Compose's tags. Raises ValueError."""
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - a safe loader, which builds plain values only
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(str(error).partition("\n")[0]) from error


def _parse_nodes(text: str) -> TextNode:
    composed = yaml.compose(text, _Loader)
    if composed is None:
        raise CannotSplice("it is empty")
    return _to_text_node(text, composed)


def _to_text_node(text: str, node: Any) -> TextNode:  # noqa: ANN401 - a node of PyYAML
    start, end = node.start_mark.index, node.end_mark.index
    if isinstance(node, yaml.ScalarNode):
        return TextNode(start, start + len(text[start:end].rstrip()), Shape.SCALAR)
    if isinstance(node, yaml.MappingNode):
        shape, items = Shape.OBJECT, [(str(key.value), key, value) for key, value in node.value]
    else:
        shape, items = Shape.ARRAY, [(str(number), item, item) for number, item in enumerate(node.value)]
    entries = tuple(Entry(key, first.start_mark.index, _to_text_node(text, value)) for key, first, value in items)
    # The end mark of a block is that of the next token, after comments that belong to another value.
    is_flow = bool(node.flow_style)
    last = end if is_flow else max((entry.value.end for entry in entries), default=end)
    return TextNode(start, last, shape, entries, is_flow)


def _compute_set_edits(text: str, top: TextNode, key: KeyPath, value: object) -> Iterator[TextEdit]:
    above, rest = find_nodes(top, key)
    node = above[-1]
    if rest and node.shape is not Shape.SCALAR:
        yield from (insert_entry if node.is_flow else _insert_into_block)(text, node, rest, value)
        return
    depth = len(key) - len(rest)
    entry = find_entry(above[-2], key[depth - 1]) if depth else None
    if entry is None:
        raise CannotSplice("the whole document would be replaced")
    yield _replace_value(text, above[-2], entry, nest_value(rest, value))


def _replace_value(text: str, parent: TextNode, entry: Entry, value: object) -> TextEdit:
    """Replace the value of a key, or an item."""
    old = entry.value
    is_list = isinstance(value, list) and not any(isinstance(item, (dict, list)) for item in value)
    is_simple = not isinstance(value, (dict, list)) or not value or (is_list and old.shape is Shape.ARRAY)
    if parent.is_flow or (is_simple and old.is_flow):
        pad = " " if old.start == old.end and text[old.start - 1 : old.start] == ":" else ""
        return TextEdit(old.start, old.end, pad + (dump_json(value) if parent.is_flow else _format_scalar(value)))
    start = entry.start if parent.shape is Shape.OBJECT else old.start
    indent = " " * (start - find_line_start(text, start))
    block = {entry.key: value} if parent.shape is Shape.OBJECT else value
    end = max(old.end, text.index(":", start) + 1) if parent.shape is Shape.OBJECT else old.end
    return TextEdit(start, end, _format_block(block, indent, detect_newline(text)).removeprefix(indent))


def _insert_into_block(text: str, node: TextNode, key: KeyPath, value: object) -> Iterator[TextEdit]:
    first, newline = node.entries[0], detect_newline(text)
    inner = nest_value(key[1:], value)
    if node.shape is Shape.OBJECT:
        block = _format_block({key[0]: inner}, " " * (first.start - find_line_start(text, first.start)), newline)
    else:
        dash = _find_dash(text, first)
        block = _format_block([inner], text[find_line_start(text, dash) : dash], newline)
    end = find_line_end(text, node.end)
    yield TextEdit(end, end, newline + block)


def _compute_remove_edits(text: str, top: TextNode, key: KeyPath) -> Iterator[TextEdit]:
    above, _ = find_nodes(top, key[:-1])
    node = above[-1]
    entry = find_entry(node, key[-1])
    if entry is None:
        raise CannotSplice("it comes from another part of the document")
    if node.is_flow:
        yield from remove_entry(text, node, key[-1])
    elif len(node.entries) == 1:
        # A block that loses its last entry becomes {} or [].
        parent = find_entry(above[-2], key[-2]) if len(above) > 1 else None
        if parent is None or above[-2].shape is not Shape.OBJECT:
            raise CannotSplice("nothing would be left")
        colon = text.index(":", parent.start + len(parent.key)) + 1
        first = entry.start if node.shape is Shape.OBJECT else _find_dash(text, entry)
        # A comment before the entry stays, because it may be about those that somebody adds later.
        start, gap = (first, "") if text[colon:first].strip() else (colon, " ")
        yield TextEdit(start, node.end, gap + ("{}" if node.shape is Shape.OBJECT else "[]"))
    else:
        yield _remove_from_block(text, node, entry)


def _remove_from_block(text: str, node: TextNode, entry: Entry) -> TextEdit:
    start = _find_dash(text, entry) if node.shape is Shape.ARRAY else entry.start
    line_start = find_line_start(text, start)
    following = next((other.start for other in node.entries if other.start > entry.start), None)
    if text[line_start:start].strip() and following is not None:
        # The first key of an item is on the line of its dash: the next key moves up to it.
        return TextEdit(start, following, "")
    end = find_line_end(text, max(entry.value.end, start))
    end += len(detect_newline(text)) if end < len(text) else 0
    return TextEdit(line_start, end, "")


def _find_dash(text: str, entry: Entry) -> int:
    """Return the offset of an item's dash."""
    return text.rindex("-", 0, entry.start)


def _format_scalar(value: object) -> str:
    """Format a scalar, or a list of scalars, without quotes where the text is unambiguous."""
    if isinstance(value, list):
        return f"[{', '.join(_format_scalar(item) for item in value)}]"
    if isinstance(value, str) and _PLAIN.fullmatch(value) and yaml.safe_load(value) == value:
        return value
    return dump_json(value)


def _format_block(value: object, indent: str, newline: str) -> str:
    """Format a value in block style, each line indented."""
    dumped = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=10_000).rstrip("\n")
    return newline.join(indent + line for line in dumped.split("\n"))


def _find_comments(text: str) -> Iterator[str]:
    """Yield the comments, which are between the tokens of the parser."""
    end = 0
    for token in yaml.scan(text, _Loader):
        yield from _COMMENT.findall(text[end : token.start_mark.index])
        end = token.end_mark.index


YAML = Syntax(_parse_nodes, load_compose_yaml, _compute_set_edits, _compute_remove_edits, _find_comments)
