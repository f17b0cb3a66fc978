"""How packages among the project's own files are built: what setup.py and pyproject.toml say, read and not run."""

import re
from collections.abc import Iterable
from dataclasses import replace

from devkit.compat.specifiers import canonicalize_name
from devkit.compat.version_tables import load_tables
from devkit.facts.dependencies import LocalBuild
from devkit.probe.dependencies.build_files import CMAKE, MESON, MODULE, read_source_build
from devkit.probe.dependencies.manifests import PYPROJECT
from devkit.probe.dependencies.setup_py import SETUP_PY
from devkit.probe.documents import LineFinder, get_object, get_text, get_texts, parse_object_or_empty, parse_toml
from devkit.probe.project.files import ProjectFiles

GIT_MODULES = ".gitmodules"
MAX_FOLDERS = 20
MAX_PACKAGE_FOLDERS = 60
"""Folders of one folder in which a package of the project's own is looked for."""
_MODULE = re.compile(r"^[ \t]*path[ \t]*=[ \t]*(\S+)[ \t\r]*$", re.MULTILINE)
_COMMENT = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
_TORCH = re.compile(r"^[ \t]*(?:import torch\b|from torch(?:\.[\w.]+)? import\b)", re.MULTILINE)
_CXX = re.compile(r"-std=c\+\+(\d+)")
_NAME = re.compile(r"""\bname\s*=\s*["']([A-Za-z0-9][\w.-]*)["']""")
_NAMED_ABOVE = re.compile(r"""^(?:PACKAGE_)?NAME\s*=\s*["']([A-Za-z0-9][\w.-]*)["']""", re.MULTILINE)
_FINDS = re.compile(r"\bfind_packages\(\s*(?:exclude|\))")
"""A search from the folder of setup.py on, which finds no package without an `__init__.py`."""
_REQUIREMENT = re.compile(r"[A-Za-z0-9][\w.-]*")


def read_submodules(files: ProjectFiles) -> tuple[str, ...]:
    """Read the folders of the project's git submodules."""
    return tuple(_MODULE.findall(files.read(GIT_MODULES, "modules") or ""))


def find_local_builds(files: ProjectFiles, folders: Iterable[str]) -> tuple[LocalBuild, ...]:
    """Find how the project is built, then its git submodules and `folders`, as far as these compile.

    Of a submodule that is not fetched only the name of its folder is known, and it counts where it is one of `folders`.
    """
    modules = read_submodules(files)
    required = {path for path in map(files.within, folders) if path}
    found: list[LocalBuild] = []
    for path in dict.fromkeys((".", *sorted(required), *modules)):
        build = _read_build(files, path)
        if build is None and path in required and path in modules and not files.names(path):
            build = LocalBuild(
                path, canonicalize_name(path.rpartition("/")[2]), GIT_MODULES, has_cuda=False, requires=()
            )
        if (
            build is not None
            and (path == "." or build.needs_torch or build.needs or build.maps_nothing)
            and len(found) < MAX_FOLDERS
        ):
            found.append(build)
    return tuple(found)


def find_own_packages(files: ProjectFiles) -> dict[str, str]:
    """Find the packages in folders of the project, two levels deep: the folder of each by its normalized name."""
    found: dict[str, str] = {}
    for folder in _list_folders(files, ""):
        for path in (folder, *_list_folders(files, f"{folder}/")):
            if not {SETUP_PY, PYPROJECT}.isdisjoint(files.names(path)) and (build := _read_build(files, path)):
                found.setdefault(build.name, path)
    found.pop("", None)
    return found


def _list_folders(files: ProjectFiles, prefix: str) -> list[str]:
    names = (name for name in files.names(prefix or ".") if "." not in name)
    return [f"{prefix}{name}" for name in names][:MAX_PACKAGE_FOLDERS]


def _read_build(files: ProjectFiles, folder: str) -> LocalBuild | None:
    """Read one folder; None where there is nothing that builds a package."""
    prefix = "" if folder == "." else f"{folder}/"
    setup = _COMMENT.sub("", files.read(f"{prefix}{SETUP_PY}", "build") or "")
    manifest = files.read(f"{prefix}{PYPROJECT}", "build") or ""
    document = parse_object_or_empty(manifest, parse_toml)
    if not setup and "build-system" not in document:
        return None
    requires = get_texts(get_object(document, "build-system"), "requires")
    required = {each: canonicalize_name(name[0]) for each in requires if (name := _REQUIREMENT.match(each))}
    origin = ""
    if imported := _TORCH.search(setup):
        origin = f"{prefix}{SETUP_PY}:{setup.count(chr(10), 0, imported.end()) + 1}"
    elif "torch" in required.values():
        lines = LineFinder(manifest)
        lines.find("build-system")
        origin = f"{prefix}{PYPROJECT}:{lines.find('torch')}"
    calls = map(_NAME.search, re.split(r"\bsetup\(", setup)[1:])
    named = next(filter(None, calls), None) or _NAMED_ABOVE.search(setup)
    texts = {name: files.read(f"{prefix}{name}", "build") or "" for name in (CMAKE, MESON)}
    texts = {name: text for name, text in {**texts, SETUP_PY: setup, PYPROJECT: manifest}.items() if text}
    folders = (*_list_folders(files, prefix), *_list_folders(files, f"{prefix}src/"))
    programs = load_tables().system_packages.programs()
    found = read_source_build("", texts, files.names(folder), programs=programs, headers=())
    return LocalBuild(
        path=folder,
        name=canonicalize_name(get_text(get_object(document, "project"), "name") or (named[1] if named else "")),
        origin=origin,
        has_cuda="CUDAExtension" in setup,
        requires=tuple(each for each, name in required.items() if name != "torch"),  # the plan brings torch
        cxx=min(map(int, _CXX.findall(setup)), default=0),
        needs=tuple(replace(each, origin=f"{prefix}{each.origin}") for each in found.needs if each.kind != MODULE),
        maps_nothing=bool(_FINDS.search(setup)) and not any("__init__.py" in files.names(each) for each in folders),
    )
