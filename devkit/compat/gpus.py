"""GPUs by the names that people and drivers give them: their rows, AMD targets and data sheets."""

import re
from dataclasses import dataclass, replace
from functools import cache

from devkit.compat.version_tables import GpuDatasheet, GpuModel, Tables, load_tables
from devkit.facts.values import ComputeCapability

_NOISE = re.compile(r"\b(nvidia|geforce|tesla|quadro(?! rtx)|gpu|graphics|generation|edition)\b")
_MEMORY = re.compile(r"\b\d+ ?gi?b\b|\bhbm\d?e?\b")
_SERIES = re.compile(r"\b(rtx|gtx|laptop|mobile|(with )?max q( design)?)\b")
"""Words that change the product but, within one model number, never the compute capability."""

_AMD_TARGET = re.compile(r"gfx[0-9a-f]{3,4}")
_AMD_NOISE = re.compile(r"\b(amd|radeon|instinct|pro|rx|graphics)\b")

_MIG_DEVICE = re.compile(r"^(?P<whole>.+?) MIG (?P<slices>\d)g\.(?P<gigabytes>\d+)gb\b")
"""A MIG device as NVIDIA's driver names it: "NVIDIA H100 80GB HBM3 MIG 3g.40gb"."""

_WITH_HBM3 = ("h100-sxm", "h800-sxm")
"""Boards of the same name were built with the older memory, which moves 2 TB/s: no data sheet is theirs."""


@dataclass(frozen=True)
class NamedGpu:
    """A GPU by the user's name for it: its compute capability, and its row when the name is known."""

    name: str
    capability: ComputeCapability
    model: GpuModel | None


@dataclass(frozen=True)
class NamedAmdGpu:
    """An AMD GPU by the user's name for it, and its LLVM target such as gfx942."""

    name: str
    target: str


def find_gpu(text: str, *, known: Tables | None = None) -> NamedGpu | None:
    """Find a GPU by name, alias or compute capability ("RTX 4090", "h100", "sm_120", "9.0"); None when nothing fits."""
    return _find_gpu(text, known or load_tables())


@cache
def _find_gpu(text: str, known: Tables) -> NamedGpu | None:
    try:
        capability = ComputeCapability.parse(text)
    except ValueError:
        return _find_gpu_by_name(text, known)
    return NamedGpu(capability.sm, capability, None) if capability in known.driver.capabilities else None


def _find_gpu_by_name(text: str, known: Tables) -> NamedGpu | None:
    models = _list_models(known)
    for simplify in (_normalize, _drop_memory, _drop_series):
        wanted = simplify(text)
        rows = [row for row in models if wanted and any(wanted == simplify(n) for n in _list_names(row))]
        if len({row.capability for row in rows}) == 1:
            # "H100" is any of three products of one capability: keep the user's word unless it names a single one.
            is_named = len(rows) == 1 and simplify is not _drop_series
            return NamedGpu(rows[0].name if is_named else text.strip(), rows[0].capability, rows[0])
    prefix = _drop_memory(text) + " "
    if any(letter.isdigit() for letter in prefix):
        rows = [row for row in models if any(f"{_normalize(n)} ".startswith(prefix) for n in _list_names(row))]
        if len({row.capability for row in rows}) == 1:
            return NamedGpu(text.strip(), rows[0].capability, rows[0])
    return None


@cache
def _list_models(known: Tables) -> tuple[GpuModel, ...]:
    """List all models; the memory of those that only a series names is unknown."""
    named = (
        GpuModel(
            id=_normalize(name).replace(" ", "-"),
            name=name,
            aliases=(),
            capability=row.capability,
            kind=row.kind,
            memory_gib=(),
            forward=row.kind == "datacenter",
            source=row.source,
            checked=row.checked,
            confidence=row.confidence,
        )
        for row in known.gpus.series
        for name in row.names
    )
    return (*known.gpus.models, *named)


def find_amd_gpu(text: str, *, known: Tables | None = None) -> NamedAmdGpu | None:
    """Find an AMD GPU by name, alias or target ("MI300X", "RX 7900 XTX", "gfx942"); None when nothing fits."""
    table = (known or load_tables()).rocm
    target = text.strip().lower()
    if _AMD_TARGET.fullmatch(target):
        targets = {row.target for row in table.gpus} | {each for row in table.indexes.values() for each in row.targets}
        return NamedAmdGpu(target, target) if target in targets else None
    wanted = _normalize_amd(text)
    for row in table.gpus:
        if wanted and wanted in {_normalize_amd(name) for name in (row.name, *row.aliases)}:
            return NamedAmdGpu(row.name, row.target)
    return None


def find_closest_gpus(text: str, *, count: int = 3, known: Tables | None = None) -> tuple[str, ...]:
    """Find names of known GPUs that look like `text`, best first."""
    models = _list_models(known or load_tables())
    names = {_normalize(name): name for row in models for name in (*row.aliases, row.name)}
    # What several products have in common is a name as well: H100 of H100 PCIe.
    for words in [name.split() for name in names.values()]:
        starts = (" ".join(words[:end]) for end in range(1, len(words)))
        if start := next((each for each in starts if re.search(r"\d", each) and find_gpu(each, known=known)), ""):
            names.setdefault(_normalize(start), start)
    from difflib import get_close_matches  # only a name that is unknown is compared with all

    wanted = _normalize(text)
    near = get_close_matches(wanted, names, n=5 * count, cutoff=0.5)
    # Of names with as many letters in common, one that begins alike is meant: H1000 means H100, not T1000.
    return tuple(names[each] for each in sorted(near, key=lambda each: each[:1] != wanted[:1])[:count])


def has_forward_compatibility(name: str, *, known: Tables | None = None) -> bool:
    """Return whether forward compatibility is offered for the GPU of that name; False when the name is unknown."""
    found = find_gpu(name, known=known)
    return found is not None and found.model is not None and found.model.forward


def find_gpu_kind(name: str, *, known: Tables | None = None) -> str | None:
    """Find datacenter, workstation, geforce or jetson; None for an unknown name, or a mere compute capability."""
    found = find_gpu(name, known=known) if name else None
    return found.model.kind if found is not None and found.model is not None else None


def find_datasheet(name: str, *, known: Tables | None = None) -> GpuDatasheet | None:
    """Find the peak rates of the GPU or MIG device of that name; None where the name fits more than one product.

    A laptop's GPU is not its desktop twin, and the share of a virtual GPU is not in its name: both are None.

    A MIG device has a share of compute by its slices, and of bandwidth by its memory. NVLink is off in MIG mode; PCIe
    is shared by all. Source: NVIDIA, Multi-Instance GPU User Guide, "MIG Device Profiles" and "Application
    Considerations".
    """
    table = known or load_tables()
    mig = _MIG_DEVICE.match(name)
    whole = find_gpu(mig["whole"] if mig else name, known=table)
    if whole is None or whole.model is None or whole.name != whole.model.name:
        return None
    if "HBM2e" in name and whole.model.id in _WITH_HBM3:
        return None
    rates = table.gpus.rates.get(whole.model.id)
    if rates is None or mig is None:
        return rates
    if not rates.mig_slices:
        return None
    compute = min(1.0, int(mig["slices"]) / rates.mig_slices)
    memory = min(1.0, int(mig["gigabytes"]) / max(whole.model.memory_gib))
    return replace(
        rates,
        fp16_tflops=rates.fp16_tflops * compute,
        bf16_tflops=rates.bf16_tflops * compute,
        bandwidth_gb_per_s=rates.bandwidth_gb_per_s * memory,
        nvlink_gb_per_s=0.0,
    )


def _list_names(row: GpuModel) -> tuple[str, ...]:
    return (row.id, row.name, *row.aliases)


@cache
def _normalize(text: str) -> str:
    """Lower case, without makers' words and punctuation; letters and digits apart, so that rtx4090 is rtx 4090."""
    spaced = re.sub(r"(?<=[a-z])(?=\d{3,})|(?<=\d)(?=(?:ti|super)\b)", " ", re.sub(r"[^a-z0-9]+", " ", text.lower()))
    return " ".join(_NOISE.sub(" ", spaced).split())


@cache
def _drop_memory(text: str) -> str:
    return " ".join(_MEMORY.sub(" ", _normalize(text)).split())


@cache
def _drop_series(text: str) -> str:
    return " ".join(_SERIES.sub(" ", _drop_memory(text)).split())


@cache
def _normalize_amd(text: str) -> str:
    """Lower case without makers' words and spaces, so that rx7900xtx is RX 7900 XTX."""
    spaced = re.sub(r"(?<=[a-z])(?=\d)|(?<=\d)(?=[a-z])", " ", re.sub(r"[^a-z0-9+]+", " ", text.lower()))
    return "".join(_AMD_NOISE.sub(" ", spaced).split())
