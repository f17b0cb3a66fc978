"""The suite finds what it left: processes that outlive it, and files, bridges and mounts with names of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import left_behind
from tests.engine import network

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")


def test_a_process_of_the_session_fails_it_until_it_ends(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(left_behind, "PATIENCE_S", 0.0)
    monkeypatch.setenv(left_behind.SESSION, f"another {os.getpid()}")
    before = tmp_path / "before"
    before.write_text("".join(f"{line}\n" for line in left_behind.list_present(os.environ[left_behind.SESSION])))
    monkeypatch.setattr(sys, "argv", ["left_behind", str(before)])
    assert left_behind.main() == 0
    # Of a shell that has ended, as a daemon's would have.
    pid = int(
        subprocess.run(["sh", "-c", "sleep 600 >/dev/null 2>&1 & echo $!"], capture_output=True, check=True).stdout
    )
    assert left_behind.main() == 1
    assert f"process {pid}: sleep 600" in capsys.readouterr().err
    os.kill(pid, 9)
    monkeypatch.setattr(left_behind, "PATIENCE_S", 30.0)
    assert left_behind.main() == 0


def test_files_count_by_their_names(tmp_path):
    for name in ("devkit-engine-1", "devkit-texts-2", "tmpabc_1234", "tmp.of-others", "pytest-of-me"):
        (tmp_path / name).touch()

    def names(ours):
        return sorted(Path(line).name for line in left_behind.list_files(tmp_path, ours))

    assert names(left_behind.OURS) == ["devkit-engine-1"]
    assert names(left_behind.OURS_IN_CI) == ["devkit-engine-1", "tmpabc_1234"]


def test_a_bridge_counts_by_its_address():
    links = [
        {"ifname": "docker0", "addr_info": [{"local": "172.17.0.1"}, {"local": "fe80::1"}]},
        {"ifname": "br-1", "addr_info": [{"local": "172.31.241.1"}]},
        {},
    ]
    assert network.find_own(links) == ["br-1"]
