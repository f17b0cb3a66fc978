"""A model of PyTorch's caching allocator: the blocks that it would take from the device for a stream of allocations.

The rules and constants are those of https://github.com/pytorch/pytorch/blob/main/c10/cuda/CUDACachingAllocator.cpp
(get_allocation_size, should_split, free_block). The device is assumed to be never full: no segment is freed.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass, field

from devkit.workload.tracing.stream import Allocation, MemoryEvent, Section, round_to_block

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


def replay_stream(allocator: CachingAllocator, stream: Iterable[MemoryEvent]) -> tuple[int, Section]:
    """Run `stream` through the allocator. Returns the peak of the allocated bytes, and its section."""
    peak, where = allocator.allocated_bytes, None
    section: Section | None = None
    for event in stream:
        section = event.section
        if isinstance(event, Allocation):
            allocator.allocate(event.name, event.bytes)
            if allocator.allocated_bytes > peak:
                peak, where = allocator.allocated_bytes, section
        else:
            allocator.release(event.name)
    found = where or section
    if found is None:
        raise ValueError("an empty stream has no peak")
    return peak, found
