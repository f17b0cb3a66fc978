"""The device of this process, as decisions want to know it."""

import importlib.util
import os
import platform
import shutil
from pathlib import Path

import torch

from devkit.estimate.settings import Precision
from devkit.facts.values import ComputeCapability
from devkit.workload.device import choose_device
from devkit.workload.finetune.attention_varlen import kernels_here
from devkit.workload.finetune.decisions import Hardware, Kind

OPTIONAL = ("bitsandbytes", "liger_kernel", "flash_attn")
MACOS_WITH_BF16 = 14
"""torch: "BFloat16 is not supported on MPS" before macOS 14, https://github.com/pytorch/pytorch/issues/141864."""

MEMORY_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def device_kind() -> str:
    """cuda, mps or cpu, as torch names devices; ROCm's GPUs are cuda to torch."""
    return choose_device().kind


def gpu_name(device: torch.device) -> str | None:
    """The GPU that a run was measured on, as torch and NVML call it; None for any other device."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else None


def hardware_here(device: torch.device, *, world: int) -> Hardware:
    """The device as it is now, with what is free on it."""
    packages = frozenset(name for name in OPTIONAL if importlib.util.find_spec(name) is not None)
    if device.type == "cuda":
        return _cuda(device, packages, world)
    if device.type == "mps":
        free = int(torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory())
        release = platform.mac_ver()[0].partition(".")[0]
        has_bf16 = release.isdigit() and int(release) >= MACOS_WITH_BF16
        return Hardware(kind=Kind.MPS, name="Apple GPU", free_bytes=free, has_bf16=has_bf16, packages=packages)
    return Hardware(
        kind=Kind.CPU,
        name=choose_device().name,
        free_bytes=free_ram_bytes() // world,
        can_compile=shutil.which("cc") is not None or shutil.which("g++") is not None,
        packages=packages,
        world=world,
    )


def _cuda(device: torch.device, packages: frozenset[str], world: int) -> Hardware:
    found = torch.cuda.get_device_properties(device)
    free, _ = torch.cuda.mem_get_info(device)
    is_rocm = torch.version.hip is not None
    has_triton = importlib.util.find_spec("triton") is not None
    has_compiler = any(shutil.which(name) for name in (os.environ.get("CC") or "cc", "gcc", "clang"))
    return Hardware(
        kind=Kind.ROCM if is_rocm else Kind.CUDA,
        name=found.name,
        # What this process's allocator holds already, it may use.
        free_bytes=free + torch.cuda.memory_reserved(device),
        capability=None if is_rocm else ComputeCapability(found.major, found.minor),
        can_compile=has_triton and has_compiler,
        has_varlen=kernels_here(device, Precision.BF16).varlen,
        packages=packages,
        world=world,
    )


def free_ram_bytes(meminfo: Path = Path("/proc/meminfo"), limits: tuple[Path, ...] = MEMORY_LIMITS) -> int:
    """Memory that processes here may still take: what the kernel calls available, or less by a container's limit."""
    try:
        lines = dict(line.split(":", 1) for line in meminfo.read_text(encoding="ascii").splitlines())
        available = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, ValueError, KeyError):
        available = _physical_bytes()
    for limit in limits:
        try:
            return min(available, int(limit.read_text(encoding="ascii")))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return available


def _physical_bytes() -> int:
    """All memory, where nobody says how much of it is free."""
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 8 * 1024**3
