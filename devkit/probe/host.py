"""The one door to the machine. Probes receive a `Host`; tests hand them a recorded one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

NOT_FOUND = 127
TIMED_OUT = 124
CALL_DEADLINE_S = 5.0


@dataclass(frozen=True)
class Done:
    """A finished command: its exit status and what it printed. 127 is "no such program", 124 "took too long"."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
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

    @property
    def env(self) -> Mapping[str, str]:
        """The environment variables of this process."""
