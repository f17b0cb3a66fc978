"""The dev container is built, started, proved and put back as it was, in this order, whatever happens on the way."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from devkit.errors import DevkitError
from devkit.probe.host import LocalHost
from devkit.verify.dev_container import DOCKER_COMPOSE, PODMAN_COMPOSE, prove_in_container, require_engine
from devkit.verify.report import ProofLocation, ProofRequest, ProofVerdict, VerificationReport
from devkit.workload.proof.stages import Depth, StageResult, StageStatus
from tests.cases import cases
from tests.hosts import FOLDER, machine, written
from tests.probe.engines import INFO, VERSION, engine
from tests.verify.fake_docker import FakeDocker

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the stand-in engine listens on a unix socket")

INSIDE = VerificationReport(
    ProofLocation.HERE, {"kind": "cpu"}, {"torch": "2.13.0"}, (StageResult("lora-memorizes", StageStatus.PASSED),)
)
REPORT = {"out": json.dumps(INSIDE.to_document())}
EXEC = ["exec", "-T", "dev", "devkit", "verify", "--here", "--json", "--standard", "--timeout", "60"]
BUILD, UP, DOWN = ["build"], ["up", "--detach", "--wait"], ["down"]


@pytest.fixture
def docker(tmp_path, monkeypatch):
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    with engine(tmp_path / "docker.sock", answers={"version": VERSION, "info": INFO, "_ping": "OK"}) as url:
        monkeypatch.setenv("DOCKER_HOST", url)
        yield FakeDocker(folder)


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "a project's folder"
    (folder / ".devcontainer").mkdir(parents=True)
    (folder / ".devcontainer/docker-compose.yml").write_text("# Written by devkit 0.1.0.\nservices: {}\n")
    (folder / ".devcontainer/gpu.sh").write_text("echo devkit: DEVKIT_GPU=cpu: this host has no NVIDIA GPU\n")
    return folder


def prove(project, lines=None):
    heard = [] if lines is None else lines
    return prove_in_container(LocalHost(), project, ProofRequest(Depth.STANDARD, 60.0, heard.append))


def test_build_start_prove_and_take_down(docker, project):
    docker.answer(exec=REPORT)
    lines = []
    report = prove(project, lines)
    assert docker.calls == [BUILD, UP, EXEC, DOWN]
    assert (report.where, report.verdict) == (ProofLocation.CONTAINER, ProofVerdict.PASSED)
    assert [stage.name for stage in report.stages] == ["build", "start", "lora-memorizes"]
    assert report.device == {"kind": "cpu"}
    assert report.environment == {"torch": "2.13.0", "engine": "docker", "engine_version": "28.5.2"}
    assert lines[0] == "devkit: DEVKIT_GPU=cpu: this host has no NVIDIA GPU"
    assert report.conclusion == "proved in the dev container, on cpu: LoRA fine-tuning memorizes a sentence"


def test_powershell_runs_the_host_script_without_a_posix_shell(docker, project, tmp_path):
    docker.answer(exec=REPORT)
    for name in ("sh", "powershell"):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\necho {name} ran $*\n")
        (tmp_path / "bin" / name).chmod(0o755)
    script = project / ".devcontainer/gpu.ps1"
    script.touch()
    (project / ".devcontainer/gpu.sh").unlink()
    lines = []
    prove(project, lines)
    assert lines[0] == f"powershell ran -NoProfile -ExecutionPolicy Bypass -File {script}"
    script.unlink()
    prove(project, lines := [])
    assert lines[0].startswith("no shell here")


def test_a_running_dev_container_is_proved_as_it_is_and_left_alone(docker, project):
    digests = {"out": '["registry.example/dev@sha256:4567"]'}
    docker.answer(running="4f2a\n", there="4f2a\n", exec=REPORT, image=digests)
    report = prove(project)
    assert docker.calls == [EXEC]
    assert report.environment["image_digests"] == ["registry.example/dev@sha256:4567"]
    assert report.stages[0].status is StageStatus.SKIPPED
    assert report.verdict is ProofVerdict.PASSED
    assert report.environment["image_id"] == "sha256:0123"


def test_a_stopped_dev_container_is_stopped_again_and_not_removed(docker, project):
    docker.answer(there="4f2a\n", exec=REPORT)
    prove(project)
    assert docker.calls == [BUILD, UP, EXEC, ["stop"]]


@cases(
    "answers, calls, stage, words",
    {
        "a build that fails": (
            {"build": {"code": 17, "err": "#9 ERROR: no space left on device\n"}},
            [BUILD, DOWN],
            "build",
            "compose build ended with status 17: #9 ERROR: no space left on device",
        ),
        "a container that does not start": (
            {"up": {"code": 1, "err": "could not select device driver\n"}},
            [BUILD, UP, DOWN],
            "start",
            "could not select device driver",
        ),
        "no devkit inside": (
            {"exec": {"code": 127, "err": 'exec: "devkit": executable file not found in $PATH\n'}},
            [BUILD, UP, EXEC, DOWN],
            "proof",
            "devkit is not installed in the dev container",
        ),
        "a report of another kind": (
            {"exec": {"out": '{"schema": "devkit.verify/9"}'}},
            [BUILD, UP, EXEC, DOWN],
            "proof",
            "no report",
        ),
    },
)
def test_a_failed_build_or_start_is_a_failed_stage(docker, project, answers, calls, stage, words):
    docker.answer(**answers)
    report = prove(project)
    assert docker.calls == calls
    assert report.verdict is ProofVerdict.FAILED
    assert report.stages[-1].name == stage
    assert words in report.stages[-1].reason


def test_the_last_lines_of_a_failed_build_are_kept(docker, project):
    docker.answer(build={"code": 1, "err": "".join(f"line {n}\n" for n in range(1000))})
    report = prove(project)
    assert report.log[-1] == "line 999"
    assert len(report.log) <= 50


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_an_interrupt_during_the_build_cleans_up_and_exits_130(docker, project, number):
    docker.answer(build={"sleep_s": 60})
    process = subprocess.Popen(
        [sys.executable, "-m", "devkit", "verify", str(project), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until = time.monotonic() + 30
    while BUILD not in docker.calls and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert docker.calls == [BUILD, DOWN]
    assert (process.returncode, out) == (130, ""), err


@cases(
    "text, words",
    {
        "no dev container": (None, "does not exist"),
        "somebody else's dev container": ("services: {}\n", "was not written by devkit"),
    },
)
def test_only_a_dev_container_of_devkits_is_started(docker, project, text, words):
    file = project / ".devcontainer/docker-compose.yml"
    file.unlink()
    if text is not None:
        file.write_text(text)
    with pytest.raises(DevkitError, match=words) as error:
        prove(project)
    assert "devkit" in error.value.hint
    assert docker.calls == []


def test_an_engine_that_is_down_is_refused_before_anything_starts(docker, project, monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")
    with pytest.raises(DevkitError, match=r"unix://.*nobody\.sock") as error:
        prove(project)
    assert error.value.hint
    assert docker.calls == []


@pytest.mark.full
def test_an_engine_that_hangs_is_refused_within_the_deadline(docker, project, monkeypatch, tmp_path):
    with engine(tmp_path / "hung.sock", answers={"version": VERSION}, hang_at="info") as url:
        monkeypatch.setenv("DOCKER_HOST", url)
        began = time.monotonic()
        with pytest.raises(DevkitError, match=r"hangs|within"):
            prove(project)
    assert time.monotonic() - began < 30
    assert docker.calls == []


OPENING = """{
  // as an editor does
  "updateContentCommand": {"project": "pip install -e ."},
  "postCreateCommand": ["echo", "made"],
}"""
EXEC_INSTALL = ["exec", "-T", "dev", "sh", "-c", "pip install -e ."]


def test_a_new_container_is_opened_as_an_editor_opens_it(docker, project):
    (project / ".devcontainer/devcontainer.json").write_text(OPENING)
    docker.answer(exec=REPORT)
    report = prove(project)
    assert docker.calls == [BUILD, UP, EXEC_INSTALL, ["exec", "-T", "dev", "echo", "made"], EXEC, DOWN]
    assert [stage.name for stage in report.stages] == ["build", "start", "open", "lora-memorizes"]
    assert report.verdict is ProofVerdict.PASSED
    docker.answer(there="4f2a\n", exec=REPORT)
    assert [stage.name for stage in prove(project).stages] == ["build", "start", "lora-memorizes"]


def test_a_command_of_the_opening_that_fails_is_a_failed_stage_and_the_proof_goes_on(docker, project):
    (project / ".devcontainer/devcontainer.json").write_text(OPENING)
    docker.answer(exec={"code": 1, "err": "ModuleNotFoundError: No module named 'torch'\n", **REPORT})
    report = prove(project)
    assert docker.calls == [BUILD, UP, EXEC_INSTALL, EXEC, DOWN]
    assert report.verdict is ProofVerdict.FAILED
    assert (
        report.stages[2].reason == "pip install -e . ended with status 1: ModuleNotFoundError: No module named 'torch'"
    )


def test_the_users_model_and_command_are_given_to_the_proof_inside(docker, project):
    docker.answer(exec=REPORT)
    request = ProofRequest(Depth.STANDARD, 60.0, lambda _: None, model="/models/m", command="pytest -x 'a b'")
    prove_in_container(LocalHost(), project, request)
    assert docker.calls[2] == [*EXEC, "--model", "/models/m", "--command", "pytest -x 'a b'"]


@pytest.mark.parametrize("name", ["ubuntu-4090-ok", "rootless-docker", "wsl2-desktop", "macos-desktop"])
def test_docker_with_compose_is_used(name):
    assert require_engine(machine(name)).compose == DOCKER_COMPOSE


def test_podman_brings_its_own_compose(tmp_path):
    host = written(
        tmp_path,
        f"""
        extends = '{FOLDER / "podman-behind-docker-socket"}'
        [[command]]
        argv = ["podman", "compose", "version"]
        out = "podman-compose version 1.5.0"
        """,
    )
    assert require_engine(host).compose == PODMAN_COMPOSE


@cases(
    "name, message, hint",
    {
        "Docker Desktop is off": ("windows", "the container engine is not running", "Start Docker Desktop"),
        "no Compose at all": ("podman-behind-docker-socket", "podman responds", "Compose plugin"),
        "inside of a container": ("in-container-ok", "no container engine", "devkit verify --here"),
    },
)
def test_no_engine_is_a_set_up_error_with_a_fix(name, message, hint):
    with pytest.raises(DevkitError, match=message) as error:
        require_engine(machine(name))
    assert hint in error.value.hint
