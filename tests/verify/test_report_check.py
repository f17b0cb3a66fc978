"""A report that another machine can check: it agrees with itself, and any change to it shows."""

import copy
import json

import pytest

from devkit import __version__
from devkit.verify.report import HASH_FIELD, ProofLocation, VerificationReport, add_hash, hash_document
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

PASSED, FAILED, SKIPPED = StageStatus
LOSSES = [7.22, 0.5, 0.004]


def stage_of(name):
    match name:
        case "lora-memorises":
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
            continue  # these no longer read as a report when they are misspelt, which is refused before
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
            set_reading("lora-memorises", "last_loss", 0.5), "lora-memorises", id="a loss too large for a pass"
        ),
        pytest.param(set_reading("lora-memorises", "last_loss", 0.001), "lora-memorises", id="a better last loss"),
        pytest.param(set_reading("lora-memorises", "first_loss", 9.0), "lora-memorises", id="another first loss"),
        pytest.param(set_reading("lora-memorises", "steps", 80), "lora-memorises", id="more steps than losses"),
        pytest.param(set_reading("lora-memorises", "generated", "b"), "lora-memorises", id="another text"),
        pytest.param(set_reading("lora-memorises", "base_says_it_too", True), "lora-memorises", id="no control"),
        pytest.param(
            set_stage("lora-memorises", series={"losses": [7.22, 0.004]}), "lora-memorises", id="a loss left out"
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
