"""The folder that a bundle grows in. It takes the bundle's name only when it is whole."""

import contextlib
import hashlib
import os
import shutil
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from devkit.errors import DevkitError
from devkit.render.artifact import Artifact
from devkit.text import human_bytes

SUMS = "SHA256SUMS"
MANIFEST = "manifest.json"
_MARGIN_BYTES = 64 << 20
_CHUNK_BYTES = 1 << 20


def growing_folder(output: Path, *, force: bool) -> Path:
    """Where the bundle grows, beside `output`; what an interrupted run left there is gone on with.

    Raises: DevkitError where `output` is taken by something that is no bundle, or by one without `force`.
    """
    if not output.parent.is_dir():
        raise DevkitError(f"{output.parent} is no directory", "Make it first, or name another --output.")
    if output.is_dir() and any(output.iterdir()) and not (output / SUMS).is_file():
        raise DevkitError(f"{output} holds other files", "Name a folder that is not there yet with --output.")
    if os.path.lexists(output) and not force and not (output.is_dir() and not any(output.iterdir())):
        raise DevkitError(f"{output} exists already", "Pass --force to replace it, or name another --output.")
    folder = output.with_name(f".{output.name}.devkit-partial")
    folder.mkdir(exist_ok=True)
    return folder


def require_room(folder: Path, wanted_bytes: int) -> None:
    """Raise DevkitError now when the disk could not take that much."""
    free = shutil.disk_usage(folder).free
    if free < wanted_bytes + _MARGIN_BYTES:
        raise DevkitError(
            f"the bundle needs {human_bytes(wanted_bytes)} more, {folder.parent} has {human_bytes(free)} left",
            "Make room, or name a folder on another disk with --output. What is done so far is kept.",
        )


def put(folder: Path, artifacts: Iterable[Artifact]) -> None:
    """Write files into the folder, each under its path."""
    for artifact in artifacts:
        target = folder / artifact.path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(artifact.content)
        target.chmod(artifact.mode)


def sha256_of(path: Path) -> str:
    """SHA-256 of a file of any size, in hexadecimal."""
    total = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            total.update(chunk)
    return total.hexdigest()


def files_in(folder: Path) -> Iterator[tuple[str, Path]]:
    """Every file with its path in the folder, in order."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield path.relative_to(folder).as_posix(), path


def finish(folder: Path, output: Path) -> None:
    """Give the whole bundle its name: as a folder, or as one file where `output` ends with .tar."""
    if output.suffix != ".tar":
        with _moved_away(output):
            folder.rename(output)
        return
    part = output.with_name(f".{output.name}.devkit-part")
    try:
        with tarfile.open(part, "w", format=tarfile.PAX_FORMAT) as archive:
            for name, path in files_in(folder):
                archive.add(path, f"{output.stem}/{name}", recursive=False, filter=_anonymous)
        part.replace(output)
    finally:
        part.unlink(missing_ok=True)
    shutil.rmtree(folder)


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Who made a bundle, and when, is nobody's business."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    entry.mtime = 0
    return entry


@contextlib.contextmanager
def _moved_away(output: Path) -> Iterator[None]:
    """Keep what stands there until its successor has taken its place."""
    before = output.with_name(f".{output.name}.devkit-before")
    shutil.rmtree(before, ignore_errors=True)
    if output.exists():
        output.rename(before)
    yield
    shutil.rmtree(before, ignore_errors=True)
