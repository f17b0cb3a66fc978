"""The document devkit.verify/1: its verdict, its last line, and that another machine can check it."""

import copy
import json

import pytest

from devkit.release import __version__
from devkit.verify.report import (
    HASH_FIELD,
    ProofLocation,
    ProofVerdict,
    VerificationReport,
    add_hash,
    format_proof_report,
    hash_document,
)
from devkit.verify.report_check import (
    PointStatus,
    build_check_document,
    check_report,
    compare_losses,
    format_report_check,
    meets_expectation,
    summarize_points,
)
from devkit.workload.proof.stages import Depth, StageResult, StageStatus, select_stages

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


@pytest.mark.parametrize(
    ("stages", "verdict", "conclusion"),
    [
        pytest.param(
            (LORA, QLORA),
            ProofVerdict.PASSED,
            "proved on cpu: LoRA fine-tuning memorizes a sentence and QLoRA on a 4-bit base memorizes a sentence",
            id="all passed",
        ),
        pytest.param(
            (LORA, NO_QLORA),
            ProofVerdict.PASSED,
            "proved on cpu: LoRA fine-tuning memorizes a sentence"
            " (not proved: qlora-memorizes; bitsandbytes is not installed)",
            id="what was skipped is said",
        ),
        pytest.param(
            (LORA, BROKEN),
            ProofVerdict.FAILED,
            "not proved: 1 of 2 stages failed (kernel); still proved on cpu: LoRA fine-tuning memorizes a sentence",
            id="one failed",
        ),
        pytest.param(
            (NO_QLORA,), ProofVerdict.FAILED, "not proved: 0 of 1 stage failed (none ran)", id="nothing was shown"
        ),
        pytest.param((), ProofVerdict.FAILED, "not proved: 0 of 0 stages failed (none ran)", id="no stage at all"),
    ],
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


@pytest.mark.parametrize(
    "document",
    [
        pytest.param({}, id="empty"),
        pytest.param([], id="a list"),
        pytest.param({"schema": "devkit.verify/2"}, id="another version"),
        pytest.param({"schema": "devkit.verify/1", "where": "here"}, id="fields missing"),
        pytest.param(
            {"schema": "devkit.verify/1", "where": "moon", "device": {}, "environment": {}, "stages": []}, id="no place"
        ),
        pytest.param(
            {"schema": "devkit.verify/1", "where": "here", "device": {}, "environment": {}, "stages": [{"name": "a"}]},
            id="half a stage",
        ),
    ],
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


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        pytest.param(
            "proxy http://dev:s3cret@10.0.0.1:3128", "proxy http://***@10.0.0.1:3128", id="a proxy's password"
        ),
        pytest.param("token hf_abcdefghijkl", "token ***", id="a hub token"),
        pytest.param("see https://example.org/a@b", "see https://example.org/a@b", id="an address without a password"),
    ],
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


# A report that another machine can check: it agrees with itself, and any change to it shows.


LOSSES = [7.22, 0.5, 0.004]


def stage_of(name):
    match name:
        case "lora-memorizes":
            measured = {"steps": 3, "first_loss": 7.22, "last_loss": 0.004, "generated": "a", "base_says_it_too": False}
            expected = {"last_loss": "<= 0.01", "generated": "a", "base_says_it_too": "False"}
            return StageResult(name, PASSED, measured, expected, ms=812.3, series={"losses": LOSSES}, budget_s=2.0)
        case "compute-rate":
            return StageResult(name, PASSED, {"bf16_tflops": 700.0}, {"bf16_tflops": "396 to 1290; data sheet 989.4"})
        case "link-rate" | "own-model" | "own-job":
            return StageResult(name, SKIPPED, reason="there is no link between the host and the CPU")
        case _:
            return StageResult(name, PASSED, ms=1.5)


def report_document(where=ProofLocation.HERE):
    stages = tuple(stage_of(stage.name) for stage in select_stages(Depth.QUICK))
    environment = {"devkit": __version__, "torch": "2.13.0", "image_id": "sha256:0123"}
    inputs = {"depth": "quick", "seed": 20250601}
    report = VerificationReport(
        where, {"kind": "cpu", "name": "EPYC"}, environment, stages, (), inputs, "2026-11-21T18:00:00+00:00"
    )
    return json.loads(json.dumps(report.to_document()))


def stage_in(document, name):
    return next(stage for stage in document["stages"] if stage["name"] == name)


def wrong(document):
    return {point.name for point in check_report(document) if point.status is PointStatus.DIFFERS}


def test_an_unchanged_report_agrees_and_lists_what_cannot_be_checked():
    points = check_report(report_document())
    assert summarize_points(points) is PointStatus.AGREES
    assert [point.name for point in points if point.status is PointStatus.NOT_CHECKED] == ["device"]
    assert format_report_check(points).splitlines()[-1] == "the report agrees; not checked: device"
    assert build_check_document(points)["verdict"] == "agrees"


def test_a_report_from_a_container_agrees_with_the_hosts_stages_in_front():
    report = VerificationReport.from_document(report_document())
    moved = report.with_host_environment(
        {"engine": "docker"}, (StageResult("build", PASSED), StageResult("start", PASSED))
    )
    assert summarize_points(check_report(moved.to_document())) is PointStatus.AGREES


def every_path(value, path=()):
    """Each place in a document that holds a plain value."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield from every_path(each, (*path, name))
    elif isinstance(value, list) and value:
        for index, each in enumerate(value):
            yield from every_path(each, (*path, index))
    else:
        yield path


def changed(value):
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return f"{value}x"
        case _:
            return "x"


def test_every_field_of_the_report_is_under_its_hash():
    document = report_document()
    for path in every_path(document):
        if path in [("schema",), ("where",)] or path[-1] == "status":
            continue  # these no longer read as a report when they are misspelled, which is refused before
        forged = copy.deepcopy(document)
        inner = forged
        for step in path[:-1]:
            inner = inner[step]
        inner[path[-1]] = changed(inner[path[-1]])
        assert "hash" in wrong(forged), path


def forge(change):
    """A report changed by somebody who also wrote a new hash."""
    document = report_document()
    change(document)
    document[HASH_FIELD] = hash_document(document)
    return document


def set_stage(name, **fields):
    return lambda document: stage_in(document, name).update(fields)


def set_reading(name, reading, value):
    return lambda document: stage_in(document, name)["measured"].update({reading: value})


@pytest.mark.parametrize(
    ("change", "point"),
    [
        pytest.param(lambda d: d.update(verdict="failed"), "verdict", id="another verdict"),
        pytest.param(lambda d: d.update(conclusion="all is proved"), "conclusion", id="another conclusion"),
        pytest.param(
            set_reading("lora-memorizes", "last_loss", 0.5), "lora-memorizes", id="a loss too large for a pass"
        ),
        pytest.param(set_reading("lora-memorizes", "last_loss", 0.001), "lora-memorizes", id="a better last loss"),
        pytest.param(set_reading("lora-memorizes", "first_loss", 9.0), "lora-memorizes", id="another first loss"),
        pytest.param(set_reading("lora-memorizes", "steps", 80), "lora-memorizes", id="more steps than losses"),
        pytest.param(set_reading("lora-memorizes", "generated", "b"), "lora-memorizes", id="another text"),
        pytest.param(set_reading("lora-memorizes", "base_says_it_too", True), "lora-memorizes", id="no control"),
        pytest.param(
            set_stage("lora-memorizes", series={"losses": [7.22, 0.004]}), "lora-memorizes", id="a loss left out"
        ),
        pytest.param(set_reading("compute-rate", "bf16_tflops", 100.0), "compute-rate", id="a slow GPU called fine"),
        pytest.param(set_reading("compute-rate", "bf16_tflops", 2000.0), "compute-rate", id="faster than possible"),
        pytest.param(set_stage("kernel", status="failed"), "kernel", id="failed, and nothing wrong in it"),
        pytest.param(set_stage("kernel", status="skipped"), "kernel", id="skipped without a reason"),
        pytest.param(lambda d: d["stages"].pop(3), "stages", id="a stage left out"),
        pytest.param(lambda d: d["stages"].reverse(), "stages", id="stages in another order"),
        pytest.param(lambda d: d["inputs"].update(depth="standard"), "stages", id="called a deeper proof"),
    ],
)
def test_a_contradiction_shows_even_under_a_new_hash(change, point):
    document = forge(change)
    assert "hash" not in wrong(document)
    assert point in wrong(document)


def test_points_that_cannot_be_checked_are_not_called_right():
    document = report_document()
    del document[HASH_FIELD]
    document["environment"]["devkit"] = "0.0.9"
    document["inputs"] = {}
    points = {point.name: point.status for point in check_report(document)}
    assert points["hash"] is points["stages"] is points["device"] is PointStatus.NOT_CHECKED


def test_the_stages_of_another_devkit_are_not_judged():
    document = forge(lambda d: (d["environment"].update(devkit="9.0"), d["stages"].pop(3)))
    points = {point.name: point for point in check_report(document)}
    assert points["stages"].status is PointStatus.NOT_CHECKED and "9.0" in points["stages"].says


def test_a_removed_hash_is_a_difference_if_this_devkit_wrote_the_report():
    document = report_document()
    del document[HASH_FIELD]
    assert wrong(document) == {"hash"}


def test_the_hash_does_not_depend_on_the_order_or_layout_of_the_file():
    document = report_document()
    turned = dict(reversed(document.items()))
    assert hash_document(turned) == document[HASH_FIELD] == add_hash(document)[HASH_FIELD]


@pytest.mark.parametrize(
    ("measured", "expected", "is_so"),
    [
        (0.01, "<= 0.01", True),
        (0.0101, "<= 0.01", False),
        ("nan", "<= 0.01", False),
        (1, "> 0", True),
        (0, "> 0", False),
        (28, "not 0", True),
        (0, "not 0", False),
        (True, "True", True),
        (False, "True", False),
        (14, "14", True),
        (700.0, "396 to 1290; data sheet 989.4", True),
        (300.0, "396 to 1290; data sheet 989.4", False),
        (1.0, "23.3 to 75.8; data sheet 58.3, not judged: the row is inferred", None),
        ("sm_90", "runs code for sm_80 sm_90", None),
        ("text with <= 3", "text with <= 3", True),
    ],
)
def test_meets_expectation(measured, expected, is_so):
    assert meets_expectation(measured, expected) is is_so


def reference(losses, digest="aa"):
    return StageResult("reference", PASSED, {"adapter_sha256": digest}, series={"losses": losses})


@pytest.mark.parametrize(
    ("here", "other", "answers"),
    [
        pytest.param(reference(LOSSES), (), {"repeated": "agrees", "adapter": "agrees"}, id="equal to the bit"),
        pytest.param(
            reference(LOSSES, "bb"), (), {"repeated": "agrees", "adapter": "differs"}, id="a forged hash of the adapter"
        ),
        pytest.param(reference([7.2200001, 0.5, 0.004]), (), {"repeated": "agrees"}, id="within rounding"),
        pytest.param(reference([7.22, 0.6, 0.004]), (), {"repeated": "differs"}, id="a forged loss"),
        pytest.param(reference(LOSSES[:2]), (), {"repeated": "differs"}, id="a loss left out"),
        pytest.param(
            reference([7.22, 0.6, 0.004]), ("torch 2.12 there",), {"repeated": "not-checked"}, id="another torch"
        ),
    ],
)
def test_compare_losses(here, other, answers):
    points = compare_losses(reference(LOSSES), here, other)
    assert {point.name: point.status.value for point in points} == answers
