"""The user's own model in the proof, and the model whose memory is compared with the estimate, on the CPU."""

from dataclasses import replace

import pytest

from devkit.workload.proof import run_stages
from devkit.workload.proof.models import ProofModels
from devkit.workload.proof.stages import StageStatus, run_stage
from tests.workload.finetune.run_factory import write_base

pytestmark = [pytest.mark.workload, pytest.mark.filterwarnings("ignore")]


def with_model(proof, folder, model):
    return ProofModels(replace(proof.settings, model=str(model)), proof.device, folder)


def outcome(stage, proof):
    return run_stage(stage.__name__, lambda: stage(proof))[0]


def test_a_model_that_was_named_learns_and_answers(healthy, tmp_path):
    result = outcome(run_stages.prove_own_model, with_model(healthy, tmp_path / "own", write_base(tmp_path / "base")))
    assert result.status is StageStatus.PASSED, result.reason
    assert len(result.series["losses"]) == run_stages.OWN_MODEL_STEPS
    assert result.measured["last_loss"] < result.measured["first_loss"]
    assert result.measured["loss_with_adapter"] < result.measured["loss_without_adapter"]


def test_preferences_are_learned_where_trl_is_installed(healthy):
    result = outcome(run_stages.prove_preferences, healthy)
    assert result.status is StageStatus.PASSED, result.reason
    assert result.measured["margin"] > 0.5


def test_without_a_name_it_is_skipped(healthy):
    assert outcome(run_stages.prove_own_model, healthy).status is StageStatus.SKIPPED


@pytest.mark.full
def test_a_model_that_does_not_learn_fails(healthy, tmp_path, monkeypatch):
    monkeypatch.setattr(run_stages, "LEARNING_RATE", 1e-9)
    result = outcome(run_stages.prove_own_model, with_model(healthy, tmp_path / "own", write_base(tmp_path / "base")))
    assert result.status is StageStatus.FAILED and "last_loss is " in result.reason


@pytest.mark.parametrize(
    ("peak", "holds"), [(1_050_000_000, True), (2_100_000_000, False), (450_000_000, False)], ids=str
)
def test_a_peak_far_from_the_estimate_fails(tmp_path, peak, holds):
    measured = {"allocated_peak_bytes": peak, "reserved_peak_bytes": peak}
    record = {"measured": measured, "estimated": {"allocated_peak_bytes": 1_000_000_000}}
    readings = [*run_stages._compare_memory(run_stages.FinishedRun([], record, tmp_path))]
    assert readings[0].is_as_expected is holds
    assert readings[0].expected == "5e+08 to 2e+09; estimate 1000000000"
