"""The answer as people and programs read it."""

import json
from dataclasses import replace

import pytest

from devkit.facts.values import Unknown
from devkit.solver.output import format_answer, serialize_answer

TODAY = "2026-11-21"


def test_the_document_of_a_plan(solve_for):
    document = json.loads(json.dumps(serialize_answer(solve_for(driver="580.95.05", gpus=("H100",)), today=TODAY)))
    assert (document["schema"], document["verdict"], document["conflict"]) == ("devkit.plan/1", "plan", None)
    contract = {"base_image", "python", "torch", "cuda", "torch_index", "packages", "gpu_request", "reasons"}
    assert contract <= document["plan"].keys()
    assert document["plan"]["packages"]["torch"] == document["plan"]["torch"]
    assert document["plan"]["reasons"][0].keys() == {"field", "value", "because", "source", "confidence"}


def test_the_document_of_a_conflict(solve_for):
    document = json.loads(
        json.dumps(serialize_answer(solve_for(driver="550.54", gpus=("RTX 4090",), torch="2.15"), today=TODAY))
    )
    assert (document["verdict"], document["plan"]) == ("conflict", None)
    conflict = document["conflict"]
    assert conflict["blockers"][0].keys() == {"rule", "says", "source"}
    assert conflict["nearest"]["torch"] == "2.14.1"
    assert conflict["nearest_changes"] == "--torch 2.14.1+cu126"


@pytest.mark.parametrize("width", [30, 44, 60, 80, 100, 200])
def test_text_keeps_to_the_width_but_for_addresses(solve_for, width):
    for torch in (None, "2.15"):
        text = format_answer(solve_for(driver="550.54", gpus=("RTX 4090",), torch=torch), width=width, today=TODAY)
        too_long = [line for line in text.splitlines() if len(line) > max(width, 44) and "https://" not in line]
        assert not too_long


def test_a_cpu_plan_that_was_not_requested_says_how_to_plan_for_a_gpu(solve_for):
    assert "--facts FILE" in format_answer(solve_for(), width=100, today=TODAY)
    assert "--facts FILE" not in format_answer(solve_for(vendor="cpu"), width=100, is_cpu_requested=True, today=TODAY)


@pytest.mark.parametrize(
    ("today", "says"),
    [("2026-11-21", "today"), ("2026-11-22", "1 day ago"), ("2027-11-21", "365 days ago")],
    ids=["the same day", "a day later", "a year later"],
)
def test_an_answer_says_how_old_its_data_is(solve_for, today, says):
    for answer in (
        solve_for(driver="580.95.05", gpus=("H100",)),
        solve_for(driver="550.54", gpus=("RTX 4090",), torch="2.15"),
    ):
        assert format_answer(answer, width=100, today=today).endswith(f"Version tables as of 2026-11-21, {says}.")
        document = serialize_answer(answer, today=today)
        assert document["data_as_of"] == "2026-11-21"
        is_stale = any("days old" in warning for warning in document["warnings"])
        assert is_stale is (today == "2027-11-21")
        assert ("365 days old" in format_answer(answer, width=200, today=today)) is is_stale


@pytest.mark.parametrize(
    ("resolution", "because"),
    [(Unknown("--no-resolve was given"), "--no-resolve was given"), (None, "nothing needed resolving")],
)
def test_the_document_says_why_packages_were_not_checked(solve_for, resolution, because):
    plan = replace(solve_for(driver="580.95.05", gpus=("H100",)), resolution=resolution)
    assert serialize_answer(plan, today=TODAY)["resolution"] == {"status": "not checked", "because": because}
