"""The one way to read a file that somebody else wrote: a bounded number of bytes, within a bounded time.

What is larger is not read at all, because half a document means something else than the whole one. The limits keep every
command below 500 MB: a list of empty lists in JSON takes twenty times its text.
"""

import errno
import os
import re
import select
import shlex
import stat
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from devkit.errors import DevkitError
from devkit.formats.jsonc import parse_json_object
from devkit.text import find_similar, format_bytes, suggest

MAX_CONFIG_BYTES = 1 << 20
"""Settings, manifests and scripts, which people write."""
MAX_DOCUMENT_BYTES = 8 << 20
"""Facts, reports, devkit.lock and other documents, which programs write."""
MAX_IGNORE_BYTES = 256 << 10
"""Ignore files, each line of which is matched with every path."""
MAX_GENERATED_BYTES = 64 << 20
"""Files that devkit carries whole without parsing them, such as wheels and lists of hashes."""
MAX_LOG_BYTES = 512 << 20
"""Logs, of which little is kept."""
PIPE_TIMEOUT_S = 10.0
_CHUNK_BYTES = 1 << 20
_MAX_COMPARED = 10_000
_NOT_IN_TEXT = bytes({*range(32)} - {*b"\b\t\n\f\r\x1b"})
"""Control characters that no text has; a tenth of random bytes, as in compressed files, are such."""


def read_bounded(path: str | os.PathLike[str], max_bytes: int) -> bytes:
    """Read a whole file, or what comes through a pipe, as from `<(devkit doctor --json)`. Raises OSError as `read_chunks`."""
    return b"".join(read_chunks(path, max_bytes))


def read_named_file(path: Path, max_bytes: int, hint: str) -> bytes:
    """Read a file that the user named. Raises DevkitError for one that cannot be read, or is a pointer to it."""
    try:
        content = read_bounded(path, max_bytes)
    except OSError as error:
        hint = "Make it readable by this user." if isinstance(error, PermissionError) else suggest_path(path, hint)
        raise DevkitError(f"cannot read {path}: {error.strerror}", hint) from error
    refuse_pointer(path, content)
    return content


def refuse_pointer(path: Path, start: bytes) -> None:
    """Raise DevkitError for a file that Git LFS has not fetched yet. `start` is its beginning."""
    if start.startswith(b"version https://git-lfs"):
        fetch = shlex.join(["git", "-C", f"{path.parent}", "lfs", "pull", "--include", path.name])
        raise DevkitError(f"{path} is a Git LFS pointer, not the file", fetch)


def read_json_object(path: Path, max_bytes: int, hint: str) -> dict[str, Any]:
    """Read a JSON object that the user named. Raises DevkitError for a file that cannot be read or holds anything else."""
    return parse_json_object(read_named_file(path, max_bytes, hint), f"{path}", hint)


def is_text(content: bytes) -> bool:
    """Return False for an image, an archive or a program. A log may hold colors, and the zeros that a crash leaves in it."""
    start = content[:_CHUNK_BYTES]
    return len(start.translate(None, delete=_NOT_IN_TEXT)) >= 0.95 * len(start)


def find_similar_paths(path: Path) -> list[str]:
    """Return what lies beside a path that does not exist and has a similar name, whatever follows the last dot.

    A path with the backslashes of Windows is proposed with slashes if it exists then.
    """
    if "\\" in path.name and (slashed := Path(f"{path}".replace("\\", "/"))).exists():
        return [f"{slashed}"]
    if not path.is_absolute() and os.path.exists(above := Path(os.pardir, path)):  # noqa: PTH110 - pathlib may raise
        return [f"{above}"]
    try:
        beside = sorted(islice(path.parent.iterdir(), _MAX_COMPARED))
    except OSError:
        return []
    near = find_similar(path.stem, [each.stem for each in beside if each != path])
    return [f"{each}" for stem in near for each in beside if each.stem == stem and each != path][: len(near)]


def suggest_path(path: Path, otherwise: str) -> str:
    """Return the hint for a path that does not exist: what lies beside it, which of its folders is missing, or else what to do."""
    drive = re.match(r"([A-Za-z]):[\\/]", f"{path}")
    if drive and os.name == "posix":
        return f"This is a Windows path; in WSL it is /mnt/{drive[1].lower()}{f'{path}'[2:]}.".replace("\\", "/")
    missing = [each for each in (path, *path.parents) if not os.path.exists(each)]  # noqa: PTH110 - pathlib's may raise
    if missing[1:]:
        return f"The folder {missing[1]} does not exist either."
    return suggest(find_similar_paths(path) if missing else (), otherwise)


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file of any size, in hexadecimal."""
    import hashlib

    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_within(root: Path, path: Path) -> str:
    """Read a text file of a project in `root`; "" for what leads out of it, cannot be read, or is too large or not a regular file."""
    real = path.resolve()
    if not real.is_relative_to(root.resolve()) or not real.is_file():
        return ""
    try:
        return read_bounded(real, MAX_CONFIG_BYTES).decode("utf-8", errors="replace")
    except OSError:
        return ""


def read_chunks(path: str | os.PathLike[str], max_bytes: int) -> Iterator[bytes]:
    """Yield the parts of a file, or of what comes through a pipe.

    Raises:
        OSError: for a file that cannot be read, is larger, or is a pipe or device that says nothing for ten seconds.
            `strerror` says which.
    """
    # A named pipe would block the process that opens it; Windows has no such flag, and no such files.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags)
    try:
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
        is_regular = stat.S_ISREG(found.st_mode)
        is_too_large = is_regular and found.st_size > max_bytes
        count = 0
        ends_at = time.monotonic() + PIPE_TIMEOUT_S
        while not is_too_large:
            if not is_regular:
                _wait_for_data(descriptor, path, ends_at)
            chunk = os.read(descriptor, _CHUNK_BYTES)
            if not chunk:
                return
            count += len(chunk)
            is_too_large = count > max_bytes
            yield chunk
    finally:
        os.close(descriptor)
    raise OSError(errno.EFBIG, f"not read: larger than {format_bytes(max_bytes)}", os.fspath(path))


def _wait_for_data(descriptor: int, path: str | os.PathLike[str], ends_at: float) -> None:
    if sys.platform == "win32":
        return
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    if not poll.poll(max(0.0, ends_at - time.monotonic()) * 1000):
        raise TimeoutError(errno.ETIMEDOUT, f"not read: no data for {PIPE_TIMEOUT_S:.0f} s", os.fspath(path))
