"""Finds GPUs by the names that people and drivers give them."""

import re
from difflib import get_close_matches
from functools import cache

from devkit.compat.load import Tables, tables
from devkit.compat.rows import GpuModel
from devkit.facts.record import record
from devkit.facts.values import ComputeCapability

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
    return _found(text, known or tables())


@cache
def _found(text: str, known: Tables) -> NamedGpu | None:
    capability = _capability(text)
    if capability is not None:
        return NamedGpu(capability.sm, capability, None) if capability in known.driver.capabilities else None
    for simplified in (_plain, _without_memory, _without_series, _as_prefix):
        wanted = simplified(text)
        rows = [row for row in known.gpus.models if wanted and any(_fits(wanted, simplified(n)) for n in _names(row))]
        if len({row.capability for row in rows}) == 1:
            # "H100" is any of three cards of one capability: keep the user's word unless it names a single one.
            is_named = len(rows) == 1 and simplified in (_plain, _without_memory)
            return NamedGpu(rows[0].name if is_named else text.strip(), rows[0].capability, rows[0])
    return None


def closest_gpus(text: str, *, count: int = 3, known: Tables | None = None) -> tuple[str, ...]:
    """Names of known GPUs that look like `text`, best first."""
    spelled = {_plain(name): name for row in (known or tables()).gpus.models for name in (*row.aliases, row.name)}
    found = get_close_matches(_plain(text), spelled, n=count, cutoff=0.5)
    return tuple(spelled[plain] for plain in found)


def offers_forward_compatibility(name: str, *, known: Tables | None = None) -> bool:
    """Whether forward compatibility is offered for the GPU of that name; False when the name says nothing."""
    found = find_gpu(name, known=known)
    return found is not None and found.model is not None and found.model.forward


def gpu_kind(name: str, *, known: Tables | None = None) -> str | None:
    """datacenter, workstation, geforce or jetson; None when the name says nothing, as a compute capability does."""
    found = find_gpu(name, known=known) if name else None
    return found.model.kind if found is not None and found.model is not None else None


def _capability(text: str) -> ComputeCapability | None:
    try:
        return ComputeCapability.read(text)
    except ValueError:
        return None


def _names(row: GpuModel) -> tuple[str, ...]:
    return (row.id, row.name, *row.aliases)


@cache
def _plain(text: str) -> str:
    """Lower case, without makers' words and punctuation; letters and digits apart, so that rtx4090 is rtx 4090."""
    spaced = re.sub(r"(?<=[a-z])(?=\d{3,})", " ", re.sub(r"[^a-z0-9]+", " ", text.lower()))
    return " ".join(_NOISE.sub(" ", spaced).split())


@cache
def _without_memory(text: str) -> str:
    return " ".join(_MEMORY.sub(" ", _plain(text)).split())


@cache
def _without_series(text: str) -> str:
    return " ".join(_SERIES.sub(" ", _without_memory(text)).split())


def _as_prefix(text: str) -> str:
    return _plain(text) + " "


def _fits(wanted: str, name: str) -> bool:
    if not wanted.endswith(" "):
        return name == wanted
    return name.startswith(wanted) and any(letter.isdigit() for letter in wanted)
