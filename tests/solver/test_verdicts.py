"""The table of verdicts: each row a machine, a request, and what must come out of it."""

import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from devkit.compat.version_tables import load_tables
from devkit.solver.plan import Conflict, Constraint, Machine, Plan, Request
from devkit.solver.request import build_machine_from_facts, build_machine_from_flags, build_request
from devkit.solver.solve import solve
from tests.hosts.golden import expected_facts
from tests.solver.conftest import MACHINE_FLAGS

TABLE = tomllib.loads(Path(__file__).with_name("verdicts.toml").read_text(encoding="utf-8"))
CASES = TABLE["case"]
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


@pytest.mark.parametrize("case", [pytest.param(case, id=case["id"]) for case in CASES])
def test_every_row_names_its_source(case):
    address = TABLE["sources"].get(case["source"], case["source"])
    assert re.fullmatch(r"https://[\w.-]+/\S*", address)
