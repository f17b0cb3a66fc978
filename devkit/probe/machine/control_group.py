"""The control group around this process, and the memory of its machine: what a process here may take."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from devkit.facts.values import Unknown
from devkit.probe.documents import parse_int
from devkit.probe.host import Host

# The control group around this process, version 1 and 2: memory, CPUs, and what was killed in it.
CGROUP_ROOT = "/sys/fs/cgroup"
CGROUP_MEMBERSHIP = "/proc/self/cgroup"


@dataclass(frozen=True)
class Cgroup:
    """The limits of a control group. None for no limit."""

    memory_bytes: int | Unknown | None
    kills: int | Unknown
    cpu_count: float | Unknown | None


def read_cgroup(host: Host) -> Cgroup:
    """Read the group of this process; the tightest limit on the way up to the root counts."""
    membership = host.read(CGROUP_MEMBERSHIP)
    if membership is None:
        gone = Unknown(f"{CGROUP_MEMBERSHIP} cannot be read")
        return Cgroup(gone, gone, gone)
    if host.stat(f"{CGROUP_ROOT}/memory") is not None:
        return _read_version_1(host, membership)
    own = next((line[3:] for line in membership.splitlines() if line.startswith("0::")), "/")
    folders = tuple(_upwards(CGROUP_ROOT, own))
    memory = [host.read(f"{folder}/memory.max") for folder in folders]
    events = filter(None, (host.read(f"{folder}/memory.events") for folder in folders))
    cpus = [_ratio((host.read(f"{folder}/cpu.max") or "").split()) for folder in folders]
    return Cgroup(
        min((number for text in memory if (number := parse_int(text or "")) is not None), default=None),
        _kills(next(events, ""), "memory.events"),
        min((count for count in cpus if count is not None), default=None),
    )


def _read_version_1(host: Host, membership: str) -> Cgroup:
    rows = [fields for line in membership.splitlines() if len(fields := line.split(":", 2)) == 3]
    groups = {name: fields[2] for fields in reversed(rows) for name in fields[1].split(",")}
    memory, cpu = (tuple(_upwards(f"{CGROUP_ROOT}/{name}", groups.get(name, "/"))) for name in ("memory", "cpu"))
    limits = [host.read(f"{folder}/memory.limit_in_bytes") for folder in memory]
    quotas = [
        _ratio([(host.read(f"{folder}/cpu.cfs_{part}_us") or "").strip() for part in ("quota", "period")])
        for folder in cpu
    ]
    # Where there is no limit, version 1 writes a number of 19 digits, which `parse_int` takes for none.
    found = [number for text in limits if (number := parse_int(text or "")) is not None]
    events = filter(None, (host.read(f"{folder}/memory.oom_control") for folder in memory))
    return Cgroup(
        min(found, default=None),
        _kills(next(events, ""), "memory.oom_control"),
        min((count for count in quotas if count is not None), default=None),
    )


def _upwards(root: str, path: str) -> Iterator[str]:
    """The folder of the group and those above it; in a container only the root may be there, and is the own."""
    parts = [part for part in path.split("/") if part and part != ".."]
    for depth in range(len(parts), -1, -1):
        yield "/".join((root, *parts[:depth]))


def _ratio(fields: list[str]) -> float | None:
    """CPUs from a quota and its period; None for "max", for -1, and for other text."""
    quota, period = (parse_int(field) for field in (fields if len(fields) == 2 else ("", "")))
    return quota / period if quota is not None and period else None


def _kills(text: str, path: str) -> int | Unknown:
    found = re.search(r"^oom_kill (\d{1,18})$", text, re.MULTILINE)
    return int(found[1]) if found else Unknown(f"{path} does not report how many were killed")
