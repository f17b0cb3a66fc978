"""Changes of a project's files: computed first, then written. This is the only module that writes to the disk.

A run is staged beside the files it replaces and then renamed into place, by a journal that the next command finishes or
rolls back. A kill at any moment leaves each file old or new and never half.
"""

import contextlib
import dataclasses
import errno
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from devkit.errors import DevkitError
from devkit.folder_lock import hold_folder
from devkit.render.devkit_lock import LOCK_PATH, compute_blob_id, find_version, keep_versions, parse_lock
from devkit.render.diffs import MergeConflict, format_unified_diff, has_conflict_markers, merge_file
from devkit.render.files import (
    DEVCONTAINER_FOLDER,
    JOURNAL_PATH,
    NEXT_JOURNAL_PATH,
    WHEELS_FOLDER,
    Artifact,
    Journal,
    Step,
    describe_end,
    format_journal,
    get_staging_path,
    list_files,
    parse_journal,
    read_file,
    resolve_inside,
)
from devkit.render.text_edits import IGNORE_FILES, merge_ignore_file
from devkit.whole_files import flush_to_disk

_DEFAULT_MODE = 0o644


class Action(StrEnum):
    """The kinds of change of one file."""

    CREATE = "create"
    UPDATE = "update"
    MERGE = "merge"
    UNCHANGED = "unchanged"
    REMOVE = "remove"


@dataclass(frozen=True)
class FileChange:
    """One file, before and after. `before` is None for a new file; a removed one keeps its artifact's path.

    `conflicts` are the places where the user's edits and devkit's changes meet. `generated` is what devkit alone would
    write, which the artifact may be a merge of; None for a file of the user's.
    """

    action: Action
    artifact: Artifact
    before: bytes | None
    conflicts: "tuple[MergeConflict, ...]" = ()
    generated: bytes | None = None

    @property
    def path(self) -> str:
        """The path relative to the project, with forward slashes."""
        return self.artifact.path

    def format_diff(self) -> str:
        """Return a unified diff, "" when nothing changes."""
        after = b"" if self.action is Action.REMOVE else self.artifact.content
        return format_unified_diff(self.path, self.before or b"", after)


@dataclass(frozen=True)
class RefusalTexts:
    """The message and advice for files that are not as devkit left them."""

    foreign_files: str = "this project has a dev container that devkit did not write"
    move_away: str = (
        f"Move it elsewhere: mv {DEVCONTAINER_FOLDER} {DEVCONTAINER_FOLDER}.mine. Then run this again, and compare."
    )
    keep_edits: str = "Move your changes to devkit.toml or to your own file, or pass --force to discard them."


DEVCONTAINER_REFUSALS = RefusalTexts()


@dataclass(frozen=True)
class KnownFiles:
    """Files that devkit wrote before: the id of each that the lock names, by path."""

    files: Mapping[str, str]
    was_written: bool

    def is_unmodified(self, path: str, content: bytes) -> bool:
        """Return True for a file as devkit left it, and for devkit's own wheel, which users do not edit."""
        known = self.files.get(path)
        return known == compute_blob_id(content) or (known == "" and path.startswith(WHEELS_FOLDER))


def compute_changes(
    root: Path,
    generated: Sequence[Artifact],
    edited: Sequence[Artifact],
    *,
    force: bool = False,
    may_conflict: bool = False,
    adopts: bool = False,
    texts: RefusalTexts = DEVCONTAINER_REFUSALS,
) -> tuple[FileChange, ...]:
    """Compute the changes that bring the project to these files. Reads the disk, writes nothing.

    Args:
        generated: devkit's own files, the lock last among them; the user's edits of them are merged.
        edited: the user's files, merged already.
        force: replace the user's edits of devkit's files.
        may_conflict: leave conflicts for the user to resolve.
        adopts: the project has its own dev container, which `edited` repairs.

    Raises:
        DevkitError: with the difference, for a file that devkit did not write, for edits that cannot be merged, and
            for unresolved conflicts of an earlier run.
    """
    known = read_known_files(root)
    edits = [compute_change(root, artifact) for artifact in edited]
    own = [
        dataclasses.replace(_compute_own_change(root, artifact, known, force=force), generated=artifact.content)
        for artifact in generated
    ]
    paths = {artifact.path for artifact in generated if artifact.path != LOCK_PATH}
    refused = [change for change in own if change.action is Action.UPDATE and not _may_replace(change, known, force)]
    foreign = [] if known.was_written or adopts else _find_foreign_files(root, paths)
    if refused or foreign:
        names = ", ".join([*(change.path for change in refused), *foreign])
        message = "changed since devkit wrote it" if known.was_written else texts.foreign_files
        advice = texts.keep_edits if known.was_written else texts.move_away
        raise DevkitError(f"{message}: {names}", "\n".join([advice, *(change.format_diff() for change in refused)]))
    conflicting = [change for change in own if change.conflicts]
    if conflicting and not may_conflict:
        lines = ["Run devkit update to merge both, or pass --force to discard yours."]
        for change in conflicting:
            for conflict in change.conflicts:
                lines.append(f"{change.path}, {conflict.place}, devkit would write:")
                lines += [f"  {line}" for line in conflict.wanted.splitlines()]
        names = ", ".join(change.path for change in conflicting)
        raise DevkitError(f"your changes and devkit's conflict in {names}", "\n".join(lines))
    stale = [
        FileChange(Action.REMOVE, Artifact(path, b""), before)
        for path in sorted(known.files.keys() - paths)
        if (before := read_file(root, path)) is not None and known.is_unmodified(path, before)
    ]
    return (*edits, *own, *stale)


def read_known_files(root: Path) -> KnownFiles:
    """Read which files devkit wrote into a project. Raises DevkitError for a lock that cannot be read."""
    content = read_file(root, LOCK_PATH)
    return KnownFiles({} if content is None else parse_lock(content).files, content is not None)


def compute_change(root: Path, artifact: Artifact) -> FileChange:
    """Compute the change of one file, no matter who wrote the present one."""
    before = read_file(root, artifact.path)
    if before is None:
        return FileChange(Action.CREATE, artifact, None)
    return FileChange(Action.UNCHANGED if before == artifact.content else Action.UPDATE, artifact, before)


def _compute_own_change(root: Path, artifact: Artifact, known: KnownFiles, *, force: bool) -> FileChange:
    """Compute the change of a file of devkit's, with the user's edits of it merged."""
    change = compute_change(root, artifact)
    if artifact.is_local:
        return change
    if change.before is not None and artifact.path in IGNORE_FILES and artifact.path not in known.files:
        return _take_merged(change, merge_ignore_file(change.before, artifact.content))
    if change.before is None or change.action is not Action.UPDATE or _may_replace(change, known, force):
        return change
    if has_conflict_markers(change.before):
        raise DevkitError(
            f"{artifact.path} still contains a conflict from an earlier run",
            "Choose between its marked parts, remove the markers, and run this again.",
        )
    base = find_version(root, known.files[artifact.path]) if artifact.path in known.files else None
    if base is None:
        return change
    merged = merge_file(artifact.path, base=base.decode(), ours=change.before, theirs=artifact.content)
    if merged is None:
        return change
    return _take_merged(change, *merged)


def _take_merged(change: FileChange, content: bytes, conflicts: tuple[MergeConflict, ...] = ()) -> FileChange:
    action = Action.UNCHANGED if content == change.before else Action.MERGE
    artifact = dataclasses.replace(change.artifact, content=content)
    return FileChange(action, artifact, change.before, conflicts)


def _may_replace(change: FileChange, known: KnownFiles, force: bool) -> bool:
    if change.path == LOCK_PATH or change.artifact.is_local:
        return True
    return change.path in known.files and (force or known.is_unmodified(change.path, change.before or b""))


def _find_foreign_files(root: Path, own: set[str]) -> list[str]:
    """Find dev container files in a project that devkit has not written to yet."""
    local = (f"{DEVCONTAINER_FOLDER}/.env", f"{DEVCONTAINER_FOLDER}/wheelhouse/")
    single = [".devcontainer.json"] if read_file(root, ".devcontainer.json") is not None else []
    below = list_files(root, DEVCONTAINER_FOLDER)
    return single + [path for path in below if path not in own and not path.startswith(local)]


@contextlib.contextmanager
def _open_parent(path: Path) -> Iterator[tuple[str, int | None]]:
    """Open the folder of a resolved path and return the file's name in it, without following links.

    Exchanging a folder for a link after devkit looked at it does not lead devkit out of the project: opening
    it raises OSError. Windows gives no descriptors of folders.
    """
    if os.name != "posix":
        yield str(path), None
        return
    flags = os.O_DIRECTORY | os.O_CLOEXEC
    if hasattr(os, "O_NOFOLLOW_ANY"):
        descriptor = os.open(path.parent, os.O_RDONLY | flags | os.O_NOFOLLOW_ANY)
    else:
        flags |= os.O_NOFOLLOW | getattr(os, "O_PATH", os.O_RDONLY)
        descriptor = os.open(path.anchor, flags)
        for name in path.parts[1:-1]:
            try:
                inner = os.open(name, flags, dir_fd=descriptor)
            finally:
                os.close(descriptor)
            descriptor = inner
    try:
        yield path.name, descriptor
    finally:
        os.close(descriptor)


def replace_beside(source: Path, target: Path) -> None:
    """Rename a file over another one in the same folder, without following links. Raises OSError."""
    with _open_parent(target) as (name, folder):
        os.replace(source if folder is None else source.name, name, src_dir_fd=folder, dst_dir_fd=folder)


def _remove(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError), _open_parent(path) as (name, folder):
        os.unlink(name, dir_fd=folder)


def compute_digest(changes: Iterable[FileChange]) -> str:
    """Compute a digest of what changes: each file with its content before and after."""
    changed = sorted((each.path, each.action, each) for each in changes if each.action is not Action.UNCHANGED)
    lines = (
        f"{path}\0{kind}\0{_identify(each.before)}\0{_identify(each.artifact.content)}\n"
        for path, kind, each in changed
    )
    return compute_blob_id("".join(lines).encode())


def write_changes(root: Path, changes: Iterable[FileChange]) -> None:
    """Write the changes to the disk, each file old or new and never half.

    Raises:
        DevkitError: when the disk refuses, after removing the staged files, and for a file that changed since the
            changes were computed.
    """
    changes = tuple(changes)
    keep_versions(
        change.generated
        for change in changes
        if change.generated is not None and not change.artifact.is_local and not change.path.endswith(".lock")
    )
    pending = [change for change in changes if change.action is not Action.UNCHANGED]
    if not pending:
        return
    made = _make_root(root)
    try:
        with hold_folder(root):
            finish_writes(root)
            _stage_and_rename([change for change in pending if not _is_done(root, change)], root)
    finally:
        _remove_empty(made)


def _stage_and_rename(pending: list[FileChange], root: Path) -> None:
    if not pending:
        return
    # The lock last: it tells which files devkit wrote.
    pending.sort(key=lambda change: change.path == LOCK_PATH)
    removed = [change for change in pending if change.action is Action.REMOVE]
    written = [change for change in pending if change.action is not Action.REMOVE]
    steps = tuple(
        Step(each.path, _identify(each.before), _identify(None if each in removed else each.artifact.content))
        for each in (*removed, *written)
    )
    targets = [resolve_inside(root, change.path) for change in written]
    base = root.resolve()
    missing = sorted(
        {each for target in targets for each in target.parents if base in each.parents and not each.exists()}
    )
    made = tuple(each.relative_to(base).as_posix() for each in missing)
    journal = Journal(base.stat().st_ino, steps, made)
    _keep_journal(root, journal)
    try:
        _stage(zip(targets, written, strict=True), root)
        _keep_journal(root, dataclasses.replace(journal, is_staged=True))
    except BaseException:
        finish_writes(root)
        raise
    _carry_out(root, steps)


def _keep_journal(root: Path, journal: Journal) -> None:
    """Write the journal, whole. Raises DevkitError where the disk refuses."""
    path = root.resolve() / JOURNAL_PATH
    staged = path.with_name(NEXT_JOURNAL_PATH)
    try:
        _write_synced(staged, format_journal(journal), _DEFAULT_MODE)
        replace_beside(staged, path)
        flush_to_disk(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            _remove(staged)
        raise _explain_refusal(error, root) from None


def _identify(content: bytes | None) -> str:
    return "" if content is None else compute_blob_id(content)


def _carry_out(root: Path, steps: Iterable[Step]) -> tuple[list[str], list[str]]:
    """Carry out staged steps. Returns the paths that were changed, and those that somebody changed since."""
    done: list[str] = []
    kept: list[str] = []
    folders = {root.resolve()}
    try:
        for step in steps:
            target = resolve_inside(root, step.path)
            staged = get_staging_path(target)
            now = _identify(read_file(root, step.path))
            ready = _identify(read_file(root, staged.relative_to(root.resolve()).as_posix())) if step.after else ""
            if now == step.after:
                _remove(staged)
            elif now != step.before or ready != step.after:
                kept.append(step.path)
                _remove(staged)
            else:
                done.append(step.path)
                folders.add(target.parent)
                if step.after:
                    replace_beside(staged, target)
                else:
                    _remove(target)
        for folder in folders:
            flush_to_disk(folder)
        _remove(root.resolve() / JOURNAL_PATH)
    except OSError as error:
        raise DevkitError(
            f"cannot replace {error.filename2 or error.filename or root}: {error.strerror}",
            "Close the programs that use it, then run this again; it continues where it stopped.",
        ) from None
    return done, kept


def finish_writes(root: Path) -> str:
    """Finish or roll back what a run that was killed had begun in a project. Returns a line that says so, "" for nothing.

    Raises: DevkitError where the disk refuses.
    """
    base = root.resolve()
    with contextlib.suppress(OSError):
        _remove(base / NEXT_JOURNAL_PATH)
    journal = _read_journal(root)
    if journal is None:
        return ""
    if journal.is_staged:
        done, kept = _carry_out(root, journal.steps)
        return describe_end(journal, done, kept)
    try:
        for step in journal.steps:
            with contextlib.suppress(IsADirectoryError, PermissionError):  # such as a folder, which no run makes
                _remove(get_staging_path(resolve_inside(root, step.path)))
        _remove_empty(base / each for each in journal.made)
        _remove(base / JOURNAL_PATH)
    except OSError as error:
        raise _explain_refusal(error, root) from None
    return describe_end(journal, (), ())


def is_unfinished(root: Path) -> bool:
    """Return True for a project in which a run was killed, and no command has finished what it began."""
    return _read_journal(root) is not None


def _read_journal(root: Path) -> Journal | None:
    """Read the journal of a run that was killed in this very folder."""
    content = read_file(root, JOURNAL_PATH)
    journal = parse_journal(content) if content is not None else None
    return journal if journal and journal.folder == root.resolve().stat().st_ino else None


def _explain_refusal(error: OSError, root: Path) -> DevkitError:
    return DevkitError(
        f"cannot write {error.filename or root}: {error.strerror}",
        _advise(error, "Make the project writable by this user, or choose another directory"),
    )


def _advise(error: OSError, otherwise: str) -> str:
    """Say what to do when a file could not be written."""
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return f"{'Free space on that disk' if is_full else otherwise}. Nothing was changed."


def _is_done(root: Path, change: FileChange) -> bool:
    """Return True when another run did the same meanwhile. Raises DevkitError when the file became something else."""
    now = read_file(root, change.path)
    if now == change.before:
        return False
    if now == (None if change.action is Action.REMOVE else change.artifact.content):
        return True
    raise DevkitError(
        f"{change.path} was changed in the meantime", "Nothing was written. Run this again to read the files again."
    )


def _stage(written: Iterable[tuple[Path, FileChange]], root: Path) -> None:
    """Write each file beside its target. Raises DevkitError where the disk refuses."""
    try:
        for target, change in written:
            _make_directories(target.parent)
            mode = change.artifact.mode
            if mode == _DEFAULT_MODE and target.exists():
                mode = target.stat().st_mode & 0o777
            _write_synced(get_staging_path(target), change.artifact.content, mode)
    except OSError as error:
        raise _explain_refusal(error, root) from None


def replace_file(path: Path, before: bytes, after: bytes) -> Path:
    """Replace `before` by `after` in a file of the user's, old or new and never half, with its mode.

    Returns the backup beside it. Raises: DevkitError when the file is not as it was read, or the disk refuses; nothing
    was changed then.
    """
    names = [path.with_name(f"{path.name}.devkit-backup{number}") for number in ("", *range(2, 1000))]
    # A run that was killed may have left the very backup.
    backup = next(each for each in names if not each.exists() or (each.is_file() and each.read_bytes() == before))
    staged = get_staging_path(path)
    written = [staged, get_staging_path(backup)]
    try:
        if path.read_bytes() != before:
            raise DevkitError(f"{path} was changed in the meantime", "Run this again to read the file again.")
        mode = path.stat().st_mode & 0o7777
        if not backup.exists():
            _write_synced(get_staging_path(backup), before, mode)
            written.append(backup)
            get_staging_path(backup).rename(backup)
        _write_synced(staged, after, mode)
        staged.chmod(mode)  # the umask took bits away
        replace_beside(staged, path)
    except OSError as error:
        for each in written:
            with contextlib.suppress(OSError):
                each.unlink()
        raise DevkitError(
            f"cannot replace {path}: {error.strerror}", _advise(error, "Make it writable by this user")
        ) from None
    flush_to_disk(path.parent)
    return backup


def require_root(root: Path) -> None:
    """Raise DevkitError where the project's folder is missing and cannot be made; nothing is left behind."""
    _remove_empty(_make_root(root))


def _make_root(root: Path) -> list[Path]:
    try:
        return _make_directories(root.resolve())
    except OSError as error:
        raise DevkitError(
            f"cannot make {root}: {error.strerror}", "Choose a directory that you can write to."
        ) from None


def _make_directories(directory: Path) -> list[Path]:
    missing = [each for each in (directory, *directory.parents) if not each.exists()]
    for each in reversed(missing):
        with contextlib.suppress(FileExistsError), _open_parent(each) as (name, folder):
            os.mkdir(name, dir_fd=folder)
    return missing


def _write_synced(path: Path, content: bytes, mode: int) -> None:
    _remove(path)
    with _open_parent(path) as (name, folder):
        descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode, dir_fd=folder)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _remove_empty(directories: Iterable[Path]) -> None:
    for directory in sorted(directories, reverse=True):
        with contextlib.suppress(OSError):
            directory.rmdir()
