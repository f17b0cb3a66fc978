"""What becomes of a generated file that the user edited, when devkit would write another one.

Both sides' changes are kept. Where they meet, a text file takes both between the markers that git uses, and a document
keeps the user's side: markers would break the very file that starts the container.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from enum import Enum
from pathlib import PurePosixPath

from devkit.render.splice.document import CannotSplice, Syntax, dump_json, remove_value, set_value

# Three versions of a text joined line by line: what it was, what the user made of it, what devkit would write now.
#
# Not taken from a library: merge3 is under the GPL, which this project is not, and three-merge joins single characters,
# so that half of a line of the one could meet half of a line of the other.

TextLines = Sequence[str]


@dataclass(frozen=True)
class MergeRegion:
    """A stretch of the joined text. `mine` and `theirs` are the same unless both sides changed it differently."""

    mine: tuple[str, ...]
    theirs: tuple[str, ...]

    @property
    def is_conflict(self) -> bool:
        """Whether the two sides disagree here."""
        return self.mine != self.theirs


@dataclass(frozen=True)
class _Hunk:
    """One side puts `lines` in the place of the base's lines from `start` to `end`."""

    start: int
    end: int
    lines: tuple[str, ...]


def merge_lines(base: TextLines, mine: TextLines, theirs: TextLines) -> Iterator[MergeRegion]:
    """The pieces of the joined text, in order. Changes that touch each other clash, as they do in git."""
    ours, others = _hunks(base, mine), _hunks(base, theirs)
    place = 0
    for start, end in _regions([*ours, *others]):
        yield _agreed(base[place:start])
        my_lines, their_lines = _side(base, ours, start, end), _side(base, others, start, end)
        before = tuple(base[start:end])
        if before == my_lines:
            yield _agreed(their_lines)
        elif before == their_lines:
            yield _agreed(my_lines)
        else:
            yield MergeRegion(my_lines, their_lines)
        place = end
    yield _agreed(base[place:])


def _agreed(lines: TextLines) -> MergeRegion:
    return MergeRegion(tuple(lines), tuple(lines))


def _hunks(base: TextLines, other: TextLines) -> list[_Hunk]:
    matcher = SequenceMatcher(None, base, other, autojunk=False)
    return [
        _Hunk(start, end, tuple(other[from_:to]))
        for tag, start, end, from_, to in matcher.get_opcodes()
        if tag != "equal"
    ]


def _regions(hunks: list[_Hunk]) -> Iterator[tuple[int, int]]:
    """The stretches of the base that one side or both changed; those that touch are one."""
    ordered = sorted(hunks, key=lambda hunk: (hunk.start, hunk.end))
    while ordered:
        start, end = ordered[0].start, ordered[0].end
        while ordered and ordered[0].start <= end:
            end = max(end, ordered.pop(0).end)
        yield start, end


def _side(base: TextLines, hunks: list[_Hunk], start: int, end: int) -> tuple[str, ...]:
    """What one side has in the place of the base's lines from `start` to `end`."""
    lines: list[str] = []
    place = start
    for hunk in hunks:
        if start <= hunk.start and hunk.end <= end:
            lines += [*base[place : hunk.start], *hunk.lines]
            place = hunk.end
    return (*lines, *base[place:end])


# Three versions of a JSON or YAML document joined key by key: layout and comments of the user's stay as they are.
#
# Joined line by line such a document can lose a comma, and markers of a conflict would break it.

DocumentKey = tuple[str, ...]


class Missing(Enum):
    """What stands in the place of a value that is not there; null is a value."""

    MISSING = "absent"


MISSING = Missing.MISSING


@dataclass(frozen=True)
class RejectedChange:
    """A change of devkit's that the user's document does not take. `value` is ABSENT for a removal."""

    key: DocumentKey
    value: object

    def describe(self) -> str:
        """The change in one line."""
        name = ".".join(self.key) or "the document"
        return f"{name}: removed" if self.value is MISSING else f"{name}: {dump_json(self.value)}"


def merge_document(base: str, mine: str, theirs: str, syntax: Syntax) -> tuple[str, tuple[RejectedChange, ...]]:
    """`mine` with the changes from `base` to `theirs` that nothing in it contradicts, and the changes that are left.

    Raises: ValueError when one of the three does not parse.
    """
    before, wanted = syntax.loads(base), syntax.loads(theirs)
    syntax.loads(mine)
    joining = _Joining(mine, syntax)
    for key, value in _changes(before, wanted):
        now = joining.at(key)
        if now != value and now != _at(before, key):
            joining.rejected.append(RejectedChange(key, value))
        elif now != value:
            joining.put(key, value)
    for key, old, new in _lists(before, wanted):
        joining.join_items(key, old, new)
    return joining.text, tuple(joining.rejected)


class _Joining:
    """The user's document while changes are made to it one by one."""

    def __init__(self, text: str, syntax: Syntax) -> None:
        self.text = text
        self.rejected: list[RejectedChange] = []
        self._syntax = syntax

    def at(self, key: DocumentKey) -> object:
        """What stands there now."""
        return _at(self._syntax.loads(self.text), key)

    def put(self, key: DocumentKey, value: object) -> None:
        """Set or remove it; a layout that does not allow it rejects the change."""
        try:
            if value is MISSING:
                self.text = remove_value(self.text, key, self._syntax)
            else:
                self.text = set_value(self.text, key, value, self._syntax)
        except CannotSplice:
            self.rejected.append(RejectedChange(key, value))

    def join_items(self, key: DocumentKey, old: list[object], new: list[object]) -> None:
        """Add and take away the items of a plain list that devkit added and took away, each one by itself."""
        for item in new:
            now = self.at(key)
            if item not in old and isinstance(now, list) and item not in now:
                self.put((*key, str(len(now))), item)
        for item in old:
            now = self.at(key)
            if item not in new and isinstance(now, list) and item in now:
                self.put((*key, str(now.index(item))), MISSING)


def _changes(before: object, wanted: object, key: DocumentKey = ()) -> Iterator[tuple[DocumentKey, object]]:
    """What must be set or removed to turn one document into the other; lists of plain values apart."""
    if before == wanted or (_is_plain_list(before) and _is_plain_list(wanted)):
        return
    if not (isinstance(before, dict) and isinstance(wanted, dict)):
        yield key, wanted
        return
    for name in [*before, *(name for name in wanted if name not in before)]:
        if name not in wanted:
            yield (*key, str(name)), MISSING
        elif name not in before:
            yield (*key, str(name)), wanted[name]
        else:
            yield from _changes(before[name], wanted[name], (*key, str(name)))


def _lists(
    before: object, wanted: object, key: DocumentKey = ()
) -> Iterator[tuple[DocumentKey, list[object], list[object]]]:
    if isinstance(before, list) and isinstance(wanted, list) and _is_plain_list(before) and _is_plain_list(wanted):
        yield key, before, wanted
    elif isinstance(before, dict) and isinstance(wanted, dict):
        for name in before:
            if name in wanted:
                yield from _lists(before[name], wanted[name], (*key, str(name)))


def _is_plain_list(value: object) -> bool:
    return isinstance(value, list) and not any(isinstance(item, (dict, list)) for item in value)


def _at(document: object, key: DocumentKey) -> object:
    for name in key:
        if not isinstance(document, dict) or name not in document:
            return MISSING
        document = document[name]
    return document


MINE, MIDDLE, THEIRS = "<<<<<<< yours", "=======", ">>>>>>> devkit"
_BOM = "\ufeff"
_STRICT = frozenset({".toml", ".env", ".xml"})
"""How the names of files end which markers would break, and which are joined line by line all the same."""


@dataclass(frozen=True)
class MergeConflict:
    """A place where the user's change and devkit's meet. `wanted` is what devkit would have there.

    `is_marked` when the file holds both sides, to be resolved there; otherwise it holds the user's side alone.
    """

    path: str
    place: str
    wanted: str
    is_marked: bool


@dataclass(frozen=True)
class MergedFile:
    """The joined file, and where it needs a decision."""

    content: bytes
    conflicts: tuple[MergeConflict, ...] = ()


def merge_file(path: str, *, base: str, mine: bytes, theirs: bytes) -> MergedFile | None:
    """The file of that path with the changes of both sides; None for what is no text.

    `base` is what devkit wrote last, `mine` what stands there now, `theirs` what devkit would write. Line ends and a
    byte order mark are the user's.
    """
    try:
        now, new = mine.decode(), theirs.decode()
    except UnicodeDecodeError:
        return None
    mark = _BOM if now.startswith(_BOM) else ""
    has_crlf = "\r\n" in now
    joined, clashes = _joined(path, base, now.removeprefix(_BOM).replace("\r\n", "\n"), new)
    text = mark + (joined.replace("\n", "\r\n") if has_crlf else joined)
    return MergedFile(text.encode(), tuple(replace(clash, path=path) for clash in clashes))


def has_conflict_markers(content: bytes) -> bool:
    """Whether a file still holds the markers of a conflict that devkit wrote."""
    return f"\n{MINE}\n".encode() in b"\n" + content.replace(b"\r\n", b"\n")


def _joined(path: str, base: str, mine: str, theirs: str) -> tuple[str, list[MergeConflict]]:
    pieces = list(merge_lines(*(text.splitlines(keepends=True) for text in (base, mine, theirs))))
    by_lines = "".join("".join(piece.mine) for piece in pieces)
    name = PurePosixPath(path)
    suffix = name.suffix.lower() or name.name
    syntax = _syntax(suffix)
    if syntax is None:
        return _marked(pieces) if suffix not in _STRICT else (by_lines, list(_kept(pieces)))
    try:
        by_keys, rejected = merge_document(base, mine, theirs, syntax)
    except ValueError:
        # It is no document at present, and stays what the user made of it.
        return mine, [MergeConflict("", "the whole file", theirs, is_marked=False)]
    if not rejected and not any(piece.is_conflict for piece in pieces) and _means(by_lines, by_keys, syntax):
        # Joined by lines it has devkit's new comments as well.
        return by_lines, []
    return by_keys, [
        MergeConflict("", ".".join(one.key) or "the document", one.describe(), is_marked=False) for one in rejected
    ]


def _means(one: str, other: str, syntax: Syntax) -> bool:
    try:
        return bool(syntax.loads(one) == syntax.loads(other))
    except ValueError:
        return False


def _syntax(suffix: str) -> Syntax | None:
    if suffix in (".json", ".jsonc"):
        from devkit.render.splice.jsonc import JSONC

        return JSONC
    if suffix in (".yml", ".yaml"):
        from devkit.render.splice.compose_yaml import YAML

        return YAML
    return None


def _marked(pieces: list[MergeRegion]) -> tuple[str, list[MergeConflict]]:
    text, clashes = "", []
    for piece in pieces:
        if not piece.is_conflict:
            text += "".join(piece.mine)
            continue
        place = f"line {text.count(chr(10)) + 1}"
        mine, theirs = _ended("".join(piece.mine)), _ended("".join(piece.theirs))
        text += f"{MINE}\n{mine}{MIDDLE}\n{theirs}{THEIRS}\n"
        clashes.append(MergeConflict("", place, theirs, is_marked=True))
    return text, clashes


def _kept(pieces: list[MergeRegion]) -> list[MergeConflict]:
    clashes, line = [], 1
    for piece in pieces:
        if piece.is_conflict:
            clashes.append(MergeConflict("", f"line {line}", "".join(piece.theirs), is_marked=False))
        line += len(piece.mine)
    return clashes


def _ended(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"
