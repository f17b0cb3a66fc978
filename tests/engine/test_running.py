"""What devkit reads of running containers on real engines, and the container that it starts itself."""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from devkit.facts.model import Facts
from devkit.facts.runs import Way
from devkit.probe.gather import gather_facts
from devkit.probe.host import LocalHost
from devkit.trial.containers import PREFIX, try_containers
from tests.doctor.machines import healthy

from . import image
from .cache import ROOT
from .conftest import every_flavor, one_engine
from .daemon import Engine, Flavor

BASE = "devkit-test-base:latest"
REQUESTS = {Flavor.CPU: (), Flavor.NVIDIA: ("--gpus", "all"), Flavor.CDI: ("--device", "nvidia.com/gpu=all")}


@pytest.fixture
def based(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """The engine with an image, as the one that devkit in this process talks to."""
    image.provide(engine, BASE)
    for name in ("PATH", "HOME", "DOCKER_HOST", "DOCKER_CONFIG"):
        monkeypatch.setenv(name, engine.env[name])
    monkeypatch.delenv("DOCKER_CONTEXT", raising=False)
    yield engine
    engine.clear()


def read(folder: str) -> Facts:
    """This engine and workspace, on a machine with a GPU, without which no container would be started."""
    here = gather_facts(LocalHost(), project=folder, only=("engine", "storage"))
    return dataclasses.replace(healthy(), engine=here.engine, storage=here.storage)


@every_flavor
def test_a_running_container_says_what_it_was_given(based, tmp_path):
    folder = str(tmp_path)
    options = ["--label", f"devcontainer.local_folder={folder}", "--env", "NVIDIA_VISIBLE_DEVICES=all"]
    options += ["--env", "NVIDIA_API_KEY=secret", "--shm-size=1g", "--ulimit", "nofile=1024:2048", "--user", "1234:5"]
    based.docker("run", "--detach", "--name", "dev", *options, *REQUESTS[based.flavor], BASE, "sleep", "600")
    based.docker("run", "--name", "done", "--label", f"devcontainer.local_folder={folder}", BASE, "true")
    engine = read(folder).engine
    (container,) = engine.containers
    expected = {Flavor.CPU: "", Flavor.NVIDIA: "driver", Flavor.CDI: "cdi"}
    assert (container.name, container.folder, container.is_dev_container) == ("dev", folder, True)
    assert container.gpu_request == expected[based.flavor]
    assert (container.shm_bytes, container.user) == (1 << 30, "1234:5")
    assert container.visible_devices == "all"
    assert "secret" not in repr(engine)
    assert [(one.name, one.state, one.exit_code) for one in engine.stopped] == [("done", "exited", 0)]
    (found,) = [one for one in engine.images if one.id == container.image_id]
    assert (found.name, found.machine) == (BASE, "amd64")


SET_UP = {Flavor.CPU: {Way.GPUS}, Flavor.NVIDIA: {Way.RUNTIME, Way.GPUS}, Flavor.CDI: {Way.CDI}}
"""The ways to try on each engine; where none is set up, the usual one is refused in the engine's words."""


def list_leftovers(engine: Engine) -> list[str]:
    """Containers of trials, and their images."""
    images = engine.docker("image", "ls", "--format", "{{.Repository}}:{{.Tag}}").split()
    return [name for name in (*engine.containers(), *images) if name.startswith(PREFIX)]


@every_flavor
def test_containers_are_tried_by_each_way_of_this_engine(based, tmp_path):
    trials = try_containers(LocalHost(), read(str(tmp_path)), deadline_s=30)
    ends = {each.way: each.code for each in trials.tried}
    assert ends.pop(Way.PLAIN) == 0
    assert set(ends) == SET_UP[based.flavor]
    if based.flavor is Flavor.CPU:
        assert ends[Way.GPUS] == 125
        assert "could not select device driver" in trials.tried[1].err
    else:
        assert set(ends.values()) == {0}
        # The stand-ins give no driver: the trial must see that, too.
        assert {(each.nvidiactl, each.libcuda != "loaded") for each in trials.tried[1:]} == {("absent", True)}
    assert trials.left_behind == ()
    assert list_leftovers(based) == []


IN_A_PROCESS = """
import sys
from devkit.probe.host import LocalHost
from devkit.trial import containers
from tests.engine.test_running import read
if "slowly" in sys.argv:
    containers.SCRIPT = "sleep 5"
print("ready", flush=True)
containers.try_containers(LocalHost(), read(sys.argv[1]), deadline_s=60)
"""


def start_trials(engine: Engine, folder: Path, *words: str) -> subprocess.Popen[bytes]:
    """Start trials in a process of their own, and wait until it is about to ask the engine."""
    process = subprocess.Popen(
        [sys.executable, "-c", IN_A_PROCESS, str(folder), *words],
        env=dict(engine.env),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


@one_engine
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "a polite kill"])
def test_no_container_is_left_when_interrupted(based, tmp_path, sent):
    with start_trials(based, tmp_path, "slowly") as process:
        deadline = time.monotonic() + 30
        while not any(name.startswith(PREFIX) for name in based.containers()) and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(process.pid, sent)
        _, said = process.communicate(timeout=30)
    assert b"KeyboardInterrupt" in said
    assert list_leftovers(based) == []


@one_engine
@pytest.mark.parametrize("kills", [5, pytest.param(50, marks=pytest.mark.nightly)])
def test_what_a_killed_trial_leaves_the_next_one_removes(based, tmp_path, kills):
    """Killed at moments that are spread over its whole length."""
    longest_s = 2.5
    for number in range(kills):
        with start_trials(based, tmp_path) as process:
            time.sleep(longest_s * number / kills)
            process.kill()
            process.communicate(timeout=30)
    deadline = time.monotonic() + 10
    while any(name.startswith(PREFIX) for name in based.containers()) and time.monotonic() < deadline:
        # A container that ran when its client was killed ends in its own time.
        time.sleep(0.2)
        try_containers(LocalHost(), read(str(tmp_path)), deadline_s=30)
    trials = try_containers(LocalHost(), read(str(tmp_path)), deadline_s=30)
    assert trials.left_behind == ()
    assert list_leftovers(based) == []
