"""Differences of files as they are shown, without secrets and users' values, and the three-way merge of a generated file.

The merge takes devkit's last version (base), the user's file (ours) and devkit's new one (theirs), and keeps both sides'
changes. Where they meet, a text file takes both between the markers that git uses, and a document keeps the user's side:
markers would break the very file that starts the container.

It is not taken from a library: merge3 is under the GPL, which this project is not, and three-merge merges single characters,
so that half of a line of the one could meet half of a line of the other.
"""

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from devkit.facts.secrets import redact_tokens
from devkit.formats.jsonc import parse_jsonc
from devkit.text import escape_text

_ASSIGNMENT = re.compile(
    r"""(?x)(?<![\w$/.-])(?P<key>[A-Z][A-Z0-9_]{2,80})
    (?:["']?[ ]*[=:][ ]*["']?|["'][ ]*:[ ]*["'])
    (?P<value>[^\s"'][^\n"']*?)(?=["'\n]|$|[ ](?=[A-Z][A-Z0-9_]+=)|[ ]\\)"""
)
"""A value beside a key in capitals, such as of ENV and ARG."""
_IN_OPTION = re.compile(
    r"""(?<![\w-])(?:-e|--env|--build-arg)(?:=|["']?[\s,]+["']?)(?P<key>[\w.-]+)=(?P<value>[^\s"'][^"'\n]*)"""
)
"""A value in an option of an engine, such as in runArgs."""
_TABLE = re.compile(
    r"""(?mx)["']?\b(?:environment|containerEnv|remoteEnv|args|env)["']?[ ]*:\s*?
    (?:(?P<flow>[ ]?[\[{](?:[^\[\]{}"']|"(?:\\.|[^"\\])*"|'[^']*')*[\]}])
    |\n(?P<block>(?P<indent>[ ]*)\S.*\n(?:(?P=indent)[ -].*\n|(?P=indent)(?=\S).*[:=].*\n)*))"""
)
"""A table of environment variables or build arguments, in YAML or JSON."""
_IN_FLOW = re.compile(r"""["']?(?P<key>[\w.-]+)["']?\s*[:=]\s*["']?(?P<value>(?<=")(?:\\.|[^"\\])+|[^"',}\]]+)""")
_IN_BLOCK = re.compile(r"""(?m)^[ -]*["']?(?:(?P<key>[\w.-]+)["']?\s*[:=]\s*["']?)?(?P<value>.*?)["']?$""")
_OLDER_ENV = re.compile(r"(?m)^([-+ ]?\s*ENV\s+\w+) +([^=\s][^\n]*)$")
"""ENV without an equals sign: the rest of the line is its value."""


def format_unified_diff(path: str, before: bytes, after: bytes) -> str:
    """Return a unified diff, or one line for files that are not text."""
    if before == after:
        return ""
    try:
        old, new = before.decode().splitlines(), after.decode().splitlines()
    except UnicodeDecodeError:
        return f"{path}: binary files differ"
    lines = difflib.unified_diff(old, new, f"a/{path}", f"b/{path}", lineterm="")
    return escape_text(redact_tokens(_hide_values("\n".join(lines), before.decode())))


def _hide_values(diff: str, before: str) -> str:
    """Hide the values of environment variables and build arguments that a file had before: they are the user's."""
    diff = _OLDER_ENV.sub(lambda found: f"{found[1]} …" if found[2] in before else found[0], diff)
    for key, value in sorted(set(_find_values(before)), key=lambda pair: (-len(pair[1]), pair)):
        beside = rf"""((?:^-|(?<![\w$/.-])){re.escape(key)}["']?[ ]*[=:][ ]*["']?)""" if key else r"(^[-+ ]\s*)"
        diff = re.sub(rf"(?m){beside}{re.escape(value)}", r"\1…", diff)
    return diff


def _find_values(text: str) -> Iterator[tuple[str, str]]:
    """Yield keys and values; the further lines of a value have no key."""
    for pattern in (_ASSIGNMENT, _IN_OPTION):
        yield from ((found["key"], found["value"]) for found in pattern.finditer(text))
    for table in _TABLE.finditer(f"{text}\n"):
        entry = _IN_FLOW if table["flow"] else _IN_BLOCK
        found = entry.finditer(table["flow"] or table["block"])
        yield from ((each["key"] or "", each["value"].strip()) for each in found if each["value"].strip())


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
    blocks = difflib.SequenceMatcher(None, base, other, autojunk=False).get_matching_blocks()
    return {block.a + step: block.b + step for block in blocks for step in range(block.size)}


def _end_line(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"
