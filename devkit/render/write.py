"""The only module that touches the disk.

A run is staged beside the files it replaces, the lock first, and then renamed into place, the lock last. A
kill at any moment leaves each file old or new and never half, and the staged lock tells the next run which
of them devkit wrote.
"""

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from devkit.errors import DevkitError
from devkit.render.artifact import FOLDER, Artifact
from devkit.render.change import Action, Change
from devkit.render.folder import STAGED_SUFFIX, inside, read_file, staging_path
from devkit.render.lock import LOCK_PATH

_ORDINARY_MODE = 0o644
_PATIENCE_S = 5.0
"""How long to wait for another devkit that writes to the same folder; it needs a fraction of a second."""


def write(root: Path, changes: Iterable[Change], *, replace: Callable[[Path, Path], None] = os.replace) -> None:
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


def _put(pending: list[Change], root: Path, replace: Callable[[Path, Path], None]) -> None:
    written = [change for change in pending if change.action is not Action.REMOVE]
    written.sort(key=lambda change: change.path != LOCK_PATH)
    waiting = _stage(root, written)
    lock_last = sorted(waiting, key=lambda pair: pair[1].name == LOCK_PATH)
    try:
        for change in pending:
            if change.action is Action.REMOVE:
                inside(root, change.path).unlink(missing_ok=True)
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


def _is_done(root: Path, change: Change) -> bool:
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
    kept, staged = _free_name(path), staging_path(path)
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
            target = inside(root, change.path)
            made += _make_directories(target.parent)
            staged.append((staging_path(target), target))
            _write_synced(staging_path(target), _with_mode_of(target, change.artifact))
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
    below = inside(root, FOLDER).rglob(pattern)
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
