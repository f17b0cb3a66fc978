"""One writer at a time in a folder, by a lock that the system releases however its holder ends."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from devkit.errors import DevkitError

LOCK_TIMEOUT_S = 10.0
"""Writing takes a fraction of a second; what takes longer queries an index, builds an image or waits for an answer."""
_SILENT_S = 0.3
_POLL_S = 0.05
_HELD: set[tuple[int, ...]] = set()
"""Locks by process, thread, device and inode: a second descriptor of the same holder would wait for the first."""


@contextlib.contextmanager
def hold_folder(
    folder: Path, *, timeout_s: float | None = None, report_wait: Callable[[str], object] = lambda _: None
) -> Iterator[None]:
    """Keep other writers out of a folder, which is made for the time where it is missing.

    Some network file systems know no locks; there every file is still looked at before it is replaced.

    Args:
        timeout_s: how long to wait for another writer. Default: ten seconds.
        report_wait: called with a line when there is one.

    Raises:
        DevkitError: that names the writer which still holds the folder after that time.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            folder.mkdir()
            stack.callback(remove_if_empty, folder)
        wait_s = LOCK_TIMEOUT_S if timeout_s is None else timeout_s
        opened = _acquire(folder, timeout_s=wait_s, report_wait=report_wait)
        if opened is not None:
            descriptor, key = opened
            stack.callback(os.close, descriptor)
            _HELD.add(key)
            stack.callback(_HELD.discard, key)
        yield


def is_folder_held(folder: Path) -> bool | None:
    """Return True if another process holds the folder; None where there is no lock to take."""
    try:
        opened = _acquire(folder, timeout_s=0.0, report_wait=lambda _: None)
    except DevkitError:
        return True
    if opened is None:
        return None
    os.close(opened[0])
    return False


def remove_if_empty(folder: Path) -> None:
    """Remove a folder that was made for files that were not written."""
    with contextlib.suppress(OSError):
        folder.rmdir()


def _acquire(
    folder: Path, *, timeout_s: float, report_wait: Callable[[str], object]
) -> tuple[int, tuple[int, ...]] | None:
    """Return the descriptor that holds the lock, and its key; None where there is no lock to take."""
    began = time.monotonic()
    has_reported = False
    while True:
        try:
            descriptor = _open(folder)
        except OSError:
            return None  # the code that reads the folder reports what is wrong with it
        found = os.fstat(descriptor)
        key = (os.getpid(), threading.get_ident(), found.st_dev, found.st_ino)
        if key in _HELD:
            os.close(descriptor)
            return None
        try:
            _lock(descriptor)
        except BlockingIOError:
            pass  # another process has it: wait, and try again
        except OSError:
            os.close(descriptor)
            return None
        else:
            if _is_current(folder, found):
                return descriptor, key
        os.close(descriptor)
        waited_s = time.monotonic() - began
        if waited_s > timeout_s:
            raise DevkitError(
                f"{_describe_holder(found)} is writing to {folder}",
                "Wait until it has ended, or end it; then run this again.",
            )
        if waited_s > _SILENT_S and not has_reported:
            report_wait(f"Waiting for {_describe_holder(found)}, which is writing to {folder} ...")
            has_reported = True
        time.sleep(_POLL_S)


if sys.platform == "win32":

    def _open(folder: Path) -> int:
        """Open a file of this folder's in the temporary folder: Windows gives no lock on a folder."""
        import hashlib
        import tempfile

        name = hashlib.sha256(str(folder.resolve()).casefold().encode()).hexdigest()[:32]
        return os.open(Path(tempfile.gettempdir(), f"devkit-{name}.lock"), os.O_RDWR | os.O_CREAT)

    def _lock(descriptor: int) -> None:
        import msvcrt

        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except PermissionError as error:
            raise BlockingIOError from error

    def _is_current(folder: Path, found: os.stat_result) -> bool:
        return True

else:

    def _open(folder: Path) -> int:
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY)

    def _lock(descriptor: int) -> None:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _is_current(folder: Path, found: os.stat_result) -> bool:
        """Return False for a folder that its last holder removed meanwhile."""
        try:
            now = folder.stat()
        except OSError:
            return False
        return (now.st_dev, now.st_ino) == (found.st_dev, found.st_ino)


def _describe_holder(found: os.stat_result) -> str:
    """Name the process that holds the lock, as far as Linux tells: "devkit init (process 123)"."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            # 1: FLOCK  ADVISORY  WRITE 123 08:01:456 0 EOF. Source: man 5 proc_locks.
            _, kind, _, _, pid, place, *_ = line.split()
            if kind == "FLOCK" and int(place.rpartition(":")[2]) == found.st_ino:
                words = Path("/proc", pid, "cmdline").read_text(errors="replace").split("\0")
                names = [Path(word).name for word in words]
                # The word after it is the command; what follows may hold a login.
                command = words[names.index("devkit") + 1] if "devkit" in names else ""
                return f"devkit {command} (process {pid})" if command.isalpha() else f"process {pid}"
    return "another devkit"
