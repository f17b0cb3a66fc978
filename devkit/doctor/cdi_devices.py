"""Which devices the CDI library makes of the specifications, and which it drops."""

from collections.abc import Iterable

from devkit.facts.model import CdiSpec
from devkit.facts.values import record

DEFAULT_FOLDERS = ("/etc/cdi", "/var/run/cdi")
"""Later folders win. Source: container-device-interface, cdi.DefaultSpecDirs."""


@record
class CdiDevices:
    """Qualified names of the devices that requests resolve to, and those that two files of one folder claim."""

    resolved: frozenset[str]
    conflicts: dict[str, tuple[str, str]]
    """Name → the two files. The library drops such a device, even where another folder has it too."""


def resolve_cdi_devices(specs: Iterable[CdiSpec], folders: tuple[str, ...] = DEFAULT_FOLDERS) -> CdiDevices:
    """Resolve the devices of these specifications as an engine that searches `folders` does.

    Source: container-device-interface, pkg/cdi/cache.go, `refresh`.
    """
    priorities = {normalize_folder(folder): priority for priority, folder in enumerate(folders or DEFAULT_FOLDERS)}
    owners: dict[str, CdiSpec] = {}
    conflicts: dict[str, tuple[str, str]] = {}

    def priority_of(spec: CdiSpec) -> int | None:
        return priorities.get(find_folder(spec))

    used = [spec for spec in specs if not spec.error and priority_of(spec) is not None]
    for spec in sorted(used, key=lambda spec: (priority_of(spec), spec.path)):
        for device in spec.devices:
            name = f"{spec.kind}={device}"
            if name in owners and priority_of(owners[name]) == priority_of(spec):
                conflicts[name] = (owners[name].path, spec.path)
            else:
                owners[name] = spec
    return CdiDevices(frozenset(owners) - frozenset(conflicts), conflicts)


def find_folder(spec: CdiSpec) -> str:
    """Return the folder of a specification, under one name for all engines."""
    return normalize_folder(spec.path.rpartition("/")[0])


def normalize_folder(folder: str) -> str:
    """Write a folder as /run/cdi: /var/run is /run on every system of this century."""
    return f"{folder.rstrip('/')}/".replace("/var/run/", "/run/").rstrip("/")
