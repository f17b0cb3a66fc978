"""Where downloads and base images are kept between runs, and how long each step took."""

import errno
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from .mounts import delete

if TYPE_CHECKING:  # what is fetched ahead is fetched before anything is installed
    from _pytest.capture import CaptureManager

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("DEVKIT_TEST_CACHE") or ROOT / ".cache" / "engine").resolve()
LOCK = "\0devkit-test-engine"
FIRST_TIME_GB, AGAIN_GB = 4.0, 2.0
"""What engine tests take beside their downloads on a disk that is nearly full; with room, two engines keep 5.8."""
TIGHT_GB = 3.0
"""Below it images and build cache are given up after each test, and built again: one test takes 2.5 at most."""

STEPS: list[tuple[str, float]] = []
"""What was prepared in this run, and the seconds it took; printed at the end."""


CAPTURE: "list[CaptureManager]" = []
"""pytest's capture, once conftest hands it over: progress goes around it."""


def say(line: str) -> None:
    """A progress line on standard error, past pytest's capture, so that a long step is seen while it runs."""
    with ExitStack() as uncaptured:
        for manager in CAPTURE:
            uncaptured.enter_context(manager.global_and_fixture_disabled())
        sys.stderr.write(f"\n[engine] {line}")
        sys.stderr.flush()


def lacks_room() -> str:
    """Why the disk does not hold what engines build; "" where it does. Half-way it would be an error about a blob."""
    CACHE.mkdir(parents=True, exist_ok=True)
    needed = AGAIN_GB if (CACHE / "data-root").exists() else FIRST_TIME_GB
    free = _free_gb()
    return "" if free >= needed else f"{CACHE} has {free:.1f} GB free, and engine tests need {needed:.0f} GB"


def is_tight() -> bool:
    """Whether the disk is so full that the next test may not find room beside what the earlier ones built."""
    return _free_gb() < TIGHT_GB


def _free_gb() -> float:
    return shutil.disk_usage(CACHE).free / 1e9


@contextmanager
def step(name: str) -> Iterator[None]:
    """Announce a step and keep its duration for the closing table."""
    say(f"{name} ...")
    started = time.monotonic()
    yield
    STEPS.append((name, time.monotonic() - started))
    say(f"{name}: {STEPS[-1][1]:.1f} s")


def made_once(name: str, make: Callable[[Path], None]) -> Path:
    """The cached folder `name`; on first use `make` fills a new folder that only then takes the name.

    A second process or thread that asks meanwhile waits for it.
    """
    target = CACHE / name
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _held(target.with_name(f".{target.name}.lock")):
        return target if target.exists() else _made(target, make)


@contextmanager
def _held(file: Path) -> Iterator[None]:
    import fcntl  # Windows has none, and no engine tests either

    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _made(target: Path, make: Callable[[Path], None]) -> Path:
    for half_made in target.parent.glob(f".{target.name}-*"):
        delete(half_made)
    fresh = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    fresh.chmod(0o755)
    try:
        with step(f"prepare {target.name}"):
            make(fresh)
        fresh.rename(target)
    finally:
        delete(fresh)
    return target


@contextmanager
def only_one() -> Iterator[None]:
    """Wait until no other test session on this machine runs an engine: two would want the same bridge.

    The lock is a Unix socket without a file, so it reaches as far as the bridge does (the network namespace, not
    one checkout or one root file system), and the kernel drops it when the session dies.
    """
    with socket.socket(socket.AF_UNIX) as lock:
        said = False
        while True:
            try:
                lock.bind(LOCK)
                break
            except OSError as taken:
                if taken.errno != errno.EADDRINUSE:
                    raise
            if not said:
                say("waiting for another test session that runs an engine")
                said = True
            time.sleep(1)
        yield
