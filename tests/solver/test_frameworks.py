"""Plans for what is not torch."""

from dataclasses import replace

import pytest

from devkit.compat.version_tables import load_tables
from devkit.facts.dependencies import (
    NO_DEPENDENCIES,
    Framework,
    PackageManager,
    PackageRequirement,
    Refused,
    Resolved,
    SystemPackage,
)
from devkit.facts.values import Unknown
from devkit.solver.plan import Conflict, Plan
from devkit.solver.request import build_machine_from_flags, build_request
from devkit.solver.resolution import plan_project
from devkit.solver.solve import solve_project
from tests.solver.test_resolution import Uv

ADA = {"driver": "570.124.06", "gpus": ("RTX 4090",)}
NVCC = "nvidia/cuda:12.8.1-devel-ubuntu24.04"


def dependencies(framework, *needs, python=(), **more):
    found = tuple(PackageRequirement(*need.split(" "), "requirements.txt", 1) for need in needs)
    limits = tuple(PackageRequirement("python", each, "pyproject.toml", 1) for each in python)
    files = ("requirements.txt",) if needs else ()
    tool = PackageManager.PIP if needs else PackageManager.NONE
    return replace(
        NO_DEPENDENCIES, tool=tool, files=files, needs=found, python=limits, framework=Framework(framework), **more
    )


def solve(framework, *needs, machine=None, wants_python=(), system=(), **requested):
    machines = (build_machine_from_flags(**(machine or ADA)),)
    request = build_request(machines=machines, **requested)
    return solve_project(request, dependencies(framework, *needs, python=wants_python, system=system), load_tables())


@pytest.mark.parametrize(
    ("framework", "needs", "machine", "addition", "cuda", "image"),
    [
        ("jax", (), {"driver": "580.95.05", "gpus": ("RTX 4090",)}, "jax[cuda13]", "13.0", "python:3.12-slim"),
        ("jax", (), ADA, "jax[cuda12]", "12.3", "python:3.12-slim"),
        ("jax", ("jax ==0.4.30",), {"driver": "580.95.05", "gpus": ("RTX 4090",)}, "jax[cuda12]", "12.3", "python:"),
        ("jax", (), {"driver": "595.58.03", "gpus": ("GB200",)}, "jax[cuda13]", "13.0", "python:3.12-slim"),
        ("tensorflow", (), ADA, "tensorflow[and-cuda]", "12.5", "python:3.12-slim"),
        ("tensorflow", ("tensorflow ==2.15.1",), ADA, "tensorflow[and-cuda]", "12.2", "python:3.11-slim"),
        ("tensorflow", ("tensorflow ~=2.14.0",), ADA, "tensorflow[and-cuda]", "11.8", "python:3.11-slim"),
        ("tensorflow", ("tensorflow ==2.13.0",), ADA, "", "11.8", "nvidia/cuda:11.8.0-cudnn8-runtime"),
        ("tensorflow", ("tensorflow-gpu ==2.10.1",), ADA, "", "11.8", "nvidia/cuda:11.8.0-cudnn8-runtime"),
        ("cuda", (), ADA, "", "12.8", "nvidia/cuda:12.8.1-devel-ubuntu24.04"),
        ("cuda", (), {"driver": "470.256.02", "gpus": ("RTX 3090",)}, "", "11.4", "nvidia/cuda:11.4.3-devel"),
        ("none", (), ADA, "", None, "python:3.12-slim"),
        ("none", ("requests",), {"driver": "430.64", "gpus": ("8.9",)}, "", None, "python:3.12-slim"),
    ],
)  # fmt: skip
def test_the_plan_holds_the_cuda_that_driver_and_gpu_take(framework, needs, machine, addition, cuda, image):
    needs = tuple(need if " " in need else f"{need} " for need in needs)
    found = solve(framework, *needs, machine=machine)
    assert isinstance(found, Plan)
    assert (found.framework, "".join(found.additions), found.cuda) == (framework, addition, cuda)
    assert found.base_image.startswith(image)
    assert (found.torch, found.variant, found.torch_index, found.packages) == ("", "", "", ())
    assert found.gpu_request == "all"


@pytest.mark.parametrize(
    ("framework", "machine", "requested", "rule", "changes"),
    [
        ("jax", {"driver": "470.256.02", "gpus": ("RTX 3090",)}, {}, "R4", "--vendor cpu"),
        ("jax", ADA, {"cuda": "13.0"}, "R4", "--cuda 12.3"),
        ("tensorflow", {"driver": "580.95.05", "gpus": ("GTX 970",)}, {"cuda": "12.5"}, "A1", "--cuda 12.3"),
        ("cuda", {"driver": "570.124.06", "gpus": ("RTX 4090",)}, {"cuda": "11.4"}, "A5", "--cuda 12.8"),
        ("cuda", ADA, {"image": "nvidia/cuda:11.4.3-devel-ubuntu18.04"}, "A5", f"--image {NVCC}"),
        ("cuda", ADA, {"image": "nvidia/cuda:13.0.2-devel-ubuntu24.04"}, "I2", f"--image {NVCC}"),
        ("none", ADA, {"image": "nvidia/cuda:13.0.2-base-ubuntu24.04"}, "I2", "--image python:3.12-"),
        ("jax", ADA, {"image": "nvidia/cuda:11.0-base-ubuntu20.04"}, "I1", "--image python:3.12-"),
    ],
)
def test_what_cannot_run_is_refused_with_the_nearest_plan(framework, machine, requested, rule, changes):
    found = solve(framework, machine=machine, **requested)
    assert isinstance(found, Conflict)
    assert found.blockers[0].rule == rule
    assert found.nearest_changes.startswith(changes)
    assert found.wanted.startswith(Framework(framework).label)


@pytest.mark.parametrize("framework", ["jax", "tensorflow", "cuda", "none"])
def test_a_request_for_torch_is_one_for_torch(framework):
    assert solve(framework, torch="2.9").torch.startswith("2.9")
    assert solve(framework, features=("4-bit",)).framework is Framework.TORCH


@pytest.mark.parametrize(
    ("framework", "needs", "machine", "says"),
    [
        ("jax", ("jax ==0.4.1",), ADA, "jax==0.4.1: no such JAX in the tables"),
        ("tensorflow", ("tensorflow ==1.15",), ADA, "no such TensorFlow in the tables"),
        ("jax", (), {"gpus": ("RX 7900 XTX",)}, "an image that includes ROCm"),
        ("jax", (), {"gpus": ("RTX 4090",)}, "no driver is known for the flags"),
        ("cuda", (), {"driver": "570.124.06"}, "the project chooses the CUDA architectures"),
    ],
)
def test_what_was_not_checked_is_said(framework, needs, machine, says):
    found = solve(framework, *needs, machine=machine)
    assert isinstance(found, Plan)
    assert any(says in warning for warning in found.warnings), found.warnings
    assert found.additions == () or says.startswith("no driver")


def test_a_requested_image_is_taken():
    found = solve("cuda", image="nvidia/cuda:12.4.1-devel-ubuntu22.04")
    assert (found.base_image, found.cuda, found.python) == ("nvidia/cuda:12.4.1-devel-ubuntu22.04", "12.4", "3.10")
    assert found.because("base_image") == "requested"
    other = solve("cuda", image="example.org/own:1")
    assert (other.base_image, other.cuda) == ("example.org/own:1", None)
    assert any("is not known to have nvcc: not checked" in warning for warning in other.warnings)


def test_cuda_comes_with_what_builds_it_and_the_libraries_that_the_guide_installs():
    system = (SystemPackage("libglfw3-dev", "README.md", 9), SystemPackage("xclip", "README.md", 9))
    found = solve("cuda", system=system)
    assert [each.field for each in found.system_packages] == ["cmake", "libglfw3-dev", "ninja-build"]
    assert found.capabilities == ("8.9",)
    assert any("xclip" in warning for warning in found.warnings)
    assert [each.field for each in solve("none", system=system).system_packages] == []


def resolve(uv, framework, *needs, recorded=None, **requested):
    request = build_request(machines=(build_machine_from_flags(**ADA),), **requested)
    return plan_project(request, dependencies(framework, *needs), load_tables(), uv, recorded=recorded)


def test_uv_chooses_the_release_and_that_the_cuda():
    uv = Uv(Resolved((("flax", "0.8.0"), ("tensorflow", "2.16.2"))))
    found = resolve(uv, "tensorflow", "flax ", "tensorflow >=2.14")
    assert uv.requests[0].requirements == ("tensorflow[and-cuda]",)
    assert uv.requests[0].constraints == ("setuptools<82",)
    assert (found.cuda, found.versions) == ("12.3", {"flax": "0.8.0", "tensorflow": "2.16.2"})


def test_a_package_that_brings_torch_makes_it_a_project_of_torch():
    needed = Resolved((("some-package", "1"), ("torch", "2.13.0")))
    found = resolve(Uv(needed), "none", "some-package ")
    assert (found.framework, found.torch, found.variant) == (Framework.TORCH, "2.13.0", "cu126")
    again = resolve(Unknown("uv cannot reach the package index"), "none", "some-package ", recorded=found)
    assert (again.torch, again.versions) == ("2.13.0", found.versions)


def test_without_requirements_there_is_nothing_to_resolve():
    uv = Uv(Refused("never"))
    assert resolve(uv, "none").framework is Framework.NONE
    assert uv.requests == []
