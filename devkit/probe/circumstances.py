"""The circumstances of this machine, without a child process and without the modules of other probes."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from devkit.facts.machine import Circumstances

DRIVER_VERSION = "/proc/driver/nvidia/version"
DXG = "/dev/dxg"
_CGROUP_SIGNS = (("kubepods", "kubernetes"), ("docker", "docker"), ("libpod", "podman"))
_MAX_BYTES = 64 * 1024


class Files(Protocol):
    """The part of `Host` that reads files."""

    @property
    def env(self) -> Mapping[str, str]:
        """Return the environment variables."""

    def read(self, path: str) -> str | None:
        """Return the text of a file, None when it cannot be read."""

    def stat(self, path: str) -> object | None:
        """Return something for a path that exists."""

    def link(self, path: str) -> str | None:
        """Return the path that links lead to, None when it does not exist."""


class LocalFiles:
    """Files of the machine that this process runs on."""

    @property
    def env(self) -> Mapping[str, str]:
        """Return the environment variables."""
        return os.environ

    def read(self, path: str) -> str | None:
        """Return the beginning of a file, None when it cannot be read."""
        try:
            if not Path(path).is_file():  # a pipe would hold up who opens it
                return None
            with Path(path).open(encoding="utf-8", errors="replace") as file:
                return file.read(_MAX_BYTES)
        except OSError:
            return None

    def stat(self, path: str) -> os.stat_result | None:
        """Return what is known about a path, None when it does not exist."""
        try:
            return Path(path).stat()
        except OSError:
            return None

    def link(self, path: str) -> str | None:
        """Return the path that links lead to, None when it does not exist."""
        try:
            return str(Path(path).resolve(strict=True))
        except (OSError, RuntimeError):
            return None


def read_circumstances(files: Files) -> Circumstances:
    """Read the circumstances in about a millisecond."""
    version = re.search(r"\b\d{3}\.\d{2,3}(?:\.\d{2,3})?\b", files.read(DRIVER_VERSION) or "")
    return Circumstances(
        driver=version[0] if version else "",
        has_device=any(files.stat(path) is not None for path in ("/dev/nvidia0", "/dev/nvidiactl", DXG)),
        is_wsl="microsoft" in (files.read("/proc/sys/kernel/osrelease") or "").lower()
        or "WSL_DISTRO_NAME" in files.env,
        container=detect_container(files),
        docker=_find_docker(files),
    )


def detect_container(files: Files) -> str:
    """Return "docker", "podman", "kubernetes", "apptainer" or "unknown"; "" outside of a container."""
    if "APPTAINER_CONTAINER" in files.env or "SINGULARITY_CONTAINER" in files.env:
        return "apptainer"
    if "KUBERNETES_SERVICE_HOST" in files.env:
        return "kubernetes"
    if files.stat("/run/.containerenv") is not None:
        return "podman"
    if files.stat("/.dockerenv") is not None:
        return "docker"
    cgroups = files.read("/proc/1/cgroup") or ""
    by_cgroup = next((kind for sign, kind in _CGROUP_SIGNS if sign in cgroups), "")
    return by_cgroup or ("unknown" if files.env.get("container") else "")


def _find_docker(files: Files) -> str:
    paths = (files.link(f"{folder}/docker") for folder in files.env.get("PATH", "").split(os.pathsep) if folder)
    path = next(filter(None, paths), "")
    # The package podman-docker makes docker a link to Podman, or a script that starts it.
    if "podman" in path or "podman" in (files.read(path) or "")[:400]:
        return "podman"
    return "snap" if "/snap/" in path else "docker" if path else ""
