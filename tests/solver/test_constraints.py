"""Constraints of the project's own files: read as PEP 440 defines them, and named in a conflict."""

from dataclasses import replace

import pytest

from devkit.compat.version_tables import load_tables
from devkit.solver.plan import Conflict, Constraint, Plan, Vendor
from devkit.solver.request import build_machine_from_flags, build_request
from devkit.solver.solve import solve

ADA = build_machine_from_flags(driver="570.124.06", gpus=("RTX 4090",))


def solve_for(*constraints: Constraint, **requested):
    return solve(replace(build_request(machines=(ADA,), **requested), constraints=constraints), load_tables())


def wants(text: str) -> Constraint:
    name, specifier, origin = text.split(" ")
    return Constraint(name, specifier, origin)


def test_every_line_that_takes_part_in_a_contradiction_is_named():
    conflict = solve_for(wants("torch <2.5 requirements.txt:3"), wants("torch >=2.6 pyproject.toml:12"))
    assert isinstance(conflict, Conflict)
    assert [blocker.rule for blocker in conflict.blockers] == ["P2", "P2"]
    assert {blocker.says for blocker in conflict.blockers} == {
        "requirements.txt:3 wants torch<2.5",
        "pyproject.toml:12 wants torch>=2.6",
    }
    assert conflict.nearest is not None
    assert conflict.nearest_changes == "change requirements.txt:3 to take torch 2.14.1+cu126"


def test_a_flag_gives_way_before_a_file():
    conflict = solve_for(wants("torch <2.5 requirements.txt:3"), torch="2.14")
    assert isinstance(conflict, Conflict)
    assert conflict.nearest_changes == "--torch 2.4.1+cu121"


def test_a_pin_must_meet_the_constraints_of_the_files():
    conflict = solve_for(wants("transformers >=5 requirements.txt:1"), pins=("transformers==4.57.6",))
    assert isinstance(conflict, Conflict)
    assert conflict.blockers[0].says == "requirements.txt:1 wants transformers>=5"


def test_an_exact_version_and_a_bound_on_it_contradict():
    conflict = solve_for(wants("peft ==0.5.0 requirements.txt:1"), wants("peft >=0.20 pyproject.toml:9"))
    assert isinstance(conflict, Conflict)
    assert {blocker.says.split(" ")[0] for blocker in conflict.blockers} == {"requirements.txt:1", "pyproject.toml:9"}


def test_the_reason_names_the_file():
    plan = solve_for(wants("torch <2.5 requirements.txt:3"), wants("python <3.12 pyproject.toml:5"))
    assert isinstance(plan, Plan)
    assert "not 2.15.0: requirements.txt:3 wants torch<2.5" in plan.because("torch")
    assert "pyproject.toml:5 wants python<3.12" in plan.because("python")


@pytest.mark.parametrize(
    ("constraint", "vendor", "variant"),
    [
        pytest.param("torch ==2.4.1+cu121 requirements.txt:1", Vendor.NVIDIA, "cu121", id="a CUDA build"),
        pytest.param("torch ==2.14.1+cpu requirements.txt:1", Vendor.CPU, "cpu", id="a CPU build"),
    ],
)
def test_a_local_build_is_a_variant(constraint, vendor, variant):
    plan = solve_for(wants(constraint))
    assert isinstance(plan, Plan)
    assert (plan.vendor, plan.variant) == (vendor, variant)


def test_a_local_build_of_another_vendor_is_a_contradiction():
    conflict = solve_for(wants("torch ==2.14.1+cpu requirements.txt:1"), vendor="nvidia")
    assert isinstance(conflict, Conflict)
    assert conflict.blockers[0].rule == "P2"
