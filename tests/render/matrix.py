"""Every combination of vendor, engine, editors and network of `devkit init`, rendered."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

from devkit.compat.version_tables import load_tables
from devkit.render.container.compose import ENGINES
from devkit.render.files import DEVCONTAINER_FOLDER
from devkit.render.project import render_devcontainer
from devkit.solver.plan import Plan, Vendor

from .plans import CPU_PLAN, GPU_PLAN
from .test_artifacts import CLOSED, PLAIN

ROCM_PLAN = replace(
    GPU_PLAN,
    vendor=Vendor.ROCM,
    variant="rocm7.2",
    cuda=None,
    torch_index="https://download.pytorch.org/whl/rocm7.2",
    architectures=("gfx942",),
)
PLANS = {"NVIDIA": GPU_PLAN, "ROCm": ROCM_PLAN, "the CPU": CPU_PLAN}
EDITORS = tuple(load_tables().editors.editors)
EDITOR_SETS = ((), *((editor,) for editor in EDITORS), EDITORS)
NETWORKS = {"open": PLAIN, "closed": CLOSED}
DEVICE_SETS = ((), ("0", "1"))


@dataclass(frozen=True)
class Combination:
    """One combination of options, and its generated text files, by their path within .devcontainer."""

    options: str
    plan: Plan
    files: dict[str, str]


@cache
def combinations() -> tuple[Combination, ...]:
    """Every combination, rendered once."""
    return tuple(_combinations())


def _combinations() -> Iterator[Combination]:
    for (vendor, plan), engine, editors, (network, settings), devices in product(
        PLANS.items(), ("", *ENGINES), EDITOR_SETS, NETWORKS.items(), DEVICE_SETS
    ):
        if devices and plan is CPU_PLAN:
            continue
        wanted = replace(settings, engine=engine, editors=editors, devices=devices)
        made = {
            each.path.removeprefix(f"{DEVCONTAINER_FOLDER}/"): each.content
            for each in render_devcontainer(plan, wanted)
        }
        files = {path: content.decode() for path, content in made.items() if not path.endswith(".whl")}
        options = f"{vendor}, {engine or 'any engine'}, {network} network, {editors}, GPUs {devices or 'all'}"
        yield Combination(options, plan, files)


def distinct(ending: str) -> dict[str, tuple[str, str]]:
    """Digest -> (one combination that has it, the text), for every different file whose path ends so."""
    found: dict[str, tuple[str, str]] = {}
    for combination in combinations():
        for path, text in combination.files.items():
            if path.endswith(ending):
                found.setdefault(hashlib.sha256(text.encode()).hexdigest(), (f"{path} for {combination.options}", text))
    return found


def distinct_compose() -> tuple[Combination, ...]:
    """One combination for every different set of Compose files."""
    found: dict[str, Combination] = {}
    for combination in combinations():
        files = sorted((path, text) for path, text in combination.files.items() if path.endswith((".yml", "gpu.sh")))
        found.setdefault(hashlib.sha256(repr(files).encode()).hexdigest(), combination)
    return tuple(found.values())
