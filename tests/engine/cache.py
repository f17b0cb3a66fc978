"""Where downloads and base images are kept between runs, and how long each step took."""

import fcntl
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from _pytest.capture import CaptureManager

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("DEVKIT_TEST_CACHE") or ROOT / ".cache" / "engine").resolve()
LOCK = Path(tempfile.gettempdir()) / "devkit-test-engine.lock"
"""One per machine, not per checkout: two engines would want the same bridge."""

STEPS: list[tuple[str, float]] = []
"""What was prepared in this run, and the seconds it took; printed at the end."""


CAPTURE: list[CaptureManager] = []
"""pytest's capture, once conftest hands it over: progress goes around it."""


def say(line: str) -> None:
    """A progress line on standard error, past pytest's capture, so that a long step is seen while it runs."""
    with ExitStack() as uncaptured:
        for manager in CAPTURE:
            uncaptured.enter_context(manager.global_and_fixture_disabled())
        sys.stderr.write(f"\n[engine] {line}")
        sys.stderr.flush()


@contextmanager
def step(name: str) -> Iterator[None]:
    """Announce a step and keep its duration for the closing table."""
    say(f"{name} ...")
    started = time.monotonic()
    yield
    STEPS.append((name, time.monotonic() - started))
    say(f"{name}: {STEPS[-1][1]:.1f} s")


def made_once(name: str, make: Callable[[Path], None]) -> Path:
    """The cached folder `name`; on first use `make` fills a new folder that only then takes the name."""
    target = CACHE / name
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    fresh.chmod(0o755)
    try:
        with step(f"prepare {name}"):
            make(fresh)
        fresh.rename(target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return target


@contextmanager
def only_one() -> Iterator[None]:
    """Hold the machine-wide lock: a second test session waits here instead of taking the bridge away."""
    with LOCK.open("w", encoding="utf-8") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another test session that holds {LOCK}")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
