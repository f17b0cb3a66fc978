"""The device and its memory: what it is, what is free, running out of it, and the micro-batch that fits."""

import gc
import importlib.util
import os
import platform
import shutil
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from devkit.estimate.settings import Precision
from devkit.facts.values import ComputeCapability
from devkit.text import format_bytes
from devkit.workload.device import choose_device
from devkit.workload.finetune.decisions import DeviceKind, Hardware
from devkit.workload.finetune.distributed import Ranks
from devkit.workload.finetune.model.attention import probe_attention_kernels

OPTIONAL_PACKAGES = ("bitsandbytes", "liger_kernel", "flash_attn")

MACOS_WITH_BF16 = 14
"""torch: "BFloat16 is not supported on MPS" before macOS 14, https://github.com/pytorch/pytorch/issues/141864."""

CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))

_OUT_OF_MEMORY_TEXTS = ("MPS backend out of memory", "DefaultCPUAllocator: can't allocate memory")
"""torch's messages where running out of memory has no exception of its own: on Apple's GPUs and on the CPU."""


def detect_device_type() -> str:
    """Return cuda, mps or cpu, as torch names devices; ROCm's GPUs are cuda to torch."""
    return choose_device().kind


def read_gpu_name(device: torch.device) -> str | None:
    """Return the GPU's name, as torch and NVML have it; None for any other device."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else None


def probe_hardware(device: torch.device, *, world_size: int) -> Hardware:
    """Probe the device as it is now, with its free memory."""
    packages = frozenset(name for name in OPTIONAL_PACKAGES if importlib.util.find_spec(name) is not None)
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        free, _ = torch.cuda.mem_get_info(device)
        is_rocm = torch.version.hip is not None
        has_triton = importlib.util.find_spec("triton") is not None
        has_compiler = any(shutil.which(name) for name in (os.environ.get("CC") or "cc", "gcc", "clang"))
        return Hardware(
            kind=DeviceKind.ROCM if is_rocm else DeviceKind.CUDA,
            name=properties.name,
            # This process may use what its allocator has reserved already.
            free_bytes=free + torch.cuda.memory_reserved(device),
            capability=None if is_rocm else ComputeCapability(properties.major, properties.minor),
            can_compile=has_triton and has_compiler,
            has_varlen=probe_attention_kernels(device, Precision.BF16).varlen,
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
        can_compile=shutil.which("cc") is not None or shutil.which("g++") is not None,
        packages=packages,
        world_size=world_size,
    )


def read_free_ram_bytes(meminfo: Path = Path("/proc/meminfo"), limits: tuple[Path, ...] = CGROUP_LIMITS) -> int:
    """Read the memory that processes here may still take: the kernel's MemAvailable, or less by a container's limit."""
    try:
        lines = dict(line.split(":", 1) for line in meminfo.read_text(encoding="ascii").splitlines())
        available = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, ValueError, KeyError):
        # Nothing says how much is free: all memory, else 8 GiB.
        available = 8 * 1024**3
        if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
            available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for limit in limits:
        try:
            return min(available, int(limit.read_text(encoding="ascii")))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return available


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

    def __str__(self) -> str:
        return (
            f"tensors took up to {format_bytes(self.allocated)}, the allocator up to {format_bytes(self.reserved)}, "
            f"{format_bytes(self.free)} are free"
        )


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


class StepOutOfMemory(Exception):  # noqa: N818 - not an error: all ranks agreed on it, and the step can be repeated
    """Memory ran out on at least one rank; no optimizer step was taken."""


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


@dataclass(frozen=True)
class MicroBatchSearch:
    """The micro-batch that fits, with the memory at it. `refused` are those tried before, largest first.

    `micro_batch` is 0 if not even one row fits; `memory` is then that of the last attempt.
    """

    micro_batch: int
    memory: DeviceMemory
    refused: tuple[int, ...] = ()


def find_micro_batch(
    attempt: Callable[[int], None],
    *,
    start: int,
    ranks: Ranks,
) -> MicroBatchSearch:
    """Halve `start` until `attempt` with that micro-batch succeeds on every rank.

    `attempt` is one whole step, optimizer included, that leaves no trace. All ranks must call and agree, so that the
    effective batch stays the same one everywhere.
    """
    refused: list[int] = []
    size = start
    while size:
        if ranks.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(ranks.device)
        failed = False
        try:
            attempt(size)
        except StepOutOfMemory:
            failed = True
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            free_after_oom(error, ranks.device)
            failed = True
        memory = read_device_memory(ranks.device)
        if not ranks.any(failed):
            return MicroBatchSearch(size, memory, tuple(refused))
        refused.append(size)
        size //= 2
    return MicroBatchSearch(0, memory, tuple(refused))
