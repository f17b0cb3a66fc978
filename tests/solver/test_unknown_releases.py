"""Releases that the tables do not list: planned with "not checked", never refused."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from devkit.compat.version_tables import load_tables
from devkit.solver.plan import Constraint, Plan, Request
from devkit.solver.request import build_machine_from_flags, build_request
from devkit.solver.solve import solve
from tests.solver.test_resolution import Uv, plan, project, resolved

MACHINES = {
    "a GeForce": {"driver": "570.124.06", "gpus": ("RTX 4090",)},
    "a driver of CUDA 13": {"driver": "595.45.04", "gpus": ("H100",)},
    "an Arm server": {"driver": "580.95.05", "gpus": ("GB200",)},
    "an AMD GPU": {"gpus": ("MI300X",)},
    "a CPU": {},
}
PACKAGES = ("torch", "transformers", "peft", "accelerate", "huggingface-hub", "bitsandbytes", "numpy")


def known_releases(name: str) -> set[str]:
    tables = load_tables()
    if name == "torch":
        rows = tables.torch.releases
        return {str(row.version) for row in rows} | {row.minor for row in rows}
    listed = {row.version for row in tables.stack.packages if row.name == name}
    return listed | {row.version for row in tables.stack.bitsandbytes if name == "bitsandbytes"}


@st.composite
def unknown_releases(draw: st.DrawFn, names: tuple[str, ...] = PACKAGES) -> tuple[str, str]:
    name = draw(st.sampled_from(names))
    # Few numbers, so that many are near a known one.
    first, second, third = draw(st.tuples(st.integers(0, 6), st.integers(0, 60), st.integers(0, 9)))
    version = f"{first}.{second}.{third}"
    if version in known_releases(name):
        version = f"{first}.{second}.77"
    return name, version


def request(machine: dict, **requested: object) -> Request:
    return build_request(machines=(build_machine_from_flags(**machine),), **requested)


def assert_is_planned(wanted: Request, name: str, version: str) -> None:
    answer = solve(wanted, load_tables())
    assert isinstance(answer, Plan), answer
    assert any("not checked" in warning for warning in answer.warnings), answer.warnings
    assert dict(answer.packages).get(name) == version


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(unknown_releases(), st.sampled_from(sorted(MACHINES)), st.sampled_from(["", "nf4"]))
@example(("torch", "1.0.0"), "a GeForce", "")
@example(("torch", "9.0.0"), "an AMD GPU", "")
@example(("bitsandbytes", "0.41.0"), "a GeForce", "nf4")
def test_a_pin_on_an_unknown_release_is_planned_and_not_checked(release, machine, feature):
    name, version = release
    features = (feature,) if feature and name != "torch" else ()
    assert_is_planned(request(MACHINES[machine], pins=(f"{name}=={version}",), features=features), name, version)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(unknown_releases(("torch",)), st.sampled_from(sorted(MACHINES)))
def test_an_unknown_torch_in_the_project_is_planned_and_not_checked(release, machine):
    name, version = release
    wanted = replace(request(MACHINES[machine]), constraints=(Constraint(name, f"=={version}", "requirements.txt:1"),))
    assert_is_planned(wanted, name, version)


@pytest.mark.parametrize(
    ("constraints", "version"),
    [
        pytest.param(("<1.4",), "1.3.0", id="older than all"),
        pytest.param((">2.15.0",), "2.15.1", id="newer than all"),
        pytest.param((">=2.16,<3",), "2.16.0", id="a range of unknown releases"),
        pytest.param(("~=2.17",), "2.17.0", id="a compatible release"),
        pytest.param((">2.8.0", "<2.9.0"), "2.8.1", id="between two known releases"),
        pytest.param(("==2.16.*",), "2.16.0", id="a wildcard"),
    ],
)
def test_bounds_between_which_the_tables_list_no_release_are_planned(constraints, version):
    limits = tuple(Constraint("torch", specifier, "requirements.txt:1") for specifier in constraints)
    assert_is_planned(replace(request(MACHINES["a GeForce"]), constraints=limits), "torch", version)


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
    answer = solve(replace(request(MACHINES["a GeForce"]), constraints=limits), load_tables())
    assert isinstance(answer, Plan) is not is_contradiction, answer


def test_the_warning_names_the_release_whose_rows_are_used():
    answer = solve(request(MACHINES["a GeForce"], torch="2.14.9"), load_tables())
    assert isinstance(answer, Plan)
    assert "torch 2.14.9 is not in the tables: planned like 2.14.1, not checked" in answer.warnings


def test_a_torch_before_those_of_the_tables_is_resolved_with_the_others():
    found = plan(project("torch==1.3.0", "scipy==1.5.2"), Uv(resolved("torch==1.3.0", "scipy==1.5.2")))
    assert found.versions == {"torch": "1.3.0", "scipy": "1.5.2"}
    assert "torch 1.3.0 is not in the tables: planned like 1.4.0, not checked" in found.warnings


@pytest.mark.parametrize(
    ("gpu", "variant"),
    [("RTX 4090", "cu111"), ("V100", "cu102"), ("RTX 5090", None)],
    ids=["Ada", "Volta", "Blackwell"],
)
def test_a_torch_of_2021_is_planned_for_the_gpus_that_its_wheels_have_code_for(gpu, variant):
    wanted = request({"driver": "570.124.06", "gpus": (gpu,)})
    found = solve(replace(wanted, constraints=(Constraint("torch", "==1.9.1", "environment.yml:10"),)), load_tables())
    assert (found.variant if isinstance(found, Plan) else None) == variant


def test_a_torch_without_code_for_the_gpu_is_a_conflict_that_names_its_file():
    # As in https://github.com/jik876/hifi-gan, on an RTX 4090.
    wanted = request({"driver": "570.124.06", "gpus": ("RTX 4090",)})
    found = solve(replace(wanted, constraints=(Constraint("torch", "==1.4.0", "requirements.txt:1"),)), load_tables())
    assert not isinstance(found, Plan)
    assert "requirements.txt:1" in found.nearest_changes


def test_a_torch_of_2021_is_for_those_who_name_it():
    machine = {"driver": "450.80.01", "gpus": ("A100",)}
    assert not isinstance(solve(request(machine), load_tables()), Plan)
    assert solve(request(machine, torch="1.7.1"), load_tables()).variant == "cu110"
