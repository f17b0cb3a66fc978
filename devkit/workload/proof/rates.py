"""How fast a device multiplies, moves its memory, and hears from its host: measured, in the units of data sheets."""

import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from statistics import median

import torch

from devkit.compat.gpus import find_datasheet
from devkit.compat.version_tables import GpuDatasheet
from devkit.workload.device import MIN_BF16_CAPABILITY_MAJOR, TORCH_DTYPES, Device
from devkit.workload.proof.stages import Precision, StageReading, StageSkipped, expect_above, record_value

WARM_UP_S = 0.2
"""An idle GPU needs about that long to raise its clocks; what is measured before says nothing."""

CPU_WARM_UP_S = 0.03
"""Nothing is asked of a CPU's rates."""

MIN_CALLS, MAX_CALLS = 3, 100
MATRIX_SIZES = (8192, 4096, 2048, 1024)
CPU_MATRIX_SIZE = 768
BLOCK_BYTES = 2**30
CPU_BLOCK_BYTES = 2**26
FREE_SHARE = 4
"""Only this part of the free memory is touched: somebody else may work on the same GPU."""

MIN_FREE_BYTES = 2**31
"""With less, blocks would fit the caches (126 MB on a B200) and matrices be too small to busy all of the GPU."""

Work = Callable[[], object]


def measure_matrix_tflops(device: torch.device, precision: Precision) -> float:
    """10^12 multiplications and additions per second in a product of two square matrices, accumulated in fp32."""
    dtype = TORCH_DTYPES[precision]
    size = _matrix_size(device, dtype.itemsize)
    left, right, product = (torch.zeros(size, size, device=device, dtype=dtype) for _ in range(3))
    # Zeros would need less power than real numbers and so run faster than any training does.
    left.normal_()
    right.normal_()
    took_s = measure_seconds_per_call(lambda: torch.mm(left, right, out=product), device)
    return 2 * size**3 / took_s / 1e12


def measure_copy_gb_per_s(device: torch.device) -> float:
    """10^9 bytes per second that a copy within the device's memory reads and writes."""
    source, target = _blocks(device, 2)
    return 2 * source.nbytes / measure_seconds_per_call(lambda: target.copy_(source), device) / 1e9


def measure_triad_gb_per_s(device: torch.device) -> float:
    """10^9 bytes per second of a = b + 3 c: two blocks read, one written, as an optimizer's step does."""
    first, second, target = _blocks(device, 3)
    took_s = measure_seconds_per_call(lambda: torch.add(first, second, alpha=3.0, out=target), device)
    return 3 * first.nbytes / took_s / 1e9


def measure_link_gb_per_s(device: torch.device, *, to_device: bool) -> float:
    """10^9 bytes per second between pinned host memory and the device, one way."""
    here = torch.empty(_block_bytes(device) // 4, dtype=torch.uint8, pin_memory=True)
    there = torch.empty_like(here, device=device)
    source, target = (here, there) if to_device else (there, here)
    took_s = measure_seconds_per_call(lambda: target.copy_(source, non_blocking=True), device)
    return source.nbytes / took_s / 1e9


def has_free_memory(device: torch.device) -> bool:
    """Whether so much of a GPU's memory is free that its rates say something of the GPU."""
    return bool(torch.cuda.mem_get_info(device)[0] >= MIN_FREE_BYTES)


def measure_seconds_per_call(work: Work, device: torch.device) -> float:
    """The median time of one call, after a warm-up. On a GPU by its own events, so that launching costs nothing."""
    long_s = WARM_UP_S if device.type == "cuda" else CPU_WARM_UP_S
    done, took_s = _warm_up(work, device, long_s)
    calls = max(MIN_CALLS, min(MAX_CALLS, int(long_s * done / took_s)))
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


# Stages about speed: a device that computes right may still run on one PCIe lane, locked clocks, or half a GPU.

COMPUTE_SHARE = 0.4
"""Least part of the data sheet's matrix rate. Healthy boards reach two thirds and more, an H100 780 of 989 TFLOP/s.

Source: https://gist.github.com/Chillee/2ec89696db8b7ed1c24461159e325405
"""

SMALL_BOARD_W = 75
SMALL_BOARD_COMPUTE_SHARE = 0.25
"""The same for boards that live on the slot's power alone: they cannot hold the clocks their data sheet counts with."""

MEMORY_SHARE = 0.6
"""Least part of the data sheet's bandwidth; large copies reach 0.9 on an A100.

Source: https://github.com/calculon-ai/calculon/blob/main/systems/a100_80g.json
"""

MAX_SHARE = 1.3
"""Nothing runs so far above its data sheet: a reading beyond it means that clock or name is wrong."""

PCIE_GB_PER_S = {2: 8.0, 3: 15.75, 4: 31.5, 5: 63.0, 6: 121.0}
"""Sixteen lanes, one way. Source: PCI-SIG, https://pcisig.com/faq, "PCI Express"."""

LINK_SHARE = 1 / 16
"""Not even one lane of sixteen."""


def prove_compute_rate(device: Device) -> Iterator[StageReading]:
    """Matrix products run at the rate that this GPU's data sheet promises, on each GPU; a CPU's is a fact."""
    for index, name in _devices(device):
        promised = _promised(device, index, name)
        for precision in _precisions(device, first=index == 0):
            measured = measure_matrix_tflops(_torch_device(device, index), precision)
            rate = {Precision.BF16: "bf16_tflops", Precision.FP16: "fp16_tflops"}.get(precision)
            best = getattr(promised, rate) if promised and rate else 0.0
            share = _compute_share(promised) if promised else 0.0
            yield judge_rate(f"{_of(device, index)}{precision}_tflops", measured, best, share, promised)


def prove_memory_rate(device: Device) -> Iterator[StageReading]:
    """The device's memory moves at the rate of its data sheet, on each GPU; a CPU's is a fact."""
    for index, name in _devices(device):
        promised = _promised(device, index, name)
        best = promised.bandwidth_gb_per_s if promised else 0.0
        where = _torch_device(device, index)
        copied = measure_copy_gb_per_s(where)
        yield judge_rate(f"{_of(device, index)}copy_gb_per_s", copied, best, MEMORY_SHARE, promised)
        yield record_value(f"{_of(device, index)}triad_gb_per_s", round(measure_triad_gb_per_s(where), 3))


def prove_link_rate(device: Device) -> Iterator[StageReading]:
    """Host and GPU talk over more than one PCIe lane, in both directions."""
    if device.kind != "cuda":
        raise StageSkipped(f"there is no link between the host and {_article(device)}")
    for index, name in _devices(device):
        promised = find_datasheet(name)
        best = PCIE_GB_PER_S.get(promised.pcie_generation, 0.0) if promised else 0.0
        for direction in ("to_gpu", "from_gpu"):
            measured = measure_link_gb_per_s(_torch_device(device, index), to_device=direction == "to_gpu")
            yield judge_link_rate(f"{_of(device, index)}{direction}_gb_per_s", measured, best, promised)


def judge_rate(name: str, measured: float, promised: float, share: float, row: GpuDatasheet | None) -> StageReading:
    """A rate beside what the data sheet promises. Without a promise it is a fact; an inferred row never refuses."""
    measured = round(measured, 3)
    if row is None or not promised:
        return record_value(name, measured)
    least, most = share * promised, MAX_SHARE * promised
    expected = f"{least:.3g} to {most:.3g}; data sheet {promised:.4g}"
    if row.is_inferred:
        return StageReading(name, measured, f"{expected}, not judged: the row is inferred")
    return StageReading(name, measured, expected, least <= measured <= most)


def judge_link_rate(name: str, measured: float, promised: float, row: GpuDatasheet | None) -> StageReading:
    """A link has a least rate alone: some GPUs share their memory with the host, or have more than PCIe to it."""
    measured = round(measured, 3)
    if row is None or not promised or row.is_inferred:
        return record_value(name, measured)
    return expect_above(name, measured, LINK_SHARE * promised)


def _promised(device: Device, index: int, name: str) -> GpuDatasheet | None:
    """The data sheet that the GPU is held to; None for none, and where somebody else fills the GPU's memory."""
    if device.kind != "cuda" or not has_free_memory(_torch_device(device, index)):
        return None
    return find_datasheet(name)


def _compute_share(promised: GpuDatasheet) -> float:
    return SMALL_BOARD_COMPUTE_SHARE if promised.power_w <= SMALL_BOARD_W else COMPUTE_SHARE


def _precisions(device: Device, *, first: bool) -> tuple[Precision, ...]:
    """All that the GPU computes in on the first one, the proof's on the others, fp32 on a CPU."""
    if device.kind != "cuda":
        return (Precision.FP32,)
    if not first:
        return (device.precision,)
    has_bf16 = int(device.capability.split(".")[0]) >= MIN_BF16_CAPABILITY_MAJOR
    return (Precision.FP32, Precision.FP16, *((Precision.BF16,) if has_bf16 else ()))


def _devices(device: Device) -> Iterator[tuple[int, str]]:
    if device.kind != "cuda":
        yield 0, device.name
        return
    for index in range(torch.cuda.device_count()):
        yield index, torch.cuda.get_device_name(index)


def _torch_device(device: Device, index: int) -> torch.device:
    return torch.device("cuda", index) if device.kind == "cuda" else device.torch_device


def _of(device: Device, index: int) -> str:
    return f"gpu_{index}_" if device.count > 1 else ""


def _article(device: Device) -> str:
    return "the CPU" if device.kind == "cpu" else "this GPU, which shares its memory"
