"""Finds GPUs by the names that people and drivers give them."""

import re
from dataclasses import replace
from difflib import get_close_matches
from functools import cache

from devkit.compat.version_tables import GpuDatasheet, GpuModel, Tables, load_tables
from devkit.facts.values import ComputeCapability, record

_NOISE = re.compile(r"\b(nvidia|geforce|tesla|gpu|graphics|generation|edition)\b")
_MEMORY = re.compile(r"\b\d+ ?gi?b\b|\bhbm\d?e?\b")
_SERIES = re.compile(r"\b(rtx|gtx|laptop|mobile)\b")
"""Words that change the card but, within one model number, never the compute capability."""


@record
class NamedGpu:
    """A GPU as asked for: what to call it, its compute capability, and its row when the name is known."""

    name: str
    capability: ComputeCapability
    model: GpuModel | None


def find_gpu(text: str, *, known: Tables | None = None) -> NamedGpu | None:
    """A GPU by name, alias or compute capability ("RTX 4090", "h100", "sm_120", "9.0"); None when nothing fits."""
    return _found(text, known or load_tables())


@cache
def _found(text: str, known: Tables) -> NamedGpu | None:
    capability = _capability(text)
    if capability is not None:
        return NamedGpu(capability.sm, capability, None) if capability in known.driver.capabilities else None
    for simplified in (_normalize, _without_memory, _without_series, _as_prefix):
        wanted = simplified(text)
        rows = [row for row in known.gpus.models if wanted and any(_fits(wanted, simplified(n)) for n in _names(row))]
        if len({row.capability for row in rows}) == 1:
            # "H100" is any of three cards of one capability: keep the user's word unless it names a single one.
            is_named = len(rows) == 1 and simplified in (_normalize, _without_memory)
            return NamedGpu(rows[0].name if is_named else text.strip(), rows[0].capability, rows[0])
    return None


def find_closest_gpus(text: str, *, count: int = 3, known: Tables | None = None) -> tuple[str, ...]:
    """Names of known GPUs that look like `text`, best first."""
    spelled = {
        _normalize(name): name for row in (known or load_tables()).gpus.models for name in (*row.aliases, row.name)
    }
    found = get_close_matches(_normalize(text), spelled, n=count, cutoff=0.5)
    return tuple(spelled[plain] for plain in found)


def has_forward_compatibility(name: str, *, known: Tables | None = None) -> bool:
    """Whether forward compatibility is offered for the GPU of that name; False when the name says nothing."""
    found = find_gpu(name, known=known)
    return found is not None and found.model is not None and found.model.forward


def find_gpu_kind(name: str, *, known: Tables | None = None) -> str | None:
    """datacenter, workstation, geforce or jetson; None when the name says nothing, as a compute capability does."""
    found = find_gpu(name, known=known) if name else None
    return found.model.kind if found is not None and found.model is not None else None


def _capability(text: str) -> ComputeCapability | None:
    try:
        return ComputeCapability.parse(text)
    except ValueError:
        return None


def _names(row: GpuModel) -> tuple[str, ...]:
    return (row.id, row.name, *row.aliases)


@cache
def _normalize(text: str) -> str:
    """Lower case, without makers' words and punctuation; letters and digits apart, so that rtx4090 is rtx 4090."""
    spaced = re.sub(r"(?<=[a-z])(?=\d{3,})", " ", re.sub(r"[^a-z0-9]+", " ", text.lower()))
    return " ".join(_NOISE.sub(" ", spaced).split())


@cache
def _without_memory(text: str) -> str:
    return " ".join(_MEMORY.sub(" ", _normalize(text)).split())


@cache
def _without_series(text: str) -> str:
    return " ".join(_SERIES.sub(" ", _without_memory(text)).split())


def _as_prefix(text: str) -> str:
    return _normalize(text) + " "


def _fits(wanted: str, name: str) -> bool:
    if not wanted.endswith(" "):
        return name == wanted
    return name.startswith(wanted) and any(letter.isdigit() for letter in wanted)


# Finds AMD GPUs by name or by LLVM target.

_AMD_TARGET = re.compile(r"gfx[0-9a-f]{3,4}")
_AMD_NOISE = re.compile(r"\b(amd|radeon|instinct|pro|rx|graphics)\b")


@record
class NamedAmdGpu:
    """An AMD GPU as asked for: what to call it, and its LLVM target such as gfx942."""

    name: str
    target: str


def find_amd_gpu(text: str, *, known: Tables | None = None) -> NamedAmdGpu | None:
    """An AMD GPU by name, alias or target ("MI300X", "RX 7900 XTX", "gfx942"); None when nothing fits."""
    table = (known or load_tables()).rocm
    asked = text.strip().lower()
    if _AMD_TARGET.fullmatch(asked):
        targets = {row.target for row in table.gpus} | {
            target for row in table.indexes.values() for target in row.targets
        }
        return NamedAmdGpu(asked, asked) if asked in targets else None
    wanted = _normalize_amd(text)
    for row in table.gpus:
        if wanted and wanted in {_normalize_amd(name) for name in (row.name, *row.aliases)}:
            return NamedAmdGpu(row.name, row.target)
    return None


@cache
def _normalize_amd(text: str) -> str:
    """Lower case without makers' words and spaces, so that rx7900xtx is RX 7900 XTX."""
    spaced = re.sub(r"(?<=[a-z])(?=\d)|(?<=\d)(?=[a-z])", " ", re.sub(r"[^a-z0-9+]+", " ", text.lower()))
    return "".join(_AMD_NOISE.sub(" ", spaced).split())


# What a GPU may be expected to reach, by its name: the data sheet's rates, and a MIG slice's share of them.

_SLICE = re.compile(r"^(?P<whole>.+?) MIG (?P<slices>\d)g\.(?P<gigabytes>\d+)gb\b")
"""How NVIDIA's driver calls a MIG device: "NVIDIA H100 80GB HBM3 MIG 3g.40gb"."""

_WITH_HBM3 = ("h100-sxm", "h800-sxm")
"""Boards of the same name were built with the older memory, which moves 2 TB/s: no data sheet is theirs."""


def find_datasheet(name: str, *, known: Tables | None = None) -> GpuDatasheet | None:
    """The rates of the GPU, or the MIG slice, of that name; None where the name is not that of one product alone.

    A laptop's GPU is not its desktop twin, and a virtual GPU has a share that its name does not tell: both are None.
    """
    table = known or load_tables()
    found = _SLICE.match(name)
    whole = find_gpu(found["whole"] if found else name, known=table)
    if whole is None or whole.model is None or whole.name != whole.model.name:
        return None
    if "HBM2e" in name and whole.model.id in _WITH_HBM3:
        return None
    rates = table.gpus.rates.get(whole.model.id)
    if rates is None or found is None:
        return rates
    memory_share = int(found["gigabytes"]) / max(whole.model.memory_gib)
    return _scaled(rates, int(found["slices"]), memory_share) if rates.mig_slices else None


def _scaled(rates: GpuDatasheet, slices: int, memory_share: float) -> GpuDatasheet:
    """Compute is shared by slices, memory bandwidth by memory. NVLink is off in MIG mode; PCIe is shared by all.

    Source: NVIDIA, Multi-Instance GPU User Guide, "MIG Device Profiles" and "Application Considerations".
    """
    compute = min(1.0, slices / rates.mig_slices)
    return replace(
        rates,
        fp16_tflops=rates.fp16_tflops * compute,
        bf16_tflops=rates.bf16_tflops * compute,
        bandwidth_gb_per_s=rates.bandwidth_gb_per_s * min(1.0, memory_share),
        nvlink_gb_per_s=0.0,
    )
