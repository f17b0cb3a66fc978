"""Lines that devkit needs in the user's own ignore files: what is missing is appended, and everything else stays.

A line that the user took out again stays out: devkit.lock remembers which lines were devkit's.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from devkit.probe.project.dockerfile import is_ignored, parse_ignore_file
from devkit.render.devkit_lock import LOCK_PATH
from devkit.render.files import DEVCONTAINER_FOLDER, Artifact, read_file
from devkit.render.splice.document import detect_newline

GIT_IGNORE = ".gitignore"
IGNORE_FILES = (
    f"{DEVCONTAINER_FOLDER}/.gitignore",
    f"{DEVCONTAINER_FOLDER}/.dockerignore",
    f"{DEVCONTAINER_FOLDER}/.gitattributes",
)
"""Files of devkit's own whose lines can stand behind those that a project has there already."""
_COMMITTED = (DEVCONTAINER_FOLDER, "devkit.toml", LOCK_PATH)
_HEADER = "# devkit: what differs from host to host stays out of version control, what all share goes in."


def update_gitignore(
    root: Path, wanted: Sequence[str], written: Mapping[str, Sequence[str]]
) -> tuple[list[Artifact], dict[str, tuple[str, ...]]]:
    """The project's .gitignore with the lines that it lacks, none where it lacks none; and which are devkit's now.

    `wanted` are paths to keep out of version control, `written` the lines that earlier runs added, by file.
    """
    content = read_file(root, GIT_IGNORE)
    before = (content or b"").decode(errors="surrogateescape")
    lines = parse_ignore_file(before)
    earlier = tuple(written.get(GIT_IGNORE, ()))
    needed = [*_missing(lines, wanted), *_hidden(lines)]
    added = [line for line in needed if line not in earlier]
    stale = [line for line in earlier if line not in needed and line.lstrip("!/") not in (*wanted, *_COMMITTED)]
    ours = tuple(line for line in dict.fromkeys((*earlier, *added)) if line not in stale)
    if content is None and not _is_in_git(root):
        return [], {}
    text = _appended(_taken_out(before, stale), added)
    changed = [] if text == before else [Artifact(GIT_IGNORE, text.encode(errors="surrogateescape"))]
    return changed, {GIT_IGNORE: ours} if ours else {}


def merge_ignore_file(theirs: bytes, ours: bytes) -> bytes:
    """A file that devkit would write, behind the lines of one that is there already: the last line that fits counts."""
    text = theirs.decode(errors="surrogateescape")
    new = ours.decode().splitlines()
    if all(line in text.splitlines() for line in new if line and not line.startswith("#")):
        return theirs
    return _appended(text, new, header="").encode(errors="surrogateescape")


def _missing(lines: list[str], wanted: Iterable[str]) -> list[str]:
    return [f"/{path}" for path in wanted if not _is_kept_out(lines, path)]


def _is_kept_out(lines: list[str], path: str) -> bool:
    anywhere = [line for line in lines if not line.lstrip("!").startswith("/")]
    return is_ignored(path, lines) or is_ignored(path.rpartition("/")[2], anywhere)


def _hidden(lines: list[str]) -> list[str]:
    """What a pattern keeps from teammates by accident. A line that names the very file is a decision, and stays."""
    named = {line.strip("/") for line in lines}
    return [f"!/{path}" for path in _COMMITTED if path not in named and is_ignored(path, lines)]


def _taken_out(text: str, stale: Sequence[str]) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if line.strip() not in stale)


def _appended(text: str, lines: Sequence[str], *, header: str = _HEADER) -> str:
    if not lines:
        return text
    newline = detect_newline(text)
    gap = "" if not text or text.endswith("\n") else newline
    block = [header, *lines] if header and header not in text else list(lines)
    return f"{text}{gap}{newline.join(block)}{newline}"


def _is_in_git(root: Path) -> bool:
    return any((folder / ".git").exists() for folder in (root.resolve(), *root.resolve().parents))
