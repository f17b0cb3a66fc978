"""What a project's guide has its reader install: README, INSTALL and others.

The packages that it names count for a project without a dependency file. For any other count the project's own extras, and
what the project's programs import as well: many guides have their reader install flash-attn after requirements.txt.
"""

import re
from collections.abc import Iterator
from dataclasses import replace

from devkit.compat.specifiers import canonicalize_name
from devkit.compat.version_tables import load_tables
from devkit.facts.dependencies import NOTHING_CHOSEN, PackageRequirement, RequirementRole
from devkit.formats.shell import PackageInstall, ShellCommand, find_package_install
from devkit.probe.dependencies.conda import read_conda_spec
from devkit.probe.dependencies.imports import read_programs
from devkit.probe.dependencies.requirements import RequirementCollector, is_local_path, read_requirement_lines
from devkit.probe.dependencies.setup_py import SETUP_PY
from devkit.probe.project.files import ProjectFiles
from devkit.probe.project.shell import parse_shell_text

_GUIDE = re.compile(r"(?i)(?:readme|install(?:ation)?|get(?:ting)?[_-]?started)(?:\.(?:md|rst|txt))?")
_FOLDERS = ("", "docs/", "doc/")
_PART = re.compile(
    r"^#{1,6} +(?P<heading>.+)|^<h\d>(?P<html>.+)</h\d>|^[ \t]*(?P<fence>```|~~~)"
    r"|(?:^|(?<=[\s`$>!]))(?P<command>(?:(?:python3? +-m +)?(?:pip3?|uv +pip|conda|mamba|micromamba) +install|uv +sync)"
    r"(?:[^`\n\\]|\\\r?\n|\\.)+)"
    r"|(?:^|(?<=[\s`$>!]))(?:(?:conda|mamba|micromamba) +create\b[^`\n#]{0,300}? [\"']?python *={1,2} *"
    r"|uv +venv\b[^`\n#]{0,300}? (?:--python|-p)[ =]+(?:python)?|(?:virtualenv +(?:-p|--python)[ =]+)?python(?=3\.\d+ -m venv\b))"
    r"(?P<python>3\.\d+)",
    re.MULTILINE,
)
_ASIDE = re.compile(
    r"(?i)\b(?:optional\w*|develop\w*|contribut\w+|tests?|testing|docs?|documentation|(?<!without )docker|windows"
    r"|mac ?os|apple|cpu|tpu|rocm|amd|npu|demo|gradio|faq|troubleshoot\w*|export|deploy\w*)\b"
)
"""Headings of sections that not every reader follows."""
ALL_EXTRAS = ("*",)
_OF_TORCH = ("torch", "torchvision", "torchaudio")
_TOOLS = frozenset(("pip", "setuptools", "wheel", "uv", "virtualenv", "conda", "poetry", "mamba"))
_OWN_NAME = re.compile(r"""\bname\s*=\s*["']([\w.-]+)""")
_NAMED = re.compile(r"([A-Za-z0-9][\w.-]*)(?:\[(?P<extras>[\w, -]*)\])?((?:[=<>!~].*)?)")
_ITSELF = re.compile(r"\./?(?:\[(?P<extras>[\w, -]*)\])?")
_EXACT = re.compile(r"==((\d+)[\w.]*)")
_VCS = re.compile(r"git\+https://[^\s@]+?/([\w.-]+?)(?:\.git)?/?(@[^#]*)?(?:#.*)?")


def read_guides(found: RequirementCollector, *, own: str) -> str:
    """Read what the first guide that names packages installs, each package as it is named first; "" for no such guide.

    `own` is the project's name, which readers install as well. Only a folder with Python programs has a guide. A guide's
    torch is one that the code ran with, on the GPUs of its day: it is a lower bound.
    """
    if next(read_programs(found.files, is_library=False), None) is None:
        return ""
    known = {*_list_own_names(found.files, own), *_TOOLS}
    for path in _list_guides(found.files):
        before = len(found.needs) + len(found.conda)
        found.role = RequirementRole.GENERATED
        for line, command in _list_commands(found.files, path):
            if install := find_package_install(command):
                _read_install(install, path, line, known, found)
        if len(found.needs) + len(found.conda) > before:
            found.paths.append(path)
            return path
    return ""


def list_guide_packages(files: ProjectFiles, *, own: str) -> tuple[PackageRequirement, ...]:
    """List the packages that a guide has its reader install beside the dependency files, torch as a limit alone.

    An exact version of a package that compiles is one that compiled on its author's machine: later ones of the same major
    count too, for which there may be a wheel.
    """
    found = RequirementCollector(files, NOTHING_CHOSEN)
    read_guides(found, own=own)
    compiled = load_tables().compiled.packages
    return tuple(
        replace(need, specifier=f">={exact[1]},<{int(exact[2]) + 1}")
        if need.name in compiled and (exact := _EXACT.fullmatch(need.specifier))
        else need
        for need in found.needs
    )


def find_own_extras(files: ProjectFiles, *, own: str) -> tuple[tuple[str, ...], str]:
    """Find the extras with which a guide first installs the project itself, and the guide's line.

    ALL_EXTRAS where it installs every one; () and "" for none.
    """
    names = _list_own_names(files, own)
    for path in _list_guides(files):
        for line, command in _list_commands(files, path):
            install = find_package_install(command)
            for value in (word.value for word in install.packages) if install else ():
                named = _NAMED.fullmatch(value)
                if (named and canonicalize_name(named[1]) in names) or (named := _ITSELF.fullmatch(value)):
                    return tuple((named["extras"] or "").replace(",", " ").split()), f"{path}:{line}"
            if command.values[:2] == ("uv", "sync"):
                if "--all-extras" in command.values:
                    return ALL_EXTRAS, f"{path}:{line}"
                extras = re.findall(r"--extra[ =]([\w.-]+)", " ".join(command.values))
                return tuple(extras), f"{path}:{line}"
    return (), ""


def find_guide_python(files: ProjectFiles) -> PackageRequirement | None:
    """Find the Python of the environment that a guide has its reader make; None for no such guide."""
    for path in _list_guides(files):
        for line, part in _list_parts(files.read(path, "guide") or ""):
            if part["python"]:
                return PackageRequirement("python", f"=={part['python']}.*", path, line)
    return None


def _list_guides(files: ProjectFiles) -> Iterator[str]:
    paths = (f"{folder}{name}" for folder in _FOLDERS for name in files.names(folder or "."))
    return (each for each in paths if _GUIDE.fullmatch(each.rpartition("/")[2]))


def _list_own_names(files: ProjectFiles, own: str) -> set[str]:
    names = (own, files.folder.rpartition("/")[2], *_OWN_NAME.findall(files.read(SETUP_PY, "build") or ""))
    return {canonicalize_name(name) for name in names if name}


def _list_commands(files: ProjectFiles, path: str) -> Iterator[tuple[int, ShellCommand]]:
    """List the commands of a guide with their lines."""
    for line, part in _list_parts(files.read(path, "guide") or ""):
        for command in parse_shell_text((part["command"] or "").partition(" #")[0]):
            yield line, command


def _list_parts(text: str) -> Iterator[tuple[int, re.Match[str]]]:
    """List the commands and environments of a guide with their lines.

    Those of sections aside are left out; a comment in a block of code counts to its end.
    """
    is_section_aside = is_aside = is_code = False
    line, before = 1, 0
    for part in _PART.finditer(text):
        if part["fence"]:
            is_code, is_aside = not is_code, is_section_aside
        elif heading := part["heading"] or part["html"]:
            is_aside = bool(_ASIDE.search(heading)) or (is_code and is_section_aside)
            is_section_aside = is_section_aside if is_code else is_aside
        elif not is_aside:
            line += text.count("\n", before, part.start())
            before = part.start()
            yield line, part


def _read_install(install: PackageInstall, path: str, line: int, known: set[str], found: RequirementCollector) -> None:
    for value in (word.value for word in install.packages):
        named = _NAMED.fullmatch(value)
        if "://" in value:
            _read_address(value, path, line, known, found)
        elif named and not is_local_path(value):
            name = canonicalize_name("torch" if named[1] == "pytorch" else named[1])
            if name in known:
                continue
            known.add(name)
            bound = re.fullmatch(r"==?=?\s*(\d[\w.]*)(?:\+\w+)?", named[3])
            if name in _OF_TORCH:
                limit = f">={bound[1]}" if bound and name == "torch" else ""
                found.need(f"{name}{limit}", path, line, is_limit=name == "torch")
            elif install.tool == "conda":
                read_conda_spec(value, path, line, found)
            else:
                found.need(value, path, line)


def _read_address(value: str, path: str, line: int, known: set[str], found: RequirementCollector) -> None:
    """Read a known package of a Git repository, which was newer than its releases; a commit counts before none.

    Others are often for one purpose among many, and compile for long.
    """
    source, tables = _VCS.fullmatch(value), load_tables()
    name = canonicalize_name(source[1]) if source else ""
    earlier = [need for need in found.needs if need.name == name and need.path == path and "@" not in need.url]
    if source is None or name not in tables.imports.distributions().values() or name in tables.compiled.packages:
        because = "of a guide only names are taken; [project] packages in devkit.toml takes an address"
        found.exclude(value, path, line, because)
    elif name not in known or (earlier and source[2]):
        known.add(name)
        found.needs = [need for need in found.needs if need not in earlier]
        read_requirement_lines(iter([(line, value)]), path, found)
