"""The memory events of a traced step: allocations and deallocations in order, and the peak of each phase."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

MIN_BLOCK_BYTES = 512
"""CUDA's caching allocator rounds up to multiples of this.

Source: kMinBlockSize, https://github.com/pytorch/pytorch/blob/main/c10/cuda/CUDACachingAllocator.cpp
"""


class StepPhase(StrEnum):
    """The phase of a step."""

    LOAD = "load"
    FORWARD = "forward"
    LOSS = "loss"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    PREFILL = "prefill"
    DECODE = "decode"


class TensorKind(StrEnum):
    """The kind of tensor in an allocation, as far as it is known when it is made."""

    WEIGHTS = "weights"
    ADAPTERS = "adapters"
    OPTIMIZER_STATE = "optimizer state"
    GRADIENTS = "gradients"
    CACHE = "cache"
    RECOMPUTED = "recomputed layer"
    OTHER = "other"


@dataclass(frozen=True)
class Section:
    """A section of the step: a phase, within one decoder layer or outside of all (`layer` is None)."""

    phase: StepPhase
    layer: int | None = None


@dataclass(eq=False)
class Allocation:
    """Bytes allocated within `section`, as requested, not rounded. No two are equal: each is its own name."""

    section: Section
    bytes: int
    kind: TensorKind = TensorKind.OTHER


@dataclass(frozen=True)
class Deallocation:
    """The bytes of `allocation` freed within `section`."""

    section: Section
    allocation: Allocation


MemoryEvent = Allocation | Deallocation
EventStream = list[MemoryEvent]


def round_to_block(size_bytes: int) -> int:
    """Return the bytes that the allocator counts for a request of `size_bytes`."""
    return -(-size_bytes // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES


@dataclass(frozen=True)
class PeakMoment:
    """The tensors in memory at one moment: the total bytes, and the bytes by what they hold."""

    bytes: int
    parts: dict[str, int]


def peak_by_phase(resident: Sequence[MemoryEvent], step: Sequence[MemoryEvent]) -> dict[StepPhase, PeakMoment]:
    """Find the peak of each phase of `step`. What `resident` left allocated stays in memory all the time."""
    now_bytes = sum(round_to_block(each.bytes) for each in _find_live(resident))
    peaks: dict[StepPhase, tuple[int, int]] = {}
    for index, event in enumerate(step):
        if isinstance(event, Allocation):
            now_bytes += round_to_block(event.bytes)
            if now_bytes > peaks.get(event.section.phase, (0, 0))[0]:
                peaks[event.section.phase] = now_bytes, index
        else:
            now_bytes -= round_to_block(event.allocation.bytes)
    freed_in = {event.allocation: event.section for event in step if isinstance(event, Deallocation)}
    moments = {}
    for phase, (_, index) in peaks.items():
        parts: dict[str, int] = {}
        for each in _find_live([*resident, *step[: index + 1]]):
            part = _classify(each, freed_in.get(each))
            parts[part] = parts.get(part, 0) + round_to_block(each.bytes)
        moments[phase] = PeakMoment(sum(parts.values()), parts)
    return moments


def _find_live(events: Sequence[MemoryEvent]) -> list[Allocation]:
    freed = {event.allocation for event in events if isinstance(event, Deallocation)}
    return [event for event in events if isinstance(event, Allocation) and event not in freed]


def _classify(allocation: Allocation, freed_in: Section | None) -> str:
    """Return what an allocation holds, by its kind, its phase and whether it outlives its section."""
    if allocation.kind is not TensorKind.OTHER:
        return allocation.kind.value
    phase = allocation.section.phase
    if phase is StepPhase.LOSS:
        return "logits and loss"
    if phase is StepPhase.FORWARD and freed_in != allocation.section:
        return "activations"
    return "temporaries"
