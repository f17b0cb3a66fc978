"""Manifests: pyproject.toml (PEP 621, PEP 735, uv, PDM, Hatch, Poetry), Pipfile and setup.cfg.

Sources: https://packaging.python.org/specifications/pyproject-toml/, https://pipenv.pypa.io/en/latest/pipfile.html,
https://python-poetry.org/docs/dependency-specification/,
https://setuptools.pypa.io/en/latest/userguide/declarative_config.html
"""

import configparser
import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase as fnmatch
from typing import Any

from devkit.compat.specifiers import canonicalize_name, satisfies
from devkit.facts.dependencies import IndexUse, RequirementRole
from devkit.probe.dependencies.requirements import (
    COMPUTED,
    PYTHON,
    RequirementCollector,
    build_source_url,
    is_local_path,
    read_requirements_file,
)
from devkit.probe.documents import (
    LineFinder,
    find_toml_line,
    get_list,
    get_object,
    get_objects,
    get_text,
    get_texts,
    parse_json,
    parse_object_or_empty,
    parse_toml,
)
from devkit.probe.project.files import ProjectFiles

PYPROJECT = "pyproject.toml"
DEV_GROUP = "dev"
"""The group that uv, PDM and Poetry install by default, and that a dev container is for."""
UV_TOML = "uv.toml"
"""Where there is one, uv reads nothing of [tool.uv]. Source: https://docs.astral.sh/uv/concepts/configuration-files/."""
_USES = {"explicit": IndexUse.EXPLICIT, "primary": IndexUse.DEFAULT, "default": IndexUse.DEFAULT}
"""The priority of a source of Poetry's -> its use; "secondary" and "supplemental" are extra ones."""

# Pipfile and Pipfile.lock.
PIPFILE = "Pipfile"
PIPFILE_LOCK = "Pipfile.lock"
_KEY = re.compile(r"[ \t]*[\"']?([\w.-]+)[\"']?[ \t]*=")
_FOR_CUDA = re.compile(r"torch|triton|nvidia-.*|cuda-.*")

# Poetry.
_POETRY_RANGE = re.compile(r"([\^~])\s*v?(\d+(?:\.\d+)*)(.*)")
_POETRY_BARE = re.compile(r"v?\d[\w.]*(?:\.\*)?(?:\+[\w.]+)?")

SETUP_CFG = "setup.cfg"
_EXTRAS_OF_SETUP_CFG = "options.extras_require"


def read_project_table(document: Mapping[str, Any], content: str, found: RequirementCollector) -> None:
    """Read [project] with the chosen extras, and the groups that are installed.

    Source: https://packaging.python.org/specifications/pyproject-toml/.
    """
    project = get_object(document, "project")
    if requires := get_text(project, "requires-python"):
        found.add_python(requires, PYPROJECT, LineFinder(content).find("requires-python"))
    is_computed = "dependencies" in get_texts(project, "dynamic")
    standard = [(entry, "") for entry in get_texts(project, "dependencies")]
    extras = get_object(project, "optional-dependencies")
    seen: set[str] = set()
    for extra in found.select_extras(extras):
        standard += [(entry, "") for entry in _of_extra(extras, extra, get_text(project, "name"), seen)]
    older: list[tuple[str, str]] = []
    # The groups of PEP 735, and PDM's older ones, of which some belong to a development environment.
    of_pdm, uv = get_object(document, "tool", "pdm", "dev-dependencies"), get_object(document, "tool", "uv")
    groups = (*of_pdm, *get_object(document, "dependency-groups"))
    defaults = get_texts(uv, "default-groups") if isinstance(uv.get("default-groups"), list) else (DEV_GROUP,)
    for group in found.select_groups(groups, defaults=groups if uv.get("default-groups") == "all" else defaults):
        standard += [(entry, group) for entry in _of_group(document, group, seen=set())]
        older += [(entry, group) for entry in get_texts(of_pdm, group)]
    sources = get_object(document, "tool", "uv", "sources")
    # An installer takes the whole table, or a generated list: it would look for folders, or start the build.
    is_whole = not is_computed and not any(_is_of_project(entry, sources) for entry, _ in standard)
    _needs(
        standard,
        content,
        found,
        sources,
        role=RequirementRole.PASSED_THROUGH if is_whole else RequirementRole.GENERATED,
    )
    _needs(older, content, found, sources, role=RequirementRole.GENERATED)
    if standard and is_whole:
        found.lists.append(PYPROJECT)
    if is_computed:
        _dynamic(document, content, found)
    _read_indexes(document, content, found)


def _read_indexes(document: Mapping[str, Any], content: str, found: RequirementCollector) -> None:
    """Read the indexes of uv, Poetry and PDM, each with its name and its use."""
    tool = get_object(document, "tool")
    uv, path, text = get_object(tool, "uv"), PYPROJECT, content
    if found.files.has(UV_TOML) and (own := read_toml_file(UV_TOML, found)):
        (uv, text), path = own, UV_TOML
    named: list[tuple[str, dict[str, Any], IndexUse]] = []
    for each in get_objects(uv, "index"):
        is_flat = get_text(each, "format") == "flat"
        use = IndexUse.EXPLICIT if each.get("explicit") is True else IndexUse.LINKS if is_flat else IndexUse.EXTRA
        named.append((path, each, IndexUse.DEFAULT if each.get("default") is True else use))
    # `uv pip` reads both tables.
    for table in (uv, get_object(uv, "pip")):
        named += [(path, {"url": get_text(table, "index-url")}, IndexUse.DEFAULT)]
        named += [(path, {"url": url}, IndexUse.EXTRA) for url in get_texts(table, "extra-index-url")]
        named += [(path, {"url": url}, IndexUse.LINKS) for url in get_texts(table, "find-links")]
    sources = get_objects(get_object(tool, "poetry"), "source")
    keeps_public = any(get_text(each, "name").lower() == "pypi" for each in sources)
    for each in sources:
        use = _USES.get(get_text(each, "priority") or "primary", IndexUse.EXTRA)
        named.append((PYPROJECT, each, IndexUse.EXTRA if keeps_public and use is IndexUse.DEFAULT else use))
    for each in get_objects(get_object(tool, "pdm"), "source"):
        is_flat = get_text(each, "type") == "find_links"
        use = IndexUse.DEFAULT if get_text(each, "name") == "pypi" else IndexUse.EXTRA
        named.append((PYPROJECT, each, IndexUse.LINKS if is_flat else use))
    for origin, each, use in named:
        if url := get_text(each, "url"):
            line = LineFinder(content if origin == PYPROJECT else text).find(url)
            found.index(url, origin, line, name=get_text(each, "name"), use=use)


def read_workspace(document: Mapping[str, Any], content: str, found: RequirementCollector) -> None:
    """Read the members of uv's workspace that are packages.

    Source: https://docs.astral.sh/uv/concepts/projects/workspaces/.
    """
    workspace = get_object(document, "tool", "uv", "workspace")
    left_out = get_texts(workspace, "exclude")
    for pattern in get_texts(workspace, "members"):
        for path in _expand(pattern.removeprefix("./").rstrip("/").split("/"), found.files):
            manifest = f"{path}/{PYPROJECT}"
            if any(fnmatch(path, each.rstrip("/")) for each in left_out) or not found.files.has(manifest):
                continue
            member = parse_object_or_empty(found.files.read(manifest, "dependencies"), parse_toml)
            if "build-system" in member and get_object(member, "tool", "uv").get("package") is not False:
                found.need_local(path, PYPROJECT, LineFinder(content).find("members"))


def _expand(parts: list[str], files: ProjectFiles, folder: str = "") -> Iterator[str]:
    """The folders that a pattern of path parts names."""
    if not parts:
        yield folder
        return
    for name in (name for name in files.names(folder or ".") if fnmatch(name, parts[0]) and not name.startswith(".")):
        yield from _expand(parts[1:], files, f"{folder}/{name}" if folder else name)


def _of_extra(extras: Mapping[str, Any], extra: str, project: str, seen: set[str]) -> Iterator[str]:
    """The requirements of an extra with those of the extras that it includes, each extra once."""
    if extra in seen:
        return
    seen.add(extra)
    for entry in get_texts(extras, extra):
        own = re.fullmatch(r"([\w.-]+)\s*\[([^\]]*)\]\s*", entry)
        if own and canonicalize_name(own[1]) == canonicalize_name(project):
            included = {canonicalize_name(name.strip()) for name in own[2].split(",")}
            for other in (other for other in extras if canonicalize_name(other) in included):
                yield from _of_extra(extras, other, project, seen)
        else:
            yield entry


def _of_group(document: Mapping[str, Any], group: str, *, seen: set[str]) -> Iterator[str]:
    """The requirements of a group of PEP 735 with those that it includes, each group once."""
    if group in seen:
        return
    seen.add(group)
    for entry in get_list(get_object(document, "dependency-groups"), group):
        if isinstance(entry, str):
            yield entry
        elif isinstance(entry, dict):
            yield from _of_group(document, get_text(entry, "include-group"), seen=seen)


def _is_of_project(entry: str, sources: Mapping[str, Any]) -> bool:
    is_in_folder = not _source(entry, sources).keys().isdisjoint(("path", "workspace"))
    return is_in_folder or is_local_path(entry.removeprefix("-e "))


def _source(entry: str, sources: Mapping[str, Any]) -> dict[str, Any]:
    """Return what [tool.uv.sources] says of one requirement: of a list, the first that comes from no index."""
    named = re.match(r"[\w.-]+", entry)
    name = canonicalize_name(named[0]) if named else ""
    written: Any = next((value for key, value in sources.items() if canonicalize_name(key) == name), {})
    given = [each for each in (written if isinstance(written, list) else [written]) if isinstance(each, dict)]
    return next((each for each in given if "index" not in each), next(iter(given), {}))


def _needs(
    entries: Iterable[tuple[str, str]],
    content: str,
    found: RequirementCollector,
    sources: Mapping[str, Any],
    *,
    role: RequirementRole,
) -> None:
    found.role = role
    lines = LineFinder(content)
    for entry, group in entries:
        line = lines.find(entry.replace('"', '\\"'))
        source = _source(entry, sources)
        if "workspace" in source:
            pass  # All members of the workspace are installed.
        elif _is_of_project(entry, sources):
            found.need_local(get_text(source, "path") or entry.removeprefix("-e "), PYPROJECT, line)
        else:
            url, index = build_source_url(source), get_text(source, "index")
            found.need(entry, PYPROJECT, line, group=group, url=url, index=index)
    found.role = RequirementRole.PASSED_THROUGH


def _dynamic(document: Mapping[str, Any], content: str, found: RequirementCollector) -> None:
    """Dependencies that setuptools or a plugin of Hatch takes from requirement files."""
    tool = get_object(document, "tool")
    listed = get_object(tool, "setuptools", "dynamic", "dependencies")
    hook = get_object(tool, "hatch", "metadata", "hooks", "requirements_txt")
    names = (*get_texts(listed, "file"), get_text(listed, "file"), *get_texts(hook, "files"))
    files = tuple(name for name in names if name)
    for name in files:
        read_requirements_file(name, found)
    if not files and not found.files.has("setup.py") and not found.files.has("setup.cfg"):
        found.is_computed = True
        found.add_unreadable(PYPROJECT, LineFinder(content).find("dynamic"), f"its dependencies are {COMPUTED}")


def read_hatch_environment(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Read the requirements of Hatch's default environment besides the project. Source: https://hatch.pypa.io/latest/config/."""
    default = get_object(document, "tool", "hatch", "envs", "default")
    return (*get_texts(default, "dependencies"), *get_texts(default, "extra-dependencies"))


def read_pipfile(found: RequirementCollector) -> None:
    """Read the packages of a Pipfile, those for development too."""
    read = read_toml_file(PIPFILE, found)
    if read is None:
        return
    document, content = read
    requires = get_object(document, "requires")
    if python := get_text(requires, "python_version") or get_text(requires, "python_full_version"):
        specifier = f"=={python}.*" if python.count(".") == 1 else f"=={python}"
        found.add_python(specifier, PIPFILE, LineFinder(content).find("python_"))
    lines = LineFinder(content)
    for key, group in (("packages", ""), ("dev-packages", DEV_GROUP)):
        for name, wanted in get_object(document, key).items():
            table = wanted if isinstance(wanted, dict) else {"version": wanted}
            version = get_text(table, "version").removeprefix("*")
            line = lines.find(name)
            found.need_table(
                name, table, PIPFILE, line, group=group, version=version, marker=get_text(table, "markers")
            )
    for number, source in enumerate(get_objects(document, "source")):
        if url := get_text(source, "url"):
            # Only what names another one comes from it. Source: https://pipenv.pypa.io/en/latest/indexes.html.
            use = IndexUse.EXPLICIT if number else IndexUse.DEFAULT
            found.index(url, PIPFILE, LineFinder(content).find(url), name=get_text(source, "name"), use=use)


def read_pipfile_lock(found: RequirementCollector) -> tuple[str, tuple[str, ...]]:
    """Limit every package to its locked version, if the lock has what the Pipfile asks for: `pipenv install` locks again.

    Returns: the lock's path, "" for one that does not fit, and what is there for torch, as far as names tell.
    """
    content = found.text(PIPFILE_LOCK)
    if content is None:
        return "", ()
    try:
        document = parse_json(content)
    except ValueError as error:
        found.add_unreadable(PIPFILE_LOCK, getattr(error, "lineno", 1), "it is not JSON")
        return PIPFILE_LOCK, ()
    table: Mapping[str, Any] = document if isinstance(document, dict) else {}
    locked = {**get_object(table, "default"), **get_object(table, "develop")}
    versions = {
        canonicalize_name(name): get_text(entry, "version").removeprefix("==")
        for name, entry in locked.items()
        if isinstance(entry, dict)
    }
    required = {need.name: need for need in found.needs}
    if any(
        name not in versions or (versions[name] and not satisfies(versions[name], need.specifier))
        for name, need in required.items()
        if not need.marker
    ):
        found.paths.remove(PIPFILE_LOCK)
        return "", ()
    lines = LineFinder(content)
    for name, entry in locked.items():
        if isinstance(entry, dict) and get_text(entry, "version"):
            marker = f" ; {get_text(entry, 'markers')}" if get_text(entry, "markers") else ""
            line = lines.find(f'"{name}": {{')
            found.need(f"{name}{get_text(entry, 'version')}{marker}", PIPFILE_LOCK, line, is_limit=True)
    torch = (name for name in versions if name == "torch" or (_FOR_CUDA.fullmatch(name) and name not in required))
    return PIPFILE_LOCK, tuple(sorted(torch))


def read_poetry(document: Mapping[str, Any], content: str, found: RequirementCollector) -> None:
    """Read [tool.poetry.dependencies] with the chosen extras, the group dev and the chosen groups."""
    poetry = get_object(document, "tool", "poetry")
    by_group = get_object(poetry, "group")
    defined = (*by_group, *([DEV_GROUP] if "dev-dependencies" in poetry else []))
    groups = found.select_groups(defined, defaults=(DEV_GROUP,))
    tables = [("", ("dependencies",)), *((group, ("group", group, "dependencies")) for group in groups)]
    tables += [(DEV_GROUP, ("dev-dependencies",))]
    extras = get_object(poetry, "extras")
    optional = {canonicalize_name(name) for extra in found.select_extras(extras) for name in get_texts(extras, extra)}
    packages = [(name, group, wanted) for group, keys in tables for name, wanted in get_object(poetry, *keys).items()]
    keys = ((number, _KEY.match(text)) for number, text in reversed(list(enumerate(content.splitlines(), 1))))
    lines = {key[1]: number for number, key in keys if key}
    for name, group, wanted in packages:
        line = lines.get(name, 1)
        if name.lower() == PYTHON:
            found.add_python(convert_poetry_version(wanted if isinstance(wanted, str) else ""), PYPROJECT, line)
            continue
        for each in wanted if isinstance(wanted, list) else [wanted]:
            table = each if isinstance(each, dict) else {"version": each}
            if table.get("optional") is True and canonicalize_name(name) not in optional:
                continue
            marker = " and ".join(f"({each})" for each in _poetry_markers(table))
            version = convert_poetry_version(get_text(table, "version"))
            found.need_table(name, table, PYPROJECT, line, group=group, version=version, marker=marker)


def _poetry_markers(table: Mapping[str, Any]) -> Iterator[str]:
    if markers := get_text(table, "markers"):
        yield markers
    if python := get_text(table, "python"):
        clauses = [clause for clause in convert_poetry_version(python).split(",") if clause]
        for found in filter(None, (re.fullmatch(r"\s*([<>=!~]+)\s*([\w.*]+)", clause) for clause in clauses)):
            yield f"python_version {found[1]} '{found[2]}'"
    if platform := get_text(table, "platform"):
        yield f"sys_platform == '{platform}'"


def read_setup_cfg(found: RequirementCollector) -> None:
    """Read install_requires and python_requires of [options]."""
    content = found.text(SETUP_CFG)
    if content is None:
        return
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string(content)
    except configparser.Error as error:
        line = getattr(error, "lineno", None)
        found.add_unreadable(SETUP_CFG, line or 1, "it is not an INI file")
        return
    python = parser.get("options", "python_requires", fallback="").strip()
    if python:
        found.add_python(python, SETUP_CFG, LineFinder(content).find("python_requires"))
    listed = parser.get("options", "install_requires", fallback="").strip()
    if listed.startswith("file:"):
        for name in listed.removeprefix("file:").split(","):
            read_requirements_file(name.strip(), found)
        return
    optional = dict(parser.items(_EXTRAS_OF_SETUP_CFG)) if parser.has_section(_EXTRAS_OF_SETUP_CFG) else {}
    parts = [(listed, "install_requires"), *((optional[name], name) for name in found.select_extras(optional))]
    lines = LineFinder(content)
    for part, key in parts:
        lines.find(key)
        for entry in (line.strip() for line in part.replace(";\n", "\n").splitlines()):
            if entry and not entry.startswith("#"):
                found.need(entry, SETUP_CFG, lines.find(entry))


def read_toml_file(path: str, found: RequirementCollector) -> tuple[dict[str, Any], str] | None:
    """Read a TOML file: its table and its text; None, and noted, when it is not valid."""
    content = found.text(path)
    if content is None:
        return None
    try:
        return parse_toml(content), content
    except ValueError as error:
        problem = str(error).partition(" (at")[0]
        correction = "the line as TOML" if path == PYPROJECT else ""
        found.add_unreadable(path, find_toml_line(error), f"it is not TOML: {problem}", correction)
        return None


def convert_poetry_version(written: str) -> str:
    """Convert Poetry's version to PEP 440: ^1.2 is >=1.2,<2, ~1.2.3 is >=1.2.3,<1.3, and 1.2 is ==1.2.

    Alternatives such as "^1 || ^2" become the widest range around them where they are in order, else no limit.
    """
    alternatives = [each.strip() for each in re.split(r"\|\|?", written) if each.strip()]
    if len(alternatives) > 1:
        first, last = convert_poetry_version(alternatives[0]), convert_poetry_version(alternatives[-1])
        lower = [clause for clause in first.split(",") if clause.startswith(">")]
        upper = [clause for clause in last.split(",") if clause.startswith("<")]
        return ",".join([*lower, *upper])
    clauses = [
        _convert_clause(each.strip()) for each in re.split(r",|(?<=[\w*])\s+(?=[<>=!^~])", written) if each.strip()
    ]
    return ",".join(clause for clause in clauses if clause)


def _convert_clause(clause: str) -> str:
    if clause in ("*", "x"):
        return ""
    found = _POETRY_RANGE.fullmatch(clause)
    if found is None or clause.startswith("~="):
        return f"=={clause}" if _POETRY_BARE.fullmatch(clause) else clause
    numbers = [int(part) for part in found[2].split(".") if len(part) < 10]
    place = min(1, len(numbers) - 1)
    if found[1] == "^":
        # A caret keeps the first number that is not zero, else the last.
        place = next((place for place, number in enumerate(numbers) if number), max(len(numbers) - 1, 0))
    above = [*numbers[:place], numbers[place] + 1] if numbers else [1]
    return f">={found[2]}{found[3]},<{'.'.join(map(str, above))}"
