"""The framework that a project computes with: by its requirements, its programs' imports, or its build files."""

import re

from devkit.compat.version_tables import FrameworkPackages, load_tables
from devkit.facts.dependencies import Dependencies, Framework, RequirementRole
from devkit.probe.dependencies.imports import IMPORT, list_imports, read_programs
from devkit.probe.dependencies.setup_py import SETUP_PY
from devkit.probe.project.files import C_BUILDS, MAX_FOLDERS, OTHER_LANGUAGES, ProjectFiles

_CUDA_LANGUAGE = re.compile(
    r"^[^#\n]*?(?:\bproject\s*\([^)]*\bCUDA\b|\benable_language\s*\(\s*CUDA\b|\bfind_package\s*\(\s*CUDA(?:Toolkit)?\b)",
    re.MULTILINE | re.IGNORECASE,
)
"""Source: https://cmake.org/cmake/help/latest/command/project.html and …/module/FindCUDAToolkit.html."""
_NVCC = re.compile(r"^[^#\n]*\bnvcc\b", re.MULTILINE | re.IGNORECASE)
_LOADED = re.compile(r"^[^#\n]*\bcpp_extension\b(?:\.|[ \t]+import\b[^#\n]*?\b)load(?:_inline)?\b", re.MULTILINE)
"""Code that is compiled when it runs. Source: https://docs.pytorch.org/docs/stable/cpp_extension.html."""
_EXTENSION = re.compile(r"^[^#\n]*\bCUDAExtension[ \t]*\(", re.MULTILINE)
MAX_SETUP_DEPTH = 2
"""Folders above a setup.py that a guide names; deeper ones are copies of other projects."""
_CUDA_SOURCE = re.compile(r"""\.cuh?["']|\bcuda_sources\b""")


def find_framework(files: ProjectFiles, dependencies: Dependencies) -> tuple[Framework, str]:
    """Find the framework, and how it is seen. Without a sign of another one it is torch."""
    if dependencies.torch_builds:
        return Framework.TORCH, f"{dependencies.torch_builds[0].choice} brings torch"
    needs = [need for need in dependencies.needs if need.role is not RequirementRole.CONSTRAINT]
    needed = {need.name: need.origin for need in needs}
    needed |= {each.what: f"{each.path}:{each.line}" for each in dependencies.left_out}
    locked = {need.name: need.origin for need in dependencies.needs}
    programs = list(read_programs(files, is_library=True))
    known = load_tables().frameworks.packages
    for is_flexible in (False, True):
        rows = [row for row in known if row.flexible is is_flexible]
        for names in (needed, None, locked):
            if names is None:
                seen = _find_imported(rows, programs)
            else:
                listed = ((row.framework, name) for row in rows for name in row.names if name in names)
                seen = next(((Framework(each), f"{names[name]} names {name}") for each, name in listed), None)
            if seen is not None:
                return seen
    if origin := find_cuda_build(files):
        return Framework.CUDA, f"{origin} has nvcc compile"
    if dependencies.unread or dependencies.is_computed:
        return Framework.TORCH, ""
    if needs:
        return Framework.NONE, f"{needs[0].path} lists no framework that computes on a GPU"
    has_python = bool(programs or dependencies.files)
    for name in files.names("."):
        if OTHER_LANGUAGES.fullmatch(name) or (C_BUILDS.fullmatch(name) and not has_python):
            return Framework.NONE, f"the project has {name}, but no framework that computes on a GPU"
    return Framework.TORCH, ""


def _find_imported(rows: list[FrameworkPackages], programs: list[tuple[str, str]]) -> tuple[Framework, str] | None:
    modules = {name.replace("-", "_"): row.framework for row in rows for name in row.names}
    for path, text in programs:
        if modules.keys().isdisjoint(IMPORT.findall(text)):
            continue
        for module, line in list_imports(text, is_top_only=True):
            if module in modules:
                return Framework(modules[module]), f"{path}:{line} imports {module}"
    return None


def find_cuda_build(files: ProjectFiles) -> str:
    """Find the file and line that have nvcc compile the project's own code; "" for none."""
    folders = ("", *(f"{name}/" for name in files.names(".") if "." not in name))
    for folder in folders[:MAX_FOLDERS]:
        for name in files.names(folder or "."):
            pattern = _CUDA_LANGUAGE if name == "CMakeLists.txt" else _NVCC if folder == "" else None
            text = files.read(f"{folder}{name}", "build") if pattern and C_BUILDS.fullmatch(name) else None
            if pattern and (found := pattern.search(text or "")):
                return f"{folder}{name}:{(text or '').count(chr(10), 0, found.end()) + 1}"
    return _find_extension(files)


def _find_extension(files: ProjectFiles) -> str:
    """Find what has nvcc compile an extension of torch: a setup.py near the top that its reader runs, else a program as it runs.

    A program counts where one of them names a CUDA source.
    """
    origin, has_source = "", False
    for path, text in read_programs(files, is_library=True):
        is_setup = path.endswith(f"/{SETUP_PY}")
        found = _EXTENSION.search(text) if is_setup else _LOADED.search(text) if not origin else None
        has_source = has_source or (not is_setup and bool(_CUDA_SOURCE.search(text)))
        here = f"{path}:{text.count(chr(10), 0, found.end()) + 1}" if found else ""
        if here and is_setup and path.count("/") <= MAX_SETUP_DEPTH:
            return here
        origin = origin or ("" if is_setup else here)
    return origin if has_source else ""
