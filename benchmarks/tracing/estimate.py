"""The memory estimate from a trace: its events are replayed through an allocator, and its peak becomes terms.

The model of PyTorch's caching allocator follows https://github.com/pytorch/pytorch/blob/main/c10/cuda/CUDACachingAllocator.cpp
(get_allocation_size, should_split, free_block). The device is assumed to be never full: no segment is freed.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.metadata import version

from benchmarks.tracing.model import ConfigDocument
from benchmarks.tracing.request import TracedSettings, TraceRequest
from benchmarks.tracing.steps import trace_inference, trace_training
from benchmarks.tracing.stream import (
    Allocation,
    EventStream,
    MemoryEvent,
    PeakMoment,
    StepPhase,
    peak_by_phase,
    round_to_block,
)
from devkit.estimate import memory
from devkit.estimate.memory import Interval, MemoryEstimate, MemoryPhase, Term
from devkit.estimate.settings import Attention, InferenceSettings, Stack, TrainingSettings

MIB = 2**20
SMALL_BYTES = 1 * MIB
"""The largest request of the small pool, and the smallest remainder split off a large block (kSmallSize)."""
SMALL_SEGMENT_BYTES = 2 * MIB
"""Size of the small pool's segments (kSmallBuffer)."""
MEDIUM_BYTES = 10 * MIB
"""Requests below this share segments of the large pool (kMinLargeAlloc)."""
MEDIUM_SEGMENT_BYTES = 20 * MIB
"""Size of those segments (kLargeBuffer), and the step in which an expandable segment grows."""
LARGE_STEP_BYTES = 2 * MIB
"""Larger requests have a segment of their own, a multiple of this (kRoundLarge)."""


@dataclass(eq=False)
class _Block:
    size_bytes: int
    order: int
    """Represents the address: earlier segments have lower ones."""
    is_free: bool = True
    before: "_Block | None" = None
    after: "_Block | None" = None

    @property
    def key(self) -> tuple[int, int]:
        return self.size_bytes, self.order


@dataclass
class _Pool:
    """The free blocks of a pool, sorted by size for best fit."""

    is_small: bool
    is_expandable: bool
    free: list[tuple[int, int]] = field(default_factory=list)
    blocks: dict[int, _Block] = field(default_factory=dict)
    tail: _Block | None = None

    def add(self, block: _Block) -> None:
        insort(self.free, block.key)
        self.blocks[block.order] = block

    def remove(self, block: _Block) -> None:
        del self.free[bisect_left(self.free, block.key)]
        del self.blocks[block.order]

    def find_best_fit(self, size_bytes: int) -> _Block | None:
        at = bisect_left(self.free, (size_bytes, -1))
        return self.blocks[self.free[at][1]] if at < len(self.free) else None


class CachingAllocator:
    """A caching allocator with the counters of torch.cuda: allocated bytes by blocks, reserved bytes by segments."""

    def __init__(self, *, expandable_segments: bool = False) -> None:
        self.allocated_bytes = self.reserved_bytes = 0
        self.allocated_peak_bytes = self.reserved_peak_bytes = 0
        self._pools = {small: _Pool(small, expandable_segments) for small in (True, False)}
        self._used: dict[object, tuple[_Block, _Pool]] = {}
        self._last_order = 0

    def allocate(self, name: object, size_bytes: int) -> None:
        """Allocate `size_bytes` under `name`, from a free block where one fits."""
        size = round_to_block(size_bytes)
        pool = self._pools[size <= SMALL_BYTES]
        block = pool.find_best_fit(size)
        if block is None:
            block = self._grow(pool, size) if pool.is_expandable else self._add_segment(pool, size)
        pool.remove(block)
        if self._should_split(pool, block.size_bytes - size):
            pool.add(self._split(pool, block, size))
        block.is_free = False
        self._used[name] = block, pool
        self.allocated_bytes += block.size_bytes
        self.allocated_peak_bytes = max(self.allocated_peak_bytes, self.allocated_bytes)

    def release(self, name: object) -> None:
        """Free the block of `name`, and merge it with free neighbors."""
        block, pool = self._used.pop(name)
        self.allocated_bytes -= block.size_bytes
        block.is_free = True
        for other in (block.before, block.after):
            if other is not None and other.is_free:
                pool.remove(other)
                self._merge(pool, block, other)
        pool.add(block)

    def reset_peaks(self) -> None:
        """Reset the peaks, as torch.cuda.reset_peak_memory_stats does."""
        self.allocated_peak_bytes, self.reserved_peak_bytes = self.allocated_bytes, self.reserved_bytes

    def _add_segment(self, pool: _Pool, size: int) -> _Block:
        block = _Block(_find_segment_bytes(size), self._next_order())
        self._reserve(block.size_bytes)
        pool.add(block)
        return block

    def _grow(self, pool: _Pool, size: int) -> _Block:
        step = SMALL_SEGMENT_BYTES if pool.is_small else MEDIUM_SEGMENT_BYTES
        tail = pool.tail
        free = tail.size_bytes if tail is not None and tail.is_free else 0
        more = -(-(size - free) // step) * step
        self._reserve(more)
        if tail is not None and tail.is_free:
            pool.remove(tail)
            tail.size_bytes += more
            pool.add(tail)
            return tail
        block = _Block(more, self._next_order(), before=tail)
        if tail is not None:
            tail.after = block
        pool.tail = block
        pool.add(block)
        return block

    def _reserve(self, size: int) -> None:
        self.reserved_bytes += size
        self.reserved_peak_bytes = max(self.reserved_peak_bytes, self.reserved_bytes)

    @staticmethod
    def _should_split(pool: _Pool, remainder: int) -> bool:
        return remainder >= round_to_block(1) if pool.is_small or pool.is_expandable else remainder > SMALL_BYTES

    def _split(self, pool: _Pool, block: _Block, size: int) -> _Block:
        rest = _Block(block.size_bytes - size, self._next_order(), before=block, after=block.after)
        if block.after is not None:
            block.after.before = rest
        if pool.tail is block:
            pool.tail = rest
        block.after, block.size_bytes = rest, size
        return rest

    @staticmethod
    def _merge(pool: _Pool, block: _Block, other: _Block) -> None:
        block.size_bytes += other.size_bytes
        if other is block.before:
            block.before = other.before
            if other.before is not None:
                other.before.after = block
        else:
            block.after = other.after
            if other.after is not None:
                other.after.before = block
        if pool.tail is other:
            pool.tail = block

    def _next_order(self) -> int:
        self._last_order += 1
        return self._last_order


def _find_segment_bytes(size: int) -> int:
    if size <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if size < MEDIUM_BYTES:
        return MEDIUM_SEGMENT_BYTES
    return -(-size // LARGE_STEP_BYTES) * LARGE_STEP_BYTES


def replay_stream(allocator: CachingAllocator, stream: Iterable[MemoryEvent]) -> None:
    """Run `stream` through the allocator, which counts."""
    for event in stream:
        if isinstance(event, Allocation):
            allocator.allocate(event, event.bytes)
        else:
            allocator.release(event.allocation)


SOURCE = "https://github.com/huggingface/transformers"
ALLOCATOR = "https://github.com/pytorch/pytorch/blob/main/c10/cuda/CUDACachingAllocator.cpp"
WORKSPACE = "matrix product workspace"

ESTIMATE_PHASES = {
    StepPhase.FORWARD: MemoryPhase.BACKWARD,
    StepPhase.LOSS: MemoryPhase.LOSS,
    StepPhase.BACKWARD: MemoryPhase.BACKWARD,
    StepPhase.OPTIMIZER: MemoryPhase.STEP,
    StepPhase.PREFILL: MemoryPhase.PREFILL,
    StepPhase.DECODE: MemoryPhase.DECODE,
}
"""The phases of the closed form, which counts a forward pass with the backward pass that needs its activations."""


@dataclass(frozen=True)
class AllocatorPeaks:
    """The allocator's counters after loading and the steps, in bytes."""

    allocated_bytes: int
    reserved_bytes: int
    loaded_bytes: int


def estimate_from_trace(request: TraceRequest) -> MemoryEstimate:
    """Estimate the peak memory of one process from the allocations of the real program.

    Raises DevkitError for what cannot be traced.
    """
    settings = request.settings
    stream = trace_model(request.document, settings, keep_outputs=request.keep_outputs)
    resident = [event for event in stream if event.section.phase is StepPhase.LOAD]
    step = [event for event in stream if event.section.phase is not StepPhase.LOAD]
    # devkit's own training sets expandable segments.
    is_devkit = isinstance(settings, TrainingSettings) and settings.stack is Stack.DEVKIT
    is_expandable = request.expandable_segments or is_devkit
    peaks = replay_steps(resident, step, steps=1 if request.empty_cache else 2, is_expandable=is_expandable)
    moments = peak_by_phase(resident, step)
    phase = max(moments, key=lambda each: moments[each].bytes)
    # The closed form's margin on the trace: other versions allocate the same in another order.
    margin_bytes = moments[phase].parts.get("logits and loss", 0) // 3
    upper_bytes = round(peaks.allocated_bytes * (1 + memory.SLACK_UPPER)) + margin_bytes
    reserved = Interval(peaks.reserved_bytes, max(peaks.reserved_bytes, upper_bytes))
    context = Interval(memory.CONTEXT_POINT, memory.CONTEXT_UPPER)
    overheads = (
        Term("allocator slack", reserved.point - peaks.allocated_bytes, "replayed block by block", ALLOCATOR),
        Term("CUDA context", context.point, "torch's context and kernels", memory.CONTEXT_SOURCE),
    )
    by_phase = {MemoryPhase.LOAD: peaks.loaded_bytes}
    for each, moment in moments.items():
        by_phase[ESTIMATE_PHASES[each]] = max(by_phase.get(ESTIMATE_PHASES[each], 0), moment.bytes)
    warnings = []
    if settings.attention in {Attention.FLASH, Attention.VARLEN}:
        warnings.append(f"{settings.attention} attention is traced as sdpa, which keeps the same tensors")
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "peft"))
    return MemoryEstimate(
        phase=ESTIMATE_PHASES[phase],
        terms=_list_terms(peaks, moments[phase]),
        overheads=overheads,
        phases=tuple(by_phase.items()),
        allocated_peak_bytes=peaks.allocated_bytes,
        reserved_peak_bytes=reserved,
        device_peak_bytes=Interval(reserved.point + context.point, reserved.upper + context.upper),
        warnings=tuple(warnings),
        method=f"traced with {versions}",
    )


def _list_terms(peaks: AllocatorPeaks, moment: PeakMoment) -> tuple[Term, ...]:
    parts = moment.parts | {WORKSPACE: memory.CUBLAS_BYTES}
    terms = [Term(name, size, "traced", SOURCE) for name, size in sorted(parts.items(), key=lambda each: -each[1])]
    rest = peaks.allocated_bytes - sum(parts.values())
    return (*terms, Term("rounding to blocks", rest, "blocks that are larger than what they hold", ALLOCATOR))


def trace_model(document: ConfigDocument, settings: TracedSettings, *, keep_outputs: bool = False) -> EventStream:
    """Trace a model for training or inference, as the settings say."""
    if isinstance(settings, InferenceSettings):
        return trace_inference(document, settings)
    return trace_training(document, settings, keep_outputs=keep_outputs)


def replay_steps(
    resident: EventStream, step: EventStream, *, steps: int = 2, is_expandable: bool = False
) -> AllocatorPeaks:
    """Replay `steps` steps; the second finds the free blocks of the first, in other sizes than the first found."""
    allocator = CachingAllocator(expandable_segments=is_expandable)
    replay_stream(allocator, resident)
    loaded_bytes = allocator.allocated_peak_bytes
    allocator.allocate(WORKSPACE, memory.CUBLAS_BYTES)
    allocator.reset_peaks()
    for _ in range(steps):
        replay_stream(allocator, step)
    return AllocatorPeaks(allocator.allocated_peak_bytes, allocator.reserved_peak_bytes, loaded_bytes)
