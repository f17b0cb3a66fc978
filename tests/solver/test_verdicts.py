"""The table of verdicts: each row a machine, a request, and what must come out of it."""

import re
import tomllib
from dataclasses import replace
from pathlib import Path

from devkit.compat.version_tables import load_tables
from devkit.solver.plan import Constraint, Machine, Plan, Request
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


def find_difference(case: dict) -> str:
    """What the answer has and the row has not; "" where they agree."""
    answer = solve(request(case), load_tables())
    if isinstance(answer, Plan):
        said, verdict = answer.warnings, f"{answer.torch}+{answer.variant}"
        package = tuple(case["packages"].split("==")) if "packages" in case else None
        if not answer.base_image.startswith(case.get("gives", "")) or package not in (None, *answer.packages):
            return f"{answer.base_image} {answer.packages}"
    else:
        said, verdict = tuple(blocker.says for blocker in answer.blockers), answer.blockers[0].rule
    says = [part for part in case.get("says", "").split(" | ") if not any(part in text for text in ("", *said))]
    return f"{verdict} {said}" if verdict != case["verdict"] or says else ""


def test_every_row_has_its_verdict():
    differences = {case["id"]: difference for case in CASES if (difference := find_difference(case))}
    assert differences == {}


def test_the_table_covers_what_it_promises():
    text = " ".join(case["id"] for case in CASES)
    assert len({case["id"] for case in CASES}) == len(CASES)
    generations = ["Kepler", "Maxwell", "Pascal", "Volta", "Turing", "Ampere", "Ada", "Hopper", "Blackwell", "Rubin"]
    assert [name for name in (*generations, "Jetson", "WSL", "ROCm", "MIG") if name not in text] == []
    rules = ["A1", "A5", "B1", "F1", "G1", "I1", "I2", "P1", "P2", "R1", "R4", "R5"]
    assert {case["verdict"] for case in CASES} >= {*rules}


def test_every_row_names_its_source():
    for case in CASES:
        address = TABLE["sources"].get(case["source"], case["source"])
        assert re.fullmatch(r"https://[\w.-]+/\S*", address), case["id"]
