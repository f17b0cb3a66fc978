"""Where the proof runs and in which precision, with the reason for both."""

import ctypes
import re
from dataclasses import dataclass
from pathlib import Path

import torch

from devkit.workload.proof.stages import Precision

# What the CUDA driver library says for itself, without torch: is there a GPU that torch ought to see?

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
    """Ask libcuda; None when no such library can be loaded. May block or crash: only the proof's child calls it.

    Source: CUDA Driver API, cuInit, cuDeviceGetCount, cuDriverGetVersion (version = 1000 * major + 10 * minor).
    """
    library = _load()
    if library is None:
        return None
    init_code = int(library.cuInit(0))
    count, version = ctypes.c_int(0), ctypes.c_int(0)
    if init_code == 0:
        library.cuDeviceGetCount(ctypes.byref(count))
    library.cuDriverGetVersion(ctypes.byref(version))
    cuda = f"{version.value // 1000}.{version.value % 1000 // 10}" if version.value else ""
    return CudaDriver(init_code, count.value, cuda, _kernel_module_version())


def has_gpu_node(folder: Path = DEVICE_FOLDER) -> bool:
    """Whether an NVIDIA GPU's device node, or that of WSL 2, is in `folder`, by default /dev."""
    return (folder / "dxg").exists() or any(re.fullmatch(r"nvidia\d+", node.name) for node in folder.glob("nvidia*"))


def _load() -> ctypes.CDLL | None:
    for name in DRIVER_LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def _kernel_module_version() -> str:
    try:
        text = KERNEL_MODULE_VERSION_FILE.read_text()
    except OSError:
        return ""
    found = re.search(r"\d{3,}\.\d+(?:\.\d+)?", text)
    return found[0] if found else ""


MIN_BF16_CAPABILITY_MAJOR = 8
"""Compute capability 8.0 (Ampere) is the first with bf16 arithmetic.

Source: CUDA C++ Programming Guide, "Arithmetic instructions".
"""

TORCH_DTYPES = {Precision.FP32: torch.float32, Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}


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
        return TORCH_DTYPES[self.precision]


def choose_device(wanted: Precision | None = None) -> Device:
    """The first CUDA (or ROCm) GPU, else Apple's GPU, else the CPU."""
    if torch.cuda.is_available():
        return _cuda(wanted)
    if torch.backends.mps.is_available():
        precision, because = wanted or Precision.FP32, "exact comparison"
        return Device("mps", "Apple GPU", "torch sees Apple's GPU", precision, because, count=1)
    return choose_cpu(wanted)


def choose_cpu(wanted: Precision | None = None) -> Device:
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
    if capability_major >= MIN_BF16_CAPABILITY_MAJOR:
        return Precision.BF16, f"compute capability {capability} computes in bf16"
    return Precision.FP16, f"compute capability {capability} is before 8.0, the first with bf16; adapters stay fp32"


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:  # noqa: PTH123 - one line of a long file
            names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
            return next(names, "CPU")
    except OSError:
        return "CPU"


def describe_device(device: Device, driver: CudaDriver | None) -> dict[str, str | int]:
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
