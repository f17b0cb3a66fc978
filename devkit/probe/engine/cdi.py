"""CDI specifications, validated as the CDI library of the engines does."""

import re
from collections.abc import Iterator
from typing import Any

from devkit.facts.engine import UNREADABLE_SPEC, CdiSpec
from devkit.facts.values import Release
from devkit.probe.documents import get_object, get_objects, get_scalar, parse_json, parse_object, parse_yaml
from devkit.probe.host import Host

SPEC_FOLDERS = ("/etc/cdi", "/var/run/cdi")
"""The folders that engines read by default; later folders win.

Source: Container Device Interface specification, "Kubernetes and CDI" and cdi.DefaultSpecDirs.
"""
_DRIVER_LIBRARY = re.compile(r"lib(?:cuda|nvidia-ml|nvidia-ptxjitcompiler)\.so\.(\d+\.\d+(?:\.\d+)?)\b")
_HOST_DRIVER = re.compile(r"--host-driver-version[= ](\d+\.\d+(?:\.\d+)?)")


def read_cdi(host: Host, *, engine_folders: tuple[str, ...] = ()) -> tuple[CdiSpec, ...]:
    """Read every specification in the standard folders and in the engine's own, unreadable ones with the reason."""
    folders: dict[str, str] = {}
    for folder in (*SPEC_FOLDERS, *engine_folders):
        folders.setdefault(host.link(folder) or folder, folder)
    return tuple(
        _read_spec(host, f"{folder}/{name}")
        for folder in folders.values()
        for name in host.list(folder)
        if name.endswith((".json", ".yaml"))
    )


def _read_spec(host: Host, path: str) -> CdiSpec:
    def unusable(error: str) -> CdiSpec:
        return CdiSpec(path=path, kind="", cdi_version="", devices=(), driver=None, error=error)

    text = host.read(path)
    if text is None:
        return unusable(UNREADABLE_SPEC)
    try:
        content = parse_object(text, parse_json if path.endswith(".json") else parse_yaml)
    except ValueError as error:
        return unusable(" ".join(str(error).split()))
    devices = get_objects(content, "devices")
    driver = _DRIVER_LIBRARY.search(text) or _HOST_DRIVER.search(text)
    return CdiSpec(
        path=path,
        kind=get_scalar(content, "kind"),
        cdi_version=get_scalar(content, "cdiVersion"),
        devices=tuple(get_scalar(device, "name") for device in devices if "name" in device),
        driver=Release.parse(driver[1]) if driver else None,
        error="" if Release.find(get_scalar(content, "cdiVersion")) else "it has no cdiVersion",
        without_nodes=tuple(str(one["name"]) for one in devices if "name" in one and not _edits(one, "deviceNodes")),
        missing_paths=tuple(_missing_paths(host, content, devices)),
    )


def _edits(owner: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """The entries under `containerEdits.<key>` of a specification or of one of its devices."""
    return get_objects(get_object(owner, "containerEdits"), key)


def _missing_paths(host: Host, content: dict[str, Any], devices: list[dict[str, Any]]) -> Iterator[str]:
    """Host paths of nodes and mounts that are not here. A hook's program counts too: it runs on the host."""
    seen: set[str] = set()
    for owner in (content, *devices):
        nodes = (node.get("hostPath") or node.get("path") for node in _edits(owner, "deviceNodes"))
        mounts = (mount.get("hostPath") for mount in _edits(owner, "mounts"))
        hooks = (hook.get("path") for hook in _edits(owner, "hooks"))
        for path in (*nodes, *mounts, *hooks):
            if isinstance(path, str) and path.startswith("/") and path not in seen:
                seen.add(path)
                if host.stat(path) is None:
                    yield path
