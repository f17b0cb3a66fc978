"""Which tool a project manages its packages with, and the files that this tool reads."""

import re
from typing import Any

from devkit.facts.dependencies import NO_DEPENDENCIES, Dependencies, Role, Tool
from devkit.probe.build_context import ignore_lines, is_ignored
from devkit.probe.dependencies_conda import read_environment, read_pixi
from devkit.probe.dependencies_locks import (
    Locked,
    for_torch_alone,
    lock_packages,
    read_conda_lock,
    read_pixi_lock,
    read_toml_lock,
)
from devkit.probe.dependencies_pipenv import PIPFILE, PIPFILE_LOCK, read_pipfile, read_pipfile_lock
from devkit.probe.dependencies_poetry import poetry_groups, read_poetry
from devkit.probe.dependencies_pyproject import (
    DEV,
    PYPROJECT,
    default_groups,
    hatch_environment,
    read_project_table,
    read_toml,
)
from devkit.probe.dependencies_reading import Reading, line_of, numbered
from devkit.probe.dependencies_requirements import read_requirements
from devkit.probe.dependencies_setup import SETUP_CFG, SETUP_PY, read_setup_cfg, read_setup_py
from devkit.probe.project_files import ProjectFiles
from devkit.probe.shapes import part

MAIN = ("requirements.txt", "requirements.in", "requirements/requirements.txt", "requirements/base.txt")
"""The first of these is the project's list for pip."""
FOR_DEVELOPMENT = ("requirements-dev.txt", "requirements_dev.txt", "dev-requirements.txt", "requirements/dev.txt")
PYTHON_VERSION = ".python-version"
IGNORE = ".dockerignore"

_BY_FILE = (
    (Tool.UV, ("uv.lock",)),
    (Tool.POETRY, ("poetry.lock",)),
    (Tool.PDM, ("pdm.lock",)),
    (Tool.PIPENV, (PIPFILE_LOCK, PIPFILE)),
    (Tool.PIXI, ("pixi.lock", "pixi.toml")),
    (Tool.CONDA, ("conda-lock.yml", "conda-lock.yaml", "environment.yml", "environment.yaml")),
)
_OTHER_LIST = re.compile(r"(?:dev-)?requirements[\w.-]*\.(?:txt|in)")
_PYTHON = re.compile(r"(?:cpython-?)?(\d+\.\d+)(?:\.\d+)?")


def read_with_tool(files: ProjectFiles) -> Dependencies:
    """What the files ask for, read as the tool reads them that the project uses."""
    found = Reading(files)
    read = read_toml(PYPROJECT, found) if files.has(PYPROJECT) else None
    document, content = read or ({}, "")
    tool, because = _tool(document, files)
    lock, family = _read(tool, document, content, found)
    _python_version(found)
    if hidden := _hidden((*found.lists, *found.included, *((PYPROJECT, lock) if lock else ())), found):
        found.write_out()
        lock = "" if lock in hidden or PYPROJECT in hidden else lock
    if not found.paths and not found.unread:
        return NO_DEPENDENCIES
    return Dependencies(
        tool=tool,
        because=because,
        files=tuple(found.paths),
        lock=lock,
        lists=tuple(found.lists),
        included=tuple(found.included),
        groups=default_groups(document) + poetry_groups(document),
        needs=tuple(found.needs),
        python=tuple(found.python),
        indexes=tuple(found.indexes),
        unread=tuple(found.unread),
        left_out=tuple(found.left_out),
        torch_family=family,
        has_members="workspace" in part(part(document, "tool"), "uv"),
        builds_itself=_builds_itself(document, files),
    )


def _read(tool: Tool, document: dict[str, Any], content: str, found: Reading) -> tuple[str, tuple[str, ...]]:
    """The files of the tool: the path of its lock, "" for none, and what this holds for torch alone."""
    match tool:
        case Tool.UV | Tool.POETRY | Tool.PDM:
            return _of_pyproject(tool, document, content, found)
        case Tool.PIPENV:
            return _of_pipenv(found)
        case Tool.PIXI:
            return _of_pixi(document, content, found), ()
        case Tool.CONDA:
            return _of_conda(found), ()
        case Tool.PIP:
            _of_pip(document, content, found)
        case Tool.NONE:
            pass
    return "", ()


def _tool(document: dict[str, Any], files: ProjectFiles) -> tuple[Tool, str]:
    """The tool and what shows it: its lock or own file, then a list for pip, then what pyproject.toml holds."""
    for tool, names in _BY_FILE:
        if name := next((name for name in names if files.has(name)), ""):
            return tool, f"the project has {name}"
    tables = part(document, "tool")
    by_table = (
        (Tool.PIXI, "pixi" in tables, "[tool.pixi]"),
        (Tool.POETRY, "dependencies" in part(tables, "poetry"), "[tool.poetry]"),
    )
    for tool, is_there, shown in by_table:
        if is_there:
            return tool, f"{PYPROJECT} has a table {shown}"
    return _without_own_file(tables, files)


def _without_own_file(tables: dict[str, Any], files: ProjectFiles) -> tuple[Tool, str]:
    """A list for pip goes before settings of uv and PDM, which also stand there for other ends."""
    lists = next((name for name in (*MAIN, *FOR_DEVELOPMENT) if files.has(name)), "")
    for tool, key in ((Tool.UV, "uv"), (Tool.PDM, "pdm")):
        if key in tables and not lists:
            return tool, f"{PYPROJECT} has a table [tool.{key}]"
    name = lists or next((name for name in (PYPROJECT, SETUP_CFG, SETUP_PY) if files.has(name)), "")
    return (Tool.PIP, f"the project has {name}") if name else (Tool.NONE, NO_DEPENDENCIES.because)


def _of_pyproject(tool: Tool, document: dict[str, Any], content: str, found: Reading) -> tuple[str, tuple[str, ...]]:
    """pyproject.toml, and the lock beside it: its path, and what it holds for torch alone."""
    read_project_table(document, content, found)
    if tool is Tool.POETRY:
        found.role = Role.WRITTEN
        read_poetry(document, content, found)
    path = f"{tool.lower()}.lock"
    if not found.files.has(path):
        return "", ()
    locked = found.text(path)
    if locked is None:
        return "", ()
    packages = read_toml_lock(locked)
    lock_packages(packages, path, found)
    return path, for_torch_alone(packages, found.needs)


def _of_pipenv(found: Reading) -> tuple[str, tuple[str, ...]]:
    found.role = Role.WRITTEN
    read_pipfile(found)
    if not found.files.has(PIPFILE_LOCK):
        return "", ()
    return PIPFILE_LOCK, read_pipfile_lock(found)


def _of_pixi(document: dict[str, Any], content: str, found: Reading) -> str:
    read_project_table(document, content, found)
    found.role = Role.WRITTEN
    if found.files.has("pixi.toml"):
        own = read_toml("pixi.toml", found)
        if own is not None:
            read_pixi(own[0], own[1], "pixi.toml", found)
    else:
        read_pixi(part(part(document, "tool"), "pixi"), content, PYPROJECT, found)
    locked = found.text("pixi.lock") if found.files.has("pixi.lock") else None
    if locked is not None:
        lock_packages(read_pixi_lock(locked), "pixi.lock", found)
    return "pixi.lock" if locked is not None else ""


def _of_conda(found: Reading) -> str:
    found.role = Role.WRITTEN
    for path in ("environment.yml", "environment.yaml"):
        if found.files.has(path):
            read_environment(path, found)
            break
    if not found.is_whole:
        found.write_out()
    for path in ("conda-lock.yml", "conda-lock.yaml"):
        locked = found.text(path) if found.files.has(path) else None
        if locked is not None:
            packages: tuple[Locked, ...] = tuple(read_conda_lock(locked))
            lock_packages(packages, path, found)
            return path
    return ""


def _of_pip(document: dict[str, Any], content: str, found: Reading) -> None:
    """Requirement files, and what the project's own metadata asks for besides."""
    main = next((name for name in MAIN if found.files.has(name)), "")
    development = [name for name in FOR_DEVELOPMENT if found.files.has(name)]
    for name in filter(None, (main, *development)):
        read_requirements(name, found, group=DEV if name in development else "")
    if not found.is_whole:
        found.write_out()
    read_project_table(document, content, found)
    found.role = Role.WRITTEN
    for entry in hatch_environment(document):
        found.need(entry, PYPROJECT, line_of(content, entry), group="hatch")
    if not part(document, "project"):
        if found.files.has(SETUP_CFG):
            read_setup_cfg(found)
        if found.files.has(SETUP_PY):
            read_setup_py(found)
    _other_lists(found, main)


def _other_lists(found: Reading, main: str) -> None:
    """Lists for pip that nothing above names: whoever wants them installed can include them."""
    folders = (("", found.files.names(".")), ("requirements/", found.files.names("requirements")))
    paths = [f"{folder}{name}" for folder, names in folders for name in names if folder or _OTHER_LIST.fullmatch(name)]
    for path in paths:
        if path.endswith((".txt", ".in")) and path not in found.paths and path != main.replace(".txt", ".in"):
            because = f"no list that is installed includes it; add `-r {path}` to {main or 'a requirements.txt'}"
            found.leave_out(path, path, 1, because)


def _builds_itself(document: dict[str, Any], files: ProjectFiles) -> bool:
    """Whether the project can be installed; each tool has its own word for "this is no package"."""
    tables = part(document, "tool")
    says = (("poetry", "package-mode"), ("uv", "package"), ("pdm", "distribution"))
    is_no_package = any(part(tables, name).get(key) is False for name, key in says)
    return not is_no_package and ("build-system" in document or files.has(SETUP_PY))


def _hidden(paths: tuple[str, ...], found: Reading) -> tuple[str, ...]:
    """Those that the project's .dockerignore keeps from the build of an image; each is noted."""
    lines = ignore_lines(found.files.read(IGNORE, "ignore") or "") if paths else []
    hidden = tuple(dict.fromkeys(path for path in paths if is_ignored(path, lines)))
    for path in hidden:
        found.cannot_read(IGNORE, 1, f"it hides {path} from the build of the image; add the line !{path}")
    return hidden


def _python_version(found: Reading) -> None:
    """The first line of .python-version, as pyenv and uv read it."""
    content = found.text(PYTHON_VERSION) if found.files.has(PYTHON_VERSION) else None
    for number, line in numbered(content or ""):
        bare = line.partition("#")[0].strip()
        if not bare:
            continue
        version = _PYTHON.fullmatch(bare)
        if version is None:
            found.cannot_read(PYTHON_VERSION, number, f"{ascii(bare)[:60]} is no version of CPython")
        else:
            found.needs_python(f"=={version[1]}.*", PYTHON_VERSION, number)
        return
