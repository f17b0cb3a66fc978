"""The proof of a machine and of the project on it: which proof runs, and when the project's own stages do."""

import json
import os
import subprocess
import sys
import venv
from dataclasses import replace
from pathlib import Path

import pytest

import devkit
from devkit.facts.gpu import NvmlAnswer, NvmlEnd, NvmlFailure
from devkit.facts.values import Release
from devkit.verify.here import prove_gpu, prove_without_torch
from devkit.workload.proof.stages import Depth, StageStatus, run_stage
from tests.doctor.machines import gpu
from tests.hosts.recorded_host import RecordedHost

HOSTS = Path(__file__).parents[1] / "hosts"
ANSWER = NvmlAnswer(Release.parse("570.124.06"), Release.parse("12.8"), (gpu(),))


@pytest.fixture
def verify(tmp_path):
    """Runs `devkit verify --here --json` in a project of devkit's whose environment is another than devkit's."""
    venv.create(tmp_path / "venv", symlinks=True)
    project = tmp_path / "project"
    (project / "own").mkdir(parents=True)
    (project / "own/__init__.py").touch()
    (project / "devkit.toml").write_text("[verify]\ncommand = \"python -c 'import own'\"\n")

    def run(*words):
        env = {**os.environ, "PYTHONPATH": str(Path(devkit.__file__).parents[1])}
        env["DEVKIT_PYTHON"] = str(tmp_path / "venv/bin/python")
        argv = [sys.executable, "-P", "-m", "devkit", "verify", "--here", "--json", *words]
        return subprocess.run(argv, cwd=project, env=env, capture_output=True, text=True, timeout=120)

    run.project = project
    return run


def test_a_project_without_torch_is_proved_by_its_own_imports_and_command(verify):
    done = verify()
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [stage["name"] for stage in document["stages"]] == ["gpu", "imports", "command"]
    assert document["inputs"]["proof"] == "gpu"
    assert document["stages"][2]["measured"] == {"python -c 'import own'": 0}
    if document["device"]["kind"] == "cpu":
        assert document["conclusion"] == (
            "proved on cpu: the project and its requirements can be imported and its command runs"
            " (not proved: gpu; this machine has no GPU)"
        )


def test_a_command_of_the_flag_comes_before_that_of_devkit_toml(verify):
    done = verify("--command", "exit 5")
    stage = json.loads(done.stdout)["stages"][2]
    assert (done.returncode, stage["status"], stage["measured"]) == (1, "failed", {"exit 5": 5})


def test_a_project_that_requires_torch_is_not_proved_without_it(verify):
    (verify.project / "requirements.txt").write_text("torch\n")
    done = verify()
    assert (done.returncode, done.stdout) == (2, "")
    assert "the project's environment has no torch" in done.stderr


@pytest.mark.full
def test_a_folder_that_is_no_project_of_devkits_is_not_looked_at(verify):
    (verify.project / "devkit.toml").unlink()
    (verify.project / "own/__init__.py").write_text("1/0")
    assert verify("--quick", "--timeout", "1").returncode in (1, 2)
    assert "imports" not in verify("--quick", "--timeout", "1").stderr


def outcome(readings):
    return run_stage("stage", lambda: readings)[0]


def test_a_recorded_machine_with_a_gpu_shows_it():
    host = RecordedHost(HOSTS / "ubuntu-4090-ok")
    report = prove_without_torch(host, depth=Depth.QUICK, progress=print)
    assert report.device == {"kind": "cuda", "name": "NVIDIA GeForce RTX 4090", "reason": "NVML sees 1 GPU"}
    assert [stage.status for stage in report.stages] == [StageStatus.PASSED]
    assert report.conclusion == "proved on cuda: the GPU is visible"


@pytest.mark.parametrize(
    ("answer", "count", "status"),
    [
        pytest.param(ANSWER, 1, StageStatus.PASSED, id="it is seen"),
        pytest.param(replace(ANSWER, gpus=()), 0, StageStatus.FAILED, id="NVML sees none"),
        pytest.param(NvmlFailure(NvmlEnd.ERROR, 999, "unknown", "nvmlInit"), 0, StageStatus.FAILED, id="NVML fails"),
    ],
)
def test_a_gpu_whose_device_node_is_here_must_be_seen(answer, count, status):
    assert outcome(prove_gpu(RecordedHost(HOSTS / "ubuntu-4090-ok"), answer, count)).status is status
