"""Lines that devkit needs in the user's own ignore files: missing ones are appended, and everything else stays.

A line that the user took out again stays out: devkit.lock remembers which lines were devkit's.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from devkit.probe.project.dockerfile import is_ignored, parse_ignore_file
from devkit.render.devkit_lock import LOCK_PATH
from devkit.render.files import DEVCONTAINER_FOLDER, Artifact, read_file
from devkit.render.text_edits import detect_newline

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
