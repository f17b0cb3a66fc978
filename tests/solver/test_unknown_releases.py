"""Releases that the tables do not list: planned with "not checked", never refused."""

from dataclasses import replace

import pytest

from devkit.compat.version_tables import load_tables
from devkit.solver.plan import Constraint, Plan, Request
from devkit.solver.request import build_machine_from_flags, build_request
from devkit.solver.solve import solve

MACHINES = {
    "a GeForce": {"driver": "570.124.06", "gpus": ("RTX 4090",)},
    "a driver of CUDA 13": {"driver": "595.45.04", "gpus": ("H100",)},
    "an Arm server": {"driver": "580.95.05", "gpus": ("GB200",)},
    "an AMD GPU": {"gpus": ("MI300X",)},
    "a CPU": {},
}
RELEASES = {
    "torch": ("2.9.77", "2.16.0", "9.0.0"),
    "transformers": ("4.0.77", "5.99.0"),
    "peft": ("0.0.1",),
    "accelerate": ("0.9.77",),
    "huggingface-hub": ("6.60.9",),
    "bitsandbytes": ("0.1.77", "6.0.0"),
    "numpy": ("1.0.77",),
}


def request(machine: str, *lines: str, **requested: object) -> Request:
    built = build_request(machines=(build_machine_from_flags(**MACHINES[machine]),), **requested)
    return replace(built, constraints=tuple(Constraint("torch", line, "requirements.txt:1") for line in lines))


def assert_is_planned(wanted: Request, name: str, version: str) -> None:
    answer = solve(wanted, load_tables())
    assert isinstance(answer, Plan), answer
    assert any("not checked" in warning for warning in answer.warnings), answer.warnings
    assert dict(answer.packages).get(name) == version


@pytest.mark.parametrize("machine", MACHINES)
def test_a_pin_on_an_unknown_release_is_planned_and_not_checked(machine):
    for name, versions in RELEASES.items():
        for version in versions:
            assert_is_planned(request(machine, pins=(f"{name}=={version}",)), name, version)
    for version in RELEASES["torch"]:
        assert_is_planned(request(machine, f"=={version}"), "torch", version)


def test_a_bitsandbytes_whose_code_nobody_read_is_planned_for_what_needs_it():
    wanted = request("a GeForce", pins=("bitsandbytes==0.41.0",), features=("nf4",))
    assert_is_planned(wanted, "bitsandbytes", "0.41.0")


@pytest.mark.parametrize(
    ("lines", "version"),
    [
        pytest.param((">2.15.0",), "2.15.1", id="newer than all"),
        pytest.param((">=2.16,<3",), "2.16.0", id="a range of unknown releases"),
        pytest.param(("~=2.17",), "2.17.0", id="a compatible release"),
        pytest.param((">2.8.0", "<2.9.0"), "2.8.1", id="between two known releases"),
        pytest.param(("==2.16.*",), "2.16.0", id="a wildcard"),
    ],
)
def test_bounds_between_which_the_tables_list_no_release_are_planned(lines, version):
    assert_is_planned(request("a GeForce", *lines), "torch", version)


@pytest.mark.parametrize(
    ("specifiers", "is_contradiction"),
    [
        pytest.param((">=4.50", "<4.57"), False, id="releases that the tables do not list lie between"),
        pytest.param(("<4.50", ">=4.57"), True, id="none can lie between"),
        pytest.param(("==4.55.0", ">=4.57"), True, id="a version and a bound above it"),
        pytest.param(("==4.55.*", ">=4.55.2"), False, id="a wildcard and a bound in it"),
    ],
)
def test_bounds_contradict_only_where_no_version_meets_them(specifiers, is_contradiction):
    limits = tuple(Constraint("transformers", each, "requirements.txt:1") for each in specifiers)
    answer = solve(replace(request("a GeForce"), constraints=limits), load_tables())
    assert isinstance(answer, Plan) is not is_contradiction, answer


@pytest.mark.parametrize(
    ("gpu", "variant"),
    [("RTX 4090", "cu111"), ("V100", "cu102"), ("RTX 5090", None)],
    ids=["Ada", "Volta", "Blackwell"],
)
def test_a_torch_of_2021_is_planned_for_the_gpus_that_its_wheels_have_code_for(gpu, variant):
    machine = build_machine_from_flags(driver="570.124.06", gpus=(gpu,))
    found = solve(replace(request("a CPU", "==1.9.1"), machines=(machine,)), load_tables())
    assert (found.variant if isinstance(found, Plan) else None) == variant


@pytest.mark.parametrize(("line", "variant"), [("==1.7.0", "cu110"), ("==1.14.0", "cu117"), ("<1.4", None)])
def test_a_release_is_planned_for_no_cuda_newer_than_itself(line, variant):
    found = solve(request("a GeForce", line), load_tables())
    assert (found.variant if isinstance(found, Plan) else None) == variant


def test_a_torch_of_2021_is_for_those_who_name_it():
    machines = (build_machine_from_flags(driver="450.80.01", gpus=("A100",)),)
    assert not isinstance(solve(build_request(machines=machines), load_tables()), Plan)
    assert solve(build_request(machines=machines, torch="1.7.1"), load_tables()).variant == "cu110"
