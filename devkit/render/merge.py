"""The three-way merge of a generated file: devkit's last version (base), the user's file (ours), devkit's new one (theirs).

Both sides' changes are kept. Where they meet, a text file takes both between the markers that git uses. A format that
markers would break keeps the user's side. JSON is merged key by key: merged line by line it can lose a comma.

Not taken from a library: merge3 is under the GPL, which this project is not, and three-merge merges single characters,
so that half of a line of the one could meet half of a line of the other.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from pathlib import PurePosixPath

from devkit.formats.jsonc import load_jsonc
from devkit.render.text_edits import MISSING, CannotEdit, remove_value, set_value

OURS_MARKER, MIDDLE_MARKER, THEIRS_MARKER = "<<<<<<< yours", "=======", ">>>>>>> devkit"
_BOM = "\ufeff"
_BY_KEYS = frozenset({".json", ".jsonc"})
_WITHOUT_MARKERS = frozenset({".toml", ".yml", ".yaml", ".env", ".xml"})
"""Suffixes of files that markers would break, and that are merged line by line all the same."""


@dataclass(frozen=True)
class MergeConflict:
    """A place where the user's change and devkit's meet. `wanted` is devkit's side.

    `is_marked` when the file holds both sides, to be resolved there; otherwise it holds the user's side alone.
    """

    path: str
    place: str
    wanted: str
    is_marked: bool


@dataclass(frozen=True)
class MergedFile:
    """The merged file and the conflicts that need a decision."""

    content: bytes
    conflicts: tuple[MergeConflict, ...] = ()


def merge_file(path: str, *, base: str, ours: bytes, theirs: bytes) -> MergedFile | None:
    """Merge the changes of both sides; None for a file that is not text. Line ends and a BOM are the user's."""
    try:
        now, new = ours.decode(), theirs.decode()
    except UnicodeDecodeError:
        return None
    bom = _BOM if now.startswith(_BOM) else ""
    has_crlf = "\r\n" in now
    merged, conflicts = _merge_text(path, base, now.removeprefix(_BOM).replace("\r\n", "\n"), new)
    text = bom + (merged.replace("\n", "\r\n") if has_crlf else merged)
    return MergedFile(text.encode(), tuple(replace(conflict, path=path) for conflict in conflicts))


def has_conflict_markers(content: bytes) -> bool:
    """Return True for a file with the markers of a conflict that devkit wrote."""
    return f"\n{OURS_MARKER}\n".encode() in b"\n" + content.replace(b"\r\n", b"\n")


def _merge_text(path: str, base: str, ours: str, theirs: str) -> tuple[str, list[MergeConflict]]:
    regions = list(merge_lines(*(text.splitlines(keepends=True) for text in (base, ours, theirs))))
    suffix = PurePosixPath(path).suffix.lower() or PurePosixPath(path).name
    if suffix not in _BY_KEYS:
        return _join_regions(regions, is_marked=suffix not in _WITHOUT_MARKERS)
    try:
        by_keys, conflicts = _merge_json(base, ours, theirs)
    except ValueError:
        # It does not parse at present, and keeps the user's text.
        return ours, [MergeConflict("", "the whole file", theirs, is_marked=False)]
    if not conflicts and not any(region.is_conflict for region in regions):
        by_lines = "".join("".join(region.ours) for region in regions)
        try:
            if load_jsonc(by_lines) == load_jsonc(by_keys):
                # Merged by lines it has devkit's new comments as well.
                return by_lines, []
        except ValueError:
            return by_keys, []
    return by_keys, conflicts


@dataclass(frozen=True)
class MergeRegion:
    """A stretch of the merged text. `ours` and `theirs` are the same unless both sides changed it differently."""

    ours: tuple[str, ...]
    theirs: tuple[str, ...]

    @property
    def is_conflict(self) -> bool:
        """True where the two sides disagree."""
        return self.ours != self.theirs


@dataclass(frozen=True)
class _Hunk:
    """One side's `lines` for the base's lines from `start` to `end`."""

    start: int
    end: int
    lines: tuple[str, ...]


def merge_lines(base: Sequence[str], ours: Sequence[str], theirs: Sequence[str]) -> Iterator[MergeRegion]:
    """Yield the regions of the merged text, in order. Changes that touch each other conflict, as they do in git."""
    our_hunks, their_hunks = _find_hunks(base, ours), _find_hunks(base, theirs)
    hunks = sorted([*our_hunks, *their_hunks], key=lambda hunk: (hunk.start, hunk.end))
    done = 0
    while hunks:
        start, end = hunks[0].start, hunks[0].end
        while hunks and hunks[0].start <= end:
            end = max(end, hunks.pop(0).end)
        yield MergeRegion(tuple(base[done:start]), tuple(base[done:start]))
        before = tuple(base[start:end])
        our_lines, their_lines = (_apply_hunks(base, each, start, end) for each in (our_hunks, their_hunks))
        yield MergeRegion(
            their_lines if our_lines == before else our_lines, our_lines if their_lines == before else their_lines
        )
        done = end
    yield MergeRegion(tuple(base[done:]), tuple(base[done:]))


def _find_hunks(base: Sequence[str], other: Sequence[str]) -> list[_Hunk]:
    matcher = SequenceMatcher(None, base, other, autojunk=False)
    return [
        _Hunk(start, end, tuple(other[from_:to]))
        for tag, start, end, from_, to in matcher.get_opcodes()
        if tag != "equal"
    ]


def _apply_hunks(base: Sequence[str], hunks: list[_Hunk], start: int, end: int) -> tuple[str, ...]:
    """Return one side's version of the base's lines from `start` to `end`."""
    lines: list[str] = []
    done = start
    for hunk in hunks:
        if start <= hunk.start and hunk.end <= end:
            lines += [*base[done : hunk.start], *hunk.lines]
            done = hunk.end
    return (*lines, *base[done:end])


def _join_regions(regions: list[MergeRegion], *, is_marked: bool) -> tuple[str, list[MergeConflict]]:
    """Return the text, with markers around conflicts or the user's side of them."""
    text, conflicts = "", []
    for region in regions:
        if region.is_conflict:
            theirs = "".join(region.theirs)
            theirs = _end_line(theirs) if is_marked else theirs
            conflicts.append(MergeConflict("", f"line {text.count(chr(10)) + 1}", theirs, is_marked=is_marked))
        if region.is_conflict and is_marked:
            ours = _end_line("".join(region.ours))
            text += f"{OURS_MARKER}\n{ours}{MIDDLE_MARKER}\n{theirs}{THEIRS_MARKER}\n"
        else:
            text += "".join(region.ours)
    return text, conflicts


def _end_line(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"


_Key = tuple[str, ...]


def _merge_json(base: str, ours: str, theirs: str) -> tuple[str, list[MergeConflict]]:
    """Merge JSON key by key; the user's layout and comments stay. Raises ValueError when one of the three does not parse."""
    before, wanted, text = load_jsonc(base), load_jsonc(theirs), ours
    load_jsonc(ours)
    conflicts: list[MergeConflict] = []
    for key, value in _find_changes(before, wanted):
        now = _get_value(load_jsonc(text), key)
        if now == value:
            continue
        try:
            if now != _get_value(before, key):
                raise CannotEdit("the user changed it, too")
            text = remove_value(text, key) if value is MISSING else set_value(text, key, value)
        except CannotEdit:
            conflicts.append(_reject(key, value))
    for key, old, new in _find_lists(before, wanted):
        try:
            text = _merge_items(text, key, old, new)
        except CannotEdit:
            conflicts.append(_reject(key, new))
    return text, conflicts


def _reject(key: _Key, value: object) -> MergeConflict:
    """Return the conflict for a change of devkit's that the user's document does not take."""
    place = ".".join(key) or "the document"
    shown = "removed" if value is MISSING else json.dumps(value, ensure_ascii=False)
    return MergeConflict("", place, f"{place}: {shown}", is_marked=False)


def _merge_items(text: str, key: _Key, old: list[object], new: list[object]) -> str:
    """Add and remove the items of a plain list that devkit added and removed, each one by itself."""
    for item in (*new, *old):
        now = _get_value(load_jsonc(text), key)
        if isinstance(now, list) and item not in old and item not in now:
            text = set_value(text, (*key, "-"), item)
        elif isinstance(now, list) and item not in new and item in now:
            text = remove_value(text, (*key, str(now.index(item))))
    return text


def _find_changes(before: object, wanted: object, key: _Key = ()) -> Iterator[tuple[_Key, object]]:
    """Yield the values to set or remove to turn one document into the other; not for lists of plain values."""
    if before == wanted or (_is_plain_list(before) and _is_plain_list(wanted)):
        return
    if not (isinstance(before, dict) and isinstance(wanted, dict)):
        yield key, wanted
        return
    for name in dict.fromkeys((*before, *wanted)):
        if name not in wanted:
            yield (*key, str(name)), MISSING
        elif name not in before:
            yield (*key, str(name)), wanted[name]
        else:
            yield from _find_changes(before[name], wanted[name], (*key, str(name)))


def _find_lists(before: object, wanted: object, key: _Key = ()) -> Iterator[tuple[_Key, list[object], list[object]]]:
    """Yield the lists of plain values that both documents have."""
    if isinstance(before, list) and isinstance(wanted, list) and _is_plain_list(before) and _is_plain_list(wanted):
        yield key, before, wanted
    elif isinstance(before, dict) and isinstance(wanted, dict):
        for name in (name for name in before if name in wanted):
            yield from _find_lists(before[name], wanted[name], (*key, str(name)))


def _is_plain_list(value: object) -> bool:
    return isinstance(value, list) and not any(isinstance(item, (dict, list)) for item in value)


def _get_value(document: object, key: _Key) -> object:
    for name in key:
        if not isinstance(document, dict) or name not in document:
            return MISSING
        document = document[name]
    return document
