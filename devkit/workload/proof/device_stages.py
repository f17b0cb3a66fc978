"""Stages about the device: torch is built for it, and kernels compute right, bitsandbytes' and Triton's, too."""

import importlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec

import torch

from devkit.estimate.settings import Precision
from devkit.workload.device import TORCH_DTYPES, CudaDriver, Device, has_gpu_node, read_cuda_driver
from devkit.workload.proof.stages import (
    StageReading,
    StageSkipped,
    expect_at_most,
    expect_equal,
    record_value,
)

CPU_TOLERANCE = {Precision.FP32: 1e-5, Precision.BF16: 2e-2, Precision.FP16: 4e-3}
GPU_TOLERANCE = {**CPU_TOLERANCE, Precision.FP32: 4e-3}
"""Largest error relative to the largest true value. bf16 keeps 8 bits of a number, fp16 11, fp32 24.

GPU kernels may take fp32 numbers through TF32, which keeps 11 bits.
"""

KERNEL_SIZE = 256
INPUT_SEED = 7
CPP_COMPILERS = (os.environ.get("CXX", "g++"), "g++", "clang++", "cl")

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
    yield record_value("torch", torch.__version__)
    yield record_value("cuda", torch.version.cuda or torch.version.hip or "none")
    if torch.version.hip is not None:
        return
    driver = read_cuda_driver()
    yield from read_driver_answers(driver, gpu_node=has_gpu_node())
    sees = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if driver and driver.gpus:
        yield expect_equal("gpus_seen_by_torch", sees, driver.gpus)
    targets = torch.cuda.get_arch_list() if sees else []
    for index in range(sees):
        major, minor = torch.cuda.get_device_capability(index)
        runs = any(can_run_on(target, major, minor) for target in targets)
        yield StageReading(f"gpu_{index}_target", f"sm_{major}{minor}", f"runs code for {' '.join(targets)}", runs)


def read_driver_answers(driver: CudaDriver | None, *, gpu_node: bool) -> Iterator[StageReading]:
    """Read the driver library, which must answer if there is a GPU's device node, and else may be absent or broken."""
    if driver is None:
        yield StageReading("driver_library", "absent", "loads, as a GPU is here" if gpu_node else "", not gpu_node)
        return
    yield record_value("driver_cuda", driver.cuda or "unknown")
    if gpu_node:
        yield expect_equal("cu_init", driver.init_code, 0)


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
    yield record_value("device", device.kind)
    yield record_value("name", device.name)
    yield record_value("precision", str(device.precision))
    sent = torch.arange(KERNEL_SIZE * KERNEL_SIZE)
    yield expect_equal("copied_back_equal", torch.equal(sent.to(device.torch_device).cpu(), sent), wanted=True)


def prove_kernels(device: Device) -> Iterator[StageReading]:
    """Prove that matrix product and attention, in fp32 and in the proof's precision, agree with the CPU in fp64."""
    for precision in dict.fromkeys((Precision.FP32, device.precision)):
        tolerance = (CPU_TOLERANCE if device.kind == "cpu" else GPU_TOLERANCE)[precision]
        for name, kernel in (("matmul", _matmul), ("attention", _attention)):
            yield expect_at_most(f"{name}_{precision}_error", _measure_error(device, precision, kernel), tolerance)


def _matmul(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return left @ right


def _attention(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    query, key = (each.reshape(1, 4, KERNEL_SIZE, KERNEL_SIZE // 4) for each in (left, right))
    return torch.nn.functional.scaled_dot_product_attention(query, key, query, is_causal=True)


def _measure_error(
    device: Device, precision: Precision, kernel: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> float:
    """Return the largest error relative to the largest true value; both sides have the same rounded inputs."""
    generator = torch.Generator().manual_seed(INPUT_SEED)
    inputs = [torch.randn(KERNEL_SIZE, KERNEL_SIZE, generator=generator).to(TORCH_DTYPES[precision]) for _ in range(2)]
    true = kernel(*(each.double() for each in inputs))
    found = kernel(*(each.to(device.torch_device) for each in inputs)).cpu().double()
    return float((found - true).abs().max() / true.abs().max())


def prove_compile(device: Device) -> Iterator[StageReading]:
    """Prove that torch.compile builds a kernel, with Triton on a GPU, that agrees with eager execution.

    It needs a C compiler and Python's headers, which slim images often lack.
    """
    if device.kind == "mps":
        raise StageSkipped("torch.compile is not proved on Apple's GPU")
    if device.kind == "cuda":
        require_triton(device)
    if device.kind == "cpu" and not any(shutil.which(program) for program in CPP_COMPILERS):
        raise StageSkipped("torch.compile needs a C++ compiler on the CPU, and none is here")

    def smooth(values: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(values) * values.sin() + 1

    values = torch.linspace(-4, 4, 4096, device=device.torch_device)
    compiled = torch.compile(smooth)(values)
    yield expect_at_most("largest_difference", float((compiled - smooth(values)).abs().max()), 1e-5)


def prove_bitsandbytes(device: Device) -> Iterator[StageReading]:
    """Prove that bitsandbytes' own library packs numbers into 4 bits and steps an optimizer whose state has 8 bits.

    Without its library bitsandbytes still imports: a stand-in takes its place and raises only when it is used.
    """
    if device.kind == "mps":
        raise StageSkipped("4-bit and 8-bit numbers are not proved on Apple's GPU")
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
        raise StageSkipped(f"Triton compiles for GPUs, and this is {'a CPU' if device.kind == 'cpu' else device.name}")
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
            yield record_value("triton", importlib.import_module("triton").__version__)
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
        raise StageSkipped(f"Triton compiles for compute capability 7.0 and newer, and this is {device.capability}")


def _normal(size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(size, size, generator=torch.Generator().manual_seed(seed))
