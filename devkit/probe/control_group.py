"""The control group around this process, version 1 and 2: memory, CPUs, and what was killed in it."""

import re
from collections.abc import Iterator
from typing import TypeVar

from devkit.facts.record import record
from devkit.facts.values import Unknown
from devkit.probe.host import Host
from devkit.probe.shapes import whole

Number = TypeVar("Number", int, float)

ROOT = "/sys/fs/cgroup"
MEMBERSHIP = "/proc/self/cgroup"


@record
class Group:
    """What the control group allows. None for no limit."""

    version: str | Unknown
    memory_bytes: int | Unknown | None
    kills: int | Unknown
    cpu_count: float | Unknown | None


def read_group(host: Host) -> Group:
    """The group of this process; the tightest limit on the way up to the root counts."""
    membership = host.read(MEMBERSHIP)
    if membership is None:
        gone = Unknown(f"{MEMBERSHIP} cannot be read")
        return Group(gone, gone, gone, gone)
    if host.stat(f"{ROOT}/memory") is not None:
        version = "hybrid" if host.stat(f"{ROOT}/unified") is not None else "1"
        return Group(version, *_version_1(host, membership))
    return Group("2", *_version_2(host, membership))


def _version_2(host: Host, membership: str) -> tuple[int | Unknown | None, int | Unknown, float | Unknown | None]:
    own = next((line[3:] for line in membership.splitlines() if line.startswith("0::")), "/")
    folders = tuple(_upwards(ROOT, own))
    memory = [host.read(f"{folder}/memory.max") for folder in folders]
    events = next((f"{folder}/memory.events" for folder in folders if host.read(f"{folder}/memory.events")), "")
    cpus = [_ratio((host.read(f"{folder}/cpu.max") or "").split()) for folder in folders]
    return (
        _tightest([number for text in memory if (number := whole(text or "")) is not None]),
        _kills(host.read(events) if events else None, "memory.events"),
        _tightest([count for count in cpus if count is not None]),
    )


def _version_1(host: Host, membership: str) -> tuple[int | Unknown | None, int | Unknown, float | Unknown | None]:
    memory, cpu = (tuple(_upwards(f"{ROOT}/{name}", _path_of(membership, name))) for name in ("memory", "cpu"))
    limits = [host.read(f"{folder}/memory.limit_in_bytes") for folder in memory]
    quotas = [
        _ratio([(host.read(f"{folder}/cpu.cfs_{part}_us") or "").strip() for part in ("quota", "period")])
        for folder in cpu
    ]
    # Where there is no limit, version 1 writes a number of 19 digits, which `whole` takes for none.
    found = [number for text in limits if (number := whole(text or "")) is not None]
    own = next((f"{folder}/memory.oom_control" for folder in memory if host.read(f"{folder}/memory.oom_control")), "")
    return (
        _tightest(found),
        _kills(host.read(own) if own else None, "memory.oom_control"),
        _tightest([count for count in quotas if count is not None]),
    )


def _upwards(root: str, path: str) -> Iterator[str]:
    """The folder of the group and those above it; in a container only the root may be there, and is the own."""
    parts = [part for part in path.split("/") if part and part != ".."]
    for depth in range(len(parts), -1, -1):
        yield "/".join((root, *parts[:depth]))


def _path_of(membership: str, controller: str) -> str:
    for line in membership.splitlines():
        fields = line.split(":", 2)
        if len(fields) == 3 and controller in fields[1].split(","):
            return fields[2]
    return "/"


def _ratio(fields: list[str]) -> float | None:
    """CPUs from a quota and its period; None for "max", for -1, and for what is no number."""
    quota, period = (whole(field) for field in (fields if len(fields) == 2 else ("", "")))
    return quota / period if quota is not None and period else None


def _tightest(found: list[Number]) -> Number | None:
    return min(found, default=None)


def _kills(text: str | None, path: str) -> int | Unknown:
    found = re.search(r"^oom_kill (\d{1,18})$", text or "", re.MULTILINE)
    return int(found[1]) if found else Unknown(f"{path} does not say how many were killed")
