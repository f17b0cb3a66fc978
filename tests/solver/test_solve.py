"""What the solver chooses when it is left to choose, what it warns about, and how it says no."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from devkit.compat.version_tables import RowConfidence, Tables, load_tables
from devkit.solver.plan import Conflict, Plan, Vendor
from devkit.solver.request import build_machine_from_flags, build_request
from devkit.solver.solve import solve


@pytest.mark.parametrize(
    ("driver", "gpus", "torch", "variant"),
    [
        pytest.param("595.45.04", ("H100",), "2.15.0", "cu132", id="a driver that runs the newest CUDA in full"),
        pytest.param("595.45.03", ("H100",), "2.15.0", "cu132", id="its branch is what counts"),
        pytest.param("590.48.01", ("H100",), "2.15.0", "cu130", id="full support before the default variant"),
        pytest.param("580.65.06", ("H100",), "2.15.0", "cu130", id="exactly the floor of CUDA 13"),
        pytest.param("580.65.05", ("H100",), "2.14.1", "cu126", id="one below the floor of CUDA 13"),
        pytest.param(
            "570.124.06", ("RTX 4090",), "2.14.1", "cu126", id="CUDA 12 on Ada: the last release with a CUDA 12 wheel"
        ),
        pytest.param("525.60.13", ("A100",), "2.14.1", "cu126", id="exactly the floor of CUDA 12"),
        pytest.param("525.60.12", ("A100",), "2.7.1", "cu118", id="one below the floor of CUDA 12"),
        pytest.param("570.26", ("RTX 5090",), "2.11.0", "cu128", id="CUDA 12 on Blackwell: the last cu128 wheel"),
        pytest.param("580.95.05", ("Tesla P40",), "2.14.1", "cu126", id="Pascal stays on CUDA 12.6"),
        pytest.param("580.95.05", ("V100",), "2.14.1", "cu126", id="Volta stays on CUDA 12.6"),
        pytest.param("580.95.05", ("T4",), "2.15.0", "cu130", id="Turing is the oldest that CUDA 13 serves"),
        pytest.param("580.95.05", ("H100", "V100"), "2.14.1", "cu126", id="the oldest GPU decides"),
        pytest.param("580.95.05", ("V100", "H100"), "2.14.1", "cu126", id="whatever their order"),
        pytest.param(
            "580.95.05", ("V100", "RTX 5090"), "2.10.0", "cu128", id="Volta beside Blackwell: cu128 while it held both"
        ),
        pytest.param(None, ("H100",), "2.15.0", "cu132", id="no driver known: the default variant"),
        pytest.param("580.95.05", (), "2.15.0", "cu130", id="no GPU known: the driver decides"),
    ],
)
def test_the_newest_that_fits(solve_for, driver, gpus, torch, variant):
    plan = solve_for(driver=driver, gpus=gpus)
    assert isinstance(plan, Plan), plan
    assert (plan.torch, plan.variant) == (torch, variant)
    assert plan.torch_index == f"https://download.pytorch.org/whl/{variant}"
    assert plan.gpu_request == "all"


def test_the_plan_on_the_cpu(solve_for):
    plan = solve_for()
    assert (plan.vendor, plan.variant, plan.cuda, plan.gpu_request) == (Vendor.CPU, "cpu", None, "none")
    assert plan.torch_index == "https://download.pytorch.org/whl/cpu"
    assert plan.base_image == "python:3.12-slim-bookworm"
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


def test_the_reason_names_what_keeps_newer_releases_out(solve_for):
    plan = solve_for(driver="570.124.06", gpus=("RTX 4090",))
    assert "not 2.15.0: CUDA 13.2 needs driver 580.65.06 or newer" in plan.because("torch")


def test_two_machines_get_one_plan_that_serves_both(solve_for):
    other = build_machine_from_flags(driver="580.95.05", gpus=("H100",))
    assert solve_for(other, driver="570.124.06", gpus=("RTX 4090",)).variant == "cu126"


def test_a_laptop_without_gpu_does_not_hold_the_others_back(solve_for):
    plan = solve_for(build_machine_from_flags(machine="aarch64"), driver="580.95.05", gpus=("H100",))
    assert (plan.vendor, plan.variant) == (Vendor.NVIDIA, "cu130")
    assert plan.architectures == ("aarch64", "x86_64")


def test_wsl_drivers_are_windows_drivers(solve_for):
    plan = solve_for(driver="551.78", gpus=("RTX 4090",), platform="wsl2")
    assert any("until Windows driver 560.76" in warning for warning in plan.warnings)


def test_a_windows_number_beyond_the_linux_branch_keeps_pascal(solve_for):
    assert isinstance(solve_for(driver="582.10", gpus=("GTX 1080",), platform="wsl2"), Plan)
    assert solve_for(driver="590.10", gpus=("GTX 1080",), platform="linux").blockers[0].rule == "R1"


@pytest.mark.parametrize(
    ("driver", "gpu", "rule"),
    [
        pytest.param("590.48.01", "Tesla P40", "R1", id="a driver that dropped the GPU"),
        pytest.param("565.57.01", "RTX 5090", "R1", id="a driver older than the GPU"),
        pytest.param("450.80.01", "A100", "R4", id="a driver older than every wheel"),
    ],
)
def test_a_driver_that_nothing_fits_leaves_the_cpu(solve_for, driver, gpu, rule):
    conflict = solve_for(driver=driver, gpus=(gpu,))
    assert conflict.blockers[0].rule == rule
    assert conflict.nearest.vendor is Vendor.CPU
    assert conflict.nearest_changes == "--vendor cpu"


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
        pytest.param(
            {"torch": "2.14", "cuda": "12.8"}, "W2", "--cuda 12.6", id="a CUDA without that torch gives way first"
        ),
        pytest.param({"python": "3.9"}, None, None, id="a Python that only older releases have"),
        pytest.param({"torch": "2.14", "python": "3.15"}, "W7", "--python 3.12", id="a Python without wheel"),
        pytest.param({"features": ("fp8",)}, None, None, id="a feature the GPU has"),
        pytest.param(
            {"torch": "2.13", "pins": ("transformers==4.57.6", "huggingface-hub==2.4.0")},
            "P1",
            None,
            id="packages that exclude each other",
        ),
    ],
)
def test_the_nearest_plan_gives_up_the_least(solve_for, requested, rule, changes):
    answer = solve_for(driver="570.124.06", gpus=("RTX 4090",), **requested)
    if rule is None:
        assert isinstance(answer, Plan)
        return
    assert isinstance(answer, Conflict)
    assert answer.blockers[0].rule == rule
    assert answer.nearest is not None
    assert changes in (None, answer.nearest_changes)


def test_the_flags_of_the_nearest_plan_lead_to_it(solve_for):
    conflict = solve_for(driver="570.124.06", gpus=("RTX 4090",), torch="2.15", python="3.13")
    flag, value = conflict.nearest_changes.split()
    again = solve_for(driver="570.124.06", gpus=("RTX 4090",), python="3.13", **{flag.removeprefix("--"): value})
    assert (again.torch, again.variant) == (conflict.nearest.torch, conflict.nearest.variant)


def test_minor_version_compatibility_comes_with_its_limits(solve_for):
    plan = solve_for(driver="550.54.14", gpus=("A100",))
    assert any("error 222" in warning and "560.28.03" in warning for warning in plan.warnings)


def test_forward_compatibility_is_used_only_when_nothing_else_serves(solve_for):
    assert solve_for(driver="535.183.01", gpus=("H100",)).variant == "cu126"
    plan = solve_for(driver="535.183.01", gpus=("H100",), torch="2.15.0+cu130")
    assert plan.base_image.startswith("nvidia/cuda:13.0.")
    assert any("forward compatibility only" in warning for warning in plan.warnings)
    assert isinstance(solve_for(driver="535.183.01", gpus=("RTX 4090",), torch="2.15.0+cu130"), Conflict)


@pytest.mark.parametrize(
    ("torch", "transformers", "hub", "bitsandbytes"),
    [
        pytest.param("2.6.0", "5.23.0", "2.4.0", "0.50.2", id="the oldest torch of transformers 5"),
        pytest.param("2.5.1", "4.57.6", "0.36.2", "0.50.2", id="one older: transformers 4 and its hub"),
        pytest.param("2.3.1", "4.57.6", "0.36.2", "0.49.2", id="the oldest torch of bitsandbytes 0.48"),
        pytest.param("2.1.2", "4.49.0", "0.36.2", "0.45.5", id="the oldest torch of all"),
    ],
)
def test_companions_follow_torch(solve_for, torch, transformers, hub, bitsandbytes):
    packages = dict(solve_for(driver="550.54.14", gpus=("A100",), torch=torch).packages)
    assert (packages["transformers"], packages["huggingface-hub"]) == (transformers, hub)
    assert packages["bitsandbytes"] == bitsandbytes


@pytest.mark.parametrize(
    ("torch", "numpy"),
    [
        pytest.param("2.2.2", "1.26.4", id="the last torch that cannot use NumPy 2"),
        pytest.param("2.3.0", None, id="the first that can"),
    ],
)
def test_an_old_torch_gets_an_old_numpy(solve_for, torch, numpy):
    assert dict(solve_for(driver="550.54.14", gpus=("A100",), torch=torch).packages).get("numpy") == numpy


def test_a_pinned_numpy_is_kept_or_refused(solve_for):
    assert dict(solve_for(pins=("numpy==1.26.4",)).packages)["numpy"] == "1.26.4"
    assert solve_for(torch="2.2.2", pins=("numpy==2.1.0",)).blockers[0].rule == "P1"


def test_bitsandbytes_follows_the_gpu_and_the_cuda(solve_for):
    maxwell = dict(solve_for(driver="580.95.05", gpus=("GTX 980 Ti",)).packages)
    assert maxwell["bitsandbytes"] == "0.47.0"
    cu129 = dict(solve_for(driver="580.95.05", gpus=("RTX 4090",), torch="2.8.0+cu129").packages)
    assert cu129["bitsandbytes"] == "0.49.2"


def test_a_pin_outside_the_tables_is_kept_and_said(solve_for):
    plan = solve_for(driver="580.95.05", gpus=("H100",), pins=("Transformers==5.22.0", "trl==1.16.0"))
    assert dict(plan.packages)["transformers"] == "5.22.0"
    assert dict(plan.packages)["trl"] == "1.16.0"
    assert any("trl==1.16.0 is not in the tables" in warning for warning in plan.warnings)


def test_an_image_outside_the_tables_is_kept_and_said(solve_for):
    plan = solve_for(driver="580.95.05", gpus=("H100",), image="registry.example/team/base:7")
    assert plan.base_image == "registry.example/team/base:7"
    assert any("is not in the tables" in warning for warning in plan.warnings)


def test_a_mirror_of_a_known_image_is_known(solve_for):
    plan = solve_for(driver="580.95.05", gpus=("H100",), image="mirror.example/python:3.11-slim-bookworm")
    assert plan.python == "3.11"
    assert not any("not in the tables" in warning for warning in plan.warnings)
    both = solve_for(driver="580.95.05", gpus=("H100",), image="python:3.11-slim-bookworm", python="3.12")
    assert both.blockers[0].rule == "W7"


def test_a_python_past_its_end_is_said(solve_for):
    plan = solve_for(driver="570.124.06", gpus=("RTX 4090",), python="3.10")
    assert any("no more security fixes since 2026-10" in warning for warning in plan.warnings)


@pytest.mark.parametrize(
    ("cuda", "warned"), [("12.6", True), ("13.0", False)], ids=["before CUDA 13", "from CUDA 13 on"]
)
def test_ordinary_wheels_load_on_a_jetson(solve_for, cuda, warned):
    plan = solve_for(driver="580.95.05", gpus=("Orin",), machine="aarch64", cuda=cuda)
    assert isinstance(plan, Plan)
    assert any("(A4)" in warning for warning in plan.warnings) is warned


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
    assert "doubtful" in solve(free, load_tables()).because("torch")


def test_the_same_request_gets_the_same_answer(solve_for):
    requested = {"driver": "550.54.14", "gpus": ("A100", "T4"), "features": ("nf4", "llm-int8")}
    assert solve_for(**requested) == solve_for(**requested)


@pytest.mark.parametrize(
    "driver", ["390.157", "450.80.02", "470.86", "525.60.13", "550.54.14", "570.26", "580.95.05", "620.70"]
)
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.turns(3)
def test_every_gpu_on_every_driver_gets_a_plan_or_a_reason(solve_for, driver, machine):
    for row in load_tables().gpus.models[::7]:
        answer = solve_for(driver=driver, gpus=(row.name,), machine=machine)
        if isinstance(answer, Conflict):
            assert answer.blockers
            assert answer.nearest is not None


def test_every_rule_that_an_answer_can_name_is_documented():
    root = Path(__file__).resolve().parents[2]
    code = "".join(path.read_text(encoding="utf-8") for path in sorted((root / "devkit" / "solver").glob("*.py")))
    named = set(re.findall(r"\"([A-Z]\d)\"|\(([A-Z]\d)\)", code))
    documented = set(re.findall(r"\b[A-Z]\d\b", (root / "docs" / "rules.md").read_text(encoding="utf-8")))
    assert {one or other for one, other in named} - documented == set()


@pytest.mark.parametrize(
    ("image", "says"),
    [
        ("nvidia/cuda:13.0-devel-ubuntu24.04", "nvidia/cuda tags name CUDA by three numbers, such as 13.0.2"),
        ("python:3.12-alpine", "torch has no wheel for musl, the C library of python:3.12-alpine"),
        ("python:3.11-slim-bookworm", "has Python 3.11; Python 3.12 is requested"),
    ],
)
def test_what_speaks_against_a_requested_image(solve_for, image, says):
    answer = solve_for(driver="580.95.05", gpus=("H100",), image=image, python="3.12")
    (blocker,) = [each for each in answer.blockers if says in each.says]
    assert blocker.source.startswith("https://")


@pytest.mark.parametrize(("glibc", "fits"), [("2.28", True), ("2.27", False)])
def test_the_c_library_of_the_machine_must_be_as_new_as_the_wheels(solve_for, glibc, fits):
    answer = solve_for(driver="580.95.05", gpus=("H100",), glibc=glibc, torch="2.14.1")
    assert isinstance(answer, Plan) is fits, answer
