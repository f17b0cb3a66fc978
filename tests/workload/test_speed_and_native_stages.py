"""Stages about rates, compiled parts, several processes and caches, on the CPU; what a GPU is asked, by its numbers.

No GPU is needed: what decides on one, the range around the data sheet, is judged on numbers measured elsewhere.
"""

import pytest

from devkit.compat.gpus import find_datasheet
from devkit.estimate.settings import Precision
from devkit.workload.device import Device, choose_cpu
from devkit.workload.proof import collectives, device_stages
from devkit.workload.proof import models as proof_models
from devkit.workload.proof.stages import StageStatus, run_stage

pytestmark = [pytest.mark.workload, pytest.mark.filterwarnings("ignore")]

CPU = choose_cpu()


def outcome(stage, subject):
    return run_stage(stage.__name__, lambda: stage(subject))[0]


@pytest.mark.parametrize(
    "stage",
    [device_stages.prove_compute_rate, device_stages.prove_memory_rate, device_stages.prove_bitsandbytes_native],
    ids=lambda stage: stage.__name__,
)
def test_the_stage_passes_on_the_cpu(stage):
    result = outcome(stage, CPU)
    assert result.status is StageStatus.PASSED, result.reason
    assert all(rate > 0 for name, rate in result.measured.items() if name.endswith(("_tflops", "_gb_per_s")))


@pytest.mark.parametrize(
    ("stage", "reason"),
    [
        pytest.param(device_stages.prove_link_rate, "nothing connects", id="no link"),
        pytest.param(device_stages.prove_triton, "compiles for GPUs", id="no Triton"),
        pytest.param(collectives.prove_nccl, "NCCL needs GPUs", id="no NCCL"),
    ],
)
def test_gpu_stages_are_skipped_on_a_cpu_with_the_reason(stage, reason):
    result = outcome(stage, CPU)
    assert result.status is StageStatus.SKIPPED and reason in result.reason


H200, T4, RTX_4070 = "NVIDIA H200", "Tesla T4", "NVIDIA GeForce RTX 4070"


@pytest.mark.parametrize(
    ("name", "tflops", "holds"),
    [
        pytest.param(H200, 395.8, True, id="just above the least"),
        pytest.param(H200, 395.7, False, id="just below it"),
        pytest.param(H200, 170.0, False, id="an H200 with clocks locked at 345 MHz"),
        pytest.param(H200, 1400.0, False, id="more than an H200 can"),
        pytest.param("NVIDIA H200 MIG 1g.18gb", 100.0, True, id="a seventh of an H200"),
        pytest.param("NVIDIA H200 MIG 7g.141gb", 100.0, False, id="all of an H200 at the rate of a seventh"),
        pytest.param(RTX_4070, 1.0, True, id="an inferred row never refuses"),
    ],
)
def test_a_matrix_rate_is_judged_by_the_data_sheet(name, tflops, holds):
    row = find_datasheet(name)
    reading = device_stages.judge_rate("bf16_tflops", tflops, row.bf16_tflops, device_stages.COMPUTE_SHARE, row)
    assert reading.is_as_expected is holds
    assert "data sheet" in reading.expected


def test_a_board_powered_by_the_slot_may_be_slower():
    row = find_datasheet(T4)
    share = device_stages.find_compute_share(row)
    assert device_stages.judge_rate("fp16_tflops", 20.0, row.fp16_tflops, share, row).is_as_expected
    assert not device_stages.judge_rate("fp16_tflops", 12.0, row.fp16_tflops, share, row).is_as_expected


@pytest.mark.parametrize(
    ("name", "gb_per_s", "holds"),
    [
        pytest.param(H200, 12.5, True, id="an old board with sixteen lanes of PCIe 3"),
        pytest.param(H200, 3.2, False, id="one lane of PCIe 5"),
        pytest.param("NVIDIA GeForce RTX 4090", 2.7, True, id="a Thunderbolt box"),
    ],
)
def test_a_link_of_one_lane_fails(name, gb_per_s, holds):
    row = find_datasheet(name)
    best = device_stages.PCIE_GB_PER_S[row.pcie_generation]
    assert device_stages.judge_link_rate("to_gpu_gb_per_s", gb_per_s, best, row).is_as_expected is holds


def test_rates_of_an_unknown_gpu_are_recorded_alone():
    reading = device_stages.judge_rate("bf16_tflops", 1.0, 0.0, 0.4, find_datasheet("NVIDIA RTX 9090"))
    assert (reading.expected, reading.is_as_expected) == ("", True)


@pytest.mark.full
def test_two_processes_all_reduce():
    result = outcome(collectives.prove_gloo, CPU)
    assert result.status is StageStatus.PASSED, result.reason
    assert result.measured["wrong_sums"] == 0


@pytest.mark.full
def test_the_process_that_failed_is_named_and_not_the_one_that_waits_for_it(monkeypatch, tmp_path):
    broken = tmp_path / "all_reduce.py"
    broken.write_text(
        "import os, time\nfrom torch.distributed.elastic.multiprocessing.errors import record\n@record\ndef main():\n"
        "    if os.environ['RANK'] == '1': raise OSError('no room in /dev/shm')\n    time.sleep(300)\nmain()\n"
    )
    monkeypatch.setattr(collectives.all_reduce, "__file__", str(broken))
    monkeypatch.setattr(collectives, "DEADLINE_S", 60.0)
    result = outcome(collectives.prove_gloo, CPU)
    assert result.reason == "RuntimeError: process 1: OSError: no room in /dev/shm"


def gpu(capability):
    """A GPU that is not here, as the stages are told of one."""
    return Device("cuda", "a GPU", "", Precision.FP16, "", capability, count=1)


def test_triton_is_skipped_where_it_is_missing_or_the_gpu_too_old(monkeypatch):
    # A stand-in: Triton is no package of a CPU's torch.
    monkeypatch.setattr(device_stages, "find_spec", lambda _: object())
    old = outcome(device_stages.prove_triton, gpu("6.1"))
    assert (old.status, old.reason) == (
        StageStatus.SKIPPED,
        "Triton compiles for compute capability 7.0 and newer, but this is 6.1",
    )
    monkeypatch.setattr(device_stages, "find_spec", lambda _: None)
    without = outcome(device_stages.prove_triton, gpu("9.0"))
    assert (without.status, without.reason) == (StageStatus.SKIPPED, "Triton is not installed")


def test_a_mock_library_fails(monkeypatch):
    import bitsandbytes.cextension as extension

    class MockBNBNativeLibrary:
        pass

    monkeypatch.setattr(extension, "lib", MockBNBNativeLibrary())
    result = outcome(device_stages.prove_bitsandbytes_native, CPU)
    assert result.status is StageStatus.FAILED and "library is MockBNBNativeLibrary" in result.reason


def test_a_broken_quantization_fails(monkeypatch):
    import bitsandbytes.functional as functional

    right = functional.dequantize_4bit
    monkeypatch.setattr(functional, "dequantize_4bit", lambda packed, state: right(packed, state) * 1.5)
    assert "round_trip_error" in outcome(device_stages.prove_bitsandbytes_native, CPU).reason


@pytest.mark.full
def test_every_cache_gives_the_same_tokens(healthy):
    result = outcome(proof_models.prove_inference, healthy)
    assert result.status is StageStatus.PASSED, result.reason
