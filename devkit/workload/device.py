"""The device to run on and its precision, with the reason for both, and its memory."""

import gc
import importlib.util
import os
import platform
import re
import shutil
import sys
import traceback
from contextlib import suppress
from dataclasses import dataclass
from inspect import signature
from pathlib import Path

import torch

from devkit.estimate.settings import Method, Precision
from devkit.facts.runs import CudaCall
from devkit.facts.values import ComputeCapability, Unknown
from devkit.probe.host import Host, LocalHost
from devkit.probe.machine.control_group import read_cgroup
from devkit.probe.machine.operating_system import parse_memory_size
from devkit.workload.finetune.decisions import DeviceKind, Hardware, choose_precision

KERNEL_MODULE_VERSION_FILE = Path("/proc/driver/nvidia/version")

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
        return TORCH_DTYPES[self.precision]


def choose_device(wanted: Precision | None = None) -> Device:
    """Choose the first CUDA (or ROCm) GPU, else Apple's GPU, else the CPU."""
    if torch.cuda.is_available():
        found, count = torch.cuda.get_device_properties(0), torch.cuda.device_count()
        capability = f"{found.major}.{found.minor}"
        precision, because = wanted or Precision.FP32, "requested"
        if wanted is None:
            # Without its free memory, which would take some of the first GPU in every process.
            kind = DeviceKind.CUDA if torch.version.hip is None else DeviceKind.ROCM
            hardware = Hardware(
                kind=kind, name=found.name, free_bytes=0, capability=ComputeCapability(found.major, found.minor)
            )
            precision, because = choose_precision(Method.LORA, hardware)
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


def describe_device(device: Device, cuda: object) -> dict[str, str | int]:
    """Return the report's `device` object with what libcuda says; fields that mean nothing on this device are left out."""
    fields = dict(vars(device))
    if isinstance(cuda, CudaCall):
        with suppress(OSError):
            found = re.search(r"\d{3,}\.\d+(?:\.\d+)?", KERNEL_MODULE_VERSION_FILE.read_text())
            fields["driver"] = found[0] if found else ""
        fields["driver_cuda"] = "" if isinstance(cuda.cuda, Unknown) else cuda.cuda.text
    return {name: value for name, value in fields.items() if value not in ("", 0)}


_OUT_OF_MEMORY_TEXTS = ("MPS backend out of memory", "DefaultCPUAllocator: can't allocate memory")
"""torch's messages where running out of memory has no exception class: on Apple's GPUs and on the CPU."""


def read_free_ram_bytes(host: Host | None = None) -> int:
    """Read the memory that processes here may still take: the kernel's MemAvailable, or less by a control group's limit."""
    host = host or LocalHost()
    sizes = (parse_memory_size(host.read("/proc/meminfo"), "MemAvailable"), read_cgroup(host).memory_bytes)
    known = [size for size in sizes if isinstance(size, int)]
    if known:
        return min(known)
    # Nothing says how much is free: all memory, else 8 GiB.
    has_pages = hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if has_pages else 8 * 1024**3


@dataclass(frozen=True)
class DeviceMemory:
    """A device's memory in bytes: the peak of tensors, the peak that the allocator reserved for them, what is free."""

    allocated: int = 0
    reserved: int = 0
    free: int = 0

    def to_event_fields(self) -> dict[str, int]:
        """Return the fields of events; empty if nothing was counted."""
        fields = {"allocated_bytes": self.allocated, "reserved_bytes": self.reserved, "free_bytes": self.free}
        return fields if self.reserved else {}


def read_device_memory(device: torch.device) -> DeviceMemory:
    """Read the peaks since they were last reset, and what is free now. Zeros on the CPU, which has no such counters."""
    if device.type != "cuda":
        return DeviceMemory()
    free, _ = torch.cuda.mem_get_info(device)
    return DeviceMemory(torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device), free)


def read_peak_fields(device: torch.device) -> dict[str, int]:
    """Read the peak so far as fields of events: of tensors on a GPU, of the whole process elsewhere."""
    if device.type == "cuda":
        return {"peak_allocated_bytes": torch.cuda.max_memory_allocated(device)}
    try:
        import resource
    except ImportError:  # Windows
        return {}
    unit = 1 if sys.platform == "darwin" else 1024
    return {"peak_resident_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if `error` means that memory ran out, on any device."""
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and any(text in str(error) for text in _OUT_OF_MEMORY_TEXTS)
    )


def free_after_oom(error: BaseException, device: torch.device) -> None:
    """Free what a failed pass held: its tensors live in the frames of the traceback until those are cleared."""
    each: BaseException | None = error
    while each is not None:
        traceback.clear_frames(each.__traceback__)
        each = each.__context__
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


OPTIONAL_PACKAGES = ("bitsandbytes", "flash_attn")

MACOS_WITH_BF16 = 14
"""torch: "BFloat16 is not supported on MPS" before macOS 14, https://github.com/pytorch/pytorch/issues/141864."""


def probe_hardware(device: torch.device, *, world_size: int) -> Hardware:
    """Probe the device as it is now, with its free memory."""
    packages = frozenset(name for name in OPTIONAL_PACKAGES if importlib.util.find_spec(name) is not None)
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        free, _ = torch.cuda.mem_get_info(device)
        is_rocm = torch.version.hip is not None
        return Hardware(
            kind=DeviceKind.ROCM if is_rocm else DeviceKind.CUDA,
            name=properties.name,
            # This process may use what its allocator has reserved already.
            free_bytes=free + torch.cuda.memory_reserved(device),
            capability=None if is_rocm else ComputeCapability(properties.major, properties.minor),
            # With Triton for the GPU, and a C compiler for its launchers.
            can_compile=importlib.util.find_spec("triton") is not None
            and any(shutil.which(name) for name in (os.environ.get("CC") or "cc", "gcc", "clang")),
            has_varlen=_has_varlen_kernel(),
            packages=packages,
            world_size=world_size,
        )
    if device.type == "mps":
        free = int(torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory())
        release = platform.mac_ver()[0].partition(".")[0]
        has_bf16 = release.isdigit() and int(release) >= MACOS_WITH_BF16
        return Hardware(kind=DeviceKind.MPS, name="Apple GPU", free_bytes=free, has_bf16=has_bf16, packages=packages)
    return Hardware(
        kind=DeviceKind.CPU,
        name=choose_device().name,
        free_bytes=read_free_ram_bytes() // world_size,
        has_bf16=torch.cpu._is_avx512_bf16_supported(),
        can_compile=shutil.which("cc") is not None or shutil.which("g++") is not None,
        packages=packages,
        world_size=world_size,
    )


def _has_varlen_kernel() -> bool:
    """Return True if torch's kernel takes windows and grouped heads; its first releases took neither."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return False
    return {"window_size", "enable_gqa", "scale"} <= signature(varlen_attn).parameters.keys()
