"""What must be the same for a run to be gone on with, and what may change."""

import json
from dataclasses import fields, replace
from pathlib import Path

import pytest

pytestmark = pytest.mark.workload

from devkit.estimate.settings import Optimizer, Precision
from devkit.workload.finetune.checkpoint import find_differences, fingerprint_examples, select_resume_settings
from devkit.workload.finetune.dataset import Example
from devkit.workload.finetune.settings import FinetuneSettings

SETTINGS = FinetuneSettings(model="m", data=("d",), output=Path("o"))

MAY_CHANGE = {
    "data": ("elsewhere.jsonl",),
    "output": Path("moved"),
    "micro_batch": 1,
    "checkpointing": True,
    "compile": True,
    "save_every": 7,
    "keep": 5,
    "resume": False,
}
MUST_STAY = {
    "rank": 8,
    "alpha": 8,
    "dropout": 0.5,
    "targets": ("q_proj",),
    "dora": True,
    "sequence": 64,
    "batch": 3,
    "learning_rate": 1.0,
    "warmup": 0.5,
    "weight_decay": 0.5,
    "gradient_limit": 9.0,
    "seed": 1,
    "completion_only": False,
    "precision": Precision.FP16,
    "optimizer": Optimizer.ADAMW_8BIT,
}


@pytest.mark.parametrize("name", MAY_CHANGE)
def test_where_and_how_fast_a_run_computes_may_change(name):
    changed = replace(SETTINGS, **{name: MAY_CHANGE[name]})
    assert select_resume_settings(changed, {}) == select_resume_settings(SETTINGS, {})
    # Checkpoints of releases without objectives do not have it.
    assert "objective" not in select_resume_settings(changed, {})


@pytest.mark.parametrize("name", MUST_STAY)
def test_what_the_numbers_depend_on_must_stay(name):
    changed = replace(SETTINGS, **{name: MUST_STAY[name]})
    told = find_differences(select_resume_settings(SETTINGS, {}), select_resume_settings(changed, {}))
    assert len(told) == 1
    assert told[0].startswith(f"{name} was ")


def test_what_counts_comes_back_from_json_as_it_was():
    counted = select_resume_settings(SETTINGS, {"learning_rate": 1 / 3, "steps": 9})
    assert json.loads(json.dumps(counted)) == counted
    assert len(counted) > len(fields(FinetuneSettings)) / 2


def example(*ids, counted=True):
    return Example(list(ids), [counted] * len(ids))


@pytest.mark.parametrize(
    "other",
    [
        pytest.param([example(1, 2), example(4)], id="another token"),
        pytest.param([example(3), example(1, 2)], id="another order"),
        pytest.param([example(1, 2, 3)], id="other borders"),
        pytest.param([example(1, 2), example(3, counted=False)], id="another mask"),
        pytest.param([example(1, 2)], id="less"),
        pytest.param([], id="none"),
    ],
)
def test_other_data_have_another_fingerprint(other):
    assert fingerprint_examples(other) != fingerprint_examples([example(1, 2), example(3)])


def test_equal_data_have_the_fingerprint_that_checkpoints_of_earlier_releases_hold():
    assert fingerprint_examples([example(1, 2), example(3, counted=False)]) == "8008beb5cfde091b"
