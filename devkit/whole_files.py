"""Files that are written whole: beside the older one, and renamed over it. A full disk leaves the older one as it was."""

import contextlib
import errno
import os
import re
import stat
import sys
import threading
import time
from pathlib import Path

from devkit.errors import DevkitError
from devkit.reading import PIPE_TIMEOUT_S

HINT = "Name a file in a folder that you can write to, on a disk with space."


def write_whole(path: Path, content: bytes, *, hint: str = HINT) -> None:
    """Write a file, old or new and never half, with the mode of the older one.

    Anything other than a regular file, such as /dev/stdout or a pipe, is written to directly; a link is followed.
    Raises: DevkitError when the disk refuses, and for a pipe that nobody reads within ten seconds.
    """
    try:
        known = path.stat() if path.exists() else None
        if known is None or stat.S_ISREG(known.st_mode):
            _replace(path.resolve(), content, known)
        else:
            with open(path, "wb", opener=_open_pipe if stat.S_ISFIFO(known.st_mode) else None) as file:
                file.write(content)
    except OSError as error:
        raise DevkitError(f"cannot write {path}: {error.strerror}", hint) from error
    except RuntimeError:  # Before 3.13, Python resolves no link that leads to itself.
        raise DevkitError(f"cannot write {path}: it is a link to itself", hint) from None


def flush_to_disk(path: Path) -> None:
    """Flush a file, or the names in a folder: what is renamed before may be empty after a power cut.

    Windows flushes folders automatically, and files through handles that were opened for writing alone.
    """
    if os.name != "posix":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _open_pipe(path: str, flags: int) -> int:
    ends_at = time.monotonic() + PIPE_TIMEOUT_S
    while True:
        try:
            descriptor = os.open(path, (flags | os.O_NONBLOCK) & ~os.O_CREAT)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            if time.monotonic() > ends_at:
                raise TimeoutError(errno.ETIMEDOUT, f"nobody read it for {PIPE_TIMEOUT_S:.0f} s") from None
            time.sleep(0.05)
        else:
            os.set_blocking(descriptor, True)
            return descriptor


def _replace(target: Path, content: bytes, known: os.stat_result | None) -> None:
    start = f".{target.name[:64]}."
    staged = target.with_name(f"{start}{os.getpid()}-{threading.get_ident()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(staged, flags, 0o666)
    except PermissionError:
        if known is None:
            raise
        target.write_bytes(content)  # The folder is somebody else's: nothing can be written beside the file.
        return
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if known is not None:
            staged.chmod(stat.S_IMODE(known.st_mode))
        staged.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            staged.unlink()
        raise
    with contextlib.suppress(OSError):  # the file is written, whatever lies beside it
        _remove_leftovers(target.parent, start)


def _remove_leftovers(folder: Path, start: str) -> None:
    """Remove what killed processes left beside the file."""
    if sys.platform == "win32":  # os.kill ends a process there
        return
    for path in folder.iterdir():
        process = re.fullmatch(r"(\d+)-\d+", path.name.removeprefix(start))
        if path.name.startswith(start) and process:
            try:
                os.kill(int(process[1]), 0)
            except ProcessLookupError:
                path.unlink()
            except (PermissionError, OverflowError):
                continue
