"""What holds for every answer, judged by the tables and by other answers: nothing here knows which versions are right."""

import shlex

import pytest

from devkit.compat.gpus import has_forward_compatibility
from devkit.compat.rules import CodeSupport, CudaSupport, check_cuda_support, check_gpu_code
from devkit.compat.version_tables import load_tables
from devkit.facts.values import Release
from devkit.solver.plan import Conflict, Plan, Vendor
from devkit.solver.request import build_machine_from_flags, build_request
from devkit.solver.solve import solve

DRIVERS = ("390.157", "450.80.02", "470.86", "525.60.13", "550.54.15", "570.26", "580.95.05", "620.70")
NEVER_DROPPED = ("T4", "RTX 3090", "H100", "RTX 5090")
WISHES: tuple[dict[str, object], ...] = (
    {},
    {"torch": "2.4.1"},
    {"cuda": "12.6"},
    {"python": "3.10", "features": ("nf4",)},
    {"pins": ("transformers==4.57.6",)},
    {"image": "nvidia/cuda:12.4.1-devel-ubuntu22.04"},
)
CASES = [(gpu, driver, "x86_64") for gpu in ("GTX 1080", *NEVER_DROPPED) for driver in DRIVERS[2::2]]
CASES += [("GB200", "580.95.05", "aarch64"), ("MI300X", None, "x86_64")]
ALL_CASES = [
    (row.name, driver, processor)
    for row in load_tables().gpus.models[::6]
    for driver in DRIVERS
    for processor in ("x86_64", "aarch64")
]


def answer(gpus, driver, processor="x86_64", **wished):
    machine = build_machine_from_flags(driver=driver, gpus=gpus, machine=processor)
    return solve(build_request(machines=(machine,), **wished), load_tables())


def broken_rules(plan: Plan, gpus, driver, processor) -> list[str]:
    """The rules that a plan breaks by the rows of the tables that were read, rather than inferred."""
    tables, broken = load_tables(), []
    release = next(row for row in tables.torch.releases if str(row.version) == plan.torch)
    packages = dict(plan.packages)
    if plan.python not in release.pythons:
        broken.append("W7")
    image = next((row for row in tables.images.python_images if row.tag == plan.base_image), None)
    if image is not None and image.python != plan.python:
        broken.append("the image's Python")
    if plan.vendor is not Vendor.NVIDIA:
        return broken
    cuda = Release.parse(plan.cuda)
    machine = build_machine_from_flags(driver=driver, gpus=gpus, machine=processor)
    support = check_cuda_support(machine.driver, cuda, has_forward_gpus=all(map(has_forward_compatibility, gpus)))
    if support is CudaSupport.NO:
        broken.append("R4")
    wheel = tables.torch.wheels.get((release.minor, plan.variant, processor))
    for _, capability in machine.gpus if wheel is not None and wheel.confidence != "inferred" else ():
        if check_gpu_code(capability, wheel.sass, wheel.ptx) is CodeSupport.NONE:
            broken.append("A1")
    libraries = {row.version: {Release.parse(str(each)) for each in row.cudas} for row in tables.stack.bitsandbytes}
    if "bitsandbytes" in packages and cuda not in libraries[packages["bitsandbytes"]]:
        broken.append("B1")
    return broken


def check(gpu, driver, processor, wished) -> None:
    found = answer((gpu,), driver, processor, **wished)
    case = (gpu, driver, processor, wished)
    if isinstance(found, Conflict):
        assert found.blockers, case
        assert all(each.says and each.source for each in found.blockers), case
        if found.nearest is not None and found.nearest_changes.startswith("--"):
            assert_flags_lead_to(found, case)
        return
    assert broken_rules(found, (gpu,), driver, processor) == [], case
    if "image" in wished:
        assert found.base_image == wished["image"], case
    chosen = {"torch": f"{found.torch}+{found.variant}", "python": found.python, "image": found.base_image}
    again = answer((gpu,), driver, processor, **{**wished, **chosen})
    assert isinstance(again, Plan), (case, again)
    assert (again.torch, again.variant, again.packages) == (found.torch, found.variant, found.packages), case


def assert_flags_lead_to(conflict: Conflict, case) -> None:
    """Whoever passes the flags of the nearest plan gets it."""
    gpu, driver, processor, wished = case
    words = shlex.split(conflict.nearest_changes)
    if "without" in words:
        return
    given = {flag.removeprefix("--"): value for flag, value in zip(words[::2], words[1::2], strict=True)}
    if "pin" in given:
        name, _, version = given.pop("pin").partition("==")
        kept = [pin for pin in wished["pins"] if not pin.startswith(name)]
        given["pins"] = (*kept, f"{name}=={version}")
    again = answer((gpu,), driver, processor, **{**wished, **given})
    assert isinstance(again, Plan), (case, conflict.nearest_changes)
    assert (again.torch, again.variant) == (conflict.nearest.torch, conflict.nearest.variant), case


@pytest.mark.parametrize("wished", WISHES, ids=str)
def test_a_plan_breaks_no_rule_and_is_what_its_own_values_ask_for(wished):
    for gpu, driver, processor in CASES:
        if not (gpu == "MI300X" and "cuda" in wished):
            check(gpu, driver, processor, wished)


@pytest.mark.full
def test_so_it_is_for_every_gpu_on_every_driver():
    for case in ALL_CASES:
        check(*case, {})


def test_a_newer_driver_gets_no_older_torch():
    for gpu in NEVER_DROPPED:
        answers = [answer((gpu,), driver) for driver in DRIVERS]
        releases = [Release.parse(each.torch) for each in answers if isinstance(each, Plan)]
        assert len(releases) >= 3, gpu
        assert releases == sorted(releases), gpu


def test_another_gpu_gets_no_newer_torch():
    alone = {gpu: answer((gpu,), "580.95.05") for gpu in ("GTX 1080", *NEVER_DROPPED)}
    for one in alone:
        for other in alone:
            both = answer((one, other), "580.95.05") if one != other else alone[one]
            assert isinstance(both, Plan), (one, other)
            newest = min(Release.parse(alone[gpu].torch) for gpu in (one, other))
            assert Release.parse(both.torch) <= newest, (one, other)
