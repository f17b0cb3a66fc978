"""Where the proof runs, in which precision, and whether torch fits the GPU that is there."""

import pytest

from devkit.facts.runs import CudaCall, CudaStop, StepEnd
from devkit.facts.values import Release, Unknown
from devkit.workload.device import choose_device
from devkit.workload.proof import device_stages, standalone
from devkit.workload.proof.program import make_torch_deterministic
from devkit.workload.proof.stages import StageStatus, run_stage
from devkit.workload.proof.standalone import is_device_lost

pytestmark = pytest.mark.workload


@pytest.mark.parametrize(
    ("target", "capability", "runs"),
    [
        pytest.param("sm_90", (9, 0), True, id="its own"),
        pytest.param("sm_80", (8, 9), True, id="a lower minor of the same major"),
        pytest.param("sm_89", (8, 6), False, id="a higher minor"),
        pytest.param("sm_90", (10, 0), False, id="machine code never crosses majors"),
        pytest.param("sm_90a", (9, 0), True, id="suffix a on exactly its GPU"),
        pytest.param("compute_90", (12, 0), True, id="PTX crosses majors upwards"),
        pytest.param("compute_120", (9, 0), False, id="PTX never runs downwards"),
    ],
)
def test_code_runs_on_a_gpu(target, capability, runs):
    assert device_stages.can_run_on(target, *capability) is runs


DRIVER = CudaCall(0, "libcuda.so.1", Release.parse("13.0"), 1)
ABSENT = CudaStop(StepEnd.FAILED, "dlopen libcuda.so.1", "cannot open shared object file", "")


@pytest.mark.parametrize(
    ("driver", "gpu_node", "holds"),
    [
        pytest.param(DRIVER, True, True, id="a GPU whose driver answers"),
        pytest.param(CudaCall(999, "libcuda.so.1"), True, False, id="a GPU whose driver fails"),
        pytest.param(ABSENT, True, False, id="a GPU without the driver's library"),
        pytest.param(ABSENT, False, True, id="a laptop without any"),
        pytest.param(Unknown("the CUDA child ended with status 1"), True, False, id="a driver that cannot be asked"),
        pytest.param(CudaCall(34, "libcuda.so.1"), False, True, id="a stub library on a machine without a GPU"),
    ],
)
def test_the_driver_must_answer_where_a_gpu_is(driver, gpu_node, holds):
    result, _ = run_stage("torch-build", lambda: device_stages.read_driver_answers(driver, gpu_node=gpu_node))
    assert (result.status is StageStatus.PASSED) is holds


@pytest.mark.parametrize(
    ("nodes", "found"),
    [
        pytest.param(["null", "nvidia0", "nvidiactl"], True, id="one GPU"),
        pytest.param(["nvidiactl", "nvidia-uvm"], False, id="the driver's own nodes alone"),
        pytest.param(["dxg"], True, id="WSL 2"),
    ],
)
def test_gpu_nodes(tmp_path, monkeypatch, nodes, found):
    monkeypatch.setattr(standalone, "DEVICE_FOLDER", tmp_path)
    for node in nodes:
        (tmp_path / node).touch()
    assert standalone.has_gpu_node() is found


def test_kernels_on_this_machine_compute_right():
    make_torch_deterministic()
    device = choose_device()
    for stage in (device_stages.prove_device, device_stages.prove_kernel):
        result, _ = run_stage(stage.__name__, lambda stage=stage: stage(device))
        assert result.status is StageStatus.PASSED, result.reason


def test_a_wrong_kernel_fails(monkeypatch):
    make_torch_deterministic()
    attention, calls = standalone.attend, []

    def wrong_on_the_device(left, right):
        calls.append(left.dtype)
        return attention(left, right) * (1 if len(calls) == 1 else 1.0001)

    monkeypatch.setattr(standalone, "attend", wrong_on_the_device)
    result, _ = run_stage("kernel", lambda: device_stages.prove_kernel(choose_device()))
    assert "attention_fp32_error" in result.reason


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        pytest.param(RuntimeError("CUDA error: an illegal memory access was encountered"), True, id="illegal access"),
        pytest.param(type("OutOfMemoryError", (RuntimeError,), {})("CUDA error: out of memory"), False, id="no memory"),
    ],
)
def test_a_lost_device_is_distinguished_from_other_errors(error, lost):
    assert is_device_lost(error) is lost
