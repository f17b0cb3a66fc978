"""Packages whose wheels are built for some CUDA alone: torch's build follows them, or they follow the driver."""

import pytest

from devkit.facts.dependencies import Refused
from devkit.facts.values import Unknown
from devkit.solver.plan import Conflict, Plan
from devkit.solver.request import build_machine_from_flags
from tests.solver.test_resolution import Uv, plan, project, resolved

OLD_DRIVER = build_machine_from_flags(driver="550.54.15", gpus=("L4",))
NEW_DRIVER = build_machine_from_flags(driver="580.95.05", gpus=("H100",))


def test_a_driver_for_cuda_12_is_given_wheels_for_cuda_12():
    uv = Uv(resolved("vllm==0.19.1", "torch==2.10.0"))
    found = plan(project("vllm"), uv, machines=(OLD_DRIVER,))
    assert {"vllm<0.20.0", "sglang-kernel<0.4.2"} <= set(uv.requests[0].constraints)
    assert (found.versions["vllm"], found.cuda.partition(".")[0]) == ("0.19.1", "12")


def test_a_driver_for_cuda_13_leaves_the_choice_to_uv():
    uv = Uv(resolved("vllm==0.32.0", "torch==2.13.0"))
    found = plan(project("vllm"), uv, machines=(NEW_DRIVER,))
    assert not any("vllm" in constraint for constraint in uv.requests[0].constraints)
    assert (found.cuda, found.variant) == ("13.0", "cu130")


def test_torch_is_taken_in_the_build_of_an_older_wheel():
    uv = Uv(resolved("sglang-kernel==0.4.1", "torch==2.11.0"))
    found = plan(project("sglang-kernel==0.4.1"), uv, machines=(NEW_DRIVER,))
    assert (found.torch, found.cuda.partition(".")[0]) == ("2.11.0", "12")
    assert found.because("cuda").startswith("the wheel of sglang-kernel 0.4.1 is built for CUDA 12; ")


def test_a_pin_that_the_driver_does_not_run_is_a_conflict_that_says_why():
    uv = Uv(Refused("you require vllm==0.32.0 and vllm<0.20.0"))
    found = plan(project("vllm==0.32.0"), uv, machines=(OLD_DRIVER,))
    assert isinstance(found, Conflict)
    assert (
        "vllm<0.20.0 has the wheels for CUDA 12 and compute capability 8.9; "
        "from 0.20.0 on the wheel is built for CUDA 13" in found.blockers[0].says
    )


def test_a_gpu_without_code_in_older_wheels_is_given_newer_ones():
    uv = Uv(resolved("vllm==0.19.1", "torch==2.10.0"))
    blackwell = build_machine_from_flags(driver="580.95.05", gpus=("RTX 5090",))
    found = plan(project("vllm"), uv, machines=(blackwell,))
    assert "vllm>=0.9.2" in uv.requests[0].constraints
    assert found.because("vllm").endswith(
        "built for CUDA 12 and compute capability 7.0, 7.5, 8.0, 8.7, 8.9, 9.0, 10.0 and 12.0"
    )


def test_a_gpu_that_no_wheel_has_code_for_is_a_conflict():
    uv = Uv(Refused("only vllm>=0.0.1 is available and you require vllm<0.0.1"))
    pascal = build_machine_from_flags(driver="550.90.07", gpus=("P100",))
    found = plan(project("vllm"), uv, machines=(pascal,))
    assert isinstance(found, Conflict)
    assert found.blockers[0].says.endswith("no wheel of vllm is built for CUDA 12 and compute capability 6.0")


@pytest.mark.full
def test_a_torch_without_a_build_for_the_wheel_is_refused():
    # torch 2.15 has no build for CUDA 12.
    uv = Uv(resolved("vllm==0.16.0", "torch==2.15.0"))
    found = plan(project("vllm==0.16.0"), uv, machines=(NEW_DRIVER,))
    assert isinstance(found, Conflict)
    assert "the wheel of vllm 0.16.0 is built for CUDA 12, but torch 2.15.0" in found.blockers[0].says


def test_without_cuda_the_plan_warns():
    uv = Uv(resolved("vllm==0.32.0", "torch==2.13.0"))
    found = plan(project("vllm"), uv, vendor="cpu")
    assert isinstance(found, Plan)
    assert [warning for warning in found.warnings if "vllm 0.32.0 is built for CUDA 13" in warning]


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(Uv(resolved("torchaudio==2.11.0", "torch==2.15.0")), id="resolved"),
        pytest.param(Unknown("there is no network"), id="not resolved"),
    ],
)
def test_torchaudio_has_no_wheel_for_cuda_13_2(answer):
    """pytorch/pytorch issue 193651: beside a torch of cu132 the wheel for CUDA 13.0 raises at import."""
    newest_driver = build_machine_from_flags(driver="600.10", gpus=("H100",))
    assert plan(project("torch"), Uv(resolved("torch==2.15.0")), machines=(newest_driver,)).variant == "cu132"
    found = plan(project("torchaudio"), answer, machines=(newest_driver,))
    assert (found.torch, found.variant) == ("2.15.0", "cu130")
    assert "torchaudio 2.11.0 is built for CUDA 12.6, 12.8 or 13.0" in found.because("cuda")


def test_torch_is_taken_for_a_cuda_that_all_wheels_are_built_for():
    """vLLM 0.19 takes any CUDA 12; torchaudio has 12.8, and not the newer 12.9 that torch 2.11 is also built for."""
    uv = Uv(resolved("torchaudio==2.11.0", "vllm==0.19.1", "torch==2.11.0"))
    found = plan(project("torchaudio", "vllm==0.19.1"), uv, machines=(NEW_DRIVER,))
    assert found.cuda in ("12.6", "12.8")
    assert found.because("torchaudio").endswith("the wheel is built for CUDA 12.6, 12.8 or 13.0")
