"""Settings from a file and their checks. Without torch."""

from pathlib import Path

import pytest

from devkit.errors import DevkitError
from devkit.estimate.settings import Method, Objective
from devkit.facts.settings import describe_settings
from devkit.workload.finetune.settings import FinetuneSettings, read_settings_file, validate_finetune_settings


def wishes(**changed):
    return FinetuneSettings(**{"model": "m", "data": ("d.jsonl",), "output": Path("out")} | changed)


def test_every_setting_says_what_it_means():
    assert list(describe_settings(FinetuneSettings)) == list(FinetuneSettings.__dataclass_fields__)
    assert all(said.meaning.endswith(".") for _, said in describe_settings(FinetuneSettings).values())


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        pytest.param({"model": "", "data": ()}, "--model and --data are missing", id="neither model nor data"),
        pytest.param({"rank": 0}, "--rank is 0, which is below 1", id="a rank of nothing"),
        pytest.param({"dropout": 1.0}, "dropout is 1.0, which is above 0.99", id="dropout of everything"),
        pytest.param({"learning_rate": float("nan")}, "--learning-rate is nan", id="a rate that is no number"),
        pytest.param({"epochs": float("inf")}, "--epochs is inf", id="epochs without end"),
        pytest.param({"seed": 2**64}, "--seed is 18446744073709551616, which is above", id="a seed beyond torch's"),
        pytest.param({"keep": 1}, "keep is 1", id="one checkpoint is none"),
        pytest.param({"micro_batch": 32, "batch": 16}, "more than --batch 16", id="a pass larger than the batch"),
        pytest.param({"method": Method.FULL, "dora": True}, "has no adapter", id="DoRA of a whole model"),
        pytest.param({"eval_data": ("e",), "eval_share": 0.1}, "both choose", id="two things to evaluate on"),
        pytest.param({"objective": Objective.GRPO}, "belong together", id="GRPO without a reward"),
        pytest.param({"reward": "r.py:f"}, "belong together", id="a reward without GRPO"),
        pytest.param({"objective": Objective.DPO, "packing": True}, "with --packing", id="pairs that share rows"),
        pytest.param(
            {"objective": Objective.GRPO, "reward": "r.py:f", "batch": 12}, "groups of 8", id="parts of a group"
        ),
    ],
)
def test_what_no_machine_could_do_is_refused(changed, said):
    with pytest.raises(DevkitError, match=said) as refused:
        validate_finetune_settings(wishes(**changed))
    assert refused.value.hint


def written(tmp_path, text):
    path = tmp_path / "run.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_file_sets_what_it_names_and_nothing_else(tmp_path):
    text = """
model = "base"
data = ["a.jsonl", "b.jsonl"]
output = "results"
method = "qlora"
micro-batch = 4
learning_rate = 1
packing = false
targets = "q_proj"
"""
    assert read_settings_file(written(tmp_path, text)) == {
        "model": "base",
        "data": ("a.jsonl", "b.jsonl"),
        "output": Path("results"),
        "method": Method.QLORA,
        "micro_batch": 4,
        "learning_rate": 1.0,
        "packing": False,
        "targets": ("q_proj",),
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("rnak = 8", r"run\.toml:1:1: the setting 'rnak' does not exist", id="a misspelled key"),
        pytest.param("\nrank = 'eight'", r"run\.toml:2:1: rank must be a whole number, not 'eight'", id="a word"),
        pytest.param("dora = 1", "true or false", id="one for true"),
        pytest.param("method = 'lorra'", '"lora"', id="a method that does not exist"),
        pytest.param("data = []", "a list of strings", id="an empty list"),
        pytest.param("model = ''", "a string in quotes", id="an empty name"),
        pytest.param("micro_batch = 1\nmicro-batch = 2", "set twice", id="one setting under two names"),
        pytest.param("rank =", r"run\.toml:1:\d+ is not TOML", id="half a line"),
        pytest.param(b"\xff\xfe", "not UTF-8", id="another encoding"),
        pytest.param("[lora]\nrank = 8", "the setting 'lora' does not exist", id="a table"),
    ],
)
def test_a_wrong_file_is_refused_with_its_place(tmp_path, text, said):
    with pytest.raises(DevkitError, match=said) as refused:
        read_settings_file(written(tmp_path, text))
    assert refused.value.hint


def test_a_misspelled_key_names_the_nearest_one(tmp_path):
    with pytest.raises(DevkitError) as refused:
        read_settings_file(written(tmp_path, "learning-rat = 1e-4"))
    assert refused.value.hint == "Did you mean learning_rate?"


def test_a_file_that_is_not_there_is_said_in_one_line(tmp_path):
    with pytest.raises(DevkitError, match="cannot read"):
        read_settings_file(tmp_path / "nowhere.toml")
