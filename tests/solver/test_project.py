from dataclasses import replace

import pytest

from devkit.compat.version_tables import load_tables
from devkit.facts.dependencies import (
    NO_DEPENDENCIES,
    Dependencies,
    ExcludedPackage,
    PackageIndex,
    PackageManager,
    PackageRequirement,
    RequirementRole,
    UnreadableRequirement,
)
from devkit.solver.plan import Conflict
from devkit.solver.project import list_choices, list_project_constraints
from devkit.solver.request import build_machine_from_flags, build_request
from devkit.solver.solve import solve, solve_project

MACHINE = build_machine_from_flags(driver="580.95.05", gpus=("RTX 4090",))
TORCH_INDEX = "https://download.pytorch.org/whl/cu121"
REQUEST = build_request(machines=(MACHINE,))


def need(name, specifier, *, marker="", line=1, role=RequirementRole.PASSED_THROUGH):
    return PackageRequirement(name, specifier, "requirements.txt", line, marker=marker, role=role)


def asking(*needs, python=()):
    return Dependencies(
        PackageManager.PIP, "the project has requirements.txt", ("requirements.txt",), needs=needs, python=python
    )


@pytest.mark.parametrize(
    ("marker", "python", "counts"),
    [
        pytest.param("", None, True, id="no marker"),
        pytest.param("sys_platform == 'linux'", None, True, id="for Linux"),
        pytest.param("sys_platform == 'darwin'", "3.12", False, id="for macOS"),
        pytest.param("platform_machine == 'x86_64'", None, True, id="for this processor"),
        pytest.param("platform_machine == 'aarch64'", None, False, id="for another processor"),
        pytest.param("python_version < '3.12'", "3.11", True, id="for this Python"),
        pytest.param("python_version < '3.12'", "3.12", False, id="for an older Python"),
        pytest.param("python_version < '3.12'", None, False, id="as long as the Python is open"),
        pytest.param("python_full_version >= '3.10' and python_version < '3.13'", "3.12", True, id="for a range"),
        pytest.param("python_full_version <= '3.12.0'", "3.12", False, id="for an older patch release"),
        pytest.param("extra == 'train'", "3.12", False, id="for an extra that was not requested"),
    ],
)
def test_a_requirement_constrains_the_plan_where_its_marker_holds(marker, python, counts):
    found = list_project_constraints(asking(need("torch", "<2.9", marker=marker)), machines=("x86_64",), python=python)
    assert bool(found) is counts


def test_a_requirement_for_one_of_two_architectures_constrains_the_plan_for_both():
    requested = asking(need("torch", "<2.9", marker="platform_machine == 'aarch64'"))
    assert list_project_constraints(requested, machines=("aarch64", "x86_64"), python="3.12")


def test_a_project_without_dependencies_changes_nothing():
    assert solve_project(REQUEST, NO_DEPENDENCIES, load_tables()) == solve(REQUEST, load_tables())


def test_the_plan_says_what_was_read_and_what_was_not():
    dependencies = replace(
        asking(need("rich", ""), need("torch", "", role=RequirementRole.CONSTRAINT)),
        unread=(UnreadableRequirement("setup.py", 12, "it is computed when setup.py runs"),),
        left_out=tuple(ExcludedPackage(name, "environment.yml", 4, "conda brings it") for name in ("numpy", "ffmpeg")),
        indexes=tuple(PackageIndex(url, "requirements.txt", 1) for url in (TORCH_INDEX, "https://a.example/simple")),
    )
    plan = solve_project(REQUEST, dependencies, load_tables())
    assert plan.because("dependencies") == "the project has requirements.txt"
    assert plan.warnings[-3:] == (
        "setup.py:12 is ignored: it is computed when setup.py runs",
        "not installed from environment.yml: numpy and ffmpeg; conda brings it",
        f"requirements.txt:1 names {TORCH_INDEX}: torch still comes from the plan's own index",
    )


def test_a_file_that_devkit_does_not_read_is_named_where_it_is_the_only_one():
    found = replace(NO_DEPENDENCIES, unread=(UnreadableRequirement("pixi.toml", 1, "of another tool"),))
    answer = solve_project(REQUEST, found, load_tables())
    assert any("pixi.toml:1" in warning for warning in answer.warnings)
    assert not list(list_choices(found)) and list(list_choices(NO_DEPENDENCIES))


def test_a_marker_is_judged_by_the_python_that_the_plan_ends_with():
    requested = asking(
        need("torch", "==2.13.0", marker="python_version >= '3.11'"),
        need("torch", "==1.0", marker="python_version < '3.8'"),
    )
    answer = solve_project(REQUEST, requested, load_tables())
    assert not isinstance(answer, Conflict)
    assert answer.torch == "2.13.0"
