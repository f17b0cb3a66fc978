"""Documents as trees that know where each value stands: JSON with comments, YAML, and the merge of Compose files."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

MOST_NODES = 50_000
"""A file with more values than this is no configuration that anybody wrote."""
DEEPEST = 60


class Kind(StrEnum):
    """What a value is, as JSON names it."""

    ABSENT = "absent"
    TEXT = "text"
    NUMBER = "number"
    BOOL = "bool"
    NULL = "null"
    OBJECT = "object"
    LIST = "list"


@dataclass(frozen=True)
class Node:
    """One value, the file and the line where it stands. For a value of a mapping that is the line of its key."""

    kind: Kind
    file: str = ""
    line: int = 0
    text: str = ""
    fields: Mapping[str, "Node"] = field(default_factory=dict)
    items: tuple["Node", ...] = ()
    tag: str = ""
    """A tag of Compose: "!reset" or "!override"."""

    def at(self, *path: str) -> "Node":
        """The value below, or an absent one."""
        node = self
        for name in path:
            node = node.fields.get(name, ABSENT)
        return node

    def __bool__(self) -> bool:
        return self.kind not in (Kind.ABSENT, Kind.NULL)

    @property
    def is_plain(self) -> bool:
        """Whether it is a single value."""
        return self.kind in (Kind.TEXT, Kind.NUMBER, Kind.BOOL)


ABSENT = Node(Kind.ABSENT)


class WrongDocument(ValueError):  # noqa: N818 - named for what was read, as a user would say it
    """A text that is not a document of its kind. `line` counts from 1."""

    def __init__(self, problem: str, line: int) -> None:
        super().__init__(problem)
        self.problem = problem
        self.line = line


_TOKEN = re.compile(
    r"(?P<space>\s+|//[^\n]*|/\*.*?\*/)"
    r'|(?P<text>"(?:[^"\\\n]|\\.)*")'
    r"|(?P<mark>[{}\[\],:])"
    r"|(?P<number>-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?)(?![\w.])"
    r"|(?P<word>true|false|null)\b",
    re.DOTALL,
)
_WORDS = {"true": Kind.BOOL, "false": Kind.BOOL, "null": Kind.NULL}


def read_jsonc(text: str, *, file: str) -> Node:
    """JSON with comments and trailing commas, as dev container tools read it. Raises WrongDocument."""
    return _Jsonc(text.removeprefix("\ufeff"), file).document()


class _Jsonc:
    def __init__(self, text: str, file: str) -> None:
        self._file = file
        self._tokens = [*_tokens(text), ("end", "", text.count("\n") + 1)]
        self._next = 0

    def document(self) -> Node:
        node = self._value(0)
        kind, text, line = self._tokens[self._next]
        if kind != "end":
            raise WrongDocument(f"expected the end of the file, got {text}", line)
        return node

    def _take(self) -> tuple[str, str, int]:
        token = self._tokens[self._next]
        self._next += 1
        return token

    def _peek(self) -> str:
        return self._tokens[self._next][1]

    def _value(self, depth: int) -> Node:
        kind, text, line = self._take()
        if depth > DEEPEST:
            raise WrongDocument("nested too deeply", line)
        if kind == "text":
            return Node(Kind.TEXT, self._file, line, _decoded(text, line))
        if kind == "number":
            return Node(Kind.NUMBER, self._file, line, text)
        if kind == "word":
            return Node(_WORDS[text], self._file, line, text)
        if text == "{":
            return Node(Kind.OBJECT, self._file, line, fields=dict(self._fields(depth)))
        if text == "[":
            return Node(Kind.LIST, self._file, line, items=tuple(self._items(depth)))
        raise WrongDocument(f"expected a value, got {text or 'the end of the file'}", line)

    def _fields(self, depth: int) -> Iterator[tuple[str, Node]]:
        while self._peek() != "}":
            kind, text, line = self._take()
            if kind != "text":
                raise WrongDocument(f"expected a key in quotes, got {text or 'the end of the file'}", line)
            self._expect(":")
            yield _decoded(text, line), replace(self._value(depth + 1), line=line)
            self._comma("}")
        self._take()

    def _items(self, depth: int) -> Iterator[Node]:
        while self._peek() != "]":
            yield self._value(depth + 1)
            self._comma("]")
        self._take()

    def _comma(self, closing: str) -> None:
        if self._peek() != closing:
            self._expect(",")

    def _expect(self, mark: str) -> None:
        _, text, line = self._take()
        if text != mark:
            wanted = {",": "a comma", ":": "a colon"}[mark]
            raise WrongDocument(f"expected {wanted}, got {text or 'the end of the file'}", line)


def _tokens(text: str) -> Iterator[tuple[str, str, int]]:
    place, line = 0, 1
    while place < len(text):
        found = _TOKEN.match(text, place)
        if found is None:
            raise WrongDocument(f"unexpected {text[place : place + 12].splitlines()[0]!r}", line)
        kind = found.lastgroup or ""
        if kind != "space":
            yield kind, found[0], line
        line += found[0].count("\n")
        place = found.end()


def _decoded(quoted: str, line: int) -> str:
    try:
        text: str = json.loads(quoted, strict=False)
    except ValueError as error:
        raise WrongDocument(f"{quoted[:20]} is no JSON string", line) from error
    return text


def read_yaml(text: str, *, file: str) -> Node:
    """One YAML document. Anchors are shared, not copied, so that no file unfolds without end. Raises WrongDocument."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _limit_depth(yaml.parse(text, Loader=loader))
        root = yaml.compose(text, Loader=loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error)
        raise WrongDocument(" ".join(problem.split()), mark.line + 1 if mark else 1) from error
    return ABSENT if root is None else _Yaml(file).node(root, 0)


def _limit_depth(events: Iterable[Any]) -> None:
    """The composer in C recurses without a limit of its own, and would take the whole process with it."""
    depth = 0
    for event in events:
        name = type(event).__name__
        depth += name in ("SequenceStartEvent", "MappingStartEvent")
        depth -= name in ("SequenceEndEvent", "MappingEndEvent")
        if depth > DEEPEST:
            raise WrongDocument("nested too deeply", event.start_mark.line + 1)


class _Yaml:
    _KINDS = {"bool": Kind.BOOL, "null": Kind.NULL, "int": Kind.NUMBER, "float": Kind.NUMBER}  # noqa: RUF012 - read only

    def __init__(self, file: str) -> None:
        self._file = file
        self._done: dict[int, Node] = {}
        self._open: set[int] = set()

    def node(self, raw: Any, depth: int) -> Node:  # noqa: ANN401 - a node of PyYAML, which has no types
        """The tree below `raw`."""
        line = raw.start_mark.line + 1
        if id(raw) in self._done:
            return self._done[id(raw)]
        if id(raw) in self._open or depth > DEEPEST or len(self._done) > MOST_NODES:
            raise WrongDocument("an anchor that contains itself, or far too many values", line)
        self._open.add(id(raw))
        made = self._made(raw, line, depth + 1)
        self._open.discard(id(raw))
        self._done[id(raw)] = made
        return made

    def _made(self, raw: Any, line: int, depth: int) -> Node:  # noqa: ANN401 - a node of PyYAML
        tag = raw.tag if raw.tag in ("!reset", "!override") else ""
        if raw.id == "scalar":
            kind = self._KINDS.get(raw.tag.rpartition(":")[2], Kind.TEXT)
            return Node(kind, self._file, line, raw.value, tag=tag)
        if raw.id == "sequence":
            return Node(Kind.LIST, self._file, line, items=tuple(self.node(item, depth) for item in raw.value), tag=tag)
        own: dict[str, Node] = {}
        shared: dict[str, Node] = {}
        for key, value in raw.value:
            below = self.node(value, depth)
            if key.tag.endswith(":merge"):
                for other in below.items or (below,):
                    shared = {**other.fields, **shared}
            elif key.id == "scalar":
                own[key.value] = replace(below, line=key.start_mark.line + 1)
        return Node(Kind.OBJECT, self._file, line, fields={**shared, **own}, tag=tag)


REPLACED = ("command", "entrypoint", "test")
"""Lists that Compose replaces instead of appending. Source: Compose specification, "Merge", exceptions."""


def merged(base: Node, over: Node) -> Node:
    """`over` laid over `base` as Compose does: mappings join, lists append, plain values replace.

    Source: Compose specification, "Merge Compose files"; tags !reset and !override since Compose 2.24.
    """
    if over.tag == "!reset":
        return ABSENT
    if over.tag == "!override" or not base:
        return over
    if base.kind is Kind.LIST and over.kind is Kind.LIST:
        return replace(over, items=(*base.items, *over.items))
    if base.kind is Kind.OBJECT and over.kind is Kind.OBJECT:
        fields = dict(base.fields)
        for name, value in over.fields.items():
            fields[name] = value if name in REPLACED and not value.tag else merged(fields.get(name, ABSENT), value)
        return replace(over, fields=fields)
    return over if over.kind is not Kind.ABSENT else base
