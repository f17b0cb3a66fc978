"""The document devkit.verify/1: its verdict and its last line."""

import json

import pytest

from devkit.doctor.registry import BY_CODE
from devkit.verify.report import (
    ProofLocation,
    ProofVerdict,
    VerificationReport,
    format_proof_report,
    load_rows,
)
from devkit.workload.proof.stages import STAGES, StageResult, StageStatus
from tests.cases import cases

# The document devkit.verify/1, its verdict and its last line.


PASSED, FAILED, SKIPPED = StageStatus


def report(*stages, where=ProofLocation.HERE, log=()):
    return VerificationReport(where, {"kind": "cpu", "name": "EPYC"}, {"torch": "2.13.0"}, stages, log)


LORA = StageResult("lora-memorizes", PASSED, {"last_loss": 0.00025}, {"last_loss": "<= 0.01"}, ms=812.3)
QLORA = StageResult("qlora-memorizes", PASSED)
NO_QLORA = StageResult("qlora-memorizes", SKIPPED, reason="bitsandbytes is not installed")
BROKEN = StageResult(
    "kernel", FAILED, {"error": 0.5, "generated": "x" * 200}, {"error": "<= 0.1"}, "error is 0.5, expected <= 0.1"
)


@cases(
    "stages, verdict, conclusion",
    {
        "all passed": (
            (LORA, QLORA),
            ProofVerdict.PASSED,
            "proved on cpu: LoRA fine-tuning memorizes a sentence and QLoRA on a 4-bit base memorizes a sentence",
        ),
        "what was skipped is said": (
            (LORA, NO_QLORA),
            ProofVerdict.PASSED,
            "proved on cpu: LoRA fine-tuning memorizes a sentence"
            " (not proved: qlora-memorizes; bitsandbytes is not installed)",
        ),
        "one failed": (
            (LORA, BROKEN),
            ProofVerdict.FAILED,
            "not proved: 1 of 2 stages failed (kernel); still proved on cpu: LoRA fine-tuning memorizes a sentence",
        ),
        "nothing was shown": ((NO_QLORA,), ProofVerdict.FAILED, "not proved: 0 of 1 stage failed (none ran)"),
        "no stage at all": ((), ProofVerdict.FAILED, "not proved: 0 of 0 stages failed (none ran)"),
    },
)
def test_verdict_and_conclusion(stages, verdict, conclusion):
    assert (report(*stages).verdict, report(*stages).conclusion) == (verdict, conclusion)


def test_the_document_has_the_fields_of_the_contract():
    document = report(LORA, BROKEN, log=("last words",)).to_document()
    assert document["schema"] == "devkit.verify/1"
    assert {"verdict", "where", "device", "environment", "stages"} <= set(document)
    fields = {"name", "status", "measured", "expected", "reason", "ms", "series", "budget_s"}
    assert set(document["stages"][0]) == fields
    assert document["stages"][0]["ms"] == 812.3


def test_a_report_round_trips_through_its_document():
    original = report(LORA, BROKEN, where=ProofLocation.CONTAINER, log=("last words",))
    assert VerificationReport.from_document(json.loads(json.dumps(original.to_document()))) == original


@cases(
    "document",
    {
        "empty": {},
        "a list": [],
        "another version": {"schema": "devkit.verify/2"},
        "fields missing": {"schema": "devkit.verify/1", "where": "here"},
        "no place": {"schema": "devkit.verify/1", "where": "moon", "device": {}, "environment": {}, "stages": []},
        "half a stage": {
            "schema": "devkit.verify/1",
            "where": "here",
            "device": {},
            "environment": {},
            "stages": [{"name": "a"}],
        },
    },
)
def test_other_documents_are_refused(document):
    with pytest.raises(ValueError, match=r"devkit\.verify/1|moon"):
        VerificationReport.from_document(document)


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_text_keeps_to_the_width_and_ends_with_one_plain_line(width):
    text = format_proof_report(report(LORA, BROKEN, NO_QLORA), width=width)
    *lines, last = text.splitlines()
    assert last.startswith("not proved: 1 of 3 stages failed (kernel)")
    assert [line for line in lines if len(line) > max(width, 50)] == []
    assert "last loss 0.00025 (expected <= 0.01)" in " ".join(text.split())
    assert "bitsandbytes is not installed" in " ".join(text.split())


def test_the_text_shows_no_control_characters_of_what_was_generated():
    stage = StageResult("lora-memorizes", FAILED, {"generated": "\x1b[31mred\x00\ufffd"}, {"generated": "a"}, "no")
    assert "\x1b" not in format_proof_report(report(stage), width=80)
    assert "\x00" not in format_proof_report(report(stage), width=80)


def test_the_last_output_of_a_crash_is_shown():
    assert "  Segmentation fault" in format_proof_report(report(BROKEN, log=("Segmentation fault",)), width=80)


@cases(
    "line, shown",
    {
        "a proxy's password": ("proxy http://dev:s3cret@10.0.0.1:3128", "proxy http://10.0.0.1:3128"),
        "a hub token": ("token hf_abcdefghijkl", "token redacted"),
        "an address without a password": ("see https://example.org/a@b", "see https://example.org/a@b"),
    },
)
def test_secrets_reach_neither_document_nor_text(line, shown):
    found = report(StageResult("build", FAILED, reason=line), log=(line,))
    document = found.to_document()
    assert (document["log"], document["stages"][0]["reason"]) == ([shown], shown)
    assert line == shown or line not in format_proof_report(found, width=100)


@pytest.mark.parametrize(("kind", "said"), [("cuda", "4.5 s, of 2.0 s"), ("cpu", "4.5 s")])
def test_a_stage_that_took_longer_than_its_budget_says_so_on_a_gpu(kind, said):
    slow = StageResult("lora-memorizes", PASSED, ms=4500.0, budget_s=2.0)
    text = format_proof_report(VerificationReport(ProofLocation.HERE, {"kind": kind}, {}, (slow,)), width=80)
    assert next(line for line in text.splitlines() if line.startswith("lora-memorizes")).endswith(f"passed  {said}")


# The cause of a failed stage.


def test_the_table_of_causes_names_checks_and_stages_that_exist():
    known = {"", *(each.name for each in STAGES)}
    assert [row for row in load_rows() if row.code not in BY_CODE or row.stage not in known] == []


NO_KERNEL = "RuntimeError: CUDA error: no kernel image is available for execution on the device"


@pytest.mark.parametrize(
    ("name", "reason", "code"),
    [
        ("torch-build", "driver_library is absent, expected can be loaded, because the machine has a GPU", "CON005"),
        ("torch-build", "cu_init is 999, expected 0", "CUD011"),
        ("torch-build", "gpus_seen_by_torch is 0, expected 1", "PYT001"),
        ("torch-build", "gpu_0_target is sm_120, expected runs code for sm_80 sm_90", "PYT002"),
        ("kernel", NO_KERNEL, "PYT002"),
        ("kernel", "matmul_bf16_error is 0.5, expected <= 0.02", "GPU009"),
        ("compute-rate", "bf16_tflops is 170.0, expected 396 to 1.29e+03; data sheet 989.4", "GPU016"),
        ("link-rate", "to_gpu_gb_per_s is 0.8, expected 3.94 to 81.9; data sheet 63", "GPU015"),
        ("bitsandbytes-native", "library is ErrorHandlerMockBNBNativeLibrary, expected bitsandbytes' own", "PYT018"),
        ("lora-memorizes", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "MEM004"),
        ("lora-memorizes", "the process was ended by SIGKILL, usually because memory ran out", "MEM002"),
        ("resume", "OSError: [Errno 28] No space left on device", "STO002"),
        ("triton", "RuntimeError: Failed to find C compiler. Please specify via CC", "CON004"),
        ("nccl", "bus_gb_per_s is 0.4, expected > 1", "NET001"),
    ],
)
def test_a_failed_stage_shows_the_check_that_explains_it(name, reason, code):
    text = format_proof_report(report(StageResult(name, FAILED, reason=reason)), width=200)
    assert f"What to do:\n      devkit explain {code}\n" in text


def test_the_log_of_a_crash_is_read_where_the_reason_says_nothing():
    crash = StageResult("reference", FAILED, reason="the process was ended by SIGABRT")
    crashed = VerificationReport(ProofLocation.HERE, {}, {}, (crash,), log=("libcudnn", NO_KERNEL))
    assert "without kernels for this GPU" in crashed.find_cause(crash).summary


def test_a_known_error_shows_its_fix():
    stage = StageResult("torch", FAILED, reason="ImportError: libstdc++.so.6: cannot open shared object file")
    text = format_proof_report(report(stage), width=200)
    assert "Likely: libstdc++.so.6 is a distribution library" in text
    assert "apt-get install" in text.partition("What to do:")[2]


@pytest.mark.parametrize("stage", [StageResult("kernel", FAILED, reason="Zorp: flurb"), LORA])
def test_a_cause_that_is_unknown_is_not_guessed(stage):
    assert "Likely:" not in format_proof_report(report(stage), width=200)
