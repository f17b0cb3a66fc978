"""Where the proof runs and in which precision, with the reason for both."""

from dataclasses import dataclass

import torch

from devkit.workload.cuda_driver import CudaDriver
from devkit.workload.settings import Precision

OLDEST_MAJOR_WITH_BF16 = 8
"""Compute capability 8.0 (Ampere) is the first with bf16 arithmetic.

Source: CUDA C++ Programming Guide, "Arithmetic instructions".
"""

DTYPES = {Precision.FP32: torch.float32, Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}


@dataclass(frozen=True)
class Device:
    """The device of the proof. `capability` is "" and `memory_bytes` 0 where they mean nothing."""

    kind: str
    name: str
    reason: str
    precision: Precision
    precision_reason: str
    capability: str = ""
    memory_bytes: int = 0
    count: int = 0

    @property
    def torch_device(self) -> torch.device:
        """The device as torch names it; the first GPU of several."""
        return torch.device(self.kind, 0) if self.kind == "cuda" else torch.device(self.kind)

    @property
    def dtype(self) -> torch.dtype:
        """The base model's data type."""
        return DTYPES[self.precision]


def choose_device(wanted: Precision | None = None) -> Device:
    """The first CUDA (or ROCm) GPU, else Apple's GPU, else the CPU."""
    if torch.cuda.is_available():
        return _cuda(wanted)
    if torch.backends.mps.is_available():
        precision, because = wanted or Precision.FP32, "exact comparison"
        return Device("mps", "Apple GPU", "torch sees Apple's GPU", precision, because, count=1)
    return cpu_device(wanted)


def cpu_device(wanted: Precision | None = None) -> Device:
    """The CPU, whether or not there is a GPU."""
    precision, because = wanted or Precision.FP32, "asked for" if wanted else "CPUs compute fp32 exactly and fast"
    return Device("cpu", _cpu_name(), "torch sees no GPU", precision, because)


def _cuda(wanted: Precision | None) -> Device:
    found = torch.cuda.get_device_properties(0)
    capability = f"{found.major}.{found.minor}"
    precision, because = choose_precision(found.major, capability)
    if wanted is not None:
        precision, because = wanted, "asked for"
    count = torch.cuda.device_count()
    reason = f"torch sees {count} GPU{'s' if count > 1 else ''}"
    return Device(
        "cuda", found.name, reason, precision, because, capability, memory_bytes=found.total_memory, count=count
    )


def choose_precision(capability_major: int, capability: str) -> tuple[Precision, str]:
    """bf16 where the GPU computes in it, else fp16; adapters stay fp32 either way."""
    if torch.version.hip is not None:
        return Precision.BF16, "ROCm GPUs that torch supports compute in bf16"
    if capability_major >= OLDEST_MAJOR_WITH_BF16:
        return Precision.BF16, f"compute capability {capability} computes in bf16"
    return Precision.FP16, f"compute capability {capability} is before 8.0, the first with bf16; adapters stay fp32"


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:  # noqa: PTH123 - one line of a long file
            names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
            return next(names, "CPU")
    except OSError:
        return "CPU"


def describe(device: Device, driver: CudaDriver | None) -> dict[str, str | int]:
    """The report's `device` object; fields that mean nothing on this device are left out."""
    fields: dict[str, str | int] = {
        "kind": device.kind,
        "name": device.name,
        "reason": device.reason,
        "precision": str(device.precision),
        "precision_reason": device.precision_reason,
        "capability": device.capability,
        "memory_bytes": device.memory_bytes,
        "count": device.count,
        "driver": driver.driver if driver else "",
        "driver_cuda": driver.cuda if driver else "",
    }
    return {name: value for name, value in fields.items() if value not in ("", 0)}
