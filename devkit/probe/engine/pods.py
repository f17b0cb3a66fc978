"""The settings of a Kubernetes node's containerd or CRI-O, as far as GPUs depend on them."""

import re
from fnmatch import fnmatch
from typing import Any

from devkit.facts.engine import PodRuntime, Runtime
from devkit.facts.values import Unknown
from devkit.probe.documents import get_int, get_object, get_text, get_texts, parse_toml
from devkit.probe.host import Host
from devkit.probe.machine.programs import find_program_or_path

CONTAINERD, CRIO = "containerd", "CRI-O"
POD_RUNTIMES = {
    "/run/k3s/containerd/containerd.sock": "containerd of k3s or RKE2",
    "/var/snap/microk8s/common/run/containerd.sock": "containerd of MicroK8s",
    "/run/containerd/containerd.sock": CONTAINERD,
    "/run/crio/crio.sock": CRIO,
}
"""Sockets of the Container Runtime Interface. Source: Kubernetes, "Container Runtimes"; K3s and MicroK8s documentation."""
_SETTINGS = {
    "containerd of k3s or RKE2": (
        "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
        "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
    ),
    "containerd of MicroK8s": ("/var/snap/microk8s/current/args/containerd.toml",),
    CONTAINERD: ("/etc/containerd/config.toml",),
    CRIO: ("/etc/crio/crio.conf",),
}
_CRIO_FOLDER = "/etc/crio/crio.conf.d"
_WRITTEN_FILES = ("/etc/containerd/conf.d/99-nvidia.toml", "/etc/containerd/config.d/99-nvidia.toml")
"""Of nvidia-ctk; the second of 1.18.0 alone. Source: NVIDIA/nvidia-container-toolkit issue 1404."""
_KUBELET = "/var/lib/kubelet/config.yaml"
"""Where kubeadm writes the kubelet's settings. A containerd without one is Docker's."""
_PLUGINS = {1: "cri", 2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
"""The section of pods by the version of the file. Source: containerd, docs/PLUGINS.md and issue 10132."""


def find_pod_runtime(host: Host) -> str:
    """Name what has a socket for the kubelet on this machine, "" for nothing."""
    return next((name for path, name in POD_RUNTIMES.items() if host.stat(path) is not None), "")


def read_pod_runtime(host: Host) -> PodRuntime | Unknown | None:
    """Read the settings of what runs pods on this machine; None where it is not a node."""
    name = find_pod_runtime(host)
    kubelet = host.read(_KUBELET)
    if not name or (name in (CONTAINERD, CRIO) and kubelet is None):
        return None
    path = next((path for path in _SETTINGS[name] if host.stat(path) is not None), "")
    if not path and name not in (CONTAINERD, CRIO):
        return Unknown(f"{_SETTINGS[name][0]} is missing or not readable by this user")
    path = path or _SETTINGS[name][0]
    try:
        config = _read_toml(host, path) if name == CRIO else _read_containerd(host, path)
        for inner in host.list(_CRIO_FOLDER) if name == CRIO else ():
            config = _merge(config, _read_toml(host, f"{_CRIO_FOLDER}/{inner}"))
    except PermissionError:
        return Unknown(f"{path} cannot be read by this user")
    except ValueError as error:
        return PodRuntime(name, path, str(error), False, "", (), "", None, "")
    version = get_int(config, "version") or (1 if config else 2)
    of_pods = get_object(config, "crio", "runtime")
    elsewhere = ""
    if name != CRIO:
        found = {number: get_object(config, "plugins", plugin, "containerd") for number, plugin in _PLUGINS.items()}
        of_pods = found.get(version, {})
        others = (plugin for number, plugin in _PLUGINS.items() if get_object(found[number], "runtimes", "nvidia"))
        if version in _PLUGINS and not get_object(of_pods, "runtimes", "nvidia"):
            elsewhere = next(others, "")
    runtimes = get_object(of_pods, "runtimes")
    nvidia = get_object(runtimes, "nvidia", "options").get("SystemdCgroup")
    ignored = "" if name != CONTAINERD or "nvidia" in runtimes else next(filter(host.stat, _WRITTEN_FILES), "")
    driver = re.search(r"^cgroupDriver:\s*[\"']?(\w+)", kubelet or "", re.MULTILINE)
    return PodRuntime(
        name=name,
        path=path,
        error="",
        is_off="cri" in get_texts(config, "disabled_plugins"),
        ignored_section=elsewhere,
        runtimes=tuple(_read_runtime(host, name, get_object(runtimes, name)) for name in sorted(runtimes)),
        default_runtime=get_text(of_pods, "default_runtime" if name == CRIO else "default_runtime_name"),
        systemd_cgroup=None if name == CRIO else nvidia is True,
        kubelet_cgroup_driver=driver[1] if driver else "",
        version=Unknown("CRI-O's files have none") if name == CRIO else version,
        ignored_file="" if elsewhere else ignored,
    )


def _read_runtime(host: Host, name: str, table: dict[str, Any]) -> Runtime:
    path = get_text(table, "runtime_path") or get_text(get_object(table, "options"), "BinaryName")
    return Runtime(name, path, find_program_or_path(host, path) if path else "")


def _read_containerd(host: Host, path: str) -> dict[str, Any]:
    """Read the file and those that it imports, which come later and win. Raises ValueError for one of a higher version."""
    config = _read_toml(host, path)
    version = get_int(config, "version")
    for pattern in get_texts(config, "imports"):
        folder, _, names = (pattern if pattern.startswith("/") else f"{path.rpartition('/')[0]}/{pattern}").rpartition(
            "/"
        )
        for name in host.list(folder):
            if fnmatch(name, names) and f"{folder}/{name}" != path:
                imported = _read_toml(host, f"{folder}/{name}")
                own = get_int(imported, "version")
                if version and own and own > version:
                    raise ValueError(f"{folder}/{name} has version {own}, higher than version {version} of {path}")
                config = _merge(config, imported)
    return config


def _read_toml(host: Host, path: str) -> dict[str, Any]:
    """Read a file, empty where there is none. Raises PermissionError, and ValueError for invalid TOML."""
    text = host.read(path)
    if text is None and host.stat(path) is not None:
        raise PermissionError(path)
    try:
        return parse_toml(text or "")
    except ValueError as error:
        raise ValueError(f"{path} is not valid TOML: {error}") from None


def _merge(lower: dict[str, Any], upper: dict[str, Any]) -> dict[str, Any]:
    merged = dict(lower)
    for key, value in upper.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged
