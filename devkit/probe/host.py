"""The one door to the machine. Probes receive a `Host`; tests hand them a recorded one."""

import codecs
import errno
import os
import stat
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from devkit.facts.record import record
from devkit.probe.process import CALL_DEADLINE_S, NOT_FOUND, TIMED_OUT, Done, run_program

__all__ = ["CALL_DEADLINE_S", "NOT_FOUND", "TIMED_OUT", "Done", "Host", "LocalHost", "Stat"]

MOST_FILE_BYTES = 32 << 20


@record
class Stat:
    """What `stat` says of a path, as far as probes need it. `kind`: file, directory, character, socket, other."""

    kind: str
    mode: int
    uid: int
    gid: int
    size: int


class Host(Protocol):
    """Reads a machine without changing it. Paths are absolute. No method raises for what the machine lacks."""

    def run(self, argv: Sequence[str], *, deadline_s: float = CALL_DEADLINE_S) -> Done:
        """Run a program without a shell, in the C locale, and kill it with SIGKILL at the deadline."""

    def read(self, path: str) -> str | None:
        """The text of a file, or None when it cannot be read."""

    def list(self, path: str) -> tuple[str, ...]:
        """Sorted names in a directory, empty when there is none."""

    def stat(self, path: str) -> Stat | None:
        """The path's kind and owner, following links; None when it does not exist."""

    def link(self, path: str) -> str | None:
        """The absolute path that `path` resolves to through symbolic links; None when it does not exist."""

    def open_error(self, path: str) -> str:
        """How opening `path` for reading and writing ends: "open", or the errno name such as "ENOENT" or "EPERM"."""

    def is_writable(self, path: str) -> bool:
        """Whether this user may create files in the directory `path`."""

    def free_bytes(self, path: str) -> int | None:
        """Space left for this user on the file system of `path`; None when it cannot be read."""

    def free_files(self, path: str) -> int | None:
        """How many more files the file system of `path` can hold; None where it does not count them."""

    @property
    def env(self) -> Mapping[str, str]:
        """The environment variables of this process."""

    @property
    def python(self) -> str:
        """The Python interpreter that devkit runs in."""


def decoded(content: bytes) -> str:
    """A file's text: UTF-8 unless a mark at its beginning says UTF-16, as Windows's own editors and shell write it."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return content.decode("utf-16", errors="replace")
    return content.removeprefix(codecs.BOM_UTF8).decode(errors="replace")


def _without_waiting(path: str, flags: int) -> int:
    # A named pipe where a file should be would hold up whoever opens it.
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


_OPEN_IN_CHILD = """
import errno, os, sys
try:
    os.close(os.open(sys.argv[1], os.O_RDWR | os.O_CLOEXEC))
except OSError as error:
    print(errno.errorcode.get(error.errno, error.errno))
else:
    print("open")
"""


class LocalHost:
    """The machine that this process runs on. Implements `Host`."""

    def run(self, argv: Sequence[str], *, deadline_s: float = CALL_DEADLINE_S) -> Done:
        """Run a program without a shell, in the C locale, and kill it with SIGKILL at the deadline."""
        return run_program(argv, deadline_s=deadline_s)

    def read(self, path: str) -> str | None:
        """The text of a file, at most its first 32 MiB; None when it cannot be read."""
        try:
            with open(path, "rb", opener=_without_waiting) as file:
                return decoded(file.read(MOST_FILE_BYTES) or b"")
        except (OSError, ValueError):
            return None

    def list(self, path: str) -> tuple[str, ...]:
        """Sorted names in a directory, empty when there is none."""
        try:
            return tuple(sorted(entry.name for entry in Path(path).iterdir()))
        except (OSError, ValueError):
            return ()

    def stat(self, path: str) -> Stat | None:
        """The path's kind and owner, following links; None when it does not exist."""
        try:
            found = Path(path).stat()
        except (OSError, ValueError):
            return None
        return Stat(_kind(found.st_mode), stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid, found.st_size)

    def link(self, path: str) -> str | None:
        """The absolute path that `path` resolves to through symbolic links; None when it does not exist."""
        try:
            return str(Path(path).resolve(strict=True))
        except (OSError, RuntimeError, ValueError):
            return None

    def open_error(self, path: str) -> str:
        """How opening `path` for reading and writing ends: "open", or the errno name such as "ENOENT" or "EPERM".

        A device is opened in a child process: a wedged driver may never return from it. That is "ETIMEDOUT".
        """
        found = self.stat(path)
        if found is None or found.kind != "character":
            return _open_here(path)
        done = self.run([self.python, "-I", "-S", "-c", _OPEN_IN_CHILD, path], deadline_s=2.0)
        if done.code == TIMED_OUT:
            return "ETIMEDOUT"
        return done.out.strip() or f"the opener ended with status {done.code}"

    def is_writable(self, path: str) -> bool:
        """Whether this user may create files in the directory `path`."""
        try:
            return Path(path).is_dir() and os.access(path, os.W_OK | os.X_OK)
        except (OSError, ValueError):
            return False

    def free_bytes(self, path: str) -> int | None:
        """Space left for this user on the file system of `path`; None when it cannot be read."""
        import shutil

        try:
            return shutil.disk_usage(path).free
        except (OSError, ValueError):
            return None

    def free_files(self, path: str) -> int | None:
        """How many more files the file system of `path` can hold; None where it does not count them."""
        if sys.platform == "win32":
            return None
        try:
            found = os.statvfs(path)
        except (OSError, ValueError):
            return None
        # Btrfs and 9p make inodes as they need them, and say 0 of 0.
        return found.f_favail if found.f_files else None

    @property
    def env(self) -> Mapping[str, str]:
        """The environment variables of this process."""
        return os.environ

    @property
    def python(self) -> str:
        """The Python interpreter that devkit runs in."""
        return sys.executable


def _open_here(path: str) -> str:
    try:
        os.close(os.open(path, os.O_RDWR))
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error.errno))
    return "open"


def _kind(mode: int) -> str:
    kinds = {
        stat.S_IFREG: "file",
        stat.S_IFDIR: "directory",
        stat.S_IFCHR: "character",
        stat.S_IFSOCK: "socket",
    }
    return kinds.get(stat.S_IFMT(mode), "other")


class OnceHost(LocalHost):
    """This machine for one examination: a program that several probes ask is run once, and all get its answer."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[tuple[str, ...], threading.Lock] = {}
        self._done: dict[tuple[str, ...], Done] = {}

    def run(self, argv: Sequence[str], *, deadline_s: float = CALL_DEADLINE_S) -> Done:
        """Run a program as `LocalHost` does, or hand out what it answered before."""
        key = tuple(argv)
        with self._guard:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            if key not in self._done:
                self._done[key] = super().run(argv, deadline_s=deadline_s)
            return self._done[key]
