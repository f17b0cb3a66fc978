"""How fast a device multiplies, moves its memory, and hears from its host: measured, in the units of data sheets."""

import time
from collections.abc import Callable
from itertools import pairwise
from statistics import median

import torch

from devkit.workload.device import DTYPES
from devkit.workload.settings import Precision

WARM_UP_S = 0.2
"""An idle GPU needs about that long to raise its clocks; what is measured before says nothing."""

CPU_WARM_UP_S = 0.03
"""Nothing is asked of a CPU's rates."""

FEWEST_CALLS, MOST_CALLS = 3, 100
MATRIX_SIZES = (8192, 4096, 2048, 1024)
CPU_MATRIX_SIZE = 768
BLOCK_BYTES = 2**30
CPU_BLOCK_BYTES = 2**26
FREE_SHARE = 4
"""Only this part of the free memory is touched: somebody else may work on the same GPU."""

LEAST_FREE_BYTES = 2**31
"""With less, blocks would fit the caches (126 MB on a B200) and matrices be too small to busy all of the GPU."""

Work = Callable[[], object]


def matrix_tflops(device: torch.device, precision: Precision) -> float:
    """10^12 multiplications and additions per second in a product of two square matrices, accumulated in fp32."""
    dtype = DTYPES[precision]
    size = _matrix_size(device, dtype.itemsize)
    left, right, product = (torch.zeros(size, size, device=device, dtype=dtype) for _ in range(3))
    # Zeros would need less power than real numbers and so run faster than any training does.
    left.normal_()
    right.normal_()
    took_s = seconds_per_call(lambda: torch.mm(left, right, out=product), device)
    return 2 * size**3 / took_s / 1e12


def copy_gb_per_s(device: torch.device) -> float:
    """10^9 bytes per second that a copy within the device's memory reads and writes."""
    source, target = _blocks(device, 2)
    return 2 * source.nbytes / seconds_per_call(lambda: target.copy_(source), device) / 1e9


def triad_gb_per_s(device: torch.device) -> float:
    """10^9 bytes per second of a = b + 3 c: two blocks read, one written, as an optimizer's step does."""
    first, second, target = _blocks(device, 3)
    took_s = seconds_per_call(lambda: torch.add(first, second, alpha=3.0, out=target), device)
    return 3 * first.nbytes / took_s / 1e9


def link_gb_per_s(device: torch.device, *, to_device: bool) -> float:
    """10^9 bytes per second between pinned host memory and the device, one way."""
    here = torch.empty(_block_bytes(device) // 4, dtype=torch.uint8, pin_memory=True)
    there = torch.empty_like(here, device=device)
    source, target = (here, there) if to_device else (there, here)
    took_s = seconds_per_call(lambda: target.copy_(source, non_blocking=True), device)
    return source.nbytes / took_s / 1e9


def has_room(device: torch.device) -> bool:
    """Whether so much of a GPU's memory is free that its rates say something of the GPU."""
    return bool(torch.cuda.mem_get_info(device)[0] >= LEAST_FREE_BYTES)


def seconds_per_call(work: Work, device: torch.device) -> float:
    """The median time of one call, after a warm-up. On a GPU by its own events, so that launching costs nothing."""
    long_s = WARM_UP_S if device.type == "cuda" else CPU_WARM_UP_S
    done, took_s = _warm_up(work, device, long_s)
    calls = max(FEWEST_CALLS, min(MOST_CALLS, int(long_s * done / took_s)))
    timed = _by_events if device.type == "cuda" else _by_clock
    return median(timed(work, device, calls))


def _warm_up(work: Work, device: torch.device, seconds: float) -> tuple[int, float]:
    """How many calls were made, and how long they took."""
    done, start = 0, time.perf_counter()
    while (took_s := time.perf_counter() - start) < seconds or not done:
        work()
        _wait(device)
        done += 1
    return done, took_s


def _by_events(work: Work, device: torch.device, calls: int) -> list[float]:
    with torch.cuda.device(device):
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(calls + 1)]  # type: ignore[no-untyped-call]
        marks[0].record()
        for mark in marks[1:]:
            work()
            mark.record()
        torch.cuda.synchronize(device)
    return [before.elapsed_time(after) / 1000 for before, after in pairwise(marks)]


def _by_clock(work: Work, device: torch.device, calls: int) -> list[float]:
    seconds = []
    for _ in range(calls):
        start = time.perf_counter()
        work()
        _wait(device)
        seconds.append(time.perf_counter() - start)
    return seconds


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def _matrix_size(device: torch.device, item_bytes: int) -> int:
    if device.type != "cuda":
        return CPU_MATRIX_SIZE
    room = torch.cuda.mem_get_info(device)[0] // FREE_SHARE
    return next((size for size in MATRIX_SIZES if 3 * size**2 * item_bytes <= room), MATRIX_SIZES[-1])


def _block_bytes(device: torch.device) -> int:
    """Far larger than any cache, where there is room."""
    if device.type != "cuda":
        return CPU_BLOCK_BYTES
    return min(BLOCK_BYTES, torch.cuda.mem_get_info(device)[0] // FREE_SHARE // 3)


def _blocks(device: torch.device, count: int) -> list[torch.Tensor]:
    items = _block_bytes(device) // 4
    return [torch.ones(items, device=device) for _ in range(count)]
