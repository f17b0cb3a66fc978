"""What `devkit export docker` writes, on real engines: started, stopped, started again."""

import os
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from devkit.export.docker import DockerContextSettings, render_docker
from devkit.export.task import Task
from tests.export.launchers.tasks import CPU, NASTY, gpus

from . import image
from .commands import run
from .conftest import every_flavor, one_engine
from .daemon import Engine, Flavor

IMAGE = "devkit-test-base:latest"
TRAINS = """
echo "start $(cat input) shm $(df -k /dev/shm | tail -n 1 | tr -s ' ' | cut -d ' ' -f 2)"
if [ -e finetuned/saved ]; then echo resumed; exit 0; fi
trap 'printf "%s\\n" "$1" >finetuned/saved; exit 75' TERM
echo ready
sleep 60 & wait
exit 1
"""
"""Like devkit finetune: it saves and leaves with 75 when it is told to stop, and goes on from there next time."""


@pytest.fixture
def based(engine: Engine):
    """The engine with an image; what a test leaves goes away."""
    image.provide(engine, IMAGE)
    yield engine
    engine.clear()


def written(folder: Path, task: Task) -> Path:
    """A project with the exported files; its script."""
    place = folder / "my project/deploy/docker"
    place.mkdir(parents=True)
    (folder / "my project/input").write_text("data\n")
    for made in render_docker(task, DockerContextSettings(), "deploy/docker").artifacts:
        (place / made.path).write_bytes(made.content)
    return place / "run.sh"


def training(task: Task, *words: str) -> Task:
    return replace(task, image=IMAGE, command=("sh", "-c", TRAINS, "sh", *words), shm_bytes=64 << 20, grace_s=20)


def started(engine: Engine, script: Path, log: Path, *, says: str) -> subprocess.Popen[bytes]:
    """The script in a process group of its own, once its container says that."""
    env = {**engine.env, "DEVKIT_WAIT_S": "0"}
    with log.open("wb") as file:
        process = subprocess.Popen(["sh", script], env=env, stdout=file, stderr=file, start_new_session=True)
    ends = time.monotonic() + 60
    while says not in log.read_text() and process.poll() is None and time.monotonic() < ends:
        time.sleep(0.05)
    return process


@one_engine
def test_a_run_that_is_stopped_saves_and_is_started_again(based, tmp_path):
    script = written(tmp_path, training(CPU, NASTY))
    log = tmp_path / "log"
    process = started(based, script, log, says="ready")
    based.docker("stop", "demo")
    assert process.wait(timeout=60) == 0, log.read_text()
    said = log.read_text()
    assert said.count(f"start data shm {64 << 10}") == 2
    assert "was stopped, and saved" in said and "resumed" in said
    found = based.inspect("demo")
    assert (found["RestartCount"], found["HostConfig"]["RestartPolicy"]["Name"]) == (0, "no")
    assert (found["Config"]["StopTimeout"], found["Config"]["StopSignal"]) == (20, "SIGTERM")
    assert "no-new-privileges:true" in found["HostConfig"]["SecurityOpt"]
    run(["sh", script, "fetch"], env=based.env)
    assert (tmp_path / "my project/finetuned/saved").read_text() == f"{NASTY}\n"


@one_engine
def test_ctrl_c_lets_the_run_save_and_ends_with_75(based, tmp_path):
    script = written(tmp_path, training(CPU, "saved"))
    log = tmp_path / "log"
    process = started(based, script, log, says="ready")
    # As a terminal does: everybody in the group gets it.
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=60) == 75, log.read_text()
    assert based.inspect("demo")["State"]["ExitCode"] == 75
    assert run(["sh", script], env=based.env).stdout.endswith("resumed\n")


@every_flavor
def test_the_gpus_that_the_task_counts_are_passed_on(based, tmp_path):
    task = replace(CPU, image=IMAGE, accelerator=gpus(2), command=("sh", "-c", "env | grep DEVKIT_CDI_DEVICE_ || :"))
    script = written(tmp_path, task)
    # Engines before 28.2 name no CDI devices.
    shown = {**based.env, "DEVKIT_GPU": "cdi"} if based.flavor is Flavor.CDI else based.env
    done = run(["sh", script], env=shown, expect=None)
    if based.flavor is Flavor.CPU:
        assert (done.returncode, "neither the nvidia runtime nor CDI devices" in done.stderr) == (2, True)
        return
    assert done.returncode == 0, done.stderr
    requests = based.inspect("demo")["HostConfig"]["DeviceRequests"]
    if based.flavor is Flavor.NVIDIA:
        assert [each["Count"] for each in requests] == [2]
    else:
        assert sorted(done.stdout.split()) == ["DEVKIT_CDI_DEVICE_0=0", "DEVKIT_CDI_DEVICE_1=1"]
