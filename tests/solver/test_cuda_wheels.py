"""Packages whose wheels are built for one major of CUDA: torch's build follows them, or they follow the driver."""

from devkit.facts.resolution import Refused
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
    assert found.blockers[0].says.endswith(
        "vllm<0.20.0, as newer wheels are built for a CUDA that the driver does not run"
    )


def test_a_torch_without_a_build_for_the_wheel_is_refused():
    # torch 2.15 has no build for CUDA 12.
    uv = Uv(resolved("vllm==0.16.0", "torch==2.15.0"))
    found = plan(project("vllm==0.16.0"), uv, machines=(NEW_DRIVER,))
    assert isinstance(found, Conflict)
    assert "the wheel of vllm 0.16.0 is built for CUDA 12, and torch 2.15.0" in found.blockers[0].says


def test_without_cuda_the_plan_warns():
    uv = Uv(resolved("vllm==0.32.0", "torch==2.13.0"))
    found = plan(project("vllm"), uv, vendor="cpu")
    assert isinstance(found, Plan)
    assert [warning for warning in found.warnings if "vllm 0.32.0 is built for CUDA 13" in warning]


def test_releases_before_the_table_are_left_alone():
    uv = Uv(resolved("vllm==0.9.1", "torch==2.7.0"))
    assert isinstance(plan(project("vllm"), uv, machines=(NEW_DRIVER,)), Plan)
