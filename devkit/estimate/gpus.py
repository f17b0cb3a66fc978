"""GPUs of an estimate: their usable memory, and whether the estimate fits."""

import re
from dataclasses import dataclass, replace
from enum import StrEnum

from devkit.compat.gpus import find_closest_gpus, find_datasheet, find_gpu
from devkit.compat.version_tables import GpuModel, load_tables
from devkit.errors import DevkitError
from devkit.estimate.memory import MemoryEstimate
from devkit.facts.gpu import Gpu
from devkit.facts.values import Unknown
from devkit.text import suggest

GIB = 1 << 30
_MIG = re.compile(r"^(?P<whole>.+?) MIG (?P<slices>\d)g\.(?P<gigabytes>\d+)gb$", re.IGNORECASE)
_SHARE = re.compile(r"^(?P<whole>.+?) ?/ ?(?P<programs>[1-9]\d?)$")
_SIZED = re.compile(r"\b(?P<size>\d+) ?gi?b\b", re.IGNORECASE)

DRIVER_SHARE = 0.99
"""Of the memory on the data sheet: the rest is the driver's own. nvidia-smi shows 24,564 of 24,576 MiB on an RTX 4090,
143,771 of 144,384 on an H200."""
ECC_SHARE = 15 / 16
"""Error correction takes a sixteenth of GDDR memory and nothing of HBM.
Source: https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/, "Theoretical Bandwidth Calculation"."""
_HBM_GB_PER_S = 1200
_HBM_CAPABILITIES = frozenset({(6, 0), (7, 0)})
"""GDDR stays below that bandwidth on data center GPUs; the P100 and V100 have HBM and do, too."""


OLDEST_MAJOR = 7
"""Compute capability from which today's torch has kernels: https://pytorch.org/get-started/previous-versions/."""


FIRST_BF16_MAJOR = 8
"""Source: https://docs.nvidia.com/cuda/cuda-c-programming-guide/, "Arithmetic Instructions"."""


class Fit(StrEnum):
    """The verdict on a GPU: the upper bound of the estimate fits, only the expected value does, or not even that."""

    FITS = "fits"
    TIGHT = "tight"
    DOES_NOT_FIT = "does-not-fit"


@dataclass(frozen=True, kw_only=True)
class GpuSpec:
    """A GPU, or several that are alike. `memory_bytes` is what programs may take."""

    name: str
    memory_bytes: int
    count: int = 1
    lacks_bf16: bool = False
    """Whether it computes bf16 in software, as GPUs before compute capability 8.0 do."""
    is_measured: bool = False
    """Whether the memory was read from the GPU, and not from its data sheet."""

    def verdict(self, estimate: MemoryEstimate) -> Fit:
        """Return whether the estimate fits on one of them."""
        peak = estimate.device_peak_bytes
        if peak.upper <= self.memory_bytes:
            return Fit.FITS
        return Fit.TIGHT if peak.point <= self.memory_bytes else Fit.DOES_NOT_FIT


def find_gpu_spec(text: str) -> GpuSpec:
    """Find a GPU by name, such as "RTX 4090", "A100 80GB" or "H100 MIG 3g.40gb"; "L4/4" is the share of one program of four.

    Programs that share a GPU by time-slicing or MPS have its memory among them.
    Raises DevkitError for an unknown name, and for a MIG device that the GPU does not offer.
    """
    share = _SHARE.match(text.strip())
    if share:
        whole, programs = find_gpu_spec(share["whole"]), int(share["programs"])
        return replace(
            whole,
            name=f"{whole.name}/{programs}",
            memory_bytes=whole.memory_bytes // programs,
        )
    mig = _MIG.match(text.strip())
    if mig:
        whole = find_gpu_spec(mig["whole"])
        profile = f"{int(mig['slices'])}g.{int(mig['gigabytes'])}gb"
        name, memory = f"{whole.name} MIG {profile}", round(int(mig["gigabytes"]) * GIB * DRIVER_SHARE)
        if memory > whole.memory_bytes or find_datasheet(name) is None:
            raise DevkitError(f"{whole.name} has no MIG slice {profile}", "List them: nvidia-smi mig -lgip")
        return GpuSpec(name=name, memory_bytes=memory)
    # "V100 32GB" names a family and a size: the size says which model of the family.
    family, sized = _SIZED.sub("", text), _SIZED.search(text)
    size = int(sized["size"]) if sized else 0
    named = find_gpu(text) or find_gpu(family)
    if named is None or named.model is None:
        # Of a size alone, the newest GPUs that have it, boards with memory that they share aside.
        models = [row for row in reversed(load_tables().gpus.models) if not family and row.kind != "jetson"]
        near = [row.name for row in models if size in row.memory_gib][:3] or find_closest_gpus(text)
        hint = suggest(near, "Use nvidia-smi's name, such as RTX 4090.")
        raise DevkitError(f"the GPU {text!r} is not in the tables", hint)
    model, family = named.model, family.strip(" -_").lower()
    if size and size not in model.memory_gib and family:
        # "A100-40GB" is not the one with 80.
        alike = (row for row in load_tables().gpus.models if family in row.name.lower() and size in row.memory_gib)
        model = next(alike, model)
    # A laptop's GPU has less than the desktop's of the same number.
    is_other = "laptop" in family and "laptop" not in model.name.lower()
    if not size and (is_other or not model.memory_gib):
        raise DevkitError(
            f"the memory of the {model.name}{' for laptops' * is_other} is not in the tables",
            f'Add it to the name: "{text.strip()} 8GB".',
        )
    # Without a size, the smallest: what fits there fits on the larger ones, too.
    gib = size or min(model.memory_gib)
    return GpuSpec(
        name=_format_name(model, gib),
        lacks_bf16=model.capability.major < FIRST_BF16_MAJOR,
        memory_bytes=round(gib * GIB * _find_usable_share(model)),
    )


def find_smallest_gpu(estimate: MemoryEstimate) -> GpuSpec | None:
    """Find the NVIDIA GPU with the least memory on which the estimate is sure to fit; None where it fits on none."""
    rows = (row for row in load_tables().gpus.models if row.kind != "jetson" and row.capability.major >= OLDEST_MAJOR)
    sized = ((round(gib * GIB * _find_usable_share(row)), row, gib) for row in rows for gib in row.memory_gib)
    fitting = [each for each in sized if estimate.device_peak_bytes.upper <= each[0]]
    if not fitting:
        return None
    memory, row, gib = min(fitting, key=lambda each: (each[0], each[1].name))
    return GpuSpec(name=_format_name(row, gib), memory_bytes=memory)


def group_gpus(gpus: tuple[Gpu, ...]) -> tuple[GpuSpec, ...]:
    """Group the GPUs of a machine by name, with the least memory that one of a group has."""
    found: dict[str, GpuSpec] = {}
    for gpu in gpus:
        if isinstance(gpu.memory_bytes, Unknown):
            continue
        known = found.get(gpu.name)
        found[gpu.name] = GpuSpec(
            name=gpu.name,
            memory_bytes=min(gpu.memory_bytes, known.memory_bytes) if known else gpu.memory_bytes,
            count=known.count + 1 if known else 1,
            lacks_bf16=not isinstance(gpu.capability, Unknown) and gpu.capability.major < FIRST_BF16_MAJOR,
            is_measured=True,
        )
    return tuple(found.values())


def _format_name(model: GpuModel, gib: int) -> str:
    """Format a model's name, with its size where it is sold in several."""
    return model.name if len(model.memory_gib) == 1 or _SIZED.search(model.name) else f"{model.name} {gib}GB"


def _find_usable_share(model: GpuModel) -> float:
    if model.kind != "datacenter":
        return DRIVER_SHARE
    rates = load_tables().gpus.rates.get(model.id)
    capability = (model.capability.major, model.capability.minor)
    is_hbm = capability in _HBM_CAPABILITIES or (rates is not None and rates.bandwidth_gb_per_s > _HBM_GB_PER_S)
    return DRIVER_SHARE if is_hbm else ECC_SHARE
