"""The folders of checkpoints in a run's output: their names, which of them is good, and what killed saves left.

A checkpoint is staged as `step-N.tmp-PID` and renamed to `step-N` when all of it is on the disk; one to be removed is
renamed to `step-N.old-PID` first. A name without an ending therefore always stands for a whole checkpoint.
"""

import contextlib
import os
import re
import shutil
from pathlib import Path

from devkit.errors import DevkitError
from devkit.workload.finetune.manifest import BrokenError, Manifest, verify

LATEST = "latest"
"""A link to the newest checkpoint, for people and for `devkit generate --adapter`; resuming does not trust it."""

_WHOLE = re.compile(r"step-(\d{1,18})")
_LEFTOVER = re.compile(
    r"(?:step-\d{1,18}|latest|run\.json|metrics\.jsonl|adapter|model)\.(?:tmp|old)-(?P<process>\d{1,18})"
)
_BROKEN = re.compile(r"step-(\d{1,18})\.broken")


def whole(output: Path) -> list[tuple[int, Path]]:
    """The checkpoints by name, newest first. Whether they are good, only their manifests can say."""
    found = [(int(match[1]), path) for path in _entries(output) if (match := _WHOLE.fullmatch(path.name))]
    return sorted(found, reverse=True)


def staging(output: Path, step: int) -> Path:
    """Where a checkpoint is written before it gets its name."""
    return output / f"step-{step}.tmp-{os.getpid()}"


def verified(path: Path) -> Manifest:
    """The manifest of a good checkpoint. Raises BrokenError."""
    if path.is_symlink() or not path.is_dir():
        raise BrokenError("is no folder of its own")
    return verify(path)


def publish(staged: Path, output: Path, step: int) -> Path:
    """Give a finished checkpoint its name, and let `latest` lead to it."""
    target = output / f"step-{step}"
    if target.is_symlink() or target.exists():
        # Made before by a run that this one repeats; it goes only now that its successor is on the disk.
        _set_aside(target)
    staged.replace(target)
    synced(output)
    _point_at(target)
    return target


def prune(output: Path, *, step: int, keep: int) -> None:
    """Remove all but the `keep` newest checkpoints, and broken ones that the run has since passed."""
    for _, path in whole(output)[keep:]:
        _remove(_set_aside(path))
    for path in _entries(output):
        if (match := _BROKEN.fullmatch(path.name)) and int(match[1]) <= step:
            _remove(path)
    sweep(output)


def is_leftover(name: str) -> bool:
    """Whether it is the name of something that a run was writing when it was killed."""
    return _LEFTOVER.fullmatch(name) is not None


def sweep(output: Path) -> None:
    """Remove what killed runs left: only names that runs give, of processes that are no more."""
    for path in _entries(output):
        match = _LEFTOVER.fullmatch(path.name)
        if match and not _is_another_alive(int(match["process"])):
            _remove(path)


def mark_broken(path: Path) -> None:
    """Take a broken checkpoint out of the row, but leave it to be looked at."""
    aside = path.with_name(f"{path.name}.broken")
    _remove(aside)
    with contextlib.suppress(OSError):  # it is passed over again next time
        path.replace(aside)


def synced(folder: Path) -> None:
    """Have the names in a folder on the disk. Windows keeps them without being asked, and cannot be asked."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _entries(output: Path) -> list[Path]:
    try:
        return list(output.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise DevkitError(
            f"cannot look into {output}: {error.strerror}",
            "Make it readable for this user, or choose another --output.",
        ) from None


def _set_aside(path: Path) -> Path:
    aside = path.with_name(f"{path.name}.old-{os.getpid()}")
    _remove(aside)
    return path.replace(aside)


def _point_at(target: Path) -> None:
    staged = target.with_name(f"{LATEST}.tmp-{os.getpid()}")
    # A file system without links (FAT, some shares) has no `latest`; nothing that devkit does needs it.
    with contextlib.suppress(OSError):
        staged.unlink(missing_ok=True)
        staged.symlink_to(target.name)
        staged.replace(target.with_name(LATEST))


def _is_another_alive(process: int) -> bool:
    """Whether it may be another run that saves just now. In a container, numbers come again: our own is not another."""
    if process == os.getpid():
        return False
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True


def _remove(path: Path) -> None:
    """As far as it goes: what cannot be removed now is swept another time, and takes room, but harms nothing."""
    if path.is_symlink() or path.is_file():
        with contextlib.suppress(OSError):
            path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)
