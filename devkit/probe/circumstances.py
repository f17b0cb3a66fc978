"""The circumstances of this machine, without a child process and without the modules of other probes."""

import os
import re

from devkit.facts.machine import Circumstances
from devkit.probe.host import Host

DRIVER_VERSION = "/proc/driver/nvidia/version"
DXG = "/dev/dxg"
_CGROUP_SIGNS = (("kubepods", "kubernetes"), ("docker", "docker"), ("libpod", "podman"))
MAX_SCRIPT_BYTES = 16384
"""A command that hands over to another one is a short script; the real ones are megabytes of machine code."""


def read_circumstances(host: Host) -> Circumstances:
    """Read the circumstances in about a millisecond."""
    version = re.search(r"\b\d{3}\.\d{2,3}(?:\.\d{2,3})?\b", host.read(DRIVER_VERSION) or "")
    return Circumstances(
        driver=version[0] if version else "",
        has_device=any(host.stat(path) is not None for path in ("/dev/nvidia0", "/dev/nvidiactl", DXG)),
        is_wsl="microsoft" in (host.read("/proc/sys/kernel/osrelease") or "").lower() or "WSL_DISTRO_NAME" in host.env,
        container=detect_container(host),
        docker=_find_docker(host),
    )


def detect_container(host: Host) -> str:
    """Return "docker", "podman", "kubernetes", "apptainer", "flatpak", "lxc" or "unknown"; "" outside a container."""
    if host.stat("/.flatpak-info") is not None:
        return "flatpak"
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
    # What systemd found out at its start, and what the container manager passed to it.
    stated = (host.read("/run/systemd/container") or "").strip() or host.env.get("container", "")
    return by_cgroup or ("lxc" if stated.startswith("lxc") else "unknown" if stated else "")


def _find_docker(host: Host) -> str:
    paths = (host.link(f"{folder}/docker") for folder in host.env.get("PATH", "").split(os.pathsep) if folder)
    path = next(filter(None, paths), "")
    # The package podman-docker makes docker a link to Podman, or a script that starts it.
    found = host.stat(path) if path else None
    script = host.read(path) if found is not None and found.size <= MAX_SCRIPT_BYTES else None
    if "podman" in path or "podman" in (script or "")[:400]:
        return "podman"
    return "snap" if "/snap/" in path else "docker" if path else ""
