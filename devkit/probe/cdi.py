"""CDI specifications: which files tell engines how to hand out devices, and for which driver."""

import re
from collections.abc import Iterator
from typing import Any

from devkit.facts.engine import UNREADABLE
from devkit.facts.model import CdiSpec
from devkit.facts.values import Release
from devkit.probe.host import Host
from devkit.probe.shapes import json_of, parts, word, yaml_of

SPEC_FOLDERS = ("/etc/cdi", "/var/run/cdi")
"""Where engines look unless told otherwise; later folders win.

Source: Container Device Interface specification, "Kubernetes and CDI" and cdi.DefaultSpecDirs.
"""
SPEC_SUFFIXES = (".json", ".yaml")

_DRIVER_LIBRARY = re.compile(r"lib(?:cuda|nvidia-ml|nvidia-ptxjitcompiler)\.so\.(\d+\.\d+(?:\.\d+)?)\b")
_HOST_DRIVER = re.compile(r"--host-driver-version[= ](\d+\.\d+(?:\.\d+)?)")


def read_cdi(host: Host, *, engine_folders: tuple[str, ...] = ()) -> tuple[CdiSpec, ...]:
    """Every specification in the standard folders and in the engine's own, unreadable ones with the reason."""
    found: dict[str, str] = {}
    for folder in dict.fromkeys((*SPEC_FOLDERS, *engine_folders)):
        for name in host.list(folder):
            path = f"{folder}/{name}"
            if name.endswith(SPEC_SUFFIXES):
                found.setdefault(host.link(path) or path, path)
    return tuple(_spec(host, path) for path in found.values())


def _spec(host: Host, path: str) -> CdiSpec:
    text = host.read(path)
    if text is None:
        return _unusable(path, UNREADABLE)
    try:
        content = json_of(text) if path.endswith(".json") else yaml_of(text)
    except ValueError as error:
        return _unusable(path, " ".join(str(error).split()))
    if not isinstance(content, dict):
        return _unusable(path, "the top level is not an object")
    devices = content.get("devices")
    entries: list[Any] = devices if isinstance(devices, list) else []
    driver = _DRIVER_LIBRARY.search(text) or _HOST_DRIVER.search(text)
    return CdiSpec(
        path=path,
        kind=word(content, "kind"),
        cdi_version=word(content, "cdiVersion"),
        devices=tuple(word(entry, "name") for entry in parts(content, "devices") if "name" in entry),
        driver=Release.read(driver[1]) if driver else None,
        error="",
        without_nodes=tuple(_without_nodes(entries)),
        missing_paths=tuple(_missing_paths(host, content, entries)),
    )


def _without_nodes(entries: list[Any]) -> Iterator[str]:
    """Devices that bring no device node of their own."""
    for entry in entries:
        if isinstance(entry, dict) and "name" in entry and not any(_edits(entry, "deviceNodes")):
            yield str(entry["name"])


def _missing_paths(host: Host, content: dict[str, Any], entries: list[Any]) -> Iterator[str]:
    """Host paths of nodes and mounts that are not here. A hook's program counts too: it runs on the host."""
    seen: set[str] = set()
    for owner in (content, *(entry for entry in entries if isinstance(entry, dict))):
        nodes = (node.get("hostPath") or node.get("path") for node in _edits(owner, "deviceNodes"))
        mounts = (mount.get("hostPath") for mount in _edits(owner, "mounts"))
        hooks = (hook.get("path") for hook in _edits(owner, "hooks"))
        for path in (*nodes, *mounts, *hooks):
            if isinstance(path, str) and path.startswith("/") and path not in seen:
                seen.add(path)
                if host.stat(path) is None:
                    yield path


def _edits(owner: dict[str, Any], key: str) -> Iterator[dict[str, Any]]:
    """The entries under `containerEdits.<key>` of a specification or of one of its devices."""
    edits = owner.get("containerEdits")
    entries = edits.get(key) if isinstance(edits, dict) else None
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict):
            yield entry


def _unusable(path: str, error: str) -> CdiSpec:
    return CdiSpec(path=path, kind="", cdi_version="", devices=(), driver=None, error=error)
