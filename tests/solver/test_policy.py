"""Plans keep to the project's policy: another name, another image, or a conflict that names the rule."""

import pytest

from devkit.compat.version_tables import load_tables
from devkit.facts.project import Policy
from devkit.solver.plan import Conflict, Plan, Request
from devkit.solver.request import build_machine_from_flags
from devkit.solver.solve import solve


def answer(policy, *, driver="580.95.05", gpu="RTX 4090", **requested):
    machine = build_machine_from_flags(driver=driver, gpus=(gpu,) if gpu else ())
    return solve(Request((machine,), policy=policy, **requested), load_tables())


FREE = answer(None)


@pytest.mark.parametrize(
    "policy",
    [
        pytest.param(Policy(), id="no rule on images"),
        pytest.param(Policy(registries=("docker.io",)), id="the whole registry"),
        pytest.param(Policy(registries=("quay.io", "docker.io/library/python")), id="one of several"),
    ],
)
def test_what_is_allowed_stays_as_it_is(policy):
    assert answer(policy) == FREE


def test_a_mirror_gives_its_name_to_the_image_and_says_so():
    policy = Policy(registries=("mirror.example.org",), mirrors=(("docker.io", "mirror.example.org/hub"),))
    plan = answer(policy)
    assert plan.base_image == f"mirror.example.org/hub/library/{FREE.base_image}"
    assert "policy.mirrors" in plan.because("base_image")
    assert next(reason.value for reason in plan.reasons if reason.field == "base_image") == plan.base_image
    assert plan.packages == FREE.packages


def test_another_image_is_chosen_where_one_is_allowed():
    plan = answer(Policy(registries=("docker.io/nvidia",)))
    assert isinstance(plan, Plan)
    assert plan.base_image.startswith("nvidia/cuda:")
    assert FREE.base_image in plan.because("base_image")
    assert plan.torch == FREE.torch


def test_without_an_allowed_image_there_is_a_conflict_that_names_the_rule():
    conflict = answer(Policy(registries=("registry.example.org/base",)))
    assert isinstance(conflict, Conflict)
    assert [blocker.rule for blocker in conflict.blockers] == ["policy"]
    assert "registry.example.org/base" in conflict.blockers[0].says
    assert conflict.blockers[0].source == "devkit.toml"
    assert conflict.nearest is None


def test_an_image_that_the_user_names_is_refused_and_not_replaced():
    conflict = answer(Policy(registries=("docker.io/library",)), image="nvidia/cuda:13.0.2-base-ubuntu24.04")
    assert isinstance(conflict, Conflict)
    assert conflict.blockers[0].rule == "policy"


def test_the_nearest_plan_of_another_conflict_keeps_to_the_policy():
    requested = {"driver": "570.124.06", "torch": "2.15"}
    free = answer(None, **requested)
    assert isinstance(free, Conflict) and free.nearest is not None
    mirrored = answer(Policy(mirrors=(("docker.io", "m.example.org"),)), **requested)
    assert mirrored.nearest.base_image == f"m.example.org/library/{free.nearest.base_image}"
    assert answer(Policy(registries=("quay.io",)), **requested).nearest is None


def test_a_cpu_plan_has_only_python_images_to_choose_from():
    assert isinstance(answer(Policy(registries=("docker.io/nvidia",)), driver=None, gpu=None), Conflict)
