"""Edits of texts that keep every other byte: replaced stretches, values of JSON with comments, and lines of ignore files.

A parser finds the offsets of each value; a change is then a handful of text edits. The edited text is parsed again and
compared with the wanted document, so a layout that the edits do not understand is refused and never damaged. Of ignore
files, missing lines are appended, and one that the user took out stays out: devkit.lock remembers which were devkit's.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from devkit.formats.jsonc import JsonKind, JsonMember, JsonValue, load_jsonc, parse_jsonc, skip_blanks
from devkit.probe.project.dockerfile import is_ignored, parse_ignore_file
from devkit.render.devkit_lock import LOCK_PATH
from devkit.render.files import DEVCONTAINER_FOLDER, Artifact, read_file

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


GIT_IGNORE = ".gitignore"
IGNORE_FILES = (
    f"{DEVCONTAINER_FOLDER}/.gitignore",
    f"{DEVCONTAINER_FOLDER}/.dockerignore",
    f"{DEVCONTAINER_FOLDER}/.gitattributes",
)
"""Files of devkit's own whose lines can follow those that a project has there already."""
_COMMITTED = (DEVCONTAINER_FOLDER, "devkit.toml", LOCK_PATH)
_HEADER = "# devkit: host-specific files stay out of version control; shared files are committed."


def update_gitignore(
    root: Path, wanted: Sequence[str], written: Mapping[str, Sequence[str]]
) -> tuple[list[Artifact], dict[str, tuple[str, ...]]]:
    """Add the missing lines to the project's .gitignore.

    Args:
        wanted: paths to keep out of version control.
        written: the lines that earlier runs added, by file.

    Returns:
        The changed file, in a list that is empty where nothing changes, and the lines that are devkit's now, by file.
    """
    content = read_file(root, GIT_IGNORE)
    before = (content or b"").decode(errors="surrogateescape")
    lines = parse_ignore_file(before)
    # A pattern may hide devkit's files from teammates by accident; a line that names the very file is a decision.
    named = {line.strip("/") for line in lines}
    anywhere = [line for line in lines if not line.lstrip("!").startswith("/")]
    needed = [
        f"/{path}"
        for path in wanted
        if not is_ignored(path, lines) and not is_ignored(path.rpartition("/")[2], anywhere)
    ]
    needed += [f"!/{path}" for path in _COMMITTED if path not in named and is_ignored(path, lines)]
    earlier = tuple(written.get(GIT_IGNORE, ()))
    added = [line for line in needed if line not in earlier]
    stale = [line for line in earlier if line not in needed and line.lstrip("!/") not in (*wanted, *_COMMITTED)]
    ours = tuple(line for line in dict.fromkeys((*earlier, *added)) if line not in stale)
    if content is None and not any((folder / ".git").exists() for folder in (root.resolve(), *root.resolve().parents)):
        return [], {}
    kept = "".join(line for line in before.splitlines(keepends=True) if line.strip() not in stale)
    text = _append_lines(kept, added)
    changed = [] if text == before else [Artifact(GIT_IGNORE, text.encode(errors="surrogateescape"))]
    return changed, {GIT_IGNORE: ours} if ours else {}


def merge_ignore_file(theirs: bytes, ours: bytes) -> bytes:
    """Append devkit's lines to an existing ignore file: of those that match a path, the last one counts."""
    text = theirs.decode(errors="surrogateescape")
    new = ours.decode().splitlines()
    if all(line in text.splitlines() for line in new if line and not line.startswith("#")):
        return theirs
    return _append_lines(text, new, header="").encode(errors="surrogateescape")


def _append_lines(text: str, lines: Sequence[str], *, header: str = _HEADER) -> str:
    if not lines:
        return text
    newline = detect_newline(text)
    gap = "" if not text or text.endswith("\n") else newline
    block = [header, *lines] if header and header not in text else list(lines)
    return f"{text}{gap}{newline.join(block)}{newline}"
