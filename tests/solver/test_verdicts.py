"""The table of verdicts: each row a machine, a request, and what must come out of it."""

import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from devkit.compat.version_tables import load_tables
from devkit.solver.output import format_answer, format_requirements, serialize_answer
from devkit.solver.plan import Conflict, Constraint, Machine, Plan, Request
from devkit.solver.request import build_machine_from_facts, build_machine_from_flags, build_request
from devkit.solver.solve import solve
from devkit.solver.why import explain_choice, format_choice, serialize_choice
from tests.hosts.golden import expected_facts
from tests.known import assert_known
from tests.solver.conftest import MACHINE_FLAGS

TABLE = tomllib.loads(Path(__file__).with_name("verdicts.toml").read_text(encoding="utf-8"))
CASES = TABLE["case"]
ANSWERS = Path(__file__).with_name("answers.txt")
REQUESTED = ("vendor", "torch", "cuda", "python", "image", "pins", "features")


def request(case: dict) -> Request:
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in case.items()}
    requested = {name: values[name] for name in REQUESTED if name in values}
    built = build_request(machines=(machine(values),), **requested)
    constraints = tuple(constraint(line) for line in values.get("constraints", ()))
    runtime = values.get("gpu_runtime")
    return replace(built, gpu_runtime=runtime, constraints=constraints, adds_packages=not constraints)


def machine(case: dict) -> Machine:
    if "host" in case:
        return build_machine_from_facts(expected_facts(case["host"]))
    return build_machine_from_flags(**{name: case[name] for name in MACHINE_FLAGS if name in case})


def constraint(line: str) -> Constraint:
    requirement, origin = line.rsplit(" ", 1)
    name, specifier = re.fullmatch(r"([\w-]+)(.*)", requirement).groups()
    return Constraint(name, specifier, origin)


@pytest.mark.parametrize("case", [pytest.param(case, id=case["id"]) for case in CASES])
def test_verdict(case):
    answer = solve(request(case), load_tables())
    if isinstance(answer, Plan):
        said, verdict = answer.warnings, f"{answer.torch}+{answer.variant}"
        assert answer.base_image.startswith(case.get("gives", ""))
        if "packages" in case:
            assert tuple(case["packages"].split("==")) in answer.packages
    else:
        assert isinstance(answer, Conflict)
        said, verdict = tuple(blocker.says for blocker in answer.blockers), answer.blockers[0].rule
    assert verdict == case["verdict"], said
    for part in case.get("says", "").split(" | "):
        assert any(part in text for text in ("", *said)), said
    assert_known(ANSWERS, {*show(answer), f"{case['id']}: {verdict} {show_packages(answer)}"})


def show(answer: Plan | Conflict) -> set[str]:
    """Each reason, rule and warning of an answer with its source, as people and as programs read it."""
    document = serialize_answer(answer)
    plan, conflict = document["plan"] or {}, document["conflict"] or {}
    items = [*plan.get("reasons", ()), *plan.get("compiled", ()), *conflict.get("blockers", ())]
    return lines_of(format_answer(answer, width=10_000)) | {json.dumps(each) for each in items}


def lines_of(text: str) -> set[str]:
    """The lines without their columns, and without the date of the tables."""
    lines = (re.sub(" {2,}", "  ", line).strip() for line in text.splitlines())
    return {line for line in lines if line and "Version tables as of" not in line}


def show_packages(answer: Plan | Conflict) -> str:
    if isinstance(answer, Conflict):
        return answer.nearest_changes
    return f"{answer.base_image} {answer.python} {format_requirements(answer)}".replace("\n", " ")


@pytest.mark.parametrize("case", [pytest.param(case, id=case["id"]) for case in CASES[::8]])
def test_what_is_said_of_each_choice_is_known(case):
    asked, tables = request(case), load_tables()
    answer = solve(asked, tables)
    fields = [reason.field for reason in answer.reasons] if isinstance(answer, Plan) else ["torch", "cuda", "python"]
    found = [explanation for field in fields if (explanation := explain_choice(asked, tables, answer, field))]
    texts = [format_choice(each, answer, width=10_000, today=None) for each in found]
    others = {json.dumps(other) for each in found for other in serialize_choice(each, answer, today=None)["others"]}
    assert_known(ANSWERS, others | {line for text in texts for line in lines_of(text)})


def test_the_table_covers_what_it_promises():
    text = " ".join(case["id"] for case in CASES)
    assert len(CASES) >= 150
    assert len({case["id"] for case in CASES}) == len(CASES)
    generations = ["Kepler", "Maxwell", "Pascal", "Volta", "Turing", "Ampere", "Ada", "Hopper", "Blackwell", "Rubin"]
    kinds = [*generations, "Jetson", "WSL", "ROCm", "MIG"]
    assert [name for name in kinds if name not in text] == []
    branches = {int(case["driver"].split(".")[0]) for case in CASES if "driver" in case and "platform" not in case}
    known = {row.branch for row in load_tables().driver.branches if 450 <= row.branch <= 620}
    assert known - branches - {455, 465} == set()
    assert {case["id"].split(":")[0] for case in CASES} >= {f"hc{number:02}" for number in HARD_CASES}


HARD_CASES = [number for number in range(1, 41) if number not in (26, 27, 28, 29, 36)]
"""The numbered reports; the others speak of PTX and of a library, and stand in tests/compat/test_rules.py."""


def test_every_row_names_its_source():
    for case in CASES:
        address = TABLE["sources"].get(case["source"], case["source"])
        assert re.fullmatch(r"https://[\w.-]+/\S*", address), case["id"]
