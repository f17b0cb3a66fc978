"""Lock files of uv, Poetry, PDM, pixi and conda-lock, read line by line: they are large and written by machines.

Only the versions are taken, to plan with; the tool itself installs from its lock.
Sources: https://docs.astral.sh/uv/concepts/projects/layout/#the-lockfile, https://python-poetry.org/docs/basic-usage/,
https://pdm-project.org/latest/usage/lockfile/, https://pixi.sh/latest/workspace/lockfile/,
https://conda.github.io/conda-lock/
"""

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace

from devkit.compat.specifiers import canonicalize_name, holds_in_container
from devkit.facts.dependencies import PackageRequirement, RequirementRole
from devkit.probe.dependencies.requirements import PYTHON, RequirementCollector, number_lines

_KEY = re.compile(r'(name|version|marker|markers)\s*=\s*"((?:[^"\\]|\\.)*)"')
_SOURCE = re.compile(r"source\s*=\s*\{\s*(?:virtual|editable|directory)\b")
_LIST = re.compile(r"([A-Za-z0-9][\w.-]*)\s*=\s*\[(.*)")
_IN_LIST = re.compile(r'\s*(?:\{\s*name\s*=\s*)?"((?:[^"\\]|\\.)*)"')
_EXTRAS = re.compile(r"extra\s*=\s*\[([^\]]*)\]")
_IN_TABLE = re.compile(r'"?([A-Za-z0-9][\w.-]*)"?\s*=')
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_OPTIONAL = {"[package.optional-dependencies]": "extra", "[package.dev-dependencies]": "group"}
_CHOICE = re.compile(r"extra\s*(==|!=)\s*'((?:extra|group|project)-\d+-[^']+)'")
"""How uv writes in markers that an extra or group of the project is chosen: `extra == 'extra-8-nanochat-gpu'`."""
_IF_CHOSEN = {True: "sys_platform == 'linux'", False: "sys_platform != 'linux'"}
"""Markers that are always true, and never, in a container."""
_CONTAINERS = tuple((machine, f"3.{minor}") for machine in ("x86_64", "aarch64") for minor in range(8, 16))
_CONDA_URL = re.compile(r"conda: \S+/(linux-64|linux-aarch64|noarch)/([\w.-]+)-([\w.+!]+)-[\w.]+\.(?:conda|tar\.bz2)$")
_YAML_KEY = re.compile(r"(?:- | {2})(name|version|manager|platform|pypi): (\S+)$")
FROM_CONDA = {"pytorch": "torch", "pytorch-gpu": "torch", "pytorch-cpu": "torch"}
"""What conda calls some packages -> what the package index calls them."""


@dataclass(frozen=True)
class LockedNeed:
    """The need of one package of a lock for another one; `version` is "" where the lock has only one."""

    name: str
    version: str = ""
    marker: str = ""
    extras: tuple[str, ...] = ()


@dataclass
class LockedPackage:
    """One package of a lock while its lines are read. `optional` are those that an extra or a group adds, by both."""

    line: int
    name: str = ""
    version: str = ""
    marker: str = ""
    is_local: bool = False
    needs: list[LockedNeed] = field(default_factory=list)
    optional: dict[tuple[str, str], list[LockedNeed]] = field(default_factory=dict)


def parse_toml_lock(text: str) -> tuple[LockedPackage, ...]:
    """Parse the packages of a uv.lock, poetry.lock or pdm.lock, in their order."""
    found: list[LockedPackage] = []
    section = ""
    listing: tuple[str, str] | None = None
    for number, line in number_lines(text):
        if listing:
            listing = None if line.startswith("]") else _listed(line, listing, found[-1])
        elif line.startswith("["):
            section = line.strip()
            if section == "[[package]]":
                found.append(LockedPackage(number))
        elif found and section == "[package.dependencies]":
            if named := _IN_TABLE.match(line):
                found[-1].needs.append(LockedNeed(canonicalize_name(named[1])))
        elif found and section in ("[[package]]", *_OPTIONAL):
            listing = _plain(line, _OPTIONAL.get(section, ""), found[-1])
            found[-1].line = number if section == "[[package]]" and line.startswith("name") else found[-1].line
    return tuple(each for each in found if each.name)


def _listed(line: str, listing: tuple[str, str], package: LockedPackage) -> tuple[str, str]:
    """One line of a list, which is named by what adds it and its key; the list goes on."""
    item = _IN_LIST.match(line)
    kind, key = listing
    if item is None or (not kind and key not in ("dependencies", "resolution-markers")):
        return listing
    if not kind and key == "resolution-markers":
        either = f"({item[1]})".replace('\\"', '"')
        package.marker = f"{package.marker} or {either}" if package.marker else either
    elif named := _NAME.match(item[1]):
        pairs = {pair[1]: pair[2].replace('\\"', '"') for pair in _KEY.finditer(line)}
        extras = _EXTRAS.search(line)
        need = LockedNeed(
            canonicalize_name(named[0]),
            pairs.get("version", ""),
            pairs.get("marker", ""),
            tuple(re.findall(r'"([^"]+)"', extras[1])) if extras else (),
        )
        (package.optional.setdefault((kind, canonicalize_name(key)), []) if kind else package.needs).append(need)
    return listing


def _plain(line: str, kind: str, package: LockedPackage) -> tuple[str, str] | None:
    """One line of a package, or of what its extras or groups add; the list that goes on below, None for none."""
    if opened := _LIST.match(line):
        if "]" in opened[2]:
            for each in re.findall(r"\{[^}]*\}|[^,{}]+", opened[2].rpartition("]")[0]):
                _listed(each, (kind, opened[1]), package)
            return None
        return kind, opened[1]
    if kind:
        return None
    if _SOURCE.match(line):
        package.is_local = True
    if pair := _KEY.match(line):
        value = pair[2].replace('\\"', '"')
        setattr(package, "marker" if pair[1].startswith("marker") else pair[1], value)
    return None


def select_installed(
    packages: tuple[LockedPackage, ...], *, extras: Collection[str], groups: Collection[str]
) -> tuple[LockedPackage, ...]:
    """Select of several versions in a uv.lock those that these extras and groups install, with the markers for it.

    A package with one version limits what else is installed, so it stays. So do all where the lock lacks the project.
    """
    by_name: dict[str, list[LockedPackage]] = {}
    for package in packages:
        by_name.setdefault(canonicalize_name(package.name), []).append(package)
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
                reached.setdefault(id(package), set()).add("" if marker == need.marker else marker)
                waiting += package.needs
                for extra in need.extras:
                    waiting += package.optional.get(("extra", canonicalize_name(extra)), ())
    several = {id(package) for versions in by_name.values() if len(versions) > 1 for package in versions}
    return tuple(
        _with_markers(each, reached[id(each)]) if id(each) in several else each
        for each in packages
        if id(each) in reached or id(each) not in several
    )


def _with_markers(package: LockedPackage, markers: set[str]) -> LockedPackage:
    if "" in markers or not markers:
        return package
    either = " or ".join(f"({marker})" for marker in sorted(markers))
    return replace(package, marker=f"({package.marker}) and ({either})" if package.marker else either)


def add_locked_packages(packages: Iterable[LockedPackage], path: str, found: RequirementCollector) -> None:
    """Limit every package to its locked version. One that has several without saying when is left open."""
    by_name: dict[str, list[LockedPackage]] = {}
    for package in packages:
        if package.version and not package.is_local:
            by_name.setdefault(canonicalize_name(package.name), []).append(package)
    for name, several in by_name.items():
        if len({package.version for package in several}) > 1 and not all(package.marker for package in several):
            continue
        for package in several[: 1 if not several[0].marker else None]:
            marker = f" ; {package.marker}" if package.marker else ""
            text = f"{name}=={package.version}{marker}"
            if name == PYTHON:
                found.add_python(f"=={package.version}", path, package.line)
            else:
                found.need(text, path, package.line, is_limit=True)


def find_torch_only_packages(
    packages: Iterable[LockedPackage], requirements: Iterable[PackageRequirement]
) -> tuple[str, ...]:
    """Find torch and what only torch requires: the part of the lock that the project does not reach without it."""
    needs: dict[str, set[str]] = {}
    for package in packages:
        needs.setdefault(canonicalize_name(package.name), set()).update(need.name for need in package.needs)
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


def parse_conda_lock(text: str) -> Iterator[LockedPackage]:
    """Parse the packages of a conda-lock.yml for Linux."""
    for block in _blocks(text):
        if block.get("platform", "linux-64").startswith("linux"):
            name = block.get("name", "")
            known = FROM_CONDA.get(name, name) if block.get("manager") == "conda" else name
            yield LockedPackage(int(block["line"]), known, block.get("version", ""))


def _blocks(text: str) -> Iterator[dict[str, str]]:
    """The entries of a YAML list of plain mappings, each with the line where it begins."""
    block: dict[str, str] = {}
    for number, line in number_lines(text):
        if line.startswith("- "):
            if block:
                yield block
            block = {"line": str(number)}
        if block and (pair := _YAML_KEY.match(line)):
            block[pair[1]] = pair[2].strip("\"'")
    if block:
        yield block


def parse_pixi_lock(text: str) -> Iterator[LockedPackage]:
    """Parse the packages of a pixi.lock: of conda by the names of their files, of the package index by their entries."""
    for number, line in number_lines(text):
        if url := _CONDA_URL.search(line):
            yield LockedPackage(number, FROM_CONDA.get(url[2], url[2]), url[3])
    for block in _blocks(text):
        if "pypi" in block:
            yield LockedPackage(int(block["line"]), block.get("name", ""), block.get("version", ""))
