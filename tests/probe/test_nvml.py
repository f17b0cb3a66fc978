import time
from collections.abc import Mapping
from dataclasses import replace

import pytest

from devkit.facts.gpu import FailedGpu, Gpu, NvmlAnswer, NvmlEnd, NvmlFailure
from devkit.facts.values import NOT_READ, ComputeCapability, Unknown
from devkit.probe.gpu.nvml import read_nvml
from devkit.probe.host import LocalHost, ProgramResult

DEADLINE_S = 3.0


def ask(host, deadline_s=DEADLINE_S):
    return read_nvml(host, deadline_s=deadline_s)


def test_eight_healthy_gpus_are_read(with_nvml):
    answer = ask(with_nvml(gpus=8, cuda="12.8", driver="570.172.08"))
    assert isinstance(answer, NvmlAnswer)
    assert (str(answer.driver), str(answer.cuda)) == ("570.172.08", "12.8")
    assert [gpu.index for gpu in answer.gpus] == list(range(8))
    assert replace(answer.gpus[7], health=NOT_READ) == Gpu(
        index=7,
        uuid="GPU-00000007-aaaa-bbbb-cccc-dddddddddddd",
        name="NVIDIA H100 80GB HBM3",
        capability=ComputeCapability(9, 0),
        memory_bytes=81559 << 20,
        free_bytes=(81559 - 512) << 20,
        mig_enabled=False,
        mig_instances=(),
    )


def test_no_gpu_is_an_answer(with_nvml):
    assert ask(with_nvml(gpus=0)).gpus == ()


def test_mig_instances_are_listed(with_nvml):
    whole, cut = ask(with_nvml(gpus=2, mig="1:3")).gpus
    assert (whole.mig_enabled, whole.mig_instances) == (False, ())
    assert (cut.mig_enabled, len(set(cut.mig_instances))) == (True, 3)
    assert cut.mig_instances[0].startswith("MIG-")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        pytest.param(9, "Driver Not Loaded", id="driver not loaded"),
        pytest.param(999, "Unknown Error", id="unknown error"),
    ],
)
def test_a_failed_start_keeps_its_code(with_nvml, code, message):
    failure = ask(with_nvml(fail=f"nvmlInit_v2={code}"))
    assert replace(failure, said=NOT_READ) == NvmlFailure(NvmlEnd.ERROR, code, message, "nvmlInit_v2")


def test_one_lost_gpu_of_eight_is_named_and_the_others_answer(with_nvml):
    answer = ask(with_nvml(gpus=8, fail="nvmlDeviceGetName@3=15"))
    assert answer.gpus[3] == FailedGpu(3, 15, "GPU is lost")
    assert [gpu.index for gpu in answer.gpus if isinstance(gpu, Gpu)] == [0, 1, 2, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("call", "field"),
    [
        pytest.param("nvmlDeviceGetUUID", "uuid", id="UUID"),
        pytest.param("nvmlDeviceGetCudaComputeCapability", "capability", id="compute capability"),
        pytest.param("nvmlDeviceGetMemoryInfo", "free_bytes", id="memory"),
        pytest.param("nvmlDeviceGetMigMode", "mig_enabled", id="MIG"),
    ],
)
@pytest.mark.parametrize("code", [3, 13], ids=["not supported", "function not found"])
def test_what_a_gpu_does_not_say_is_unknown_and_the_rest_is_read(with_nvml, call, field, code):
    (gpu,) = ask(with_nvml(fail=f"{call}={code}")).gpus
    assert gpu.name == "NVIDIA H100 80GB HBM3"
    assert isinstance(getattr(gpu, field), Unknown)
    assert call in getattr(gpu, field).reason


def test_an_old_driver_without_a_cuda_version_still_answers(with_nvml):
    answer = ask(with_nvml(fail="nvmlSystemGetCudaDriverVersion_v2=13"))
    assert isinstance(answer.cuda, Unknown)
    assert str(answer.driver) == "580.95.05"


@pytest.mark.clock
def test_a_hang_in_the_start_ends_within_the_deadline_and_names_the_call(with_nvml):
    host, started = with_nvml(fail="nvmlInit_v2=hang"), time.monotonic()
    failure = ask(host, deadline_s=1.0)
    assert time.monotonic() - started < 1.5
    assert (failure.end, failure.code, failure.call) == (NvmlEnd.TIMED_OUT, 0, "nvmlInit_v2")


@pytest.mark.clock
def test_a_hang_at_one_gpu_costs_that_gpu_alone(with_nvml):
    host, started = with_nvml(gpus=8, fail="nvmlDeviceGetName@5=hang"), time.monotonic()
    answer = ask(host, deadline_s=2.0)
    assert time.monotonic() - started < 2.5
    assert [type(gpu) for gpu in answer.gpus] == [Gpu] * 5 + [FailedGpu] + [Gpu] * 2
    assert answer.gpus[5].code == 10
    assert answer.gpus[5].message.startswith("nvmlDeviceGetName did not return within")


@pytest.mark.clock
def test_a_hang_at_every_gpu_is_still_a_full_list_within_the_deadline(with_nvml):
    host, started = with_nvml(gpus=8, fail="nvmlDeviceGetHandleByIndex_v2=hang"), time.monotonic()
    answer = ask(host, deadline_s=2.0)
    assert time.monotonic() - started < 2.5
    assert [gpu.index for gpu in answer.gpus] == list(range(8))
    assert "not read" in answer.gpus[7].message


@pytest.mark.full
@pytest.mark.clock
def test_many_slow_gpus_are_not_called_hung(with_nvml):
    # Sixteen calls of 0.2 s do not fit into the first attempt; the next one goes on where it ended.
    gpus = ask(with_nvml(gpus=16, fail="nvmlDeviceGetName=slow"), deadline_s=4.5).gpus
    assert len(gpus) == 16
    assert all(isinstance(gpu, Gpu) for gpu in gpus[:12])
    assert "did not return" not in repr(gpus)


def test_a_crash_in_the_start_names_the_signal_and_the_call(with_nvml):
    failure = ask(with_nvml(fail="nvmlInit_v2=segv"))
    assert replace(failure, said=NOT_READ) == NvmlFailure(NvmlEnd.CRASHED, 11, "SIGSEGV in nvmlInit_v2", "nvmlInit_v2")


def test_a_crash_at_one_gpu_costs_that_gpu_alone(with_nvml):
    answer = ask(with_nvml(gpus=4, fail="nvmlDeviceGetUUID@2=segv"))
    assert answer.gpus[2] == FailedGpu(2, 999, "NVML crashed with SIGSEGV in nvmlDeviceGetUUID")
    assert [type(gpu) for gpu in answer.gpus] == [Gpu, Gpu, FailedGpu, Gpu]


def test_a_missing_library_differs_from_a_failing_one(monkeypatch, tmp_path):
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    failure = ask(LocalHost())
    if isinstance(failure, NvmlAnswer) or failure.end is not NvmlEnd.LIBRARY_NOT_FOUND:
        pytest.skip("this machine has a real libnvidia-ml.so.1")
    assert (failure.code, failure.call) == (12, "nvmlInit_v2")


class Scripted:
    """A host on which the NVML child ends as written."""

    python = "python3"
    env: Mapping[str, str] = {}

    def __init__(self, code, out="", err=""):
        self.done = ProgramResult(code, out, err)

    def run(self, argv, *, deadline_s, without=()):
        return self.done


CALL = '{"call": "nvmlInit_v2", "at_s": 0.1}\n'


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        pytest.param(Scripted(127, err="no such file"), "no such file", id="no interpreter"),
        pytest.param(Scripted(1, err="Traceback\nImportError: x"), "ImportError: x", id="a traceback's last line"),
        pytest.param(
            Scripted(0, '{"error": {"code": null, "message": "no nvidia-ml-py", "call": "import"}}\n'),
            "no nvidia-ml-py",
            id="no bindings",
        ),
    ],
)
def test_a_child_that_never_reached_nvml_is_unknown_not_a_failure(host, reason):
    answer = ask(host)
    assert isinstance(answer, Unknown)
    assert reason in answer.reason


@pytest.mark.parametrize("code", [-11, 139], ids=["by signal", "through a shell"])
def test_both_shapes_of_a_crash_are_known(code):
    assert ask(Scripted(code, CALL)).code == 11


def test_a_line_cut_off_by_the_kill_is_passed_over():
    assert ask(Scripted(124, CALL + '{"system": {"dri')).end is NvmlEnd.TIMED_OUT
