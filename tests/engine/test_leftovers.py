"""A session that was killed leaves nothing that the next one trips over. No engine runs, only what looks like one."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from . import leftovers, mounts
from .cache import ROOT
from .commands import run

pytestmark = pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="mounts, which needs root on Linux")

DEADLINE_S = 30.0
SESSION = """
import subprocess, sys, time
from tests.engine.leftovers import WITH_THIS_SESSION
print(subprocess.Popen([*WITH_THIS_SESSION, "TERM", "sleep", "600"]).pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files, and images, that no real session uses."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(leftovers, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(leftovers, "PATIENCE_S", 1.0)
    yield tmp_path
    mounts.unmount_below(tmp_path)


def mounted(source: Path, target: Path) -> Path:
    """`source` at another place, too."""
    target.mkdir(parents=True)
    source.mkdir(parents=True, exist_ok=True)
    run(["mount", "--bind", source, target])
    return target


def daemon(name: str, *words: str | Path) -> subprocess.Popen[bytes]:
    """A process that calls itself `name` and does nothing, whatever its words."""
    code = "import time; time.sleep(600)"
    argv = [name, "-c", code, *map(str, words)]
    process = subprocess.Popen(argv, executable=sys.executable, stdin=subprocess.DEVNULL)
    # Popen returns while the kernel still loads the program, and has no command line for a moment.
    until(lambda: Path(f"/proc/{process.pid}/cmdline").read_bytes().startswith(name.encode()))
    return process


def ended(process: int) -> bool:
    """Whether it is gone, or waits only for its parent to look."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_what_is_mounted_in_a_folder_outlives_the_folder(here: Path):
    (here / "kept").mkdir()
    (here / "kept/file").touch()
    mounted(here / "kept", here / "half made/root/with a space/dev")
    mounts.delete(here / "half made")
    assert not (here / "half made").exists()
    assert (here / "kept/file").exists()


def test_state_mounts_and_daemons_of_a_killed_session_are_removed(here: Path):
    state = here / "devkit-engine-killed"
    mounted(here / "image", state / "exec/merged")
    images = mounted(here / "images", here / "cache/data-root")
    dockerd = daemon("dockerd", "--config-file", state / "daemon.json")
    runc = daemon("runc", "run", "--bundle", images / "buildkit/executor/one")
    leftovers.removed()
    assert [dockerd.wait(DEADLINE_S), runc.wait(DEADLINE_S)] == [-signal.SIGKILL] * 2
    assert not state.exists()
    assert images.is_dir() and not images.is_mount()


def test_a_daemon_may_end_by_itself_first(here: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(leftovers, "PATIENCE_S", DEADLINE_S)
    state = here / "devkit-podman-killed"
    state.mkdir()
    with daemon("podman", state) as stopping, subprocess.Popen(["sh", "-c", f"sleep 0.5; kill {stopping.pid}"]):
        leftovers.removed()
        assert stopping.wait(DEADLINE_S) == -signal.SIGTERM


@pytest.mark.parametrize(
    ("name", "state"),
    [("tail", "devkit-engine-x"), ("dockerd", "another-engine-x")],
    ids=["a program that only reads there", "an engine of somebody else"],
)
def test_others_are_left_alone(here: Path, name: str, state: str):
    (here / state).mkdir()
    with daemon(name, here / state / "dockerd.log") as other:
        leftovers.removed()
        assert other.poll() is None
        other.kill()


def test_a_daemon_ends_with_the_session_that_is_killed():
    with subprocess.Popen([sys.executable, "-c", SESSION], cwd=ROOT, stdout=subprocess.PIPE, text=True) as session:
        assert session.stdout is not None
        started = int(session.stdout.readline())
        until(lambda: Path(f"/proc/{started}/comm").read_text() == "sleep\n")
        session.kill()
    until(lambda: ended(started))
