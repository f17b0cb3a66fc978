"""`--why`: what spoke against the choices that were not made."""

import json

import pytest

from devkit.compat.version_tables import load_tables
from devkit.solver.request import build_machine_from_flags, build_request
from devkit.solver.solve import solve
from devkit.solver.why import explain_choice, format_choice, serialize_choice
from tests.cases import cases


def explained(field: str, *, machine: dict, **requested):
    request = build_request(machines=(build_machine_from_flags(**machine),), **requested)
    answer = solve(request, load_tables())
    return explain_choice(request, load_tables(), answer, field), answer


ADA = {"driver": "570.124.06", "gpus": ("RTX 4090",)}


def test_newer_builds_are_listed_with_the_first_rule_that_refused_them():
    found, _ = explained("torch", machine=ADA)
    assert [(other.choice, other.rule) for other in found.others][:2] == [
        ("torch 2.15.0+cu132", "R4"),
        ("torch 2.15.0+cu130", "R4"),
    ]
    assert all(other.source.startswith("https://") and other.says for other in found.others)


def test_a_build_that_fits_says_why_another_is_preferred():
    found, _ = explained("cuda", machine={"driver": "590.48.01", "gpus": ("H100",)})
    assert [(other.choice, other.rule) for other in found.others] == [("torch 2.15.0+cu132", "")]
    assert "minor version compatibility" in found.others[0].says


@cases(
    "field, requested, choice, rule, says",
    {
        "a Python without a wheel": ("python", {"torch": "2.5.1"}, "Python 3.14", "W7", "no wheel"),
        "a Python that is served less": ("python", {}, "Python 3.13", "", "more widely"),
        "a newer package": ("transformers", {"torch": "2.5.1"}, "transformers 5.23.0", "P1", "torch>=2.6"),
        "a newer bitsandbytes": ("bitsandbytes", {"torch": "2.8.0+cu129"}, "bitsandbytes 0.50.2", "B1", "CUDA 12.9"),
        "another release": ("torch", {"torch": "2.13"}, "torch 2.15.0", "W2", "not the requested one"),
    },
)
def test_other_choices(field, requested, choice, rule, says):
    found, _ = explained(field, machine={"driver": "580.95.05", "gpus": ("RTX 4090",)}, **requested)
    other = next(other for other in found.others if other.choice == choice)
    assert other.rule == rule
    assert says in other.says


def test_a_conflict_lists_every_build():
    found, answer = explained("torch", machine={"driver": "580.95.05", "gpus": ("Tesla P40",)}, torch="2.15")
    assert {other.choice for other in found.others} == {"torch 2.15.0+cu130", "torch 2.15.0+cu132"}
    document = json.loads(json.dumps(serialize_choice(found, answer, today="2026-11-25")))
    assert (document["schema"], document["verdict"], document["value"]) == ("devkit.why/1", "conflict", None)
    assert document["conflict"]["blockers"] and document["others"][0]["rule"] == "A1"
    assert document["data_age_days"] == 4


def test_what_is_no_choice_has_no_reason():
    assert explained("moon", machine=ADA)[0] is None
    assert explained("moon", machine={"driver": "580.95.05", "gpus": ("Tesla P40",)}, torch="2.15")[0] is None


@pytest.mark.parametrize("width", [44, 80, 120])
def test_text_keeps_to_the_width_but_for_addresses(width):
    found, answer = explained("torch", machine=ADA)
    text = format_choice(found, answer, width=width, today="2026-11-21")
    narrowest = max(width, max(len(line) - len(line.lstrip()) for line in text.splitlines()) + 30)
    assert [line for line in text.splitlines() if len(line) > narrowest and "https://" not in line] == []
    assert text.endswith("Version tables as of 2026-11-21, today.")
