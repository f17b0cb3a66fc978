"""One writer at a time in a folder: others wait, say for whom, and give up; a killed one holds nothing."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from devkit.errors import DevkitError
from devkit.folder_lock import _HELD, hold_folder, is_folder_held

fcntl = pytest.importorskip("fcntl")
HOLD = """
import sys, time
from pathlib import Path
from devkit.folder_lock import hold_folder
with hold_folder(Path(sys.argv[2])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def descriptors():
    """Every test ends without a descriptor left open, which would hold the lock, too."""
    before = [*Path("/dev/fd").iterdir()]
    yield
    assert [*Path("/dev/fd").iterdir()] == before


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the folder."""
    folder = tmp_path / "project"
    folder.mkdir()
    (tmp_path / "devkit").write_text(HOLD)
    argv = [sys.executable, str(tmp_path / "devkit"), "init", str(folder), "--index=https://me:planted@host/simple"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"held\n"
    yield folder, process
    process.kill()
    process.communicate()


def test_the_second_writer_waits_says_so_and_names_the_first(holder):
    folder, process = holder
    said = []
    with (
        pytest.raises(DevkitError, match=r"^(devkit init \(process \d+\)|another devkit) is writing to"),
        hold_folder(folder, timeout_s=0.6, report_wait=said.append),
    ):
        pass
    assert len(said) == 1 and said[0].startswith("Waiting for ")
    if sys.platform == "linux":
        assert said[0] == f"Waiting for devkit init (process {process.pid}), which is writing to {folder} ..."


def test_a_killed_writer_holds_nothing(holder):
    folder, process = holder
    assert is_folder_held(folder) is True
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert is_folder_held(folder) is False
    began = time.monotonic()
    with hold_folder(folder):
        assert time.monotonic() - began < 5


def test_the_second_writer_goes_on_when_the_first_has_ended(tmp_path):
    order = []

    def write(name):
        with hold_folder(tmp_path):
            order.append(name)
            time.sleep(0.1)
            order.append(name)

    threads = [threading.Thread(target=write, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert order[::2] == order[1::2] and sorted(order) == list("aabbcc")


def test_a_writer_may_hold_its_own_folder_again_and_a_child_of_it_may_not(tmp_path):
    with hold_folder(tmp_path), hold_folder(tmp_path, timeout_s=0):
        child = os.fork()
        if child == 0:
            try:
                with hold_folder(tmp_path, timeout_s=0):
                    os._exit(0)
            except DevkitError:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2


def test_a_missing_folder_is_made_and_taken_away_where_nothing_was_written(tmp_path):
    with hold_folder(tmp_path / "new"):
        assert (tmp_path / "new").is_dir()
    assert not (tmp_path / "new").exists()
    with hold_folder(tmp_path / "new"):
        (tmp_path / "new/file").touch()
    assert (tmp_path / "new/file").exists()


def test_what_is_no_folder_has_no_lock(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path / "missing/folder"):
        assert is_folder_held(path) is None
        with hold_folder(path):
            pass


def test_a_file_system_without_locks_keeps_nobody_out(tmp_path, monkeypatch):
    def refuse(*_words):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with hold_folder(tmp_path):
        assert is_folder_held(tmp_path) is None


@pytest.mark.parametrize("is_made_again", [True, False])
def test_a_folder_that_its_last_holder_removed_meanwhile_is_not_the_one_that_is_held(
    tmp_path, monkeypatch, is_made_again
):
    folder, lock, locked = tmp_path / "folder", fcntl.flock, []
    folder.mkdir()

    def remove_first(descriptor, operation):
        if not locked:
            folder.rename(tmp_path / "removed")
            if is_made_again:
                folder.mkdir()
        locked.append(os.fstat(descriptor).st_ino)
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    with hold_folder(folder):
        assert len(locked) == 1 + is_made_again
        assert not is_made_again or locked[1] == folder.stat().st_ino != locked[0]
        assert bool(_HELD) == is_made_again
