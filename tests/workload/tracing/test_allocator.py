"""The rules of torch's caching allocator, each on the smallest stream that shows it."""

import pytest

from benchmarks.tracing.estimate import MIB, CachingAllocator, replay_stream
from benchmarks.tracing.stream import Allocation, Deallocation, Section, StepPhase

HERE = Section(StepPhase.FORWARD)


def filled(*sizes, **how):
    allocator = CachingAllocator(**how)
    for name, size in enumerate(sizes):
        allocator.allocate(name, size)
    return allocator


@pytest.mark.parametrize(
    ("size", "allocated", "reserved"),
    [
        pytest.param(1, 512, 2 * MIB, id="a byte takes a block of 512 from a segment of 2 MiB"),
        pytest.param(MIB, MIB, 2 * MIB, id="1 MiB is the largest of the small pool"),
        pytest.param(MIB + 1, MIB + 512, 20 * MIB, id="beyond it segments have 20 MiB"),
        pytest.param(10 * MIB, 10 * MIB, 10 * MIB, id="from 10 MiB on a request has its own segment"),
        pytest.param(11 * MIB + 512, 12 * MIB, 12 * MIB, id="less than 1 MiB is not split off and counts as allocated"),
        pytest.param(12 * MIB + 512, 14 * MIB - (2 * MIB - 512), 14 * MIB, id="more than 1 MiB is"),
    ],
)
def test_a_first_request(size, allocated, reserved):
    allocator = filled(size)
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (allocated, reserved)


def test_the_smallest_free_block_that_fits_is_taken():
    allocator = filled(40 * MIB, 30 * MIB)
    allocator.release(0)
    allocator.release(1)
    allocator.allocate(2, 30 * MIB)
    allocator.allocate(3, 40 * MIB)
    assert allocator.reserved_bytes == 70 * MIB


def test_free_neighbors_are_merged():
    allocator = filled(40 * MIB)
    allocator.release(0)
    for name, size in ((1, 20 * MIB), (2, 20 * MIB)):
        allocator.allocate(name, size)
    for name in (1, 2):
        allocator.release(name)
    allocator.allocate(3, 40 * MIB)
    assert allocator.reserved_bytes == 40 * MIB


def test_a_gap_between_used_blocks_serves_no_larger_request():
    allocator = filled(60 * MIB)
    allocator.release(0)
    for name in (1, 2, 3):
        allocator.allocate(name, 20 * MIB)
    allocator.release(2)
    allocator.allocate(4, 22 * MIB)
    assert allocator.reserved_bytes == 82 * MIB


def test_segments_that_expand_grow_at_their_end_instead():
    plain, expandable = (
        filled(30 * MIB, 30 * MIB, expandable_segments=is_expandable) for is_expandable in (False, True)
    )
    for allocator in (plain, expandable):
        allocator.release(1)
        allocator.allocate(2, 45 * MIB)
    assert plain.reserved_bytes == 106 * MIB
    assert expandable.reserved_bytes == 80 * MIB


def test_peaks_stay_until_they_are_reset():
    allocator = filled(30 * MIB)
    allocator.release(0)
    assert (allocator.allocated_bytes, allocator.allocated_peak_bytes) == (0, 30 * MIB)
    allocator.reset_peaks()
    assert (allocator.allocated_peak_bytes, allocator.reserved_peak_bytes) == (0, 30 * MIB)


def test_a_stream_is_replayed_to_its_peak():
    first, second = Allocation(HERE, 30 * MIB), Allocation(HERE, 20 * MIB)
    allocator = CachingAllocator()
    replay_stream(allocator, [first, second, Deallocation(HERE, first), Allocation(HERE, 4 * MIB)])
    assert (allocator.allocated_bytes, allocator.allocated_peak_bytes) == (24 * MIB, 50 * MIB)
