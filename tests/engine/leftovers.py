"""What a killed run left on this machine: mounts, folders and processes, all of which the next run removes first.

Daemons are started so that they end with the test session that started them, even where that is killed. This finds
what is left all the same: an engine that still shuts down, or one whose session lost its machine.
"""

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from .cache import CACHE, say
from .mounts import delete, unmount_below

WITH_THIS_SESSION = ("setpriv", "--pdeathsig")
"""Before a signal and a daemon's command line: the kernel sends it when the session dies, however that dies."""

PREFIXES = ("devkit-engine-", "devkit-podman-")
"""How folders of state are called, which stand in the command lines of their daemons."""

PROGRAMS = frozenset(
    {"dockerd", "containerd", "containerd-shim-runc-v2", "docker-proxy", "runc", "unshare", "podman", "conmon"}
)
"""What engines consist of. A developer's shell or editor may name such a folder as well, and is left alone."""

PATIENCE_S = 30.0
"""As long as an engine may take to stop its containers, before it is killed."""


def removed() -> None:
    """Nothing of an earlier session runs or is mounted afterwards. Only for who holds the one lock."""
    if left := list(_daemons()):
        say(f"waiting for {len(left)} processes of an earlier session")
        _ended(_daemons)
        for process in [one for each in _daemons() for one in (*_descendants(each), each)]:
            _kill(process)
        _ended(_daemons)
    states = [path for prefix in PREFIXES for path in Path(tempfile.gettempdir()).glob(f"{prefix}*") if path.is_dir()]
    for folder in (*states, *CACHE.glob("data-root*")):
        unmount_below(folder)
    for folder in states:
        delete(folder)


def _daemons() -> Iterator[int]:
    """Processes of engines that were started with a folder of state, or with this checkout's images."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and _is_an_engines(_words(entry)):
            yield int(entry.name)


def _is_an_engines(words: list[str]) -> bool:
    ours = [f"{tempfile.gettempdir()}/{prefix}" for prefix in PREFIXES] + [str(CACHE / "data-root")]
    return bool(words) and Path(words[0]).name in PROGRAMS and any(one in word for one in ours for word in words)


def _words(entry: Path) -> list[str]:
    try:
        line = (entry / "cmdline").read_bytes().decode(errors="surrogateescape")
    except OSError:
        return []  # it ended meanwhile
    return [word for word in line.split("\0") if word]


def _descendants(process: int) -> Iterator[int]:
    """The processes below one, containers of a shim among them, the innermost first."""
    for file in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            children = [int(word) for word in file.read_text(encoding="ascii").split()]
        except OSError:
            continue
        for child in children:
            yield from _descendants(child)
            yield child


def _kill(process: int) -> None:
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return


def _ended(those: Callable[[], Iterator[int]]) -> None:
    """Wait until none is left, or patience is."""
    ends = time.monotonic() + PATIENCE_S
    while any(True for _ in those()) and time.monotonic() < ends:
        time.sleep(0.2)
