"""The closed form against what GPUs showed: like with like, on every published run that counts."""

import re
from statistics import mean, median

import pytest

from benchmarks.measured_runs import load_measured_runs
from devkit.estimate.config import build_model_shape
from devkit.estimate.settings import InferenceSettings, Objective, TrainingSettings
from devkit.estimate.shape import find_model
from devkit.estimate.training import estimate_training

RUNS = load_measured_runs()
COUNTED = [run for run in RUNS if run.is_counted]
GOAL = 0.06


def estimated(run):
    return estimate_training(build_model_shape(find_model(run.model).config), run.settings)


def list_errors(objective):
    rows = [run for run in COUNTED if run.allocated_bytes and run.settings.objective is objective]
    return [abs(estimated(run).allocated_peak_bytes / run.allocated_bytes - 1) for run in rows]


def test_the_mean_error_of_allocated_memory_is_within_the_goal():
    errors = list_errors(Objective.SFT)
    assert len(errors) > 80
    assert mean(errors) <= GOAL


@pytest.mark.parametrize("objective", [each for each in Objective if each is not Objective.SFT])
def test_an_estimate_says_how_far_it_was_off_measured_runs(objective):
    errors = list_errors(objective)
    said = estimate_training(
        build_model_shape(find_model("llama-3.1-8b").config), TrainingSettings(objective=objective)
    )
    (warning,) = (each for each in said.warnings if "compared" in each)
    if not errors:
        assert "has not been compared" in warning
        return
    assert mean(errors) <= GOAL
    assert f"with {len(errors)} published runs" in warning
    told = [float(number) for number in re.findall(r"([\d.]+)%", warning)]
    assert told[0] == pytest.approx(100 * median(errors), abs=0.05)
    assert told[-1] == pytest.approx(100 * max(errors), abs=0.5)


@pytest.mark.parametrize("run", [run for run in COUNTED if run.reserved_bytes], ids=lambda run: run.id)
def test_no_run_reserved_more_than_the_upper_bound(run):
    assert run.reserved_bytes <= estimated(run).reserved_peak_bytes.upper


def test_weights_and_optimizer_state_are_what_was_found_on_the_gpu():
    rows = [run for run in COUNTED if run.weights_bytes]
    assert len(rows) > 50
    for run in rows:
        terms = {term.name: term.bytes for term in estimated(run).terms}
        weights = terms.get("weights", 0) + sum(
            terms.get(name, 0) for name in ("packed weights", "unquantized weights", "quantization scales", "adapters")
        )
        assert weights == pytest.approx(run.weights_bytes, rel=0.001), run.id
        assert terms["optimizer state"] == pytest.approx(run.optimizer_bytes, rel=0.001), run.id


def test_every_run_has_an_id_of_its_own_and_a_source():
    assert len({run.id for run in RUNS}) == len(RUNS)
    assert all(run.group.source and run.group.source[0].startswith("https://") for run in RUNS)


def test_runs_of_the_best_grades_count_unless_a_reason_is_given():
    assert {run.group.grade for run in COUNTED} == {"A", "A+"}
    assert all(len(run.excluded) > 20 for run in RUNS if not run.is_counted)


def test_no_run_reserved_less_than_it_allocated():
    both = [run for run in RUNS if run.allocated_bytes and run.reserved_bytes]
    assert all(run.reserved_bytes >= run.allocated_bytes for run in both)


def test_a_run_has_its_own_settings_over_its_groups():
    ladder = next(run for run in RUNS if run.id == "t4-ladder-11")
    assert isinstance(ladder.settings, TrainingSettings)
    assert (ladder.settings.micro_batch, ladder.settings.sequence) == (12, 1024)
    assert ladder.settings.keeps_outputs
    generated = next(run for run in RUNS if run.id == "litgpt-generate-01")
    assert isinstance(generated.settings, InferenceSettings)
