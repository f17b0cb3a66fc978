"""What the solver chooses when it is left to choose, what it warns about, and how it says no."""

import copy
import re
from dataclasses import replace
from pathlib import Path

import pytest

from devkit.compat.version_tables import RowConfidence, Tables, load_tables
from devkit.facts.dependencies import NO_DEPENDENCIES, Framework
from devkit.facts.values import Release
from devkit.solver.candidates import find_nearest_release
from devkit.solver.plan import Conflict, Constraint, Plan, Vendor
from devkit.solver.request import build_machine_from_flags, build_request
from devkit.solver.solve import solve, solve_project

CPU = build_machine_from_flags(machine="x86_64")


def test_the_plan_on_the_cpu(solve_for):
    plan = solve_for()
    assert (plan.vendor, plan.variant, plan.cuda, plan.gpu_request) == (Vendor.CPU, "cpu", None, "none")
    assert plan.torch_index == "https://download.pytorch.org/whl/cpu"
    assert plan.base_image.startswith(f"python:{plan.python}-slim")
    assert {"torch", "transformers", "peft", "accelerate", "bitsandbytes"} <= dict(plan.packages).keys()
    assert plan.warnings == ()


def test_every_choice_has_its_reason(solve_for):
    plan = solve_for(driver="580.95.05", gpus=("H100",))
    values = {reason.field: reason.value for reason in plan.reasons}
    assert values["torch"] == plan.torch
    assert values["cuda"] == plan.cuda
    assert values["python"] == plan.python
    assert values["base_image"] == plan.base_image
    assert values["torch_index"] == plan.torch_index
    assert {name: values[name] for name, _ in plan.packages} == dict(plan.packages)
    assert all(reason.because and reason.source and reason.confidence for reason in plan.reasons)
    assert plan.data_as_of == load_tables().torch.as_of


@pytest.mark.parametrize(
    ("specifier", "image"),
    [
        ("==3.12.10", "python:3.12.10-slim-bookworm"),
        ("==3.12", "python:3.12.0-slim-bookworm"),
        (">=3.10,<=3.12.4", "python:3.11-slim-bookworm"),
        ("==3.11.2", "python:3.11.2-slim"),  # older than Debian 12
        ("~=3.12.4", "python:3.12-slim-bookworm"),
    ],
)
@pytest.mark.parametrize("framework", [Framework.TORCH, Framework.NONE])
def test_the_image_has_the_release_of_python_that_the_project_takes(specifier, image, framework):
    constraints = (Constraint("python", specifier, "pyproject.toml"),)
    request = replace(build_request(machines=(CPU,)), constraints=constraints, framework=framework)
    assert solve(request, load_tables()).base_image == image


def test_two_machines_get_one_plan_that_serves_both(solve_for):
    other = build_machine_from_flags(driver="580.95.05", gpus=("H100",))
    assert solve_for(other, driver="570.124.06", gpus=("RTX 4090",)).variant == "cu126"


def test_a_laptop_without_gpu_does_not_hold_the_others_back(solve_for):
    laptop = build_machine_from_flags(machine="aarch64")
    plan = solve_for(laptop, driver="570.124.06", gpus=("H100",), cuda="13.0")
    assert (plan.vendor, plan.variant) == (Vendor.NVIDIA, "cu130")
    assert plan.architectures == ("aarch64", "x86_64")
    assert plan.base_image.startswith("nvidia/cuda:13.0")  # with cuda-compat, and built for both


def test_gpus_that_no_one_wheel_serves_are_a_conflict_of_their_own(solve_for):
    conflict = solve_for(driver="580.95.05", gpus=("Tesla P40", "GTX 1080"), machine="aarch64", torch="2.14.1")
    assert conflict.blockers[0].rule != "A6"
    apart = solve_for(
        build_machine_from_flags(driver="580.95.05", gpus=("GB10",), machine="aarch64"), driver="470.86", gpus=("8.6",)
    )
    assert apart.blockers[0].rule == "A6"


@pytest.mark.parametrize(
    ("requested", "rule", "changes"),
    [
        pytest.param({"torch": "2.15"}, "R4", "--torch 2.14.1+cu126", id="a torch the driver cannot run"),
        pytest.param({"cuda": "12.5"}, "W2", "--cuda 12.6", id="a CUDA without wheels"),
        pytest.param({"torch": "2.14", "cuda": "12.8"}, "W2", "--cuda 12.6", id="a CUDA gives way before a torch"),
        pytest.param({"torch": "2.14", "python": "3.15"}, "W7", "--python 3.12", id="a Python without wheel"),
    ],
)
def test_the_nearest_plan_gives_up_the_least(solve_for, requested, rule, changes):
    answer = solve_for(driver="570.124.06", gpus=("RTX 4090",), **requested)
    assert isinstance(answer, Conflict)
    assert (answer.blockers[0].rule, answer.nearest_changes) == (rule, changes)


def test_packages_that_exclude_each_other_have_a_nearest_plan(solve_for):
    pins = ("transformers==4.57.6", "huggingface-hub==2.4.0")
    answer = solve_for(driver="570.124.06", gpus=("RTX 4090",), torch="2.13", pins=pins)
    assert (answer.blockers[0].rule, answer.nearest.torch) == ("P1", "2.13.0")


def test_where_no_build_fits_the_cpu_is_left(solve_for):
    conflict = solve_for(driver="590.48.01", gpus=("Tesla P40",))
    assert (conflict.blockers[0].rule, conflict.nearest_changes, conflict.nearest.vendor) == (
        "R1",
        "--vendor cpu",
        Vendor.CPU,
    )


@pytest.mark.parametrize(
    ("torch", "transformers", "hub", "bitsandbytes", "numpy"),
    [
        pytest.param("2.6.0", "5.23.0", "2.4.0", "0.50.2", None, id="the oldest torch of transformers 5"),
        pytest.param("2.5.1", "4.57.6", "0.36.2", "0.50.2", None, id="one older: transformers 4 and its hub"),
        pytest.param("2.3.1", "4.57.6", "0.36.2", "0.49.2", None, id="the first torch that can use NumPy 2"),
        pytest.param("2.2.2", "4.57.6", "0.36.2", "0.47.0", "1.26.4", id="the last that cannot"),
        pytest.param("2.1.2", "4.49.0", "0.36.2", "0.45.5", "1.26.4", id="the oldest torch of all"),
    ],
)
def test_companions_follow_torch(solve_for, torch, transformers, hub, bitsandbytes, numpy):
    packages = dict(solve_for(driver="550.54.14", gpus=("A100",), torch=torch).packages)
    assert (packages["transformers"], packages["huggingface-hub"]) == (transformers, hub)
    assert (packages["bitsandbytes"], packages.get("numpy")) == (bitsandbytes, numpy)


def test_bitsandbytes_follows_the_gpu_and_the_cuda(solve_for):
    maxwell = dict(solve_for(driver="580.95.05", gpus=("GTX 980 Ti",)).packages)
    assert maxwell["bitsandbytes"] == "0.47.0"
    cu129 = dict(solve_for(driver="580.95.05", gpus=("RTX 4090",), torch="2.8.0+cu129").packages)
    assert cu129["bitsandbytes"] == "0.49.2"


def test_a_bitsandbytes_that_transformers_refuses_is_not_taken():
    known = Tables()
    known.stack.bitsandbytes = tuple(row for row in known.stack.bitsandbytes if row.version in ("0.45.5", "0.46.1"))
    machine = build_machine_from_flags(driver="570.124.06", gpus=("V100",))
    # Of the two, only 0.45.5 has code for a V100 under CUDA 12.8, and transformers 5 asks for 0.46.1.
    plan = solve(build_request(machines=(machine,), torch="2.8.0+cu128"), known)
    assert isinstance(plan, Plan)
    assert dict(plan.packages)["transformers"] == "5.23.0"
    assert "bitsandbytes" not in dict(plan.packages)
    assert any("(B1)" in warning for warning in plan.warnings)


def test_an_inferred_row_warns_where_a_read_one_refuses():
    """The same wheel without code for the GPU: refused when it was read, only doubted when it was inferred."""
    request = build_request(
        machines=(build_machine_from_flags(driver="580.95.05", gpus=("V100",)),), torch="2.11.0+cu128"
    )
    assert isinstance(solve(request, load_tables()), Conflict)
    doubtful = Tables()
    key = ("2.11", "cu128", "x86_64")
    doubtful.torch.wheels[key] = replace(doubtful.torch.wheels[key], confidence=RowConfidence.INFERRED)
    plan = solve(request, doubtful)
    assert isinstance(plan, Plan)
    assert any("no kernels for V100" in warning for warning in plan.warnings)
    free = replace(request, torch=None, machines=(build_machine_from_flags(driver="580.95.05", gpus=("P40", "B200")),))
    assert "safest" in solve(free, load_tables()).because("torch")


def test_every_rule_that_an_answer_can_name_is_documented():
    root = Path(__file__).resolve().parents[2]
    code = "".join(path.read_text(encoding="utf-8") for path in sorted((root / "devkit" / "solver").glob("*.py")))
    named = set(re.findall(r"\"([A-Z]\d)\"|\(([A-Z]\d)\)", code))
    documented = set(re.findall(r"\b[A-Z]\d\b", (root / "docs" / "rules.md").read_text(encoding="utf-8")))
    assert {one or other for one, other in named} - documented == set()


def test_what_speaks_against_a_requested_image(solve_for):
    for image, says in {
        "nvidia/cuda:13.0-devel-ubuntu24.04": "nvidia/cuda tags contain three numbers, such as 13.0.2",
        "python:3.12-alpine": "torch has no wheel for musl, the C library of python:3.12-alpine",
        "mirror.example/python:3.11": "has Python 3.11; Python 3.12 is requested",
    }.items():
        answer = solve_for(driver="580.95.05", gpus=("H100",), image=image, python="3.12")
        assert [each.source for each in answer.blockers if says in each.says], image


# Lines of the project's own files; verdicts.toml and answers.txt have more of them.


def with_lines(*lines: str, **requested):
    limits = tuple(Constraint(*line.split(" ")) for line in lines)
    machine = build_machine_from_flags(driver="570.124.06", gpus=("RTX 4090",))
    return solve(replace(build_request(machines=(machine,), **requested), constraints=limits), load_tables())


def test_a_flag_gives_way_before_a_file():
    assert with_lines("torch <2.5 requirements.txt:3", torch="2.14").nearest_changes == "--torch 2.4.1+cu121"


def test_a_pin_must_meet_the_lines_of_the_files():
    conflict = with_lines("transformers >=5 requirements.txt:1", pins=("transformers==4.57.6",))
    assert conflict.blockers[0].says == "requirements.txt:1 wants transformers>=5"


def test_an_exact_version_and_a_bound_on_it_contradict():
    conflict = with_lines("peft ==0.5.0 requirements.txt:1", "peft >=0.20 pyproject.toml:9")
    assert {blocker.says.split(" ")[0] for blocker in conflict.blockers} == {"requirements.txt:1", "pyproject.toml:9"}


def test_a_build_for_the_cpu_is_a_plan_for_it_and_contradicts_another_vendor():
    line = "torch ==2.14.1+cpu requirements.txt:1"
    plan = with_lines(line, vendor="cpu")
    assert (plan.vendor, plan.variant) == (Vendor.CPU, "cpu")
    assert not plan.lacks_gpu
    assert with_lines(line, vendor="nvidia").blockers[0].rule == "P2"


def test_a_build_for_the_cpu_in_a_file_does_not_hide_a_gpu():
    line = "torch ==2.14.1+cpu requirements.txt:1"
    conflict = with_lines(line)
    assert conflict.blockers[0].says == "requirements.txt:1 wants torch==2.14.1+cpu"
    assert "requirements.txt:1" in conflict.nearest_changes
    without_gpu = build_request(machines=(build_machine_from_flags(),))
    plan = solve(replace(without_gpu, constraints=(Constraint(*line.split(" ")),)), load_tables())
    assert (plan.variant, plan.lacks_gpu) == ("cpu", True)


def test_a_plan_for_the_cpu_on_request_does_not_say_that_a_gpu_is_missing():
    assert not with_lines(torch="2.14+cpu").lacks_gpu


@pytest.mark.parametrize("framework", ["torch", "none"])
def test_a_python_is_old_from_the_month_after_its_last(framework):
    request = build_request(machines=(build_machine_from_flags(),), python="3.10")
    project = replace(NO_DEPENDENCIES, framework=Framework(framework))
    for month, is_warned in (("2026-10", False), ("2026-11", True)):
        known = copy.copy(load_tables())
        known.torch = copy.copy(known.torch)
        known.torch.as_of = f"{month}-21"
        plan = solve_project(request, project, known)
        assert any("no security fixes" in each for each in plan.warnings) is is_warned, month


def test_the_nearest_release_is_of_the_same_minor_or_before_it():
    nearest = {"1.7.0": "1.7.1", "2.4.9": "2.4.1", "2.5.0": "2.5.0", "1.3.0": "1.4.0", "1.14.0": "1.13.1"}
    assert {each: str(find_nearest_release(Release.parse(each), load_tables()).version) for each in nearest} == nearest
