"""The launchers' names of GPUs that they rent: each has its own spelling and its own way to name memory sizes."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from devkit.compat.gpus import find_amd_gpu, find_gpu
from devkit.errors import DevkitError
from devkit.estimate.gpus import find_gpu_spec
from devkit.facts.decode import decode_fields
from devkit.formats.shipped import load

_SIZE = re.compile(r"\b(\d+) ?gi?b\b", re.IGNORECASE)


@dataclass(frozen=True)
class LauncherGpu:
    """The names of one GPU at each launcher; () and "" where it has none.

    `skypilot` are all names under which clouds offer it.
    """

    skypilot: tuple[str, ...] = ()
    daytona: str = ""


def find_launcher_gpu(name: str) -> LauncherGpu:
    """Find the launchers' names of a GPU, as people or estimates name it; only () and "" for one that is not rented."""
    amd = find_amd_gpu(name)
    if amd is not None:
        return load_launcher_gpus().get(amd.name, LauncherGpu())
    try:
        gpu = find_gpu_spec(name)
    except DevkitError:
        return LauncherGpu()
    found, size = find_gpu(gpu.name), _SIZE.search(gpu.name)
    if found is None or found.model is None or " mig " in f" {gpu.name.lower()} ":
        return LauncherGpu()
    rows, key = load_launcher_gpus(), found.model.id
    return rows.get(f"{key}@{size[1]}" if size else key) or rows.get(key, LauncherGpu())


@cache
def load_launcher_gpus() -> Mapping[str, LauncherGpu]:
    """Return the rows by id or name; "v100-pcie@32" is the GPU of that row with another memory size."""
    rows = load("devkit.export", "launcher_gpus")
    return {key: LauncherGpu(**decode_fields(row, LauncherGpu)) for key, row in rows.items()}
