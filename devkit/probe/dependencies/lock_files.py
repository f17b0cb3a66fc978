"""Lock files of uv, Poetry, PDM, pixi and conda-lock, read line by line: they are large and written by machines.

Only the versions are taken, to plan with; the tool itself installs from its lock.
Sources: https://docs.astral.sh/uv/concepts/projects/layout/#the-lockfile, https://python-poetry.org/docs/basic-usage/,
https://pdm-project.org/latest/usage/lockfile/, https://pixi.sh/latest/workspace/lockfile/,
https://conda.github.io/conda-lock/
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from devkit.compat.specifiers import canonicalize_name
from devkit.facts.dependencies import PackageRequirement, RequirementRole
from devkit.probe.dependencies.requirements import PYTHON, RequirementCollector, number_lines

_KEY = re.compile(r'(name|version|marker|markers)\s*=\s*"((?:[^"\\]|\\.)*)"')
_SOURCE = re.compile(r"source\s*=\s*\{\s*(?:virtual|editable|directory)\b")
_LIST = re.compile(r"(dependencies|resolution-markers)\s*=\s*\[(.*)")
_IN_LIST = re.compile(r'\s*(?:\{\s*name\s*=\s*)?"((?:[^"\\]|\\.)*)"')
_IN_TABLE = re.compile(r'"?([A-Za-z0-9][\w.-]*)"?\s*=')
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_CONDA_URL = re.compile(r"conda: \S+/(linux-64|linux-aarch64|noarch)/([\w.-]+)-([\w.+!]+)-[\w.]+\.(?:conda|tar\.bz2)$")
_YAML_KEY = re.compile(r"(?:- | {2})(name|version|manager|platform|pypi): (\S+)$")
FROM_CONDA = {"pytorch": "torch", "pytorch-gpu": "torch", "pytorch-cpu": "torch"}
"""What conda calls some packages -> what the package index calls them."""


@dataclass
class LockedPackage:
    """One package of a lock while its lines are read."""

    line: int
    name: str = ""
    version: str = ""
    marker: str = ""
    is_local: bool = False
    needs: list[str] = field(default_factory=list)


def parse_toml_lock(text: str) -> tuple[LockedPackage, ...]:
    """Parse the packages of a uv.lock, poetry.lock or pdm.lock, in their order."""
    found: list[LockedPackage] = []
    section = listing = ""
    for number, line in number_lines(text):
        if listing:
            listing = "" if line.startswith("]") else _listed(line, listing, found[-1])
        elif line.startswith("["):
            section = line.strip()
            if section == "[[package]]":
                found.append(LockedPackage(number))
        elif found and section == "[package.dependencies]":
            if named := _IN_TABLE.match(line):
                found[-1].needs.append(canonicalize_name(named[1]))
        elif found and section == "[[package]]":
            listing = _plain(line, found[-1])
            found[-1].line = number if line.startswith("name") else found[-1].line
    return tuple(each for each in found if each.name)


def _listed(line: str, listing: str, package: LockedPackage) -> str:
    """One line of a list; the list goes on."""
    item = _IN_LIST.match(line)
    if item and listing == "resolution-markers":
        either = f"({item[1]})".replace('\\"', '"')
        package.marker = f"{package.marker} or {either}" if package.marker else either
    elif item and (named := _NAME.match(item[1])):
        package.needs.append(canonicalize_name(named[0]))
    return listing


def _plain(line: str, package: LockedPackage) -> str:
    """One line of a package; the name of the list that goes on below, "" for none."""
    if opened := _LIST.match(line):
        if "]" in opened[2]:
            for each in opened[2].partition("]")[0].split(","):
                _listed(each, opened[1], package)
            return ""
        return opened[1]
    if _SOURCE.match(line):
        package.is_local = True
    if pair := _KEY.match(line):
        value = pair[2].replace('\\"', '"')
        setattr(package, "marker" if pair[1].startswith("marker") else pair[1], value)
    return ""


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
        needs.setdefault(canonicalize_name(package.name), set()).update(package.needs)
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
