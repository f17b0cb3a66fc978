"""What becomes of a generated file that the user edited, when devkit would write another one.

Both sides' changes are kept. Where they meet, a text file takes both between the markers that git uses, and a document
keeps the user's side: markers would break the very file that starts the container.
"""

from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from devkit.render.merge_lines import Piece, merged_lines
from devkit.render.merge_values import merged_document
from devkit.render.splice import Syntax

MINE, MIDDLE, THEIRS = "<<<<<<< yours", "=======", ">>>>>>> devkit"
_BOM = "\ufeff"
_STRICT = frozenset({".toml", ".env", ".xml"})
"""How the names of files end which markers would break, and which are joined line by line all the same."""


@dataclass(frozen=True)
class Clash:
    """A place where the user's change and devkit's meet. `wanted` is what devkit would have there.

    `is_marked` when the file holds both sides, to be resolved there; otherwise it holds the user's side alone.
    """

    path: str
    place: str
    wanted: str
    is_marked: bool


@dataclass(frozen=True)
class Merged:
    """The joined file, and where it needs a decision."""

    content: bytes
    clashes: tuple[Clash, ...] = ()


def merged(path: str, *, base: str, mine: bytes, theirs: bytes) -> Merged | None:
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
    return Merged(text.encode(), tuple(replace(clash, path=path) for clash in clashes))


def is_unresolved(content: bytes) -> bool:
    """Whether a file still holds the markers of a conflict that devkit wrote."""
    return f"\n{MINE}\n".encode() in b"\n" + content.replace(b"\r\n", b"\n")


def _joined(path: str, base: str, mine: str, theirs: str) -> tuple[str, list[Clash]]:
    pieces = list(merged_lines(*(text.splitlines(keepends=True) for text in (base, mine, theirs))))
    by_lines = "".join("".join(piece.mine) for piece in pieces)
    name = PurePosixPath(path)
    suffix = name.suffix.lower() or name.name
    syntax = _syntax(suffix)
    if syntax is None:
        return _marked(pieces) if suffix not in _STRICT else (by_lines, list(_kept(pieces)))
    try:
        by_keys, rejected = merged_document(base, mine, theirs, syntax)
    except ValueError:
        # It is no document at present, and stays what the user made of it.
        return mine, [Clash("", "the whole file", theirs, is_marked=False)]
    if not rejected and not any(piece.is_clash for piece in pieces) and _means(by_lines, by_keys, syntax):
        # Joined by lines it has devkit's new comments as well.
        return by_lines, []
    return by_keys, [Clash("", ".".join(one.key) or "the document", one.shown(), is_marked=False) for one in rejected]


def _means(one: str, other: str, syntax: Syntax) -> bool:
    try:
        return bool(syntax.loads(one) == syntax.loads(other))
    except ValueError:
        return False


def _syntax(suffix: str) -> Syntax | None:
    if suffix in (".json", ".jsonc"):
        from devkit.render.splice_json import JSON

        return JSON
    if suffix in (".yml", ".yaml"):
        from devkit.render.splice_yaml import YAML

        return YAML
    return None


def _marked(pieces: list[Piece]) -> tuple[str, list[Clash]]:
    text, clashes = "", []
    for piece in pieces:
        if not piece.is_clash:
            text += "".join(piece.mine)
            continue
        place = f"line {text.count(chr(10)) + 1}"
        mine, theirs = _ended("".join(piece.mine)), _ended("".join(piece.theirs))
        text += f"{MINE}\n{mine}{MIDDLE}\n{theirs}{THEIRS}\n"
        clashes.append(Clash("", place, theirs, is_marked=True))
    return text, clashes


def _kept(pieces: list[Piece]) -> list[Clash]:
    clashes, line = [], 1
    for piece in pieces:
        if piece.is_clash:
            clashes.append(Clash("", f"line {line}", "".join(piece.theirs), is_marked=False))
        line += len(piece.mine)
    return clashes


def _ended(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"
