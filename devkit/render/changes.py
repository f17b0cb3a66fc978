"""What a run would do to the files of a project: new, joined with the user's edits, unchanged, gone; or refused."""

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from devkit.errors import DevkitError
from devkit.render.devkit_lock import LOCK_PATH, DevkitLock, WrittenFile, compute_digest, compute_sha256, parse_lock
from devkit.render.files import (
    DEVCONTAINER_FOLDER,
    STAGED_SUFFIX,
    Artifact,
    get_staging_path,
    list_files,
    read_file,
    resolve_inside,
)
from devkit.render.ignore_files import IGNORE_FILES, merge_ignore_file

if TYPE_CHECKING:
    from devkit.render.splice.merge import MergeConflict


class Action(StrEnum):
    """What a run does to one file."""

    CREATE = "create"
    UPDATE = "update"
    MERGE = "merge"
    UNCHANGED = "unchanged"
    REMOVE = "remove"


@dataclass(frozen=True)
class FileChange:
    """One file, before and after. `before` is None for a new file; a removed one keeps its artifact's path.

    `conflicts` are the places where the user's edits and devkit's changes meet. `is_restored` when the change only
    brings back a file that is kept out of version control, as the lock describes it: that is no drift.
    """

    action: Action
    artifact: Artifact
    before: bytes | None
    conflicts: "tuple[MergeConflict, ...]" = ()
    is_restored: bool = False

    @property
    def path(self) -> str:
        """Relative to the project, with forward slashes."""
        return self.artifact.path

    def format_diff(self) -> str:
        """A unified diff, "" when nothing changes."""
        after = b"" if self.action is Action.REMOVE else self.artifact.content
        return format_unified_diff(self.path, self.before or b"", after)


@dataclass(frozen=True)
class RefusalTexts:
    """What refusals say of files that are not as devkit left them, and what they advise."""

    foreign_files: str = "this project has a dev container that devkit did not write"
    move_away: str = f"Move it away, such as with: mv {DEVCONTAINER_FOLDER} {DEVCONTAINER_FOLDER}.mine. Then run this again and compare."
    keep_edits: str = "Move your changes to devkit.toml or to a file of your own, or pass --force to lose them."


DEVCONTAINER_REFUSALS = RefusalTexts()


@dataclass(frozen=True)
class KnownFiles:
    """What devkit wrote into a project before: every version that the lock and a killed run's lock name, by path."""

    files: dict[str, list[WrittenFile]]
    was_written: bool

    def is_unmodified(self, path: str, content: bytes) -> bool:
        """Whether the file is as devkit left it."""
        # Locks of earlier versions hold the SHA-256 of a wheel's bytes.
        digests = {compute_sha256(content), compute_digest(path, content)}
        return not digests.isdisjoint(written.sha256 for written in self.files.get(path, ()))

    def find_base_text(self, path: str) -> str | None:
        """What devkit wrote there last, None where no lock tells."""
        return next((written.text for written in self.files.get(path, ()) if written.text is not None), None)


def format_unified_diff(path: str, before: bytes, after: bytes) -> str:
    """How `before` becomes `after`; one line for files that are not text."""
    if before == after:
        return ""
    import difflib

    try:
        old, new = before.decode().splitlines(), after.decode().splitlines()
    except UnicodeDecodeError:
        return f"{path}: binary files differ"
    return "\n".join(difflib.unified_diff(old, new, f"a/{path}", f"b/{path}", lineterm=""))


def compute_changes(
    root: Path,
    generated: Sequence[Artifact],
    edited: Sequence[Artifact],
    *,
    force: bool = False,
    may_clash: bool = False,
    adopts: bool = False,
    wording: RefusalTexts = DEVCONTAINER_REFUSALS,
) -> tuple[FileChange, ...]:
    """What writing these files would do. Reads the disk, writes nothing.

    `generated` are devkit's own, the lock last among them; what the user changed in them since is joined with what
    changes now. `edited` are the user's files, already joined. With `force`, devkit's own files lose the user's edits.
    With `may_clash` edits that meet devkit's changes are left for the user to resolve. With `adopts` the project has a
    dev container of its own, which `edited` repairs.
    Raises: DevkitError, with the difference, for a file that devkit did not write, for edits that cannot be joined,
    and for conflicts of an earlier run that nobody has resolved.
    """
    known = read_known_files(root)
    plain = [compute_change(root, artifact) for artifact in edited]
    own = [_own_change(root, artifact, known, force=force) for artifact in generated]
    paths = {artifact.path for artifact in generated if artifact.path != LOCK_PATH}
    refused = [change for change in own if change.action is Action.UPDATE and not _may_replace(change, known, force)]
    strangers = [] if known.was_written or adopts else _strangers(root, paths)
    if refused or strangers:
        _refuse(refused, strangers, wording, was_written=known.was_written)
    clashing = [change for change in own if change.conflicts]
    if clashing and not may_clash:
        _refuse_clashes(clashing)
    return (*plain, *own, *_stale(root, known, paths))


def read_known_files(root: Path) -> KnownFiles:
    """What devkit wrote into a project. Raises DevkitError for a lock that cannot be read."""
    locks: list[DevkitLock] = []
    content = read_file(root, LOCK_PATH)
    if content is not None:
        locks.append(parse_lock(content))
    # A killed run leaves its lock staged, perhaps half written; then nothing was renamed yet.
    journal = read_file(root, get_staging_path(Path(LOCK_PATH)).name)
    if journal is not None:
        with contextlib.suppress(DevkitError):
            locks.append(parse_lock(journal))
    files: dict[str, list[WrittenFile]] = {}
    for lock in locks:
        for path, written in lock.files.items():
            files.setdefault(path, []).append(written)
    return KnownFiles(files, bool(locks) or journal is not None)


def compute_change(root: Path, artifact: Artifact) -> FileChange:
    """What writing one file would do, whoever wrote what is there."""
    before = read_file(root, artifact.path)
    if before is None:
        return FileChange(Action.CREATE, artifact, None)
    is_same = before == artifact.content or (
        artifact.is_local and compute_digest(artifact.path, before) == compute_digest(artifact.path, artifact.content)
    )
    return FileChange(Action.UNCHANGED if is_same else Action.UPDATE, artifact, before)


def _own_change(root: Path, artifact: Artifact, known: KnownFiles, *, force: bool) -> FileChange:
    change = compute_change(root, artifact)
    if artifact.is_local:
        return dataclasses.replace(change, is_restored=known.is_unmodified(artifact.path, artifact.content))
    if change.before is not None and artifact.path in IGNORE_FILES and artifact.path not in known.files:
        joined_file = merge_ignore_file(change.before, artifact.content)
        action = Action.UNCHANGED if joined_file == change.before else Action.MERGE
        return FileChange(action, Artifact(artifact.path, joined_file, artifact.mode), change.before)
    base = known.find_base_text(artifact.path)
    if change.before is None or change.action is not Action.UPDATE or _may_replace(change, known, force):
        return change
    from devkit.render.splice.merge import has_conflict_markers, merge_file

    if has_conflict_markers(change.before):
        raise DevkitError(
            f"{artifact.path} still holds a conflict of an earlier run",
            "Decide between its marked parts, take the markers out, and run this again.",
        )
    joined = (
        merge_file(artifact.path, base=base, mine=change.before, theirs=artifact.content) if base is not None else None
    )
    if joined is None:
        return change
    action = Action.UNCHANGED if joined.content == change.before else Action.MERGE
    return FileChange(action, Artifact(artifact.path, joined.content, artifact.mode), change.before, joined.conflicts)


def _may_replace(change: FileChange, known: KnownFiles, force: bool) -> bool:
    if change.path == LOCK_PATH or change.artifact.is_local:
        return True
    return change.path in known.files and (force or known.is_unmodified(change.path, change.before or b""))


def _strangers(root: Path, own: set[str]) -> list[str]:
    """Dev container files in a project that devkit has not written to yet."""
    local = (f"{DEVCONTAINER_FOLDER}/.env", f"{DEVCONTAINER_FOLDER}/wheelhouse/")
    single = [".devcontainer.json"] if read_file(root, ".devcontainer.json") is not None else []
    return single + [
        path for path in list_files(root, DEVCONTAINER_FOLDER) if path not in own and not path.startswith(local)
    ]


def _stale(root: Path, known: KnownFiles, own: set[str]) -> Iterable[FileChange]:
    for path in sorted(known.files):
        before = None if path in own else read_file(root, path)
        if before is not None and known.is_unmodified(path, before):
            yield FileChange(Action.REMOVE, Artifact(path, b""), before)


def _refuse(
    refused: Sequence[FileChange], strangers: Sequence[str], wording: RefusalTexts, *, was_written: bool
) -> None:
    names = ", ".join([*(change.path for change in refused), *strangers])
    said = "changed since devkit wrote it" if was_written else wording.foreign_files
    advice = wording.keep_edits if was_written else wording.move_away
    raise DevkitError(f"{said}: {names}", "\n".join([advice, *(change.format_diff() for change in refused)]))


def _refuse_clashes(clashing: Sequence[FileChange]) -> None:
    names = ", ".join(change.path for change in clashing)
    lines = ["Run devkit update to have both and decide, or pass --force to lose yours."]
    for change in clashing:
        for clash in change.conflicts:
            lines += [f"{change.path}, {clash.place}, devkit would write:", *_indented(clash.wanted)]
    raise DevkitError(f"your changes and devkit's meet in {names}", "\n".join(lines))


def _indented(text: str) -> list[str]:
    return [f"  {line}" for line in text.splitlines()]


# The only module that touches the disk.
#
# A run is staged beside the files it replaces, the lock first, and then renamed into place, the lock last. A
# kill at any moment leaves each file old or new and never half, and the staged lock tells the next run which
# of them devkit wrote.

_ORDINARY_MODE = 0o644
_PATIENCE_S = 5.0
"""How long to wait for another devkit that writes to the same folder; it needs a fraction of a second."""


def write_changes(
    root: Path, changes: Iterable[FileChange], *, replace: Callable[[Path, Path], None] = os.replace
) -> None:
    """Put the changes on the disk, old or new and never half. `replace` renames a file over another.

    Raises: DevkitError when the disk refuses, whatever was staged is gone again then; and when a file is no longer
    as it was when the change was worked out.
    """
    pending = [change for change in changes if change.action is not Action.UNCHANGED]
    if not pending:
        _sweep(root, [])
        return
    made = _make_root(root)
    try:
        with _alone_in(root):
            _put([change for change in pending if not _is_done(root, change)], root, replace)
    finally:
        _remove_empty(made)


def _put(pending: list[FileChange], root: Path, replace: Callable[[Path, Path], None]) -> None:
    written = [change for change in pending if change.action is not Action.REMOVE]
    written.sort(key=lambda change: change.path != LOCK_PATH)
    waiting = _stage(root, written)
    lock_last = sorted(waiting, key=lambda pair: pair[1].name == LOCK_PATH)
    try:
        for change in pending:
            if change.action is Action.REMOVE:
                resolve_inside(root, change.path).unlink(missing_ok=True)
        for source, target in lock_last:
            replace(source, target)
    except OSError as error:
        raise DevkitError(
            f"cannot replace {error.filename2 or error.filename or root}: {error.strerror}",
            "Close the programs that hold it, then run this again: it will finish what it began.",
        ) from None
    folders = {target.parent for _, target in waiting}
    _sync_directories(folders)
    _sweep(root, folders)


def _is_done(root: Path, change: FileChange) -> bool:
    """Whether another run did the same meanwhile. Raises DevkitError when the file became something else."""
    now = read_file(root, change.path)
    if now == change.before:
        return False
    if now == (None if change.action is Action.REMOVE else change.artifact.content):
        return True
    raise DevkitError(
        f"{change.path} was changed in between", "Run this again: it looks at the files anew. Nothing was written."
    )


@contextlib.contextmanager
def _alone_in(root: Path) -> Iterator[None]:
    """Keep other runs out of the folder meanwhile. The system lets go of it however this process ends.

    Raises: DevkitError when another run stays in there.
    """
    if os.name != "posix":
        # Windows gives no lock on a folder; two runs there still look at each file before they replace it.
        yield
        return
    import fcntl

    descriptor = os.open(root, os.O_RDONLY)
    try:
        deadline_s = time.monotonic() + _PATIENCE_S
        while not _is_locked(fcntl.flock, descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB):
            if time.monotonic() > deadline_s:
                raise DevkitError(
                    f"another devkit is writing to {root}", "Wait until it has ended, or end it; then run this again."
                )
            time.sleep(0.05)
        yield
    finally:
        os.close(descriptor)


def _is_locked(flock: Callable[[int, int], None], descriptor: int, how: int) -> bool:
    try:
        flock(descriptor, how)
    except BlockingIOError:
        return False
    except OSError:
        # Some network file systems know no locks; every file is still looked at before it is replaced.
        return True
    return True


def replace_file(
    path: Path, before: bytes, after: bytes, *, replace: Callable[[Path, Path], None] = os.replace
) -> Path:
    """Put `after` in the place of `before` in a file of the user's, old or new and never half, with its mode.

    Returns the copy beside it that keeps what stood there. Raises: DevkitError when the file is not as it was read,
    or the disk refuses; nothing was changed then.
    """
    kept, staged = _free_name(path), get_staging_path(path)
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


def _stage(root: Path, written: Iterable[FileChange]) -> list[tuple[Path, Path]]:
    """Write each file beside its target, and undo that when one cannot be written."""
    staged: list[tuple[Path, Path]] = []
    made: list[Path] = []
    try:
        for change in written:
            target = resolve_inside(root, change.path)
            made += _make_directories(target.parent)
            staged.append((get_staging_path(target), target))
            _write_synced(get_staging_path(target), _with_mode_of(target, change.artifact))
    except OSError as error:
        _undo(staged, made)
        raise DevkitError(
            f"cannot write {error.filename or root}: {error.strerror}",
            "Make the project writable for this user, or choose another directory. Nothing was changed.",
        ) from None
    return staged


def _sweep(root: Path, folders: Iterable[Path]) -> None:
    """Take away what a killed run staged for a plan that is not today's."""
    pattern = f".*{STAGED_SUFFIX}"
    below = resolve_inside(root, DEVCONTAINER_FOLDER).rglob(pattern)
    for leftover in (*root.glob(pattern), *below, *(path for folder in folders for path in folder.glob(pattern))):
        leftover.unlink(missing_ok=True)


def _make_root(root: Path) -> list[Path]:
    try:
        return _make_directories(root)
    except OSError as error:
        raise DevkitError(
            f"cannot make {root}: {error.strerror}", "Choose a directory that you may write to."
        ) from None


def _remove_empty(directories: Iterable[Path]) -> None:
    for directory in sorted(directories, reverse=True):
        with contextlib.suppress(OSError):
            directory.rmdir()


def _with_mode_of(target: Path, artifact: Artifact) -> Artifact:
    """The artifact with the permissions that its file has, unless it asks for some of its own."""
    if artifact.mode != _ORDINARY_MODE or not target.exists():
        return artifact
    return dataclasses.replace(artifact, mode=target.stat().st_mode & 0o777)


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
    _remove_empty(made)


def _sync_directories(directories: Iterable[Path]) -> None:
    if os.name != "posix":
        return
    for directory in directories:
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
