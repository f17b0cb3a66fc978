"""The device to run on and its precision, with the reason for both; and libcuda's own answers, without torch."""

import ctypes
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from devkit.estimate.settings import Precision

DRIVER_LIBRARIES = ("libcuda.so.1", "nvcuda.dll")
KERNEL_MODULE_VERSION_FILE = Path("/proc/driver/nvidia/version")
DEVICE_FOLDER = Path("/dev")


@dataclass(frozen=True)
class CudaDriver:
    """libcuda's answers. `init_code` is the CUresult of cuInit, 0 for success and 100 for "no device".

    `cuda` is the newest CUDA version that the driver runs, such as "13.0"; `driver` the kernel module's version.
    Both are "" when they cannot be read.
    """

    init_code: int
    gpus: int
    cuda: str
    driver: str


def read_cuda_driver() -> CudaDriver | None:
    """Query libcuda; None when no such library can be loaded. May block or crash: only the proof's child calls it.

    Source: CUDA Driver API, cuInit, cuDeviceGetCount, cuDriverGetVersion (version = 1000 * major + 10 * minor).
    """
    library = _load_libcuda()
    if library is None:
        return None
    try:
        kernel_module = re.search(r"\d{3,}\.\d+(?:\.\d+)?", KERNEL_MODULE_VERSION_FILE.read_text())
    except OSError:
        kernel_module = None
    init_code = int(library.cuInit(0))
    count, version = ctypes.c_int(0), ctypes.c_int(0)
    if init_code == 0:
        library.cuDeviceGetCount(ctypes.byref(count))
    library.cuDriverGetVersion(ctypes.byref(version))
    cuda = f"{version.value // 1000}.{version.value % 1000 // 10}" if version.value else ""
    return CudaDriver(init_code, count.value, cuda, kernel_module[0] if kernel_module else "")


def _load_libcuda() -> ctypes.CDLL | None:
    for name in DRIVER_LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def has_gpu_node(folder: Path = DEVICE_FOLDER) -> bool:
    """Return whether `folder`, by default /dev, has the device node of an NVIDIA GPU or of WSL 2."""
    return (folder / "dxg").exists() or any(re.fullmatch(r"nvidia\d+", node.name) for node in folder.glob("nvidia*"))


MIN_BF16_CAPABILITY_MAJOR = 8
"""Compute capability 8.0 (Ampere) is the first with bf16 arithmetic.

Source: CUDA C++ Programming Guide, "Arithmetic instructions".
"""

TORCH_DTYPES = {Precision.FP32: torch.float32, Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}


@dataclass(frozen=True)
class Device:
    """A device that models run on. `capability` is "" and `memory_bytes` 0 where they mean nothing."""

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
        return TORCH_DTYPES[self.precision]


def choose_device(wanted: Precision | None = None) -> Device:
    """Choose the first CUDA (or ROCm) GPU, else Apple's GPU, else the CPU."""
    if torch.cuda.is_available():
        found, count = torch.cuda.get_device_properties(0), torch.cuda.device_count()
        capability = f"{found.major}.{found.minor}"
        precision, because = (wanted, "requested") if wanted else choose_precision(found.major, capability)
        reason = f"torch sees {count} GPU{'s' if count > 1 else ''}"
        return Device(
            "cuda", found.name, reason, precision, because, capability, memory_bytes=found.total_memory, count=count
        )
    if torch.backends.mps.is_available():
        precision, because = wanted or Precision.FP32, "exact comparison"
        return Device("mps", "Apple GPU", "torch sees Apple's GPU", precision, because, count=1)
    return choose_cpu(wanted)


def choose_cpu(wanted: Precision | None = None) -> Device:
    """Choose the CPU, even if there is a GPU."""
    precision, because = wanted or Precision.FP32, "requested" if wanted else "CPUs compute fp32 exactly and fast"
    name = "CPU"
    # It is a long file, of which one line is needed.
    with suppress(OSError), Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as lines:
        name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), name)
    return Device("cpu", name, "torch sees no GPU", precision, because)


def choose_precision(capability_major: int, capability: str) -> tuple[Precision, str]:
    """Choose bf16 where the GPU computes in it, else fp16; adapters stay fp32 either way."""
    if torch.version.hip is not None:
        return Precision.BF16, "ROCm GPUs that torch supports compute in bf16"
    if capability_major >= MIN_BF16_CAPABILITY_MAJOR:
        return Precision.BF16, f"compute capability {capability} computes in bf16"
    return Precision.FP16, f"compute capability {capability} is before 8.0, the first with bf16; adapters stay fp32"


def describe_device(device: Device, driver: CudaDriver | None) -> dict[str, str | int]:
    """Return the report's `device` object; fields that mean nothing on this device are left out."""
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
