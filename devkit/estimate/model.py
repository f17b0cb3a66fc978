"""What an estimate says: three peaks, each with a bound, and the terms they are made of."""

from enum import StrEnum

from devkit.facts.record import keyword_record, record


class Phase(StrEnum):
    """When memory is fullest."""

    LOAD = "load"
    LOSS = "loss"
    BACKWARD = "backward"
    STEP = "step"
    PREFILL = "prefill"
    DECODE = "decode"


@record
class Interval:
    """The value to expect, and one that it will not pass."""

    point: int
    upper: int


@record
class Term:
    """A part of the peak. `formula` shows the numbers that went in, `source` is where the formula was read."""

    name: str
    bytes: int
    formula: str
    source: str


@keyword_record
class MemoryEstimate:
    """Peak memory of one process on one GPU, in bytes.

    Allocated: tensors, as torch.cuda.max_memory_allocated counts them. Reserved: what torch's allocator holds for
    them, max_memory_reserved. Device: what is taken of the GPU, with the CUDA context and communication buffers.
    """

    phase: Phase
    """The fullest phase; its terms are `terms` and add up to `allocated_peak_bytes`."""
    terms: tuple[Term, ...]
    overheads: tuple[Term, ...]
    """What lies between tensors and device: allocator slack, CUDA context, communication buffers."""
    phases: tuple[tuple[Phase, int], ...]
    """Bytes of tensors in every phase."""
    allocated_peak_bytes: int
    reserved_peak_bytes: Interval
    device_peak_bytes: Interval
    warnings: tuple[str, ...] = ()
    method: str = "closed form"
    """How it was found: "closed form", or "traced" with the versions of what was traced."""
