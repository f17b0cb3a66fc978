"""What a proof and a training run left behind, judged."""

import pytest

from devkit.doctor.model import Confidence, Passed, Severity, Skipped
from devkit.doctor.registry import BY_CODE
from devkit.doctor.verify_stages import find_check_for_stage, load_stage_rows
from devkit.facts.model import ProofReading, ProofStage, TrainingRun, Verification, WatchedGpu
from devkit.facts.values import Unknown
from devkit.workload.proof.stages import GPU_STAGES, PROJECT_STAGES, STAGES, STANDALONE_STAGES
from tests.doctor.judging import list_codes, list_wrong
from tests.doctor.machines import GIB, changed, inside
from tests.doctor.running import find_codes, find_only, run_check

BY_THE_HOST = ("build", "start", "proof")
OF_THE_PROJECT = ("open", *(each.name for each in (*GPU_STAGES, *PROJECT_STAGES)))
NOBODY_KNOWS = "Zorp: flurb"


def stage(name, reason="", status="failed", wrong=()):
    return ProofStage(name, status, reason, wrong)


def report(*stages, log=()):
    verdict = "failed" if any(each.status == "failed" for each in stages) else "passed"
    return Verification(verdict, "here", "NVIDIA H200", "2026-11-21T18:00:00+00:00", stages, log)


def proved(*stages, log=()):
    return changed(inside(), {"verification": report(*stages, log=log)})


def test_a_proof_that_passed_passes():
    passed, skipped = stage("kernel", status="passed"), stage("nccl", "one GPU", "skipped")
    assert run_check("PYT021", proved(passed, skipped)) == Passed()


def test_without_a_report_there_is_nothing_to_judge():
    assert isinstance(run_check("PYT021", inside()), Skipped)


def test_every_stage_of_the_proof_has_a_check_that_is_likely_behind_it():
    for name in (*(each.name for each in (*STAGES, *STANDALONE_STAGES)), *BY_THE_HOST):
        cause = find_check_for_stage(stage(name, NOBODY_KNOWS), report())
        assert cause.code in BY_CODE, name
        assert cause.confidence is Confidence.POSSIBLE, name


def test_the_table_names_checks_and_stages_that_exist():
    known = {"", *(each.name for each in (*STAGES, *STANDALONE_STAGES)), *BY_THE_HOST, *OF_THE_PROJECT}
    for row in load_stage_rows():
        assert row.stage in known
        assert row.code in BY_CODE or row.code == ""


@pytest.mark.parametrize(
    ("name", "reason", "code"),
    [
        ("torch", "OSError: libcudnn.so.9: cannot open shared object file: No such file or directory", "PYT"),
        ("torch-build", "driver_library is absent, expected loads, as a GPU is here", "CON005"),
        ("torch-build", "cu_init is 999, expected 0", "CUD011"),
        ("torch-build", "gpus_seen_by_torch is 0, expected 1", "PYT001"),
        ("torch-build", "gpu_0_target is sm_120, expected runs code for sm_80 sm_90", "PYT002"),
        ("kernel", "RuntimeError: CUDA error: no kernel image is available for execution on the device", "PYT002"),
        ("kernel", "matmul_bf16_error is 0.5, expected <= 0.02", "GPU009"),
        ("compute-rate", "bf16_tflops is 170.0, expected 396 to 1.29e+03; data sheet 989.4", "GPU016"),
        ("link-rate", "to_gpu_gb_per_s is 0.8, expected 3.94 to 81.9; data sheet 63", "GPU015"),
        ("bitsandbytes-native", "library is ErrorHandlerMockBNBNativeLibrary, expected bitsandbytes' own", "PYT018"),
        ("lora-memorizes", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "MEM004"),
        ("lora-memorizes", "the process was ended by SIGKILL, most often because memory ran out", "MEM002"),
        ("resume", "OSError: [Errno 28] No space left on device", "STO002"),
        ("triton", "RuntimeError: Failed to find C compiler. Please specify via CC", "CON004"),
        ("nccl", "bus_gb_per_s is 0.4, expected > 1", "NET001"),
    ],
)
def test_the_words_of_a_reason_name_the_check_behind_it(name, reason, code):
    finding = find_only("PYT021", proved(stage(name, reason)))
    assert finding.severity is Severity.ERROR
    assert f"(see {code}" in finding.message
    assert finding.confidence is not Confidence.POSSIBLE
    assert reason[:60] in " ".join(finding.evidence)


def test_a_stage_that_nobody_knows_says_so():
    finding = find_only("PYT021", proved(stage("teleport", NOBODY_KNOWS)))
    assert "devkit does not know why this stage failed" in finding.message
    assert "devkit explain -" in " ".join(finding.fix.commands)


def test_the_log_of_a_crash_is_read_where_the_reason_says_nothing():
    log = ("libcudnn", "RuntimeError: CUDA error: no kernel image is available for execution on the device")
    crash = stage("reference", "the process was ended by SIGABRT")
    assert find_check_for_stage(crash, report(crash, log=log)).code == "PYT002"


def test_a_rate_below_an_inferred_row_warns_and_is_no_problem():
    slow = (ProofReading("fp16_tflops", "10.0", "23.3 to 75.8; data sheet 58.3, not judged: the row is inferred"),)
    finding = find_only("PYT021", proved(stage("compute-rate", status="passed", wrong=slow)))
    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.POSSIBLE)
    assert "(see GPU016)" in finding.message


def test_what_was_measured_is_the_evidence():
    wrong = (ProofReading("to_gpu_gb_per_s", "0.8", "3.94 to 81.9; data sheet 63"),)
    finding = find_only("PYT021", proved(stage("link-rate", "to_gpu_gb_per_s is 0.8, expected 3.94", wrong=wrong)))
    assert finding.evidence[0] == "to_gpu_gb_per_s: 0.8, expected 3.94 to 81.9; data sheet 63"


UNREAD = Unknown("NVML does not tell")
GPU = WatchedGpu("NVIDIA H200", 600, 93, 141 * GIB, 0, 0)


def trained(*, gpu=None, **fields):
    values = {
        "steps": 500,
        "step_ms": 400,
        "waiting_percent": 1,
        "checkpointing": False,
        "attention": "varlen",
        "on_cuda": True,
        "peak_bytes": 100 * GIB,
        "gpus": (changed(GPU, gpu or {}),),
    }
    return changed(inside(), {"training": TrainingRun(**values | fields)})


WATCHING = ("GPU028", "STO006", "MEM005", "PYT022", "GPU029")
ON_CPU = trained(on_cuda=False, gpus=UNREAD, waiting_percent=50)

CASES = [
    *((code, trained(), "passed", "a run that keeps its GPU busy") for code in WATCHING),
    *((code, ON_CPU, "skipped", "a run on the CPU") for code in WATCHING),
    *((code, inside(), "skipped", "no run at all") for code in WATCHING),
    ("GPU029", trained(gpu={"utilization_percent": 79}), "note: 79", "busy in 79 %"),
    ("GPU029", trained(gpu={"utilization_percent": 80}), "passed", "busy in 80 %"),
    ("GPU029", trained(gpu={"samples": 9, "utilization_percent": 5}), "skipped", "sampled a few times"),
    ("STO006", trained(waiting_percent=10), "warning: 10", "a tenth of the time spent waiting"),
    ("STO006", trained(waiting_percent=9), "passed", "less than a tenth"),
    ("MEM005", trained(checkpointing=True, peak_bytes=70 * GIB), "note: 70", "half of the memory unused"),
    ("MEM005", trained(checkpointing=True, peak_bytes=71 * GIB), "passed", "more than half of the memory"),
    ("MEM005", trained(checkpointing=False, peak_bytes=1 * GIB), "passed", "no checkpointing"),
    ("PYT022", trained(attention="eager"), "warning: eager", "eager attention"),
    ("GPU028", trained(gpu={"hot_percent": 10}), "warning: 10", "hot in a tenth of the run"),
    ("GPU028", trained(gpu={"hot_percent": 9}), "passed", "hot for a moment"),
    ("GPU028", trained(gpu={"hot_percent": UNREAD}), "passed", "clocks that nobody tells"),
    ("GPU028", trained(gpu={"braked_percent": 100}), "warning", "the power brake"),
    ("PYT023", trained(status="lost"), "warning", "a killed run"),
    ("PYT023", trained(status="failed", error="disk full"), "warning: disk full", "a failed run"),
    ("PYT023", trained(status="running"), "passed", "a run that goes on"),
    ("PYT023", trained(status="preempted"), "passed", "a run that was told to stop"),
]


@pytest.mark.parametrize("code", list_codes(CASES))
def test_the_verdict_on_each_run(code):
    assert list_wrong(code, CASES) == []


def test_a_gpu_that_waits_for_data_is_one_problem_and_not_two():
    found_codes = find_codes(trained(waiting_percent=40, gpu={"utilization_percent": 50}))
    assert "STO006" in found_codes and "GPU029" not in found_codes
