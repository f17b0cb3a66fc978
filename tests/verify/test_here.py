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
from devkit.facts.dependencies import Framework
from devkit.facts.gpu import NvmlAnswer, NvmlEnd, NvmlFailure
from devkit.facts.values import Release
from devkit.probe.host import LocalHost
from devkit.verify.here import prove_compiler, prove_framework, prove_gpu, prove_without_torch
from devkit.verify.report import ProofRequest
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
    assert [stage["name"] for stage in document["stages"]] == [
        "gpu",
        "cuda-compiler",
        "framework",
        "imports",
        "command",
    ]
    assert document["inputs"]["proof"] == "gpu"
    assert document["stages"][4]["measured"] == {"python -c 'import own'": 0}
    if document["device"]["kind"] == "cpu":
        assert document["conclusion"] == (
            "proved on cpu: the project and its requirements can be imported and its command runs"
            " (not proved: gpu; this machine has no GPU)"
        )


def test_a_command_of_the_flag_comes_before_that_of_devkit_toml(verify):
    done = verify("--command", "exit 5")
    stage = json.loads(done.stdout)["stages"][4]
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
    request = ProofRequest(Depth.QUICK, 60.0, print)
    report = prove_without_torch(host, Path("/nowhere"), Framework.NONE, "python3", request)
    assert report.device == {"kind": "cuda", "name": "NVIDIA GeForce RTX 4090", "reason": "NVML sees 1 GPU"}
    assert [stage.status for stage in report.stages] == [StageStatus.PASSED, StageStatus.SKIPPED, StageStatus.SKIPPED]
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


@pytest.mark.skipif(sys.platform == "win32", reason="a shell script stands in for nvcc")
@pytest.mark.parametrize(
    ("source", "script", "status", "said"),
    [
        pytest.param("kernel.txt", "exit 1", StageStatus.SKIPPED, "no CUDA sources", id="no sources"),
        pytest.param("src/deep/kernel.cu", "exit 0", StageStatus.PASSED, "", id="it builds"),
        pytest.param(
            "kernel.cu",
            'case "$*" in *sm_89*) echo "nvcc fatal: Value sm_89 is not defined" >&2; exit 1;; esac',
            StageStatus.FAILED,
            "sm_89 is nvcc fatal: Value sm_89 is not defined, expected builds",
            id="a toolkit older than the GPU",
        ),
    ],
)
def test_cuda_sources_need_a_compiler_that_knows_the_gpu(tmp_path, monkeypatch, source, script, status, said):
    project, toolkit = tmp_path / "project", tmp_path / "toolkit"
    (project / source).parent.mkdir(parents=True)
    (project / source).touch()
    (toolkit / "bin").mkdir(parents=True)
    (toolkit / "bin/nvcc").write_text(f"#!/bin/sh\n{script}\n")
    (toolkit / "bin/nvcc").chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(toolkit))
    result = outcome(prove_compiler(LocalHost(), project, [gpu()]))
    assert (result.status, said in result.reason) == (status, True), result.reason


def test_cuda_sources_without_a_compiler_are_not_proved(tmp_path):
    (tmp_path / "kernel.cu").touch()
    result = outcome(prove_compiler(RecordedHost(HOSTS / "ubuntu-4090-ok"), tmp_path, [gpu()]))
    assert (result.status, result.reason) == (StageStatus.FAILED, "nvcc is False, expected True")


JAX = """
class Device:
    platform = "{platform}"
class numpy:
    class ones:
        def __init__(self, shape): self.value = {value}
        def __matmul__(self, other): return self
        def sum(self): return self.value
__version__ = "0.7.1"
def devices(): return [Device()]
"""
TENSORFLOW = """
class config:
    list_physical_devices = staticmethod(lambda kind: {gpus})
class ones:
    device = "{device}"
    def __init__(self, shape): pass
def matmul(left, right): return left
def reduce_sum(product): return 262144
__version__ = "2.18.0"
"""


@pytest.mark.parametrize(
    ("framework", "module", "has_gpu", "status", "reason"),
    [
        ("jax", JAX.format(platform="gpu", value=64**3), True, "passed", ""),
        ("jax", JAX.format(platform="cpu", value=64**3), True, "failed", "gpus is 0"),
        ("jax", JAX.format(platform="cpu", value=64**3), False, "passed", ""),
        ("jax", JAX.format(platform="gpu", value=0), True, "failed", "sum is 0.0, expected 262144.0"),
        ("jax", JAX.format(platform="cpu", value=0), False, "failed", "sum is 0.0, expected 262144.0"),
        ("jax", "raise ImportError('libcudart.so.12: cannot open')", True, "failed", "libcudart.so.12: cannot open"),
        ("tensorflow", TENSORFLOW.format(gpus=[0], device="/device:GPU:0"), True, "passed", ""),
        ("tensorflow", TENSORFLOW.format(gpus=[0], device="/device:CPU:0"), True, "failed", "computed on is cpu"),
        ("tensorflow", TENSORFLOW.format(gpus=[], device="/device:CPU:0"), False, "passed", ""),
        ("cuda", "", True, "skipped", "neither JAX nor TensorFlow"),
    ],
)
def test_the_framework_computes_on_the_gpu_or_without_one_on_the_cpu(
    tmp_path, monkeypatch, framework, module, has_gpu, status, reason
):
    (tmp_path / f"{framework}.py").write_text(module)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    proof = prove_framework(LocalHost(), Framework(framework), python=sys.executable, has_gpu=has_gpu)
    result = outcome(proof)
    assert (result.status.value, reason in result.reason) == (status, True), result.reason
