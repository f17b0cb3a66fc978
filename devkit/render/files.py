"""Files of a project: generated ones in memory, those on the disk by their paths in its folder, and the journal of a change.

A run that writes several files puts into its journal what it will do and what was there, before the first change. One that is
killed leaves it: the next command rolls back what was only prepared, and finishes what had begun.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from devkit.errors import DevkitError
from devkit.facts.decode import decode_fields
from devkit.reading import MAX_CONFIG_BYTES, MAX_DOCUMENT_BYTES, MAX_GENERATED_BYTES, MAX_IGNORE_BYTES, read_bounded

DEVCONTAINER_FOLDER = ".devcontainer"
"""The folder of generated files, relative to the project."""
WHEELS_FOLDER = f"{DEVCONTAINER_FOLDER}/wheels/"
"""The folder of devkit's own wheel, which is kept out of version control."""
STAGED_SUFFIX = ".devkit-new"
_IGNORE_FILES = (".gitignore", ".dockerignore", ".gitattributes")
_MAX_BYTES = {".toml": MAX_CONFIG_BYTES, ".lock": MAX_DOCUMENT_BYTES} | dict.fromkeys(_IGNORE_FILES, MAX_IGNORE_BYTES)
"""By suffix, or by the name of a file that has none."""


@dataclass(frozen=True)
class Artifact:
    """A generated file: path relative to the project, contents, and permission bits.

    `is_local` for one that is kept out of version control, so that a fresh clone lacks it.
    """

    path: str
    content: bytes
    mode: int = 0o644
    is_local: bool = False

    @classmethod
    def from_text(cls, path: str, text: str, mode: int = 0o644) -> "Artifact":
        """Return an artifact with this text in UTF-8."""
        return cls(path, text.encode(), mode)


def read_file(root: Path, path: str) -> bytes | None:
    """Return the file's contents, None when there is none. Raises DevkitError when it is outside the project."""
    target = resolve_inside(root, path)
    try:
        if target.is_dir():
            raise DevkitError(f"{path} is a directory, but devkit writes a file with that name", "Move it away.")
        return read_bounded(target, _MAX_BYTES.get(target.suffix or Path(path).name, MAX_GENERATED_BYTES))
    except (FileNotFoundError, NotADirectoryError):
        if above := next((each for each in target.parents if root.resolve() in each.parents and each.is_file()), None):
            hint = "Move or rename that file. Nothing was changed."
            raise DevkitError(f"{above} is a file, but {path} needs a folder there", hint) from None
        return None
    except OSError as error:
        raise DevkitError(f"cannot read {target}: {error.strerror}", "Make it readable by this user.") from None


def list_files(root: Path, folder: str) -> list[str]:
    """Return the paths of all files in a folder of the project, sorted."""
    found = (path for path in resolve_inside(root, folder).rglob("*") if path.is_file())
    return sorted(path.relative_to(root.resolve()).as_posix() for path in found)


def resolve_inside(root: Path, path: str) -> Path:
    """Follow the path and its links. Raises DevkitError when they lead out of the project."""
    base = root.resolve()
    try:
        target = (base / path).resolve()
    except ValueError:
        raise DevkitError(f"no file can have the name {path!r}", "Choose one without NUL characters.") from None
    except (OSError, RuntimeError) as error:
        raise DevkitError(f"{path} cannot be followed: {error}", "Remove the link that points to itself.") from None
    if not target.is_relative_to(base):
        raise DevkitError(
            f"{path} leads outside the project, to {target}", "Replace the symbolic link with a directory or a file."
        )
    return target


def get_staging_path(target: Path) -> Path:
    """Return the path at which a new version of the file is written before it is renamed."""
    return target.with_name(f".{target.name.lstrip('.')}{STAGED_SUFFIX}")


JOURNAL_PATH = get_staging_path(Path("journal")).name
NEXT_JOURNAL_PATH = get_staging_path(Path("journal-next")).name
SCHEMA = "devkit.journal/1"


@dataclass(frozen=True)
class Step:
    """One file: the Git ids of its content before and after; "" for no file."""

    path: str
    before: str
    after: str


@dataclass(frozen=True)
class Journal:
    """The steps of a run. `is_staged` says that every new file lies whole beside its target, so that the run can be finished.

    `folder` is the inode of the project's folder: a journal that came with a clone is somebody else's, and not followed.
    `made` are folders that the run made, relative to the project.
    """

    folder: int
    steps: tuple[Step, ...]
    made: tuple[str, ...] = ()
    is_staged: bool = False


def format_journal(journal: Journal) -> bytes:
    """Format a journal as JSON."""
    return json.dumps({"schema": SCHEMA, **asdict(journal)}, indent=1).encode()


def parse_journal(content: bytes) -> Journal | None:
    """Parse a journal; None for one that is torn, whose run had changed nothing yet."""
    try:
        document = json.loads(content)
        if document.pop("schema") != SCHEMA:
            return None
        steps = tuple(Step(**decode_fields(each, Step)) for each in document.pop("steps"))
        return Journal(steps=steps, **decode_fields(document, Journal))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def describe_end(journal: Journal, done: Sequence[str], kept: Sequence[str]) -> str:
    """Describe in a line what became of a run that was killed."""
    if not journal.is_staged:
        return "an earlier devkit was interrupted before it changed a file; its prepared files were removed"
    text = f"finished the changes of an interrupted devkit: {', '.join(done) or 'nothing was left to do'}"
    return text + (f"; left unchanged, because they were edited since: {', '.join(kept)}" if kept else "")
