"""What trials made is removed, by name and label: that of this process, and that of one that was killed."""

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType

from devkit.facts.runs import Way
from devkit.probe.host import NOT_FOUND, ProgramResult
from devkit.trial.project import MAX_CONTAINERS
from devkit.trial.run import LABEL, MAX_STARTED, PREFIX, Client, Run

CLEAN_UP_S = 6.0
_CLIENT_S = 4.0
_PAUSE_S = 0.2
_OWNER = re.compile(rf"{PREFIX}[:-](\d{{1,20}})-(\d{{1,20}})-(\d{{1,20}})(?!\d)")
"""What `make_owner` makes, in a name."""
_ABANDONED_S = 90.0
"""A trial that is older was killed, whatever its process number says."""


def make_owner() -> str:
    """Name this process so that another one can tell if it still runs: namespace, number, and time."""
    space = "0"
    with suppress(OSError):  # a sandbox without /proc: the time alone tells
        space = re.sub(r"\D", "", str(Path("/proc/self/ns/pid").readlink()))
    return f"{space}-{os.getpid()}-{int(time.time())}"


def _is_abandoned(name: str) -> bool:
    """Say if the process that named something is gone, or took far too long."""
    found = _OWNER.match(name)
    if found is None:
        return False
    space, number, started_at = found.groups()
    is_here = space != "0" and make_owner().startswith(f"{space}-")
    return time.time() - int(started_at) > _ABANDONED_S or (is_here and not Path("/proc", number).exists())


_KINDS = (
    (("ps", "--all"), "{{.Names}}", ("rm", "--force", "--volumes")),
    (("network", "ls"), "{{.Name}}", ("network", "rm")),
    (("image", "ls"), "{{.Repository}}:{{.Tag}}", ("image", "rm", "--force")),
)
"""How each kind of what a trial makes is listed and removed, in the order of removal."""


def list_names(ask: Callable[..., ProgramResult], client: Client) -> list[list[str]]:
    """List containers, networks and images of trials. Raises OSError where the engine does not say."""
    only = ("--filter", f"label={LABEL}", "--format")
    listed = [ask(*client.command, *words, *only, shown) for words, shown, _ in _KINDS]
    if any(each.code for each in listed):
        raise OSError("the engine does not list what it has")
    return [each.out.split() for each in listed]


def remove_stale(run: Run, client: Client) -> None:
    """Remove what trials left that were killed."""
    with suppress(OSError):
        ask = partial(run.ask, without=run.variables)
        listed = list_names(ask, client)
        _delete(ask, client, [[name for name in names if _is_abandoned(name)] for names in listed])


def remove(run: Run, client: Client, image: str, *, limit_s: float) -> tuple[str, ...]:
    """Remove what this trial made within `limit_s`. Returns what is still there, or may be.

    An engine may still be making a container when its client is gone, so that it is looked for twice.
    """
    ends_at = time.monotonic() + limit_s

    def ask(*words: str) -> ProgramResult:
        left_s = max(0.1, ends_at - time.monotonic())
        return run.host.run(words, deadline_s=min(_CLIENT_S, left_s), without=run.variables)

    own = (f"{Way.PROJECT}-{number}" for number in range(MAX_STARTED + MAX_CONTAINERS))
    names = [f"{PREFIX}-{run.owner}-{way}" for way in (*client.ways, *own)]
    is_alone = not run.rehearsal and not any(each.options for each in run.requests)
    while True:
        # An image that goes had no container.
        if is_alone and ask(*client.command, "image", "rm", image).code in (0, NOT_FOUND):
            return ()
        try:
            left = [[name for name in group if run.owner in name] for group in list_names(ask, client)]
        except OSError:
            left = [names, [], [image]]
        if not any(left):
            return ()
        if time.monotonic() + _PAUSE_S > ends_at:
            return tuple(f"{client.name} {name}" for group in left for name in group)
        time.sleep(_PAUSE_S)
        is_alone = _delete(ask, client, left[:2])


def _delete(ask: Callable[..., ProgramResult], client: Client, groups: Iterable[Sequence[str]]) -> bool:
    """Remove the names of each kind. Returns whether all of them are gone."""
    named = [(remove, names) for (*_, remove), names in zip(_KINDS, groups, strict=False) if names]
    return all(ask(*client.command, *remove, *names).code == 0 for remove, names in named)


@contextmanager
def end_politely() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does. Signals can be caught on the main thread alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
