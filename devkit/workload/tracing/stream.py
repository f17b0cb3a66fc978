"""What a traced step did with memory: allocations and releases in order, each with its place in the step."""

from dataclasses import dataclass
from enum import StrEnum

ROUNDING_BYTES = 512
"""CUDA's caching allocator hands out multiples of this.

Source: kMinBlockSize, https://github.com/pytorch/pytorch/blob/main/c10/cuda/CUDACachingAllocator.cpp
"""


class Phase(StrEnum):
    """What the step is doing."""

    LOAD = "load"
    FORWARD = "forward"
    LOSS = "loss"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    PREFILL = "prefill"
    DECODE = "decode"


class Kind(StrEnum):
    """What an allocation holds, as far as the moment of its making tells."""

    WEIGHTS = "weights"
    ADAPTERS = "adapters"
    OPTIMIZER_STATE = "optimizer state"
    GRADIENTS = "gradients"
    CACHE = "cache"
    RECOMPUTED = "recomputed layer"
    OTHER = "other"


@dataclass(frozen=True, order=True)
class Section:
    """A stretch of the step: a phase, within one decoder layer or outside of all (`layer` is None).

    `part` tells stretches outside of the layers apart: what comes before the first from what comes after the last.
    """

    phase: Phase
    layer: int | None = None
    part: str = ""


@dataclass(frozen=True)
class Allocation:
    """Bytes taken within `section`; it is the `ordinal`-th of that section. `bytes` are as asked for, not rounded."""

    section: Section
    ordinal: int
    bytes: int
    kind: Kind = Kind.OTHER

    @property
    def name(self) -> tuple[Section, int]:
        """What a release calls it by."""
        return self.section, self.ordinal


@dataclass(frozen=True)
class Release:
    """Bytes given back within `section`: those of the allocation `name`."""

    section: Section
    name: tuple[Section, int]


Event = Allocation | Release
Stream = list[Event]


def rounded(size_bytes: int) -> int:
    """Bytes that the allocator counts for a request of `size_bytes`."""
    return -(-size_bytes // ROUNDING_BYTES) * ROUNDING_BYTES
