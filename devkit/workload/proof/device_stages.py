"""Stages about the device: torch is built for it, and kernels compute right, bitsandbytes' and Triton's, too.

Rates are measured in the units of data sheets: a device that computes right may still run on one PCIe lane, with locked
clocks, or as half a GPU.
"""

import importlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from importlib.util import find_spec

import torch
from torch.utils.benchmark import Timer

from devkit.compat.gpus import find_datasheet
from devkit.compat.version_tables import GpuDatasheet
from devkit.estimate.settings import Precision
from devkit.facts.runs import CudaCall, CudaStop
from devkit.facts.values import Unknown
from devkit.probe.deep import read_cuda
from devkit.probe.host import LocalHost
from devkit.workload.device import TORCH_DTYPES, Device
from devkit.workload.proof import standalone
from devkit.workload.proof.stages import (
    CUDA_S,
    StageReading,
    StageSkipped,
    expect_above,
    expect_at_most,
    expect_equal,
)

MIN_TRITON_CAPABILITY_MAJOR = 7
QUANTIZED_SIZE = 256
MAX_ROUND_TRIP_ERROR = 0.12
"""Mean error of normal numbers through 4-bit NormalFloat, relative to their mean size; 0.09 where it is right."""

OPTIMIZER_STEPS = 20
TILE_SIZE = 64
TRITON_TOLERANCE = 2e-2
"""Of the largest true value: the inputs are rounded to 16 bits, tensor cores add up in fp32."""


def prove_torch_build() -> Iterator[StageReading]:
    """Prove that torch is built for this machine's GPU. A GPU that torch does not see is a failure; no GPU is none."""
    yield from standalone.read_torch_build()
    if torch.version.hip is not None:
        return
    driver = read_cuda(LocalHost(), deadline_s=CUDA_S)
    yield from read_driver_answers(driver, gpu_node=standalone.has_gpu_node())
    sees = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if isinstance(driver, CudaCall) and isinstance(driver.device_count, int) and driver.device_count:
        yield expect_equal("gpus_seen_by_torch", sees, driver.device_count)
    targets = torch.cuda.get_arch_list() if sees else []
    for index in range(sees):
        major, minor = torch.cuda.get_device_capability(index)
        runs = any(can_run_on(target, major, minor) for target in targets)
        yield StageReading(f"gpu_{index}_target", f"sm_{major}{minor}", f"runs code for {' '.join(targets)}", runs)


def read_driver_answers(driver: CudaCall | CudaStop | Unknown, *, gpu_node: bool) -> Iterator[StageReading]:
    """Read the driver library, which must answer if there is a GPU's device node, and else may be absent or broken."""
    if not isinstance(driver, CudaCall):
        says = driver.message if isinstance(driver, CudaStop) else driver.reason
        yield StageReading(
            "driver_library", says, "answers, because the machine has a GPU" if gpu_node else "", not gpu_node
        )
        return
    yield StageReading("driver_cuda", "unknown" if isinstance(driver.cuda, Unknown) else driver.cuda.text)
    if gpu_node:
        yield expect_equal("cu_init", driver.code, 0)


def can_run_on(target: str, major: int, minor: int) -> bool:
    """Return whether code for `target` (sm_90, sm_90a, compute_120) runs on a GPU of this compute capability.

    That is machine code of the same major from a minor not above the GPU's, or PTX from any earlier capability.
    Source: CUDA C++ Programming Guide, "Binary compatibility" and "PTX compatibility"; suffix a is one GPU only.
    """
    kind, _, number = target.partition("_")
    exact = number.endswith("a")
    digits = number.rstrip("af")
    target_major, target_minor = int(digits[:-1]), int(digits[-1])
    if exact:
        return (target_major, target_minor) == (major, minor)
    if kind == "compute":
        return (target_major, target_minor) <= (major, minor)
    return target_major == major and target_minor <= minor


def prove_device(device: Device) -> Iterator[StageReading]:
    """Prove that the device stores tensors and returns them unchanged."""
    yield StageReading("device", device.kind)
    yield StageReading("name", device.name)
    yield StageReading("precision", str(device.precision))
    yield standalone.read_copy(device.torch_device)


def prove_kernel(device: Device) -> Iterator[StageReading]:
    """Prove that matrix product and attention, in fp32 and in the proof's precision, agree with the CPU in fp64."""
    precisions = {str(each): TORCH_DTYPES[each] for each in (Precision.FP32, device.precision)}
    yield from standalone.read_kernel_errors(device.torch_device, precisions)


def prove_bitsandbytes_native(device: Device) -> Iterator[StageReading]:
    """Prove that bitsandbytes' own library packs numbers into 4 bits and steps an optimizer whose state has 8 bits.

    Without its library bitsandbytes still imports: a stand-in takes its place and raises only when it is used.
    """
    if device.kind == "mps":
        raise StageSkipped("devkit does not test 4-bit and 8-bit data types on Apple GPUs")
    library = type(getattr(importlib.import_module("bitsandbytes.cextension"), "lib", None)).__name__
    yield StageReading("library", library, "bitsandbytes' own", "Mock" not in library and library != "NoneType")
    functional = importlib.import_module("bitsandbytes.functional")
    numbers = _normal(QUANTIZED_SIZE).to(device=device.torch_device, dtype=device.dtype)
    packed, state = functional.quantize_4bit(numbers, quant_type="nf4")
    errors = functional.dequantize_4bit(packed, state) - numbers
    round_trip_error = float(errors.abs().float().mean() / numbers.abs().float().mean())
    yield expect_at_most("round_trip_error", round_trip_error, MAX_ROUND_TRIP_ERROR)
    # The optimizer has a known target, so that a step in the wrong direction shows.
    bitsandbytes = importlib.import_module("bitsandbytes")
    target = _normal(TILE_SIZE).to(device.torch_device)
    weight = torch.nn.Parameter(torch.zeros_like(target))
    optimizer = bitsandbytes.optim.AdamW8bit([weight], lr=0.1, weight_decay=0.0, min_8bit_size=1024)
    before = float((weight - target).detach().square().mean())
    for _ in range(OPTIMIZER_STEPS):
        optimizer.zero_grad()
        torch.autograd.backward((weight - target).square().mean())
        optimizer.step()
    kinds = {str(state["state1"].dtype) for state in optimizer.state.values() if "state1" in state}
    yield expect_equal("state", ", ".join(sorted(kinds)), "torch.uint8")
    yield expect_at_most("distance_left", float((weight - target).detach().square().mean()) / before, 0.2)


def prove_triton(device: Device) -> Iterator[StageReading]:
    """Prove that Triton compiles a matrix product that agrees with the CPU in fp64.

    Its cache is empty: an old result would hide a missing compiler.
    """
    if device.kind != "cuda":
        raise StageSkipped(f"Triton compiles for GPUs, but this is {'a CPU' if device.kind == 'cpu' else device.name}")
    require_triton(device)
    with tempfile.TemporaryDirectory(prefix="devkit-triton-") as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        try:
            kernel = importlib.import_module("devkit.workload.proof.triton_kernel")
            left, right = (_normal(TILE_SIZE, seed).to(device.dtype) for seed in (1, 2))
            product = torch.empty(TILE_SIZE, TILE_SIZE, device=device.torch_device)
            on_gpu = (left.to(device.torch_device), right.to(device.torch_device))
            kernel.multiply_tile[(1,)](*on_gpu, product, SIZE=TILE_SIZE)
            true = left.double() @ right.double()
            error = float((product.cpu().double() - true).abs().max() / true.abs().max())
            yield StageReading("triton", importlib.import_module("triton").__version__)
            yield expect_at_most("error", error, TRITON_TOLERANCE)
        finally:
            del os.environ["TRITON_CACHE_DIR"]


def require_triton(device: Device) -> None:
    """Raise StageSkipped where Triton is not installed, or does not support this GPU.

    Source: torch/_dynamo/device_interface.py, CudaInterface.is_triton_capable.
    """
    if find_spec("triton") is None:
        raise StageSkipped("Triton is not installed")
    if torch.version.hip is None and int(device.capability.split(".")[0]) < MIN_TRITON_CAPABILITY_MAJOR:
        raise StageSkipped(f"Triton compiles for compute capability 7.0 and newer, but this is {device.capability}")


def _normal(size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(size, size, generator=torch.Generator().manual_seed(seed))


RATE_S, CPU_RATE_S = 0.2, 0.02
"""Seconds of each measurement. An idle GPU needs the first of two to raise its clocks; a CPU's rates are not judged."""

MATRIX_SIZES = (8192, 4096, 2048, 1024)
CPU_MATRIX_SIZE = 768
BLOCK_BYTES, CPU_BLOCK_BYTES = 2**30, 2**26
FREE_DIVISOR = 4
"""Only a quarter of the free memory is used: somebody else may work on the same GPU."""

MIN_FREE_BYTES = 2**31
"""With less, blocks would fit the caches (126 MB on a B200) and matrices be too small to use the whole GPU."""

COMPUTE_SHARE = 0.4
"""Minimum share of the data sheet's matrix rate. Healthy boards reach two thirds and more, an H100 780 of 989 TFLOP/s.

Source: https://gist.github.com/Chillee/2ec89696db8b7ed1c24461159e325405
"""

SMALL_BOARD_W = 75
SMALL_BOARD_COMPUTE_SHARE = 0.25
"""The same for boards powered by the slot alone: they cannot hold the clocks of their data sheet."""

MEMORY_SHARE = 0.6
"""Minimum share of the data sheet's bandwidth; large copies reach 0.9 on an A100.

Source: https://github.com/calculon-ai/calculon/blob/main/systems/a100_80g.json
"""

MAX_SHARE = 1.3
"""Nothing runs so far above its data sheet: a higher rate means that the clock or the name is wrong."""

PCIE_GB_PER_S = {2: 8.0, 3: 15.75, 4: 31.5, 5: 63.0, 6: 121.0}
"""Sixteen lanes, one way. Source: PCI-SIG, https://pcisig.com/faq, "PCI Express"."""

LINK_SHARE = 1 / 16
"""Less than one lane of sixteen."""


def prove_compute_rate(device: Device) -> Iterator[StageReading]:
    """Prove that each GPU multiplies matrices at its data sheet's rate, in the proof's precision; a CPU's is recorded."""
    for gpu, prefix, row in _list_gpus(device):
        measured = measure_matrix_tflops(gpu, device.precision)
        by_precision = {Precision.BF16: row.bf16_tflops, Precision.FP16: row.fp16_tflops} if row else {}
        promised, share = by_precision.get(device.precision, 0.0), find_compute_share(row) if row else 0.0
        yield judge_rate(f"{prefix}{device.precision}_tflops", measured, promised, share, row)


def prove_memory_rate(device: Device) -> Iterator[StageReading]:
    """Prove that each GPU's memory moves at its data sheet's rate; a CPU's rate is recorded."""
    for gpu, prefix, row in _list_gpus(device):
        copied = measure_copy_gb_per_s(gpu)
        yield judge_rate(f"{prefix}copy_gb_per_s", copied, row.bandwidth_gb_per_s if row else 0.0, MEMORY_SHARE, row)


def prove_link_rate(device: Device) -> Iterator[StageReading]:
    """Prove that host and GPU communicate over more than one PCIe lane, in both directions."""
    if device.kind != "cuda":
        other = "the CPU" if device.kind == "cpu" else "this GPU, which shares its memory"
        raise StageSkipped(f"nothing connects the host and {other}")
    for gpu, prefix, row in _list_gpus(device, needs_free_memory=False):
        promised = PCIE_GB_PER_S.get(row.pcie_generation, 0.0) if row else 0.0
        here = torch.empty(_block_bytes(gpu) // 4, dtype=torch.uint8, pin_memory=True)
        there = torch.empty_like(here, device=gpu)
        for direction, source, target in (("to_gpu", here, there), ("from_gpu", there, here)):
            took_s = measure_seconds_per_call(lambda: target.copy_(source, non_blocking=True), gpu)  # noqa: B023 - used at once
            yield judge_link_rate(f"{prefix}{direction}_gb_per_s", here.nbytes / took_s / 1e9, promised, row)


def _list_gpus(
    device: Device, *, needs_free_memory: bool = True
) -> Iterator[tuple[torch.device, str, GpuDatasheet | None]]:
    """Yield each GPU, or the CPU, with what its readings begin with, and its data sheet.

    The data sheet is left out if other processes fill the GPU's memory and the measurement needs it.
    """
    if device.kind != "cuda":
        yield device.torch_device, "", None
        return
    for index in range(torch.cuda.device_count()):
        gpu = torch.device("cuda", index)
        is_comparable = not needs_free_memory or torch.cuda.mem_get_info(gpu)[0] >= MIN_FREE_BYTES
        datasheet = find_datasheet(torch.cuda.get_device_name(index)) if is_comparable else None
        yield gpu, f"gpu_{index}_" if device.count > 1 else "", datasheet


def find_compute_share(datasheet: GpuDatasheet) -> float:
    """Return the minimum share of the data sheet's matrix rate, by the board's power."""
    return SMALL_BOARD_COMPUTE_SHARE if datasheet.power_w <= SMALL_BOARD_W else COMPUTE_SHARE


def judge_rate(name: str, measured: float, promised: float, share: float, row: GpuDatasheet | None) -> StageReading:
    """Judge a rate by the data sheet. Without a promised rate it is recorded; an inferred row never fails a GPU."""
    measured = round(measured, 3)
    if row is None or not promised:
        return StageReading(name, measured)
    least, most = share * promised, MAX_SHARE * promised
    expected = f"{least:.3g} to {most:.3g}; data sheet {promised:.4g}"
    if row.is_inferred:
        return StageReading(name, measured, f"{expected}, not judged: the row is inferred")
    return StageReading(name, measured, expected, least <= measured <= most)


def judge_link_rate(name: str, measured: float, promised: float, row: GpuDatasheet | None) -> StageReading:
    """Judge a link by a minimum alone: some GPUs share their memory with the host, or have a faster link than PCIe."""
    measured = round(measured, 3)
    if row is None or not promised or row.is_inferred:
        return StageReading(name, measured)
    return expect_above(name, measured, LINK_SHARE * promised)


def measure_matrix_tflops(device: torch.device, precision: Precision) -> float:
    """Measure 10^12 multiplications and additions per second in a product of square matrices, accumulated in fp32."""
    dtype, size = TORCH_DTYPES[precision], CPU_MATRIX_SIZE
    if device.type == "cuda":
        limit_bytes = torch.cuda.mem_get_info(device)[0] // FREE_DIVISOR
        fitting = (size for size in MATRIX_SIZES if 3 * size**2 * dtype.itemsize <= limit_bytes)
        size = next(fitting, MATRIX_SIZES[-1])
    # Zeros would need less power than real numbers and so run faster than any training does.
    left, right, product = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(3))
    took_s = measure_seconds_per_call(lambda: torch.mm(left, right, out=product), device)
    return 2 * size**3 / took_s / 1e12


def measure_copy_gb_per_s(device: torch.device) -> float:
    """Measure 10^9 bytes per second that a copy within the device's memory reads and writes."""
    source, target = (torch.ones(_block_bytes(device) // 4, device=device) for _ in range(2))
    return 2 * source.nbytes / measure_seconds_per_call(lambda: target.copy_(source), device) / 1e9


def measure_seconds_per_call(work: Callable[[], object], device: torch.device) -> float:
    """Measure the median time of one call, after as much of a warm-up, by torch's own timer."""
    timer, is_gpu = Timer("work()", globals={"work": work}), device.type == "cuda"
    with torch.cuda.device(device) if is_gpu else nullcontext():
        # Its blocks of calls wait for the GPU once each.
        found = [timer.blocked_autorange(min_run_time=RATE_S if is_gpu else CPU_RATE_S) for _ in range(2)]
    return float(found[-1].median)


def _block_bytes(device: torch.device) -> int:
    """Return a size far larger than any cache, if enough memory is free."""
    if device.type != "cuda":
        return CPU_BLOCK_BYTES
    return min(BLOCK_BYTES, torch.cuda.mem_get_info(device)[0] // FREE_DIVISOR // 3)
