"""CDI specifications, validated as the CDI library of the engines does."""

import re
from collections.abc import Iterator
from typing import Any

from devkit.facts.engine import UNREADABLE_SPEC
from devkit.facts.model import CdiSpec
from devkit.facts.values import Release
from devkit.probe.documents import get_object, get_objects, get_scalar, parse_json, parse_yaml
from devkit.probe.host import Host

SPEC_FOLDERS = ("/etc/cdi", "/var/run/cdi")
"""The folders that engines read by default; later folders win.

Source: Container Device Interface specification, "Kubernetes and CDI" and cdi.DefaultSpecDirs.
"""
_DRIVER_LIBRARY = re.compile(r"lib(?:cuda|nvidia-ml|nvidia-ptxjitcompiler)\.so\.(\d+\.\d+(?:\.\d+)?)\b")
_HOST_DRIVER = re.compile(r"--host-driver-version[= ](\d+\.\d+(?:\.\d+)?)")

_QUALIFIER = re.compile(r"[A-Za-z](?:[\w.-]*[A-Za-z0-9])?", re.ASCII)
_DEVICE_NAME = re.compile(r"[A-Za-z0-9](?:[\w.:-]*[A-Za-z0-9])?", re.ASCII)
_SPEC_KEYS = frozenset({"cdiVersion", "kind", "annotations", "devices", "containerEdits"})
_DEVICE_KEYS = frozenset({"name", "annotations", "containerEdits"})
_EDIT_KEYS = frozenset({"env", "deviceNodes", "netDevices", "hooks", "mounts", "intelRdt", "additionalGids"})
_NEWEST_VERSION = Release.parse("1.1.0")
"""The newest version whose keys stand above. Source: container-device-interface, specs-go/version.go and config.go."""


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
        content = parse_json(text) if path.endswith(".json") else parse_yaml(text)
    except ValueError as error:
        return unusable(" ".join(str(error).split()))
    if not isinstance(content, dict):
        return unusable("the top level is not an object")
    devices = get_objects(content, "devices")
    driver = _DRIVER_LIBRARY.search(text) or _HOST_DRIVER.search(text)
    return CdiSpec(
        path=path,
        kind=get_scalar(content, "kind"),
        cdi_version=get_scalar(content, "cdiVersion"),
        devices=tuple(get_scalar(device, "name") for device in devices if "name" in device),
        driver=Release.parse(driver[1]) if driver else None,
        error=next(_list_rejections(content, devices), ""),
        without_nodes=tuple(str(one["name"]) for one in devices if "name" in one and not _edits(one, "deviceNodes")),
        missing_paths=tuple(_missing_paths(host, content, devices)),
    )


def _list_rejections(content: dict[str, Any], devices: list[dict[str, Any]]) -> Iterator[str]:
    """List why the CDI library would refuse the whole file, so that engines know none of its devices.

    Source: container-device-interface, pkg/cdi/spec.go, device.go and pkg/parser/parser.go.
    """
    text = get_scalar(content, "cdiVersion")
    version = Release.find(text)
    if version is None:
        yield f"cdiVersion {text!r} is no version"
        return
    vendor, _, kind = get_scalar(content, "kind").partition("/")
    if not (_QUALIFIER.fullmatch(vendor) and _QUALIFIER.fullmatch(kind)):
        yield f"kind {get_scalar(content, 'kind')!r} is not vendor/class"
    if version <= _NEWEST_VERSION:
        for owner, known in ((content, _SPEC_KEYS), *((device, _DEVICE_KEYS) for device in devices)):
            for key in (*(set(owner) - known), *(set(get_object(owner, "containerEdits")) - _EDIT_KEYS)):
                yield f"unknown field {str(key)!r}"
    if any(not isinstance(device, dict) for device in _list_entries(content, "devices")):
        yield "devices is no list of devices"
    yield from _list_device_rejections(devices)
    for owner in (content, *devices):
        yield from _list_edit_rejections(owner)


def _list_device_rejections(devices: list[dict[str, Any]]) -> Iterator[str]:
    names = [get_scalar(device, "name") for device in devices]
    for name, device in zip(names, devices, strict=True):
        if not _DEVICE_NAME.fullmatch(name):
            yield f"{name!r} is no name of a device"
        if names.count(name) > 1:
            yield f"invalid spec, multiple device {name!r}"
        if not any(get_object(device, "containerEdits").values()):
            yield f"device {name!r}: invalid device, empty device edits"


def _list_edit_rejections(owner: dict[str, Any]) -> Iterator[str]:
    for key in ("deviceNodes", "mounts", "hooks"):
        if any(not isinstance(entry, dict) for entry in _list_entries(get_object(owner, "containerEdits"), key)):
            yield f"{key} is no list of objects"
    if any(not hook.get("path") for hook in _edits(owner, "hooks")):
        yield "a hook has no path"
    if any(not (mount.get("hostPath") and mount.get("containerPath")) for mount in _edits(owner, "mounts")):
        yield "a mount lacks hostPath or containerPath"
    if any(not node.get("path") for node in _edits(owner, "deviceNodes")):
        yield "a device node has no path"


def _list_entries(owner: dict[str, Any], key: str) -> list[Any]:
    """The entries of a list, of which what is no list is the only one."""
    value = owner.get(key) or []
    return value if isinstance(value, list) else [value]


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
