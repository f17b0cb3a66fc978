"""What devkit reads of running containers on real engines, and the container that it starts itself."""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from devkit.facts.model import Facts, Smoke
from devkit.probe.engine.smoke import SMOKE_NAME_PREFIX, run_smoke
from devkit.probe.gather import gather_facts
from devkit.probe.host import LocalHost
from tests.doctor.machines import healthy

from . import image
from .cache import ROOT
from .conftest import every_flavor, one_engine
from .daemon import Engine, Flavor

BASE = "devkit-test-base:latest"
REQUESTS = {
    Flavor.CPU: (),
    Flavor.NVIDIA: ("--gpus", "all"),
    Flavor.CDI: ("--device", "nvidia.com/gpu=all"),
}


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


@every_flavor
def test_the_probe_container_runs_as_this_engine_is_asked_for_gpus(based, tmp_path):
    smoke = run_smoke(LocalHost(), read(str(tmp_path)), deadline_s=30)
    assert isinstance(smoke, Smoke), smoke
    assert smoke.request == ("cdi" if based.flavor is Flavor.CDI else "gpus")
    if based.flavor is Flavor.CPU:
        assert (smoke.code, "could not select device driver" in smoke.err) == (125, True)
    else:
        assert (smoke.code, smoke.nvidiactl, smoke.libcuda) == (0, "absent", "")
    assert (smoke.left_behind, based.containers()) == ("", [])


IN_A_PROCESS = """
import sys
from devkit.probe.engine import smoke
from devkit.probe.host import LocalHost
from tests.engine.test_running import read
smoke.GPU_REQUEST_OPTIONS, smoke.SMOKE_SCRIPT = {"gpus": ()}, "sleep 600"
smoke.run_smoke(LocalHost(), read(sys.argv[1]), deadline_s=60)
"""


@one_engine
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "a polite kill"])
def test_no_probe_container_is_left_when_interrupted(based, tmp_path, sent):
    process = subprocess.Popen(
        [sys.executable, "-c", IN_A_PROCESS, str(tmp_path)], env=dict(based.env), cwd=ROOT, stderr=subprocess.PIPE
    )
    with process:
        deadline = time.monotonic() + 30
        while (
            not any(name.startswith(SMOKE_NAME_PREFIX) for name in based.containers()) and time.monotonic() < deadline
        ):
            time.sleep(0.05)
        os.kill(process.pid, sent)
        _, said = process.communicate(timeout=20)
    assert b"KeyboardInterrupt" in said
    assert based.containers() == []
