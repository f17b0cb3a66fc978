"""Real files that are none: pipes, sockets, loops, devices, folders and holes, where a text should be."""

import os
import socket
import sys
import time

import pytest

from devkit.probe.host import LocalHost
from tests.faults.examining import broken, examine, unprintable

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has neither pipes nor devices in folders")

DEADLINE_S = 4.0
FOREVER_S = 10.0
"""What is computed is held against processor time, which does not depend on who else is at work; what is waited for is told from
waiting forever by this."""


def socket_at(path):
    here = os.open(".", os.O_RDONLY)
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.fchdir(here)
        os.close(here)


def hole(path):
    with path.open("wb") as file:
        file.truncate(40 << 20)


def closed(path):
    path.write_text("{}")
    path.chmod(0)


def looping(path):
    path.symlink_to(path.name)


KINDS = {
    "a pipe": os.mkfifo if hasattr(os, "mkfifo") else None,
    "a socket": socket_at,
    "a folder": lambda path: path.mkdir(),
    "a link to itself": looping,
    "a link to nowhere": lambda path: path.symlink_to("/nowhere/at/all"),
    "a link to a device without end": lambda path: path.symlink_to("/dev/zero"),
    "a link to noise without end": lambda path: path.symlink_to("/dev/urandom"),
    "a link to an empty device": lambda path: path.symlink_to("/dev/null"),
    "a link to a terminal": lambda path: path.symlink_to("/dev/tty"),
    "40 MB of nothing": hole,
    "a file that nobody may read": closed,
}
PLACES = (
    ".devcontainer/devcontainer.json",
    "compose.yaml",
    "Dockerfile",
    "requirements.txt",
    "pyproject.toml",
    ".env",
    "docker/config.json",
    "docker/daemon.json",
    "venv/pyvenv.cfg",
    "venv/lib/python3.11/site-packages/torch/version.py",
    "hub/token",
)


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
@pytest.mark.clock
def test_a_file_is_read_without_waiting(make, tmp_path):
    make(tmp_path / "x")
    started_s, worked_s = time.monotonic(), time.thread_time()
    LocalHost().read(str(tmp_path / "x"))
    assert time.thread_time() - worked_s < 2
    assert time.monotonic() - started_s < FOREVER_S


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
@pytest.mark.clock
def test_everything_of_a_project_may_be_something_else(make, tmp_path, monkeypatch):
    for place in PLACES:
        path = tmp_path / place
        path.parent.mkdir(parents=True, exist_ok=True)
        make(path)
    for variable, value in (("DOCKER_CONFIG", "docker"), ("VIRTUAL_ENV", "venv"), ("HF_HOME", "hub"), ("HOME", "")):
        monkeypatch.setenv(variable, str(tmp_path / value))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker/config.json")
    started_s = time.monotonic()
    seen = examine(LocalHost(), project=str(tmp_path), deadline_s=DEADLINE_S)
    assert time.monotonic() - started_s < DEADLINE_S + FOREVER_S
    assert [*broken(seen, deadline_s=DEADLINE_S), *unprintable(seen)] == []
