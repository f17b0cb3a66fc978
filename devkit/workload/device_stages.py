"""Stages about the device: torch fits it, and kernels on it compute the right numbers."""

import os
import shutil
from collections.abc import Callable, Iterator

import torch

from devkit.workload.cuda_driver import CudaDriver, has_gpu_node, read_cuda_driver
from devkit.workload.device import DTYPES, Device
from devkit.workload.native_stages import require_triton
from devkit.workload.settings import Precision
from devkit.workload.stage import Reading, StageSkipped, at_most, equals, fact

CPU_TOLERANCE = {Precision.FP32: 1e-5, Precision.BF16: 2e-2, Precision.FP16: 4e-3}
GPU_TOLERANCE = {**CPU_TOLERANCE, Precision.FP32: 4e-3}
"""Largest error relative to the largest true value. bf16 keeps 8 bits of a number, fp16 11, fp32 24.

GPU kernels may take fp32 numbers through TF32, which keeps 11 bits.
"""

KERNEL_SIZE = 256
INPUT_SEED = 7
CPP_COMPILERS = (os.environ.get("CXX", "g++"), "g++", "clang++", "cl")


def torch_build_fits() -> Iterator[Reading]:
    """torch is built for the GPU that is here. A GPU that torch does not see is a failure, no GPU is none."""
    yield fact("torch", torch.__version__)
    yield fact("cuda", torch.version.cuda or torch.version.hip or "none")
    if torch.version.hip is not None:
        return
    driver = read_cuda_driver()
    yield from driver_readings(driver, gpu_node=has_gpu_node())
    sees = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if driver and driver.gpus:
        yield equals("gpus_seen_by_torch", sees, driver.gpus)
    for index in range(sees):
        yield _has_kernels(index)


def driver_readings(driver: CudaDriver | None, *, gpu_node: bool) -> Iterator[Reading]:
    """What the driver library must answer where a GPU's device node is. Without a node it may be absent or broken."""
    if driver is None:
        yield Reading("driver_library", "absent", "loads, as a GPU is here" if gpu_node else "", not gpu_node)
        return
    yield fact("driver_cuda", driver.cuda or "unknown")
    if gpu_node:
        yield equals("cu_init", driver.init_code, 0)


def _has_kernels(index: int) -> Reading:
    """Machine code of the same major from a minor not above the GPU's, or PTX from any earlier capability."""
    major, minor = torch.cuda.get_device_capability(index)
    targets = torch.cuda.get_arch_list()
    return Reading(
        f"gpu_{index}_target",
        f"sm_{major}{minor}",
        f"runs code for {' '.join(targets)}",
        any(runs_on(target, major, minor) for target in targets),
    )


def runs_on(target: str, major: int, minor: int) -> bool:
    """Whether code for `target` (sm_90, sm_90a, compute_120) runs on a GPU of this compute capability.

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


def device_works(device: Device) -> Iterator[Reading]:
    """The device takes memory and gives it back unchanged."""
    yield fact("device", device.kind)
    yield fact("name", device.name)
    yield fact("precision", str(device.precision))
    sent = torch.arange(KERNEL_SIZE * KERNEL_SIZE)
    yield equals("copied_back_equal", torch.equal(sent.to(device.torch_device).cpu(), sent), wanted=True)


def kernels_compute(device: Device) -> Iterator[Reading]:
    """Matrix product and attention on the device agree with the CPU in fp64, in fp32 and in the proof's precision."""
    for precision in dict.fromkeys((Precision.FP32, device.precision)):
        tolerance = (CPU_TOLERANCE if device.kind == "cpu" else GPU_TOLERANCE)[precision]
        for name, kernel in (("matmul", _matmul), ("attention", _attention)):
            yield at_most(f"{name}_{precision}_error", _error(device, precision, kernel), tolerance)


Kernel = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _matmul(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return left @ right


def _attention(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    query, key = (each.reshape(1, 4, KERNEL_SIZE, KERNEL_SIZE // 4) for each in (left, right))
    return torch.nn.functional.scaled_dot_product_attention(query, key, query, is_causal=True)


def _error(device: Device, precision: Precision, kernel: Kernel) -> float:
    """Largest error relative to the largest true value; the inputs are the same rounded numbers on both sides."""
    generator = torch.Generator().manual_seed(INPUT_SEED)
    inputs = [torch.randn(KERNEL_SIZE, KERNEL_SIZE, generator=generator).to(DTYPES[precision]) for _ in range(2)]
    true = kernel(*(each.double() for each in inputs))
    found = kernel(*(each.to(device.torch_device) for each in inputs)).cpu().double()
    return float((found - true).abs().max() / true.abs().max())


def compile_agrees(device: Device) -> Iterator[Reading]:
    """torch.compile builds a kernel, with Triton on a GPU, that agrees with eager execution.

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
    yield at_most("largest_difference", float((compiled - smooth(values)).abs().max()), 1e-5)
