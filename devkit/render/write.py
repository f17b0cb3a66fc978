"""The only module that touches the disk: decides what would change, refuses what is not devkit's, and writes.

A run is staged beside the files it replaces, the lock first, and then renamed into place, the lock last. A
kill at any moment leaves each file old or new and never half, and the staged lock tells the next run which
of them devkit wrote.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from devkit.errors import DevkitError
from devkit.render.artifact import FOLDER, Artifact
from devkit.render.lock import LOCK_PATH, Lock, digest, read_lock

_STAGED_SUFFIX = ".devkit-new"


class Action(StrEnum):
    """What a run does to one file."""

    CREATE = "create"
    UPDATE = "update"
    UNCHANGED = "unchanged"
    REMOVE = "remove"


@dataclass(frozen=True)
class Change:
    """One file, before and after. `before` is None for a new file; a removed one keeps its artifact's path."""

    action: Action
    artifact: Artifact
    before: bytes | None

    @property
    def path(self) -> str:
        """Relative to the project, with forward slashes."""
        return self.artifact.path

    def diff(self) -> str:
        """A unified diff, "" when nothing changes."""
        after = b"" if self.action is Action.REMOVE else self.artifact.content
        return unified_diff(self.path, self.before or b"", after)


def unified_diff(path: str, before: bytes, after: bytes) -> str:
    """How `before` becomes `after`; one line for files that are not text."""
    if before == after:
        return ""
    import difflib

    try:
        old, new = before.decode().splitlines(), after.decode().splitlines()
    except UnicodeDecodeError:
        return f"{path}: binary files differ"
    return "\n".join(difflib.unified_diff(old, new, f"a/{path}", f"b/{path}", lineterm=""))


def read_file(root: Path, path: str) -> bytes | None:
    """The file's contents, None when there is none. Raises DevkitError when it leads out of the project."""
    target = _inside(root, path)
    if target.is_dir():
        raise DevkitError(f"{path} is a directory, devkit writes a file of that name", "Move it away.")
    try:
        return target.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise DevkitError(f"cannot read {target}: {error.strerror}", "Make it readable for this user.") from None


def changes_for(
    root: Path, generated: Sequence[Artifact], edited: Sequence[Artifact], *, force: bool
) -> tuple[Change, ...]:
    """What writing these files would do. Reads the disk, writes nothing.

    `generated` are devkit's own and must be as devkit left them; the lock comes last among them. `edited` are
    the user's files, already merged. With `force`, devkit's own files lose the user's edits.
    Raises: DevkitError, with the difference, for a file that devkit did not write or the user changed since.
    """
    known, was_written = _known_files(root)
    changes = [_change(root, artifact) for artifact in (*edited, *generated)]
    own = {artifact.path for artifact in generated if artifact.path != LOCK_PATH}
    refused = [
        change
        for change in changes
        if change.path in own and change.action is Action.UPDATE and not _is_ours(change, known, force=force)
    ]
    strangers = [] if was_written else _strangers(root, own)
    if refused or strangers:
        _refuse(refused, strangers, was_written=was_written)
    return (*changes, *_stale(root, known, own))


def write(root: Path, changes: Iterable[Change], *, replace: Callable[[Path, Path], None] = os.replace) -> None:
    """Put the changes on the disk, old or new and never half. `replace` renames a file over another.

    Raises: DevkitError when the disk refuses; whatever was staged is gone again then.
    """
    pending = [change for change in changes if change.action is not Action.UNCHANGED]
    written = [change for change in pending if change.action is not Action.REMOVE]
    written.sort(key=lambda change: change.path != LOCK_PATH)
    staged = _stage(root, written)
    lock_last = sorted(staged, key=lambda pair: pair[1].name == LOCK_PATH)
    try:
        for change in pending:
            if change.action is Action.REMOVE:
                _inside(root, change.path).unlink(missing_ok=True)
        for source, target in lock_last:
            replace(source, target)
    except OSError as error:
        raise DevkitError(
            f"cannot replace {error.filename2 or error.filename or root}: {error.strerror}",
            "Close the programs that hold it, then run this again: it will finish what it began.",
        ) from None
    _sync_directories({target.parent for _, target in staged})
    _sweep(root)


def replace_file(
    path: Path, before: bytes, after: bytes, *, replace: Callable[[Path, Path], None] = os.replace
) -> Path:
    """Put `after` in the place of `before` in a file of the user's, old or new and never half, with its mode.

    Returns the copy beside it that keeps what stood there. Raises: DevkitError when the file is not as it was read,
    or the disk refuses; nothing was changed then.
    """
    kept, staged = _free_name(path), _staged(path)
    try:
        if path.read_bytes() != before:
            raise DevkitError(f"{path} was changed in between", "Run this again: it looks at the file anew.")
        mode = path.stat().st_mode & 0o7777
        _write_synced(kept, Artifact(kept.name, before, mode))
        _write_synced(staged, Artifact(path.name, after, mode))
        staged.chmod(mode)  # the umask took bits away
        replace(staged, path)
    except OSError as error:
        _undo([(staged, path), (kept, path)], [])
        raise DevkitError(
            f"cannot replace {path}: {error.strerror}", "Make it writable for this user. Nothing was changed."
        ) from None
    _sync_directories([path.parent])
    return kept


def make_directory(path: Path) -> None:
    """Make a directory and those above it. Raises DevkitError."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DevkitError(f"cannot make {path}: {error.strerror}", "Make it yourself, as a user who may.") from None


def _free_name(path: Path) -> Path:
    """The name of a copy beside `path` that overwrites no earlier one."""
    names = [path.with_name(f"{path.name}.devkit-backup{number}") for number in ("", *range(2, 1000))]
    return next(name for name in names if not name.exists())


def _stage(root: Path, written: Iterable[Change]) -> list[tuple[Path, Path]]:
    """Write each file beside its target, and undo that when one cannot be written."""
    staged: list[tuple[Path, Path]] = []
    made: list[Path] = []
    try:
        for change in written:
            target = _inside(root, change.path)
            made += _make_directories(target.parent)
            staged.append((_staged(target), target))
            _write_synced(_staged(target), change.artifact)
    except OSError as error:
        _undo(staged, made)
        raise DevkitError(
            f"cannot write {error.filename or root}: {error.strerror}",
            "Make the project writable for this user, or choose another directory. Nothing was changed.",
        ) from None
    return staged


def _known_files(root: Path) -> tuple[Mapping[str, set[str]], bool]:
    locks: list[Lock] = []
    content = read_file(root, LOCK_PATH)
    if content is not None:
        locks.append(read_lock(content))
    # A killed run leaves its lock staged, perhaps half written; then nothing was renamed yet.
    journal = read_file(root, _staged(Path(LOCK_PATH)).name)
    if journal is not None:
        with contextlib.suppress(DevkitError):
            locks.append(read_lock(journal))
    known: dict[str, set[str]] = {}
    for lock in locks:
        for path, sha in lock.files.items():
            known.setdefault(path, set()).add(sha)
    return known, bool(locks) or journal is not None


def _change(root: Path, artifact: Artifact) -> Change:
    before = read_file(root, artifact.path)
    if before is None:
        return Change(Action.CREATE, artifact, None)
    return Change(Action.UNCHANGED if before == artifact.content else Action.UPDATE, artifact, before)


def _is_ours(change: Change, known: Mapping[str, set[str]], *, force: bool) -> bool:
    if change.path not in known:
        return False
    return force or digest(change.before or b"") in known[change.path]


def _strangers(root: Path, own: set[str]) -> list[str]:
    """Dev container files in a project that devkit has not written to yet."""
    single = [".devcontainer.json"] if (root / ".devcontainer.json").exists() else []
    local = (f"{FOLDER}/.env", f"{FOLDER}/wheelhouse/")
    found = sorted(path.relative_to(root).as_posix() for path in _inside(root, FOLDER).rglob("*") if path.is_file())
    return single + [path for path in found if path not in own and not path.startswith(local)]


def _stale(root: Path, known: Mapping[str, set[str]], own: set[str]) -> list[Change]:
    stale = []
    for path in sorted(known):
        before = None if path in own else read_file(root, path)
        if before is not None and digest(before) in known[path]:
            stale.append(Change(Action.REMOVE, Artifact(path, b""), before))
    return stale


def _refuse(refused: Sequence[Change], strangers: Sequence[str], *, was_written: bool) -> None:
    names = [change.path for change in refused] + list(strangers)
    if was_written:
        message = f"changed since devkit wrote it: {', '.join(names)}"
        advice = "Move your changes to devkit.toml or to a file of your own, or pass --force to lose them."
    else:
        message = f"this project has a dev container that devkit did not write: {', '.join(names)}"
        advice = f"Move it away, such as with: mv {FOLDER} {FOLDER}.mine. Then run this again and compare."
    diffs = [change.diff() for change in refused]
    raise DevkitError(message, "\n".join([advice, *diffs]))


def _inside(root: Path, path: str) -> Path:
    base = root.resolve()
    target = (base / path).resolve()
    if not target.is_relative_to(base):
        raise DevkitError(
            f"{path} leads out of the project, to {target}", "Replace the symbolic link with a directory or a file."
        )
    return target


def _staged(target: Path) -> Path:
    return target.with_name(f".{target.name.lstrip('.')}{_STAGED_SUFFIX}")


def _sweep(root: Path) -> None:
    """Take away what a killed run staged for a plan that is not today's."""
    pattern = f".*{_STAGED_SUFFIX}"
    for leftover in (*root.glob(pattern), *_inside(root, FOLDER).rglob(pattern)):
        leftover.unlink(missing_ok=True)


def _make_directories(directory: Path) -> list[Path]:
    missing = [each for each in (directory, *directory.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
    return missing


def _write_synced(path: Path, artifact: Artifact) -> None:
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, artifact.mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(artifact.content)
        file.flush()
        os.fsync(file.fileno())


def _undo(staged: Iterable[tuple[Path, Path]], made: Iterable[Path]) -> None:
    for source, _ in staged:
        with contextlib.suppress(OSError):
            source.unlink(missing_ok=True)
    for directory in sorted(made, reverse=True):
        with contextlib.suppress(OSError):
            directory.rmdir()


def _sync_directories(directories: Iterable[Path]) -> None:
    if os.name != "posix":
        return
    for directory in directories:
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
