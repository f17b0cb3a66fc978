"""Lock files of uv, Poetry and PDM.

Only the versions are taken, to plan with; the tool itself installs from its lock.
Sources: https://docs.astral.sh/uv/concepts/projects/layout/#the-lockfile, https://python-poetry.org/docs/basic-usage/,
https://pdm-project.org/latest/usage/lockfile/
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import chain
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet

from devkit.compat.specifiers import canonicalize_name, holds_in_container
from devkit.facts.dependencies import TORCH_FAMILY, PackageRequirement, RequirementRole
from devkit.probe.dependencies.requirements import RequirementCollector, number_lines
from devkit.probe.documents import get_object, get_objects, get_text, get_texts, parse_object_or_empty, parse_toml

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_CHOICE = re.compile(r"extra\s*(==|!=)\s*'((?:extra|group|project)-\d+-[^']+)'")
"""How uv writes in markers that an extra or group of the project is chosen: `extra == 'extra-8-nanochat-gpu'`."""
_ELSEWHERE = frozenset(("git", "url", "path", "directory", "editable", "virtual", "workspace"))
"""Keys of a requirement in a uv.lock that comes from no index."""
_IF_CHOSEN = {True: "sys_platform == 'linux'", False: "sys_platform != 'linux'"}
"""Markers that are always true, and never, in a container."""
_CONTAINERS = tuple((machine, f"3.{minor}") for machine in ("x86_64", "aarch64") for minor in range(8, 16))


@dataclass(frozen=True)
class LockedNeed:
    """The need of one package of a lock for another one; `version` is "" where the lock has only one."""

    name: str
    version: str = ""
    marker: str = ""
    extras: tuple[str, ...] = ()


@dataclass(frozen=True)
class LockedPackage:
    """One package of a lock. `wheel` is the address of its wheel outside an index, "" for none.

    `optional` are those that an extra or a group adds, by both.
    """

    line: int
    name: str
    version: str
    marker: str
    is_local: bool
    wheel: str
    needs: tuple[LockedNeed, ...]
    optional: Mapping[tuple[str, str], tuple[LockedNeed, ...]]


def parse_lock(text: str) -> tuple[LockedPackage, ...]:
    """Parse the packages of a uv.lock, poetry.lock or pdm.lock, in their order. Raises ValueError for what is not TOML."""
    tables = get_objects(parse_toml(text), "package")
    # The name is on the line below each header.
    lines = (number + 1 for number, line in number_lines(text) if line.startswith("[[package]]"))
    return tuple(_parse_package(each, next(lines, 1)) for each in tables)


def fits_uv(document: Mapping[str, Any], locked: str) -> bool:
    """Return whether a uv.lock was made from this pyproject.toml, by the requirements that uv writes into it, without their markers.

    One that cannot be read, or that names no requirements of the project, is taken for one that was. A package that comes
    from elsewhere than an index has no version there.

    Source: `Lock::satisfies` of uv 0.9, which `uv lock --check` asks first.
    """
    packages = get_objects(parse_object_or_empty(locked, parse_toml), "package")
    sources = (get_object(each, "source") for each in packages)
    own = [
        get_object(each, "metadata") for each, source in zip(packages, sources, strict=True) if "." in source.values()
    ]
    project = get_object(document, "project")
    if len(own) != 1 or not own[0] or "dependencies" in project.get("dynamic", ()):
        return True
    groups = get_object(document, "dependency-groups").values()
    lists = (project.get("dependencies", ()), *get_object(project, "optional-dependencies").values(), *groups)
    lists = (*lists, get_object(document, "tool", "uv").get("dev-dependencies", ()))
    try:
        needs = [Requirement(each) for each in chain(*lists) if isinstance(each, str)]
    except (InvalidRequirement, TypeError):
        return True
    tables = (get_objects(own[0], "requires-dist"), *(own[0].get("requires-dev") or {}).values())
    entries = [*chain(*tables)]
    elsewhere = {get_text(each, "name") for each in entries if each.keys() & _ELSEWHERE}
    # An extra may be made of others, which uv writes out.
    itself = canonicalize_name(get_text(project, "name"))
    written = {
        (get_text(each, "name"), frozenset(get_texts(each, "extras")), SpecifierSet(get_text(each, "specifier")))
        for each in entries
    }
    given = {(canonicalize_name(each.name), frozenset(each.extras), each.specifier) for each in needs}
    names = [{each[0] for each in requirements} - {itself} for requirements in (written, given)]
    return names[0] == names[1] and all(each in written or each[0] in {itself, *elsewhere} for each in given)


def fits_poetry(document: Mapping[str, Any], locked: str) -> bool:
    """Return whether a poetry.lock was made from this pyproject.toml, by the content hash that Poetry writes into it.

    One that cannot be read, or that has no hash, is taken for one that was.

    Source: `Locker._get_content_hash` of Poetry 1.8 and 2.2.
    """
    written = get_text(get_object(parse_object_or_empty(locked, parse_toml), "metadata"), "content-hash")
    poetry, project = get_object(document, "tool", "poetry"), get_object(document, "project")
    groups = get_object(document, "dependency-groups")
    own = {key: project[key] for key in ("requires-python", "dependencies", "optional-dependencies") if key in project}
    legacy = ("dependencies", "source", "extras", "dev-dependencies")
    old = {key: poetry.get(key) for key in legacy} | {key: poetry[key] for key in ("group",) if key in poetry}
    new = {key: poetry[key] for key in (*legacy, "group") if key in poetry}
    without_groups: dict[str, Any] = {"project": own} if own else {}
    contents = [without_groups, without_groups | ({"dependency-groups": groups} if groups else {})]
    contents = [old, *(each | ({"tool": {"poetry": new}} if new else {}) for each in contents if each)]
    hashes = (sha256(json.dumps(each, sort_keys=True, default=str).encode()).hexdigest() for each in contents)
    return not written or (bool(poetry or project) and written in hashes)


def _parse_package(table: Mapping[str, Any], line: int) -> LockedPackage:
    either = " or ".join(f"({each})" for each in get_texts(table, "resolution-markers"))
    return LockedPackage(
        line=line,
        name=canonicalize_name(get_text(table, "name")),
        version=get_text(table, "version"),
        marker=get_text(table, "marker") or get_text(table, "markers") or either,
        is_local=not {"virtual", "editable", "directory"}.isdisjoint(get_object(table, "source")),
        wheel=url if (url := get_text(get_object(table, "source"), "url")).endswith(".whl") else "",
        needs=_list_needs(table.get("dependencies")),
        optional={
            (kind, canonicalize_name(key)): _list_needs(entries)
            for kind, section in (("extra", "optional-dependencies"), ("group", "dev-dependencies"))
            for key, entries in get_object(table, section).items()
        },
    )


def _list_needs(entries: object) -> tuple[LockedNeed, ...]:
    """List what a package needs: tables of uv, requirements of PDM, or the names that Poetry's table has as keys."""
    found = []
    for entry in entries if isinstance(entries, list | dict) else ():
        table = entry if isinstance(entry, dict) else {}
        if named := _NAME.match(get_text(table, "name") or str(entry)):
            name = canonicalize_name(named[0])
            found.append(
                LockedNeed(name, get_text(table, "version"), get_text(table, "marker"), get_texts(table, "extra"))
            )
    return tuple(found)


def select_installed(
    packages: tuple[LockedPackage, ...], *, extras: Collection[str], groups: Collection[str]
) -> tuple[LockedPackage, ...]:
    """Select the packages of a uv.lock that these extras and groups install, with the markers of all that needs them.

    All stay where the lock lacks the project.
    """
    by_name: dict[str, list[LockedPackage]] = {}
    for package in packages:
        by_name.setdefault(package.name, []).append(package)
    roots = [package for package in packages if package.is_local]
    if not roots:
        return packages
    chosen = {("extra", canonicalize_name(name)) for name in extras}
    chosen |= {("group", canonicalize_name(name)) for name in groups}
    encoded = {f"{kind}-{len(root.name)}-{root.name}-{name}" for root in roots for kind, name in chosen} | {
        f"project-{len(root.name)}-{root.name}" for root in roots
    }
    waiting = [need for root in roots for key in chosen for need in root.optional.get(key, ())]
    waiting += [need for root in roots for need in root.needs]
    seen: set[LockedNeed] = set()
    reached: dict[int, set[str]] = {id(root): set() for root in roots}
    while waiting:
        need = waiting.pop()
        if need in seen:
            continue
        seen.add(need)
        marker = _CHOICE.sub(lambda each: _IF_CHOSEN[(each[2] in encoded) is (each[1] == "==")], need.marker)
        if marker != need.marker and not any(
            holds_in_container(marker, machine=machine, python=python) for machine, python in _CONTAINERS
        ):
            continue
        for package in by_name.get(need.name, ()):
            if need.version in ("", package.version):
                # One of several versions says itself when it counts.
                is_told = marker == need.marker and package.marker
                reached.setdefault(id(package), set()).add("" if is_told else marker)
                waiting += package.needs
                for extra in need.extras:
                    waiting += package.optional.get(("extra", canonicalize_name(extra)), ())
    return tuple(_with_markers(each, reached[id(each)]) for each in packages if id(each) in reached)


def _with_markers(package: LockedPackage, markers: set[str]) -> LockedPackage:
    if "" in markers or not markers:
        return package
    either = " or ".join(f"({marker})" for marker in sorted(markers))
    return replace(package, marker=f"({package.marker}) and ({either})" if package.marker else either)


def add_locked_packages(packages: Iterable[LockedPackage], path: str, found: RequirementCollector) -> None:
    """Limit every package to its locked version. One that has several without saying when is left open.

    A lock that was made without a GPU has torch's build for the CPU. Unless an extra or group chooses that, the plan takes the
    build that fits the machine, of the same version.
    """
    by_name: dict[str, list[LockedPackage]] = {}
    for package in packages:
        if package.name and package.version and not package.is_local:
            by_name.setdefault(package.name, []).append(package)
    for name, several in by_name.items():
        if len({package.version for package in several}) > 1 and not all(package.marker for package in several):
            continue
        for package in several[: 1 if not several[0].marker else None]:
            marker = f" ; {package.marker}" if package.marker else ""
            version, _, build = package.version.partition("+")
            is_open = build == "cpu" and name in TORCH_FAMILY and not (found.choice.extras or found.choice.groups)
            pin, url = (version, "") if is_open else (package.version, package.wheel)
            found.need(f"{name}=={pin}{marker}", path, package.line, is_limit=True, url=url)


def find_torch_only_packages(
    packages: Iterable[LockedPackage], requirements: Iterable[PackageRequirement]
) -> tuple[str, ...]:
    """Find torch and what only torch requires: the part of the lock that the project does not reach without it."""
    needs: dict[str, set[str]] = {}
    for package in packages:
        needs.setdefault(package.name, set()).update(need.name for need in package.needs)
    if "torch" not in needs:
        return ()
    inner = {name for each in needs.values() for name in each}
    waiting = [need.name for need in requirements if need.role is not RequirementRole.CONSTRAINT] + [
        name for name in needs if name not in inner
    ]
    kept: set[str] = {"torch"}
    while waiting:
        name = waiting.pop()
        if name not in kept:
            kept.add(name)
            waiting += needs.get(name, ())
    return tuple(sorted({"torch"} | (needs.keys() - kept)))
