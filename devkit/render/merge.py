"""The three-way merge of a generated file: devkit's last version (base), the user's file (ours), devkit's new one (theirs).

Both sides' changes are kept. Where they meet, a text file takes both between the markers that git uses, and a document
keeps the user's side: markers would break the very file that starts the container.

Not taken from a library: merge3 is under the GPL, which this project is not, and three-merge merges single characters,
so that half of a line of the one could meet half of a line of the other.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import PurePosixPath

from devkit.formats.jsonc import parse_jsonc

OURS_MARKER, MIDDLE_MARKER, THEIRS_MARKER = "<<<<<<< yours", "=======", ">>>>>>> devkit"
_BOM = "\ufeff"
_JSON = frozenset({".json", ".jsonc"})
_WITHOUT_MARKERS = _JSON | {".toml", ".yml", ".yaml", ".env", ".xml"}
"""Suffixes of files that markers would break."""


@dataclass(frozen=True)
class MergeConflict:
    """A place where the user's change and devkit's meet. `wanted` is devkit's side.

    `is_marked` when the file holds both sides, to be resolved there; otherwise it holds the user's side alone.
    """

    path: str
    place: str
    wanted: str
    is_marked: bool


def merge_file(path: str, *, base: str, ours: bytes, theirs: bytes) -> tuple[bytes, tuple[MergeConflict, ...]] | None:
    """Merge the changes of both sides. Returns the file and the conflicts that need a decision; None for one that is not text.

    Line ends and a byte order mark are the user's.
    """
    try:
        now, new = ours.decode(), theirs.decode()
    except UnicodeDecodeError:
        return None
    bom = _BOM if now.startswith(_BOM) else ""
    text, conflicts = _merge_text(path, base, now.removeprefix(_BOM).replace("\r\n", "\n"), new)
    return (bom + (text.replace("\n", "\r\n") if "\r\n" in now else text)).encode(), tuple(conflicts)


def has_conflict_markers(content: bytes) -> bool:
    """Return True for a file with the markers of a conflict that devkit wrote."""
    return f"\n{OURS_MARKER}\n".encode() in b"\n" + content.replace(b"\r\n", b"\n")


def _merge_text(path: str, base: str, ours: str, theirs: str) -> tuple[str, list[MergeConflict]]:
    suffix = PurePosixPath(path).suffix.lower() or PurePosixPath(path).name
    is_marked, text, conflicts = suffix not in _WITHOUT_MARKERS, "", []
    for mine, new in merge_lines(*(each.splitlines(keepends=True) for each in (base, ours, theirs))):
        if mine == new:
            text += mine
            continue
        conflicts.append(MergeConflict(path, f"line {text.count(chr(10)) + 1}", new, is_marked))
        marked = f"{OURS_MARKER}\n{_end_line(mine)}{MIDDLE_MARKER}\n{_end_line(new)}{THEIRS_MARKER}\n"
        text += marked if is_marked else mine
    if suffix in _JSON:
        try:
            parse_jsonc(text)
        except ValueError:
            return ours, [MergeConflict(path, "the whole file", theirs, is_marked=False)]
    return text, conflicts


def merge_lines(base: list[str], ours: list[str], theirs: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the merged text in pieces, each as the user's side and devkit's: they differ where the changes of both meet.

    Changes that touch each other meet, as they do in git.
    """
    in_ours, in_theirs = _match_lines(base, ours), _match_lines(base, theirs)
    start, our_start, their_start = 0, 0, 0
    for line in [*sorted(in_ours.keys() & in_theirs.keys()), len(base)]:
        our_end, their_end = in_ours.get(line, len(ours)), in_theirs.get(line, len(theirs))
        before = base[start:line]
        mine, new = ours[our_start:our_end], theirs[their_start:their_end]
        yield "".join(new if mine == before else mine), "".join(mine if new == before else new)
        yield "".join(base[line : line + 1]), "".join(base[line : line + 1])
        start, our_start, their_start = line + 1, our_end + 1, their_end + 1


def _match_lines(base: list[str], other: list[str]) -> dict[int, int]:
    """Return the lines of the base that the other text has, too, each with its number there."""
    blocks = SequenceMatcher(None, base, other, autojunk=False).get_matching_blocks()
    return {block.a + step: block.b + step for block in blocks for step in range(block.size)}


def _end_line(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"
