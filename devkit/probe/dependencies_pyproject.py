"""pyproject.toml: the project's dependencies by PEP 621 and PEP 735, and what uv, PDM and Hatch add to them."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from devkit.facts.dependencies import OF_THE_PROJECT, Role
from devkit.probe.dependencies_reading import Reading, line_of
from devkit.probe.dependencies_requirements import is_local, read_requirements
from devkit.probe.shapes import items, part, parts, text, texts, toml_of

PYPROJECT = "pyproject.toml"
DEV = "dev"
"""The group that uv, PDM and Poetry install unless told otherwise, and that a dev container is for."""

_INDEXES = (("uv", "index"), ("poetry", "source"), ("pdm", "source"))


def read_toml(path: str, found: Reading) -> tuple[dict[str, Any], str] | None:
    """The table of a TOML file and its text; None, and noted, where it is none."""
    content = found.text(path)
    if content is None:
        return None
    try:
        return toml_of(content), content
    except ValueError as error:
        line = re.search(r"at line (\d+)", str(error))
        problem = str(error).partition(" (at")[0]
        found.cannot_read(path, int(line[1]) if line else 1, f"it is not TOML: {problem}")
        return None


def read_project_table(document: Mapping[str, Any], content: str, found: Reading) -> None:
    """[project] and the default groups. Source: https://packaging.python.org/specifications/pyproject-toml/."""
    project = part(document, "project")
    if requires := text(project, "requires-python"):
        found.needs_python(requires, PYPROJECT, line_of(content, "requires-python"))
    is_computed = "dependencies" in texts(project, "dynamic")
    standard = [(entry, "") for entry in texts(project, "dependencies")]
    older = []
    for group in default_groups(document):
        standard += [(entry, group) for entry in _of_group(document, group, seen=set())]
        older += [(entry, group) for entry in texts(_of_pdm(document), group)]
    sources = part(part(part(document, "tool"), "uv"), "sources")
    # An installer takes the whole table, or is told what to take: it would look for folders, or start the build.
    is_whole = not is_computed and not any(_is_of_project(entry, sources) for entry, _ in standard)
    _needs(standard, content, found, sources, role=Role.HANDED if is_whole else Role.WRITTEN)
    _needs(older, content, found, sources, role=Role.WRITTEN)
    if standard and is_whole:
        found.lists.append(PYPROJECT)
    _extras(project, content, found)
    if is_computed:
        _dynamic(document, content, found)
    _indexes(document, content, found)


def default_groups(document: Mapping[str, Any]) -> tuple[str, ...]:
    """The groups of PEP 735, and PDM's older ones, that belong to a development environment."""
    uv = part(part(document, "tool"), "uv")
    named = texts(uv, "default-groups") if isinstance(uv.get("default-groups"), list) else (DEV,)
    known = {**_of_pdm(document), **part(document, "dependency-groups")}
    return tuple(group for group in (known if uv.get("default-groups") == "all" else named) if group in known)


def _of_pdm(document: Mapping[str, Any]) -> dict[str, Any]:
    return part(part(part(document, "tool"), "pdm"), "dev-dependencies")


def _of_group(document: Mapping[str, Any], group: str, *, seen: set[str]) -> Iterator[str]:
    """The requirements of a group of PEP 735 with those that it includes, each group once."""
    if group in seen:
        return
    seen.add(group)
    for entry in items(part(document, "dependency-groups"), group):
        if isinstance(entry, str):
            yield entry
        elif isinstance(entry, dict):
            yield from _of_group(document, text(entry, "include-group"), seen=seen)


def _needs(
    entries: Iterable[tuple[str, str]], content: str, found: Reading, sources: Mapping[str, Any], *, role: Role
) -> None:
    found.role = role
    for entry, group in entries:
        line = line_of(content, entry.replace('"', '\\"')) if '"' in entry else line_of(content, entry)
        if _is_of_project(entry, sources):
            found.leave_out(entry, PYPROJECT, line, OF_THE_PROJECT)
        else:
            found.need(entry, PYPROJECT, line, group=group, url=_url(_source(entry, sources)))
    found.role = Role.HANDED


def _source(entry: str, sources: Mapping[str, Any]) -> dict[str, Any]:
    """What [tool.uv.sources] says of one requirement."""
    name = re.match(r"[\w.-]+", entry)
    return part(sources, name[0]) if name else {}


def _is_of_project(entry: str, sources: Mapping[str, Any]) -> bool:
    is_in_folder = not _source(entry, sources).keys().isdisjoint(("path", "workspace"))
    return is_in_folder or is_local(entry.removeprefix("-e "))


def _url(source: Mapping[str, Any]) -> str:
    """The address of a source of uv. Source: https://docs.astral.sh/uv/concepts/projects/dependencies/."""
    git = text(source, "git")
    if not git:
        return text(source, "url")
    revision = text(source, "rev") or text(source, "tag") or text(source, "branch")
    return f"git+{git}@{revision}" if revision else f"git+{git}"


def _extras(project: Mapping[str, Any], content: str, found: Reading) -> None:
    for extra in part(project, "optional-dependencies"):
        because = "they are optional"
        found.leave_out(f"the extra {extra}", PYPROJECT, line_of(content, extra), because)


def _dynamic(document: Mapping[str, Any], content: str, found: Reading) -> None:
    """Dependencies that setuptools or a plugin of Hatch takes from requirement files."""
    tool = part(document, "tool")
    listed = part(part(part(tool, "setuptools"), "dynamic"), "dependencies")
    hook = part(part(part(part(tool, "hatch"), "metadata"), "hooks"), "requirements_txt")
    names = (*texts(listed, "file"), text(listed, "file"), *texts(hook, "files"))
    files = tuple(name for name in names if name)
    for name in files:
        read_requirements(name, found)
    if not files and not found.files.has("setup.py") and not found.files.has("setup.cfg"):
        found.cannot_read(PYPROJECT, line_of(content, "dynamic"), "its dependencies are computed by the build")


def _indexes(document: Mapping[str, Any], content: str, found: Reading) -> None:
    tool = part(document, "tool")
    for index in (each for name, key in _INDEXES for each in parts(part(tool, name), key)):
        if url := text(index, "url"):
            found.index(url, PYPROJECT, line_of(content, url))


def hatch_environment(document: Mapping[str, Any]) -> tuple[str, ...]:
    """What Hatch's default environment holds besides the project. Source: https://hatch.pypa.io/latest/config/."""
    default = part(part(part(part(document, "tool"), "hatch"), "envs"), "default")
    return (*texts(default, "dependencies"), *texts(default, "extra-dependencies"))
