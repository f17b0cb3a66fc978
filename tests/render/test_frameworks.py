"""Images for what is not torch: nothing of torch is in them."""

import json
import subprocess
from dataclasses import replace

import pytest

from devkit.compat.version_tables import load_tables
from devkit.facts.dependencies import NO_DEPENDENCIES, Framework, PackageManager, PackageRequirement, RequirementRole
from devkit.render.container.settings import ContainerSettings, FromIndex
from devkit.render.devkit_lock import parse_lock, parse_locked_plan, render_lock
from devkit.render.project import render_devcontainer
from devkit.solver.plan import Plan
from devkit.solver.request import build_machine_from_flags, build_request
from devkit.solver.solve import solve_project

from .test_dockerfile import step, steps

MACHINES = (build_machine_from_flags(driver="570.124.06", gpus=("RTX 4090", "RTX 3090")),)
LIST = replace(
    NO_DEPENDENCIES,
    tool=PackageManager.PIP,
    because="the project has requirements.txt",
    files=("requirements.txt",),
    lists=("requirements.txt",),
    needs=(PackageRequirement("numpy", "", "requirements.txt", 1),),
)
CONDA = replace(
    NO_DEPENDENCIES,
    tool=PackageManager.CONDA,
    because="the project has environment.yml",
    files=("environment.yml",),
    needs=(PackageRequirement("numpy", "", "environment.yml", 1, role=RequirementRole.GENERATED),),
)
LOCKED = replace(LIST, tool=PackageManager.UV, lock="uv.lock", files=("pyproject.toml", "uv.lock"), lists=())
FRAMEWORKS = ["jax", "tensorflow", "cuda", "none"]


def render(framework, dependencies=NO_DEPENDENCIES, **changes):
    dependencies = replace(dependencies, framework=Framework(framework), framework_because="main.py:1 imports it")
    plan = solve_project(build_request(machines=MACHINES), dependencies, load_tables())
    assert isinstance(plan, Plan)
    plan = replace(plan, **changes)
    settings = ContainerSettings("Demo", "demo", FromIndex("0.1.0"), dependencies=dependencies)
    return plan, {each.path: each for each in render_devcontainer(plan, settings)}


@pytest.mark.parametrize(
    "dependencies", [NO_DEPENDENCIES, LIST, CONDA, LOCKED], ids=["none", "list", "conda", "locked"]
)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_nothing_of_torch_is_installed(framework, dependencies):
    _, files = render(framework, dependencies)
    text = files[".devcontainer/Dockerfile"].content.decode()
    assert [line for line in text.splitlines() if "torch" in line.lower().replace("torchinductor", "")] == []
    assert "\n\n\n" not in text
    assert ".devcontainer/requirements.txt" not in files
    for each in steps(text):
        words = " ".join(word for word in each.removeprefix("RUN ").split(" ") if not word.startswith("--mount"))
        assert subprocess.run(["sh", "-n", "-c", words], check=False).returncode == 0, words


@pytest.mark.parametrize(
    ("framework", "addition"),
    [("jax", "jax[cuda12]"), ("tensorflow", "tensorflow[and-cuda]"), ("cuda", ""), ("none", "")],
)
def test_the_framework_comes_with_its_cuda_and_the_projects_packages(framework, addition):
    listed = "--requirement=/mnt/project/requirements.txt"
    _, files = render(framework, LIST)
    installs = step(files[".devcontainer/Dockerfile"].content.decode(), listed)
    assert installs.endswith(f'{listed} "{addition}"' if addition else listed)
    _, files = render(framework)
    alone = [
        each for each in steps(files[".devcontainer/Dockerfile"].content.decode()) if "[" in each and "uv pip" in each
    ]
    assert [addition in each for each in alone] == ([True] if addition else [])


def test_what_a_lock_installed_is_held_for_the_cuda_of_the_framework():
    _, files = render("jax", LOCKED)
    installs = step(files[".devcontainer/Dockerfile"].content.decode(), "uv export")
    assert installs.endswith('--constraint=/mnt/work/held.txt "jax[cuda12]"')
    assert "--excludes" not in installs


def test_limits_hold_without_torch_too():
    _, files = render("jax", LIST, limits=("numpy<2",))
    assert "numpy<2" in files[".devcontainer/constraints.txt"].content.decode().splitlines()
    step(files[".devcontainer/Dockerfile"].content.decode(), "--constraint=/mnt/constraints.txt --requirement=")


def test_cmake_compiles_for_the_gpus_of_the_plan():
    _, files = render("cuda")
    text = files[".devcontainer/Dockerfile"].content.decode()
    assert 'ENV CUDAARCHS="89;86"' in text
    assert "FROM nvidia/cuda:12.8.1-devel-ubuntu24.04" in text
    assert " cmake ninja-build" in text
    assert "CUDAARCHS" not in render("none")[1][".devcontainer/Dockerfile"].content.decode()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_lock_remembers_the_framework(framework):
    plan, _ = render(framework)
    document = parse_lock(render_lock(plan, ()).content).plan
    read = parse_locked_plan(document)
    assert (read.framework, read.additions, read.torch) == (plan.framework, plan.additions, "")
    assert json.loads(json.dumps(document))["torch"] == ""
