"""JSON, JSON with comments, TOML and YAML: as trees with the line of each value, and as plain values of the expected type."""

import json
import re
import tomllib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from devkit.formats.jsonc import MAX_DEPTH, InvalidJsonc, JsonKind, JsonValue, parse_jsonc

MAX_NODES = 50_000
"""A file with more values than this was not written by hand."""

NodeKind = JsonKind
"""The type of a value, as JSON names it."""


@dataclass(frozen=True)
class DocumentNode:
    """One value with its file and line. For a value of a mapping that is the line of its key."""

    kind: NodeKind
    file: str = ""
    line: int = 0
    text: str = ""
    fields: Mapping[str, "DocumentNode"] = field(default_factory=dict)
    items: tuple["DocumentNode", ...] = ()
    tag: str = ""
    """A tag of Compose: "!reset" or "!override"."""

    def at(self, *path: str) -> "DocumentNode":
        """Return the value below, or an absent one."""
        node = self
        for name in path:
            node = node.fields.get(name, ABSENT)
        return node

    def __bool__(self) -> bool:
        return self.kind not in (NodeKind.ABSENT, NodeKind.NULL)

    @property
    def is_scalar(self) -> bool:
        """True for a single value: text, number or boolean."""
        return self.kind in (NodeKind.TEXT, NodeKind.NUMBER, NodeKind.BOOL)


ABSENT = DocumentNode(NodeKind.ABSENT)


class InvalidDocument(ValueError):  # noqa: N818 - named for what was read, as a user would say it
    """A text that is not a document of its kind. `line` counts from 1."""

    def __init__(self, problem: str, line: int) -> None:
        super().__init__(problem)
        self.problem = problem
        self.line = line


def parse_jsonc_tree(text: str, *, file: str) -> DocumentNode:
    """Parse JSON with comments and trailing commas, as dev container tools read it. Raises InvalidDocument."""
    try:
        return _json_node(parse_jsonc(text), file)
    except InvalidJsonc as error:
        raise InvalidDocument(error.problem, error.line) from error


def _json_node(value: JsonValue, file: str) -> DocumentNode:
    # Of a key that occurs twice, the last counts.
    fields = {member.key: replace(_json_node(member.value, file), line=member.line) for member in value.members}
    items = tuple(_json_node(item, file) for item in value.items)
    return DocumentNode(value.kind, file, value.line, value.text, fields, items)


def parse_yaml_tree(text: str, *, file: str) -> DocumentNode:
    """Parse one YAML document. Anchors are shared, not copied, so that no file grows without bound. Raises InvalidDocument."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _limit_yaml_depth(yaml.parse(text, Loader=loader), MAX_DEPTH)
        root = yaml.compose(text, Loader=loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        rest = text.split("\n")[mark.line][mark.column :] if mark and mark.line <= text.count("\n") else ""
        problem = " ".join(str(getattr(error, "problem", None) or error).split())
        problem = problem.replace("found character that", f"found the character {rest[:1]!r}, which")
        # In the same words for every release of PyYAML.
        problem = "nested too deeply" if "nesting depth" in problem else problem
        if conflict := _find_merge_conflict(text):
            raise InvalidDocument(UNRESOLVED, conflict) from error
        raise InvalidDocument(problem, mark.line + 1 if mark else 1) from error
    return ABSENT if root is None else _Yaml(file).node(root, 0)


def _limit_yaml_depth(events: Iterable[Any], deepest: int) -> None:
    """The composer in C recurses without a limit, and would take the whole process with it."""
    depth = 0
    for event in events:
        name = type(event).__name__
        depth += name in ("SequenceStartEvent", "MappingStartEvent")
        depth -= name in ("SequenceEndEvent", "MappingEndEvent")
        if depth > deepest:
            raise InvalidDocument("nested too deeply", event.start_mark.line + 1)


class _Yaml:
    _KINDS = {"bool": NodeKind.BOOL, "null": NodeKind.NULL, "int": NodeKind.NUMBER, "float": NodeKind.NUMBER}  # noqa: RUF012 - read only

    def __init__(self, file: str) -> None:
        self._file = file
        self._done: dict[int, DocumentNode] = {}
        self._open: set[int] = set()

    def node(self, raw: Any, depth: int) -> DocumentNode:  # noqa: ANN401 - a node of PyYAML, which has no types
        """Return the tree below `raw`."""
        line = raw.start_mark.line + 1
        if id(raw) in self._done:
            return self._done[id(raw)]
        if id(raw) in self._open or depth > MAX_DEPTH or len(self._done) > MAX_NODES:
            raise InvalidDocument("an anchor that contains itself, or far too many values", line)
        self._open.add(id(raw))
        tag = raw.tag if raw.tag in ("!reset", "!override") else ""
        if raw.id == "scalar":
            kind = self._KINDS.get(raw.tag.rpartition(":")[2], NodeKind.TEXT)
            made = DocumentNode(kind, self._file, line, raw.value, tag=tag)
        elif raw.id == "sequence":
            items = tuple(self.node(item, depth + 1) for item in raw.value)
            made = DocumentNode(NodeKind.LIST, self._file, line, items=items, tag=tag)
        else:
            own: dict[str, DocumentNode] = {}
            shared: dict[str, DocumentNode] = {}
            for key, value in raw.value:
                below = self.node(value, depth + 1)
                if key.tag.endswith(":merge"):
                    for other in below.items or (below,):
                        shared = {**other.fields, **shared}
                elif key.id == "scalar":
                    own[key.value] = replace(below, line=key.start_mark.line + 1)
            made = DocumentNode(NodeKind.OBJECT, self._file, line, fields={**shared, **own}, tag=tag)
        self._open.discard(id(raw))
        self._done[id(raw)] = made
        return made


# Plain values: what has a different type than expected counts as absent.

_LOGIN = re.compile(r"[^/\s]*@")
UNRESOLVED = "a merge conflict is not resolved"
MAX_DIGITS = 18
MAX_KEY_PARTS = 100
"""Of a dotted key of TOML: tomllib takes quadratic time for a.a.a."""
_KEY_PART = re.compile(r"\.[ \t]*[\w-]*[ \t]*(?=\.)")
_TOML_STRING = re.compile(r"\"(?:[^\"\\]|\\.)*(?:\"|$)|'[^']*(?:'|$)")
_TOML_CORRECTIONS = {
    "Invalid value": "put text in quotes, and write true or false in small letters",
    "Expected newline or end of document after a statement": "put text in quotes, or remove what follows the value",
    "Illegal character '\\n'": "a quote is missing",
}
"""Beginnings of tomllib's errors -> what to write."""
MAX_YAML_DEPTH = 500
"""PyYAML's composer in C recurses without a limit: deep nesting would end the whole process."""


def parse_json(text: str) -> object:
    """Parse a JSON text. Raises ValueError for everything else, too deep nesting included."""
    try:
        value: object = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return value


def parse_toml(text: str) -> dict[str, Any]:
    """Parse a TOML text. Raises ValueError for everything else, too deep nesting included."""
    for number, line in enumerate(text.split("\n"), 1):
        if line.count(".") > MAX_KEY_PARTS and len(_KEY_PART.findall(_TOML_STRING.sub("", line))) > MAX_KEY_PARTS:
            raise ValueError(f"a key has more than {MAX_KEY_PARTS} parts (at line {number}, column 1)")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(_explain_toml_error(f"{error}", text)) from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _find_merge_conflict(text: str) -> int:
    """Find the line of the first merge conflict that Git left in a text, 0 for none."""
    found = re.search(r"(?m)^<{7} ", text)
    return text.count("\n", 0, found.start()) + 1 if found else 0


def _explain_toml_error(says: str, text: str) -> str:
    """Return an error of tomllib with what to write; an array that is not closed is shown where it opens."""
    if conflict := _find_merge_conflict(text):
        return f"{UNRESOLVED} (at line {conflict}, column 1)"
    found = re.search(r"at line (\d+)", says)
    before = "\n".join(_TOML_STRING.sub("", line) for line in text.split("\n")[: int(found[1]) - 1 if found else None])
    if opening := re.search(r"=\s*\[[^\]]*\Z", before):
        return f"the array that opens here has no closing ] (at line {before.count(chr(10), 0, opening.start()) + 1}, column 1)"
    if twice := re.match(r"Cannot declare \((.+?),?\) twice", says):
        table = ".".join(re.findall(r"'(.*?)'", twice[1]))
        return says.replace(twice[0], f"the table [{table}] stands twice: write its keys below the first one")
    return next((says.replace(part, what) for part, what in _TOML_CORRECTIONS.items() if says.startswith(part)), says)


def parse_object(text: str, parse: Callable[[str], object] = parse_json) -> dict[str, Any]:
    """Parse a text whose top level is an object. Raises ValueError for everything else."""
    value = parse(text)
    if not isinstance(value, dict):
        raise ValueError("the top level is not an object")
    return value


def parse_object_or_empty(text: str | None, parse: Callable[[str], object] = parse_json) -> dict[str, Any]:
    """Parse a text as `parse_object` does, to an empty object if there is none."""
    try:
        return parse_object(text or "", parse)
    except ValueError:
        return {}


def parse_list(text: str) -> list[Any] | None:
    """Parse a JSON text whose top level is a list; None for everything else."""
    try:
        value = parse_json(text)
    except ValueError:
        return None
    return value if isinstance(value, list) else None


def parse_words(text: str) -> list[str] | None:
    """Parse a JSON list of strings, none of them empty, as Dockerfiles and dev containers write a command; None for others."""
    words = parse_list(text)
    return words if words is not None and all(isinstance(word, str) and word for word in words) else None


def find_toml_line(error: ValueError) -> int:
    """Find the line that a TOML error names; 1 where it names none."""
    found = re.search(r"at line (\d+)", str(error))
    return int(found[1]) if found else 1


def parse_yaml(text: str) -> object:
    """Parse a YAML text. Raises ValueError for everything else, too deep nesting included."""
    import yaml

    # A CDI specification may hold a megabyte; the parser in C reads it ten times faster.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        # Brackets or a long line may nest that deeply; looking at every event would take as long as parsing.
        if (
            text.count("[") + text.count("{") > MAX_YAML_DEPTH
            or max((len(line) for line in text.splitlines()), default=0) > MAX_YAML_DEPTH
        ):
            _limit_yaml_depth(yaml.parse(text, Loader=loader), MAX_YAML_DEPTH)
        value: object = yaml.load(text, Loader=loader)  # noqa: S506 - both loaders are the safe ones
    except (yaml.YAMLError, RecursionError) as error:
        is_deep = isinstance(error, RecursionError) or "nesting depth" in str(error)
        raise ValueError("nested too deeply" if is_deep else str(error)) from error
    return value


def parse_env(text: str) -> dict[str, str]:
    """Parse the variables of an .env file; anything else is left out, and no variable is replaced."""
    from io import StringIO

    from dotenv.parser import parse_stream

    found = parse_stream(StringIO(text))
    return {each.key: each.value for each in found if each.key and each.value is not None and not each.error}


def parse_int(text: str) -> int | None:
    """Parse a number of plain digits; None for everything else, and for more digits than any counter has."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS else None


def get_object(record: Mapping[str, Any], *path: str) -> dict[str, Any]:
    """Return the object below these keys, empty when there is none."""
    found: Any = record
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, dict) else {}


def get_list(record: Mapping[str, Any], key: str) -> list[Any]:
    """Return the list at `key`, empty when there is none."""
    value = record.get(key)
    return value if isinstance(value, list) else []


def get_objects(record: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """Return the objects in the list at `key`."""
    return [item for item in get_list(record, key) if isinstance(item, dict)]


def get_text(record: Mapping[str, Any], key: str) -> str:
    """Return the text at `key`, "" when there is none."""
    value = record.get(key)
    return value if isinstance(value, str) else ""


def get_scalar(record: Mapping[str, Any], key: str) -> str:
    """Return the plain value at `key` as text: YAML reads an unquoted 0 as a number. "" for anything with parts."""
    value = record.get(key)
    return str(value) if isinstance(value, str | int | float) else ""


def get_texts(record: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """Return the texts in the list at `key`."""
    return tuple(item for item in get_list(record, key) if isinstance(item, str))


def strip_url_credentials(url: str) -> str:
    """Return `url` without user name and password, and without a query."""
    url = url.strip().strip("\"'")
    try:
        parts = urlsplit(url if "://" in url else f"//{url}")
    except ValueError:
        return "not an address"
    place = parts.netloc.rpartition("@")[2]
    shown = urlunsplit((parts.scheme, place, parts.path, "", "")).removeprefix("//")
    # Text that is not an address may still hold a login, in a place where no address has one.
    return _LOGIN.sub("", shown)


def get_int(record: Mapping[str, Any], key: str) -> int | None:
    """Return the whole number at `key`; None when there is none. True is not a number."""
    value = record.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


MAX_SEARCHED_CHARACTERS = 1 << 30
"""For the lines of a file's entries; beyond them an entry is said to be on line 1."""
_LINE_END = re.compile(r"\r\n|\n|\r")


class LineFinder:
    """Finds the lines of entries, which mostly follow one another, without searching the whole text for each."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._starts = [0, *(found.end() for found in _LINE_END.finditer(text))]
        self._place = 0
        self._left = MAX_SEARCHED_CHARACTERS

    def find(self, word: str) -> int:
        """Return the number of the next line with the word, else of the first one; 1 when there is none."""
        for begin, end in ((self._place, len(self._text)), (0, self._place)):
            if self._left > 0:
                at = self._text.find(word, begin, end)
                self._left -= (end if at < 0 else at) - begin
                if at >= 0:
                    number = bisect_right(self._starts, at)
                    self._place = self._starts[number - 1]
                    return number
        return 1
