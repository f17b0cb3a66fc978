"""Which packages for GPUs a project's requirement files name, and from which torch index. Nothing else of them."""

import re
import tomllib
from collections.abc import Iterator
from typing import Any

from devkit.facts.project import Install, Requirement
from devkit.probe.project.files import ProjectFiles
from devkit.probe.project.shell import find_index_urls, parse_gpu_requirement, parse_torch_index

REQUIREMENT_FOLDERS = (".", ".devcontainer", "requirements")
REQUIREMENT_FILE_NAMES = re.compile(
    r"^(?:requirements[\w.-]*\.(?:txt|in)|requirements|environment\.ya?ml|pyproject\.toml)$"
)
LOCK_FILES = ("uv.lock", "poetry.lock", "pdm.lock", "pixi.lock", "Pipfile.lock", "requirements.lock", "conda-lock.yml")
MAX_FILES = 30

_LINE_OF_LIST = re.compile(r"^\s*-\s*(.+?)\s*$")


def read_gpu_requirements(files: ProjectFiles) -> tuple[Install, ...]:
    """One installation for each file that names a package for GPUs."""
    found = []
    paths = [f"{folder}/{name}".removeprefix("./") for folder in REQUIREMENT_FOLDERS for name in files.names(folder)]
    for path in [path for path in paths if REQUIREMENT_FILE_NAMES.match(path.rpartition("/")[2])][:MAX_FILES]:
        text = files.read(path, "requirements")
        if text is None:
            continue
        if path.endswith(".toml"):
            requirements = tuple(_of_pyproject(text, path, files))
        else:
            requirements = tuple(_of_lines(text, path))
        if requirements:
            label, line, urls = (
                parse_torch_index(text),
                requirements[0].line,
                (*find_index_urls(text), *_named_indexes(text, path)),
            )
            found.append(Install("file", requirements, (), label, _backend(text), path, line, urls))
    return tuple(found)


def find_lock_files(files: ProjectFiles) -> tuple[str, ...]:
    """Lock files in the project's folder, by name alone."""
    return tuple(name for name in LOCK_FILES if files.has(name))


def _of_lines(text: str, path: str) -> Iterator[Requirement]:
    is_yaml = path.endswith((".yml", ".yaml"))
    for number, line in enumerate(text.splitlines(), 1):
        bare = re.sub(r"(?:^|\s)#.*$", "", line).rstrip("\\ ")
        listed = _LINE_OF_LIST.match(bare) if is_yaml else None
        found = parse_gpu_requirement(listed[1] if listed else bare, path=path, line=number)
        if found is not None:
            yield found


def _of_pyproject(text: str, path: str, files: ProjectFiles) -> Iterator[Requirement]:
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        line = re.search(r"at line (\d+)", str(error))
        files.broken(path, str(error).partition(" (at")[0], int(line[1]) if line else 1)
        return
    lines = text.splitlines()
    for entry in _dependencies(document):
        place = next((number for number, line in enumerate(lines, 1) if entry in line), 1)
        found = parse_gpu_requirement(entry, path=path, line=place)
        if found is not None:
            yield found


def _dependencies(document: dict[str, Any]) -> Iterator[str]:
    project = _table(document.get("project"))
    groups = (
        *_table(project.get("optional-dependencies")).values(),
        *_table(document.get("dependency-groups")).values(),
    )
    for listed in (project.get("dependencies"), *groups):
        yield from (entry for entry in listed if isinstance(entry, str)) if isinstance(listed, list) else ()
    poetry = _table(_table(document.get("tool")).get("poetry")).get("dependencies")
    yield from _table(poetry)


def _named_indexes(text: str, path: str) -> tuple[str, ...]:
    """The package indexes that a pyproject.toml names for uv, Poetry or PDM."""
    if not path.endswith(".toml"):
        return ()
    try:
        tools = _table(tomllib.loads(text).get("tool"))
    except (tomllib.TOMLDecodeError, RecursionError):
        return ()
    tables = (("uv", "index"), ("poetry", "source"), ("pdm", "source"))
    listed = [_table(tools.get(tool)).get(key) for tool, key in tables]
    entries = [_table(entry).get("url") for entries in listed if isinstance(entries, list) for entry in entries]
    return find_index_urls("\n".join(f"--index {url}" for url in entries if isinstance(url, str)))


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _backend(text: str) -> str:
    found = re.search(r"^\s*torch-backend\s*=\s*[\"'](\w+)", text, re.MULTILINE)
    return found[1] if found else ""
