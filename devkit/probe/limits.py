"""Limits of processes, control group and interfaces, and what lies between GPUs."""

import re
from collections.abc import Iterator

from devkit.facts.model import Limits
from devkit.facts.values import Unknown
from devkit.probe.control_group import read_group
from devkit.probe.host import Host
from devkit.probe.shapes import whole

LIMITS = "/proc/self/limits"
SELINUX = "/sys/fs/selinux"
PCI_DEVICES = "/sys/bus/pci/devices"
IOMMU_GROUPS = "/sys/kernel/iommu_groups"
INTERFACES = "/sys/class/net"
ROUTES = "/proc/net/route"
INFINIBAND = "/sys/class/infiniband"

NCCL_FILES = ("/etc/nccl.conf", "{home}/.nccl.conf")
"""Source: NVIDIA, NCCL user guide, "Environment Variables"; the environment wins over both."""
_OF_NCCL = (
    "NCCL_SOCKET_IFNAME",
    "NCCL_P2P_DISABLE",
    "NCCL_P2P_LEVEL",
    "NCCL_SHM_DISABLE",
    "NCCL_IB_DISABLE",
    "NCCL_IB_HCA",
    "NCCL_NET",
    "NCCL_DEBUG",
)
_OF_LAUNCHERS = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "NNODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES")
_LOCAL = ("localhost", "127.0.0.1", "::1")
_DISPLAY_CLASSES = ("0x0300", "0x0302")


def read_limits(host: Host) -> Limits | Unknown:
    """What a training process started here may use; on other systems than Linux there is nothing to read."""
    limits = host.read(LIMITS)
    memory = host.read("/proc/meminfo")
    if limits is None and memory is None:
        return Unknown("this system has no /proc with limits")
    group = read_group(host)
    interfaces = tuple(name for name in host.list(INTERFACES) if name != "lo")
    return Limits(
        locked_memory_bytes=_limit(limits, "Max locked memory"),
        group_memory_bytes=group.memory_bytes,
        out_of_memory_kills=group.kills,
        group_version=group.version,
        open_files=_limit(limits, "Max open files"),
        stack_bytes=_limit(limits, "Max stack size"),
        cpu_count=group.cpu_count,
        swap_bytes=_of_memory(memory, "SwapTotal"),
        available_bytes=_of_memory(memory, "MemAvailable"),
        interfaces=interfaces if host.list(INTERFACES) else Unknown(f"{INTERFACES} is empty or not there"),
        default_interface=_default_interface(host),
        has_infiniband=bool(host.list(INFINIBAND)),
        nccl=tuple(_nccl(host)),
        iommu_domains=tuple(_iommu_domains(host)),
        selinux=_selinux(host),
        selinux_allows_devices=_selinux_switch(host),
    )


def _limit(text: str | None, name: str) -> int | Unknown | None:
    """The soft limit called `name` in /proc/self/limits."""
    found = re.search(rf"^{name}\s+(\d{{1,18}}|unlimited)\s", text or "", re.MULTILINE)
    if found is None:
        return Unknown(f"{LIMITS} does not say {name!r}")
    return None if found[1] == "unlimited" else int(found[1])


def _of_memory(text: str | None, name: str) -> int | Unknown:
    found = re.search(rf"^{name}:\s+(\d{{1,18}}) kB", text or "", re.MULTILINE)
    return int(found[1]) * 1024 if found else Unknown(f"/proc/meminfo does not say {name}")


def _default_interface(host: Host) -> str | Unknown:
    """The interface of the route to 0.0.0.0 with the lowest metric."""
    text = host.read(ROUTES)
    if text is None:
        return Unknown(f"{ROUTES} cannot be read")
    routes = [fields for line in text.splitlines()[1:] if len(fields := line.split()) > 7]
    defaults = [fields for fields in routes if fields[1] == "00000000" and fields[7] == "00000000"]
    best = min(defaults, key=lambda fields: whole(fields[6]) or 0, default=None)
    return best[0] if best else ""


def _nccl(host: Host) -> Iterator[str]:
    """Settings of NCCL and of launchers. Where the master is says only whether it is this machine."""
    settings: dict[str, str] = {}
    for path in NCCL_FILES:
        for line in (host.read(path.format(home=host.env.get("HOME", ""))) or "").splitlines():
            name, _, value = line.partition("=")
            settings[name.strip()] = value.strip()
    settings |= host.env
    for name in (*_OF_NCCL, *_OF_LAUNCHERS):
        if name in settings:
            yield f"{name}={settings[name]}"
    if master := settings.get("MASTER_ADDR"):
        yield f"MASTER_ADDR={'this machine' if master in _LOCAL else 'another name'}"


def _iommu_domains(host: Host) -> Iterator[str]:
    """One entry per NVIDIA GPU in an IOMMU group. Source: Linux, Documentation/ABI, sysfs-kernel-iommu_groups."""
    if not host.list(IOMMU_GROUPS):
        return
    for address in host.list(PCI_DEVICES):
        folder = f"{PCI_DEVICES}/{address}"
        if (host.read(f"{folder}/vendor") or "").strip() != "0x10de":
            continue
        if not (host.read(f"{folder}/class") or "").startswith(_DISPLAY_CLASSES):
            continue
        if kind := (host.read(f"{folder}/iommu_group/type") or "").strip():
            yield kind


def _selinux(host: Host) -> str | Unknown:
    if host.stat(f"{SELINUX}/enforce") is None:
        return ""
    text = host.read(f"{SELINUX}/enforce")
    if text is None:
        return Unknown(f"{SELINUX}/enforce cannot be read")
    return "enforcing" if text.strip() == "1" else "permissive"


def _selinux_switch(host: Host) -> bool | Unknown:
    """The first number is what holds now, the second what a pending change would make of it."""
    text = host.read(f"{SELINUX}/booleans/container_use_devices")
    if not text or not text.split():
        return Unknown("the policy has no switch container_use_devices, or it cannot be read")
    return text.split()[0] == "1"
