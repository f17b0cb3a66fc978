"""Whether this side is the inside of a container, and what was injected into it."""

import re

from devkit.facts.model import Container
from devkit.facts.values import Unknown
from devkit.probe.host import Host
from devkit.probe.programs import find_libraries, find_program, loader_cache
from devkit.probe.python import workload_python
from devkit.probe.system import group_ids, memory_bytes

SHARED_MEMORY = "/dev/shm"  # noqa: S108 - read, not written

_CGROUP_SIGNS = (("kubepods", "kubernetes"), ("docker", "docker"), ("libpod", "podman"))
_COMPAT = re.compile(r"/cuda[^/]*/compat/")
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def read_container(host: Host) -> Container | None:
    """The container around this process; None when there is none."""
    kind = container_kind(host)
    if not kind:
        return None
    cache = loader_cache(host)
    first = next(iter(find_libraries(host, "libcuda.so.1", cache)), "")
    return Container(
        kind=kind,
        visible_devices=host.env.get("NVIDIA_VISIBLE_DEVICES"),
        driver_capabilities=host.env.get("NVIDIA_DRIVER_CAPABILITIES"),
        require_cuda=host.env.get("NVIDIA_REQUIRE_CUDA"),
        shm_bytes=_shm_bytes(host),
        c_compiler=next(filter(None, (find_program(host, name) for name in ("cc", "gcc", "clang"))), ""),
        python_headers=_python_headers(host),
        libcuda_in_cache=cache if isinstance(cache, Unknown) else "libcuda.so" in cache,
        compat_libcuda=first if _COMPAT.search(host.link(first) or "") else "",
        nameless_groups=_nameless_groups(host),
    )


def container_kind(host: Host) -> str:
    """One of "docker", "podman", "kubernetes", "apptainer" or "unknown"; "" outside of a container."""
    if "APPTAINER_CONTAINER" in host.env or "SINGULARITY_CONTAINER" in host.env:
        return "apptainer"
    if "KUBERNETES_SERVICE_HOST" in host.env:
        return "kubernetes"
    if host.stat("/run/.containerenv") is not None:
        return "podman"
    if host.stat("/.dockerenv") is not None:
        return "docker"
    cgroups = host.read("/proc/1/cgroup") or ""
    by_cgroup = next((kind for sign, kind in _CGROUP_SIGNS if sign in cgroups), "")
    return by_cgroup or ("unknown" if host.env.get("container") else "")


def _nameless_groups(host: Host) -> tuple[int, ...] | Unknown:
    named = host.read("/etc/group")
    if named is None or host.read("/proc/self/status") is None:
        return Unknown("/etc/group or /proc/self/status cannot be read")
    numbers = {fields[2] for line in named.splitlines() if len(fields := line.split(":")) > 2}
    return tuple(number for number in sorted(set(group_ids(host))) if str(number) not in numbers)


def _shm_bytes(host: Host) -> int | Unknown:
    """The size of /dev/shm by its mount options; the kernel's default is half of the memory."""
    mounts = (line.split() for line in (host.read("/proc/mounts") or "").splitlines())
    options = next((fields[3] for fields in mounts if len(fields) > 3 and fields[1] == SHARED_MEMORY), None)
    if options is None:
        return Unknown(f"{SHARED_MEMORY} is not mounted")
    if size := re.search(r"(?:^|,)size=(\d{1,15})([kmg]?)", options):
        return int(size[1]) * _UNITS[size[2]]
    total = memory_bytes(host)
    return total if isinstance(total, Unknown) else total // 2


def _python_headers(host: Host) -> bool | Unknown:
    python = workload_python(host)
    if isinstance(python, Unknown):
        return python
    return any(host.stat(f"{folder}/Python.h") is not None for folder in python.include_folders)
