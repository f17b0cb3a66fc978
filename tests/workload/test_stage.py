"""How a stage's readings become its result."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from devkit.workload.proof import program
from devkit.workload.proof.stages import (
    STAGES,
    Depth,
    StageReading,
    StageResult,
    StageSpec,
    StageStatus,
    expect_above,
    expect_at_most,
    expect_equal,
    run_stage,
    select_stages,
    skip_for_failed_need,
)

NAN = float("nan")


@pytest.mark.parametrize(
    ("reading", "holds"),
    [
        pytest.param(expect_at_most("error", 0.01, 0.01), True, id="exactly at the limit"),
        pytest.param(expect_at_most("error", 0.010001, 0.01), False, id="just over the limit"),
        pytest.param(expect_at_most("error", NAN, 0.01), False, id="not-a-number is not small"),
        pytest.param(expect_above("changed", 1, 0), True, id="above the limit"),
        pytest.param(expect_above("changed", 0, 0), False, id="at the limit is not above it"),
        pytest.param(expect_equal("text", "a ", "a"), False, id="a space too many"),
        pytest.param(StageReading("steps", 3), True, id="a fact cannot fail"),
    ],
)
def test_a_reading_is_as_expected(reading, holds):
    assert reading.is_as_expected is holds
    assert run_stage("any", lambda: [reading])[0].status is (StageStatus.PASSED if holds else StageStatus.FAILED)


def test_a_failed_reading_is_the_reason_and_the_others_are_kept():
    result, is_lost = run_stage(
        "kernel", lambda: [StageReading("steps", 3), expect_at_most("error", 0.5, 0.1), expect_equal("same", 1, 1)]
    )
    assert not is_lost
    assert result.reason == "error is 0.5, expected <= 0.1"
    assert result.measured == {"steps": 3, "error": 0.5, "same": 1}
    assert result.expected == {"error": "<= 0.1", "same": "1"}


def test_an_exception_fails_the_stage_and_the_readings_before_are_kept():
    def readings():
        yield StageReading("steps", 3)
        raise RuntimeError("CUDA error: no kernel image\nis available")

    result, is_lost = run_stage("kernel", readings)
    assert result.status is StageStatus.FAILED
    assert result.reason == "RuntimeError: CUDA error: no kernel image is available"
    assert result.measured == {"steps": 3}
    assert is_lost


def test_a_result_round_trips_through_json_with_non_finite_numbers():
    result, _ = run_stage("lora", lambda: [expect_at_most("loss", NAN, 0.01), StageReading("inf", float("inf"))])
    text = json.dumps(asdict(result), allow_nan=False)
    assert StageResult.from_document(json.loads(text)).measured == {"loss": "nan", "inf": "inf"}


@pytest.mark.parametrize(
    ("need", "reason"),
    [
        pytest.param(StageResult("torch", StageStatus.PASSED), None, id="a passed need lets it run"),
        pytest.param(StageResult("torch", StageStatus.FAILED), "torch did not pass", id="a failed need skips it"),
    ],
)
def test_a_stage_waits_for_what_it_needs(need, reason):
    skipped = skip_for_failed_need(StageSpec("kernel", needs=("torch",)), {"torch": need})
    assert (skipped and skipped.reason) == reason


def test_each_stage_comes_after_what_it_needs_and_has_a_function():
    seen: set[str] = set()
    for stage in STAGES:
        assert set(stage.needs) <= seen, stage.name
        seen.add(stage.name)
        if stage.name not in program.IMPORTS:
            module = next((module for module, names in program.MODULES.items() if stage.name in names), "models")
            source = (Path(program.__file__).parent / f"{module}.py").read_text()
            assert f"def prove_{stage.name.replace('-', '_')}(" in source
    assert {name for names in program.MODULES.values() for name in names} <= seen


def test_a_deeper_proof_holds_every_stage_of_a_shallower_one():
    quick, standard, full = (select_stages(depth) for depth in Depth)
    assert set(quick) < set(standard) < set(full) == set(STAGES)
    for stages in (quick, standard, full):
        names = {stage.name for stage in stages}
        assert all(set(stage.needs) <= names for stage in stages)
