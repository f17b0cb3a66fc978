"""A run finds what it left, and accuses nobody else: other programs and other runs share its machine."""

import os
import subprocess
import sys

import pytest

from tests import left_behind
from tests.engine import network

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run with a folder for its files, the list of what was there before, and the end of the run as a function."""
    monkeypatch.setattr(left_behind, "PATIENCE_S", 0.0)
    monkeypatch.setenv(left_behind.SESSION, f"another {os.getpid()}")
    folder = tmp_path / "files"
    folder.mkdir()
    monkeypatch.setenv(left_behind.FOLDER, str(folder))
    before = tmp_path / "before"
    present = left_behind.list_present(os.environ[left_behind.SESSION], folder)
    before.write_text("".join(f"{line}\n" for line in present))
    monkeypatch.setattr(sys, "argv", ["left_behind", str(before)])
    return folder


def start_sleep():
    """The id of a process whose parent has ended, as that of a daemon would have."""
    script = "sleep 600 >/dev/null 2>&1 & echo $!"
    return int(subprocess.run(["sh", "-c", script], capture_output=True, check=True).stdout)


def test_a_process_of_the_run_fails_it_until_it_ends(run, monkeypatch, capsys):
    assert left_behind.main() == 0
    pid = start_sleep()
    assert left_behind.main() == 1
    assert capsys.readouterr().err == f"==> LEFT BEHIND by the tests: process {pid}: sleep 600\n"
    os.kill(pid, 9)
    monkeypatch.setattr(left_behind, "PATIENCE_S", 30.0)
    assert left_behind.main() == 0


def test_a_process_of_another_run_is_not_accused(run, monkeypatch):
    with monkeypatch.context() as another:
        another.setenv(left_behind.SESSION, f"a second one {os.getpid()}")
        pid = start_sleep()
    assert left_behind.main() == 0
    os.kill(pid, 9)


def test_only_files_in_the_folder_of_the_run_count(run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "devkit-of-another").touch()
    for name in ("devkit-texts-2", "tmp.of-others", "pytest-of-me"):
        (run / name).touch()
    assert left_behind.main() == 0
    for name in ("devkit-engine-1", "tmpabc_1234"):
        (run / name).touch()
    assert left_behind.main() == 1
    assert [line.rpartition("/")[2] for line in capsys.readouterr().err.splitlines()] == [
        "devkit-engine-1",
        "tmpabc_1234",
    ]
    monkeypatch.delenv(left_behind.FOLDER)
    assert left_behind.main() == 0


def test_a_mount_counts_in_a_folder_of_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(
        left_behind, "_read", lambda _: "none /run/engine/x tmpfs rw 0 0\nnone /run/engines tmpfs 0 0\n"
    )
    assert list(left_behind.list_mounts([tmp_path, left_behind.Path("/run/engine")])) == ["mount /run/engine/x"]


def test_a_bridge_counts_by_its_address():
    links = [
        {"ifname": "docker0", "addr_info": [{"local": "172.17.0.1"}, {"local": "fe80::1"}]},
        {"ifname": "br-1", "addr_info": [{"local": "172.31.241.1"}]},
        {},
    ]
    assert network.find_own(links) == ["br-1"]
