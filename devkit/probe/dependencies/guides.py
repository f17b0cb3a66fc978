"""What a project's guide has its reader install: README, INSTALL and others, and after them its scripts for that.

The packages that it names count for a project without a dependency file. For any other count the project's own extras, and
what the project's programs import as well: many guides have their reader install flash-attn after requirements.txt.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import lru_cache
from itertools import groupby, islice

from devkit.compat.specifiers import canonicalize_name
from devkit.compat.version_tables import load_tables
from devkit.facts.dependencies import NOTHING_CHOSEN, PackageRequirement, RequirementRole
from devkit.formats.shell import (
    REQUIREMENT_FILE_OPTIONS,
    PackageInstall,
    ShellCommand,
    find_package_install,
)
from devkit.probe.dependencies.conda import ENVIRONMENTS, read_conda_spec
from devkit.probe.dependencies.imports import read_programs
from devkit.probe.dependencies.manifests import PYPROJECT
from devkit.probe.dependencies.requirement_lists import MAIN_LISTS
from devkit.probe.dependencies.requirements import (
    WHEEL,
    RequirementCollector,
    is_local_path,
    name_as_on_index,
    read_requirement_lines,
)
from devkit.probe.dependencies.setup_py import SETUP_PY
from devkit.probe.project.files import DEPENDENCY_FILE_NAMES, ProjectFiles
from devkit.probe.project.shell import parse_shell_text

_GUIDE = re.compile(r"(?i)(?:readme|install(?:ation)?|get(?:ting)?[_-]?started)(?:\.(?:md|rst|txt))?")
_SCRIPT = re.compile(r"(?i)(?:[\w-]*[_-])?(?:setup|install|build|prepare)[\w-]*\.sh")
_FOLDERS = ("", "docs/", "doc/")
_MIM = re.compile(r"\bmim(?= +install\b)")
"""OpenMMLab's installer, which hands pip what it installs. Source: https://github.com/open-mmlab/mim."""
_PART = re.compile(
    r"^#{1,6} +(?P<heading>.+)|^<h\d>(?P<html>.+)</h\d>|^[ \t]*(?P<fence>```|~~~)"
    r"|(?:^|(?<=[\s`$>!]))(?P<command>(?:(?:python3? +-m +)?(?:pip3?|uv +pip|mim) +install|uv +sync"
    r"|(?:poetry|pdm|pipenv|pixi) +(?:install|sync)|(?:conda|mamba|micromamba) +(?:install|create|env +(?:create|update))"
    r"|(?:(?:bash|sh|source) +|\./)[\w./-]+\.sh\b|make +[\w.-]+(?= *(?:[`\n#&;]|[A-Z_]+=|\Z))|cd +[\w./-]+)"
    r"(?:[^`\n\\]|\\\r?\n|\\.)*)"
    r"|(?:^|(?<=[\s`$>!]))(?:uv +venv\b[^`\n#]{0,300}? (?:--python|-p)[ =]+(?:python)?"
    r"|(?:virtualenv +(?:-p|--python)[ =]+)?python(?=3\.\d+ -m venv\b))"
    r"(?P<python>3\.\d+)",
    re.MULTILINE,
)
ASIDE = re.compile(
    r"(?i)\b(?:optional\w*|develop\w*|contribut\w+|tests?|testing|docs?|documentation|(?<!without )docker|windows"
    r"|mac ?os|apple|cpu|tpu|rocm|amd|npu|demo|gradio|faq|troubleshoot\w*|export|deploy\w*)\b"
)
"""Headings of sections that not every reader follows."""
_AND = re.compile(r"(?i) (?:/|&|and) |, ")
ALL_EXTRAS = ("*",)
_OF_TORCH = ("torch", "torchvision", "torchaudio")
_PYTHON_OF_CONDA = re.compile(r"python={1,2}(3\.\d+)")
_PYTHON_IN_PROSE = re.compile(
    r"(?<![\w./#-])[Pp]ython(?:[ \t]+[Vv]ersion)?[ \t:`*]{0,4}(?P<oldest>(?:>=|≥)?)[ \t`]{0,2}(?P<first>3\.\d+)(?:\.\d+)?"
    r"(?:[ \t]*(?:-|\u2013|to)[ \t]*3\.(?P<last>\d+))?"
    r"(?P<more>[`*)]{0,3}(?:\+|,?[ \t]+(?:or|and)[ \t]+(?:newer|later|higher|above|up|greater)))?"
)
"""A Python in the words of a guide: `Python 3.10`, `Python version 3.10.8`, `Python >= 3.8`, `Python 3.8-3.10`, `Python 3.9+`."""
UNSUITED = re.compile(r"(?i)\b(?:not?|never|without|drop\w*|below|older|deprecat\w*|unsupported)\b|n't\b")
_OF_NODE = re.compile(r"^[ \t]*(?:[$>] *)?(?:npm|yarn|pnpm) +(?:install|ci|i)\b", re.MULTILINE)
_STEP = re.compile(r"(?i)(?:step *)?\d")
_SETUP = re.compile(
    r"(?i)\b(?:install\w*|set-?up|setting up|environment|requirements|dependencies|get(?:ting)? started|quick ?start)\b"
)
"""Headings of steps, which are taken in turn, and of what they are steps of."""
_TOOLS = frozenset(("python", "pip", "setuptools", "wheel", "uv", "virtualenv", "conda", "poetry", "mamba"))
_OWN_NAME = re.compile(r"""\bname\s*=\s*["']([\w.-]+)""")
_NAMED = re.compile(r"([A-Za-z0-9][\w.-]*)(?:\[(?P<extras>[\w, -]*)\])?((?:[=<>!~].*)?)")
_ITSELF = re.compile(r"\./?(?:\[(?P<extras>[\w, -]*)\])?")
_EXTRAS = re.compile(r"\[[^\]]*\]$")
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
    for path in list_guides(found.files):
        before = len(found.needs) + len(found.conda)
        found.role = RequirementRole.GENERATED
        for _, place, line, command in list_steps(found.files, path):
            if install := find_package_install(command):
                _read_install(install, place, line, known, found)
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
    for path in list_guides(files):
        for _, place, line, command in list_steps(files, path):
            install = find_package_install(command)
            for value in (word.value for word in install.packages) if install else ():
                named = _NAMED.fullmatch(value)
                if (named and canonicalize_name(named[1]) in names) or (named := _ITSELF.fullmatch(value)):
                    return tuple((named["extras"] or "").replace(",", " ").split()), f"{place}:{line}"
            if command.values[:2] == ("uv", "sync"):
                if "--all-extras" in command.values:
                    return ALL_EXTRAS, f"{place}:{line}"
                extras = re.findall(r"--extra[ =]([\w.-]+)", " ".join(command.values))
                return tuple(extras), f"{place}:{line}"
    return (), ""


@dataclass(frozen=True)
class InstallFiles:
    """The files that the installation section of a guide has its reader install from, the first of them at `origin`.

    `conda` is an environment.yml, "" for none, `lists` are requirement files, `folders` packages of the project's own below
    its folder, `packages` what the section's other commands install, each with its file and line. `unisolated` are the lists
    whose packages are built without isolation, each with the line that says so.
    """

    origin: str
    conda: str = ""
    lists: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    packages: tuple[tuple[PackageInstall, str, int], ...] = ()
    unisolated: tuple[tuple[str, str], ...] = ()


def find_install_files(files: ProjectFiles) -> InstallFiles | None:
    """Find what the first section of a guide that installs anything of the project's own installs; None for no such guide.

    What stands in one section is installed together. A section that calls the project's package manager names its files
    by that, and one that leaves a list to the reader's machine names none. Packages by which a guide makes an environment
    count where only an environment.yml that no guide names would.
    """
    is_bare = not any(map(DEPENDENCY_FILE_NAMES.fullmatch, files.names(".")))
    made: InstallFiles | None = None
    for path in list_guides(files):
        found: InstallFiles | None = None
        chosen = -1
        for section, commands in groupby(list_steps(files, path), key=lambda step: step[0]):
            packages: list[tuple[PackageInstall, str, int]] = []
            folder, folders = "", list[str]()
            for _, place, line, command in commands:
                if command.program == "cd" and len(command.words) > 1:
                    # What is not there is the clone itself, which the reader enters first.
                    inner = files.within(command.values[1], beside=folder) or "."
                    folder = f"{inner}/".removeprefix("./") if files.names(inner) else folder
                conda, lists = _find_named_files(command, files, folder)
                if (place == path and _leaves_open(command)) or (found is None and command.values[:2] in _SYNCS):
                    return None
                folders += _find_package_folders(command, files, folder)
                if found is None and (conda or lists or (is_bare and folders)):
                    found, chosen = InstallFiles(f"{place}:{line}", conda, lists), section
                elif found:
                    found = replace(found, lists=tuple(dict.fromkeys((*found.lists, *lists))))
                if (install := find_package_install(command)) and not _OPTIONAL.search(_read_line(files, place, line)):
                    packages.append((install, place, line))
                    names = [word.value for word in install.packages if not is_local_path(word.value)]
                    is_run = place != path or (is_bare and place.endswith(".sh"))
                    if is_run and found is None and any(map(_NAMED.fullmatch, names)):
                        # A script of the project's own is a guide that was tried.
                        found, chosen = InstallFiles(f"{place}:{line}"), section
                    named = {each[1] for each in map(_NAMED.fullmatch, names) if each} - _TOOLS
                    made = made or (
                        InstallFiles(f"{place}:{line}") if install.verb.value == "create" and named else None
                    )
            if made and not made.packages:
                made = replace(made, packages=tuple(packages), folders=tuple(dict.fromkeys(folders)))
            if found and chosen == section:
                found = replace(found, packages=tuple(packages), folders=tuple(dict.fromkeys(folders)))
                return replace(found, unisolated=tuple(_list_unisolated(files, path)))
    return made if any(map(files.has, ENVIRONMENTS)) and not any(map(files.has, MAIN_LISTS)) else None


_SYNCS = (
    ("uv", "sync"),
    *((tool, verb) for tool in ("poetry", "pdm", "pipenv", "pixi") for verb in ("install", "sync")),
)
_OPTIONAL = re.compile(r"(?i)\boptional|\bif you\b|\balternativ")
MAX_SCRIPT_LINES = 200


def list_steps(files: ProjectFiles, path: str) -> Iterator[tuple[int, str, int, ShellCommand]]:
    """List the commands of a guide by section, with their file and line; those of a script of the project's in its place.

    The recipe of a target of its Makefile is such a script.
    """
    if path.endswith(".sh"):
        for line, text in _join_lines(files.read(path, "guide") or ""):
            yield from ((0, path, line, each) for each in _parse(text))
        return
    for line, part, section in _list_parts(files.read(path, "guide") or ""):
        for command in _parse((part["command"] or "").partition(" #")[0]):
            named = command.values[1:2] if command.program in ("bash", "sh", "source") else command.values[:1]
            script = files.within(named[0]) if named and named[0].endswith(".sh") else None
            steps = _read_recipe(command, files)
            if script is None and not steps:
                yield section, path, line, command
            elif script and files.has(script) and not _OTHER_MACHINE.search(script):
                steps = _join_lines(files.read(script, "guide") or "")
            for number, text in steps:
                yield from ((section, script or MAKEFILE, number, each) for each in _parse(text))


def _parse(text: str) -> tuple[ShellCommand, ...]:
    return parse_shell_text(_MIM.sub("pip", text))


MAKEFILE = "Makefile"


def _read_recipe(command: ShellCommand, files: ProjectFiles) -> Iterable[tuple[int, str]]:
    """Read the steps by which `make TARGET` installs packages, with their lines and the values of its variables."""
    if command.program != "make" or len(command.words) < 2 or _OTHER_MACHINE.search(target := command.values[1]):
        return ()
    text = files.read(MAKEFILE, "guide") or ""
    found = re.search(rf"^{re.escape(target)}[ \t]*:(?!=).*\n((?:\t.*(?:\n|\Z))+)", text, re.MULTILINE)
    values = dict(re.findall(r"^(\w+)[ \t]*[:?]?=[ \t]*(.*?)[ \t]*$", text, re.MULTILINE))
    first = text.count("\n", 0, found.start(1)) if found else 0
    recipe = re.sub(r"\$[({](\w+)[)}]", lambda each: values.get(each[1], each[0]), found[1]) if found else ""
    return [(first + line, step.strip("\t @-")) for line, step in _join_lines(recipe)]


_OTHER_MACHINE = re.compile(
    r"(?i)(?<![a-z])(?:cpu|no_?-?(?:cuda|gpu)|mac(?:os)?|win(?:dows)?|rocm|tpu|amd|docker|test|dev)(?![a-z])"
)


def _leaves_open(command: ShellCommand) -> bool:
    """Return whether a command has its reader choose the list: `pip install -r requirements/<see the table>`."""
    install = find_package_install(command)
    lists = install.option_values(*REQUIREMENT_FILE_OPTIONS) if install else ()
    return any(re.search(r"[<{$]", each) for each in lists)


def _join_lines(text: str) -> Iterator[tuple[int, str]]:
    """List the commands of a script that install packages, with their lines."""
    for found in islice(re.finditer(r"^[ \t]*(?:[^#\n\\]|\\\r?\n|\\.)+", text, re.MULTILINE), MAX_SCRIPT_LINES):
        if re.search("install|env|sync", found[0]):
            yield text.count("\n", 0, found.start()) + 1, found[0]


def _read_line(files: ProjectFiles, path: str, line: int) -> str:
    lines = _split_lines(files.read(path, "guide") or "")
    return lines[line - 1] if line <= len(lines) else ""


@lru_cache(maxsize=8)
def _split_lines(text: str) -> list[str]:
    return text.splitlines()


def _list_unisolated(files: ProjectFiles, path: str) -> Iterator[tuple[str, str]]:
    """List the requirement files that a guide has built without isolation, wherever it says so, with that line."""
    for _, place, line, command in list_steps(files, path):
        if (install := find_package_install(command)) and _is_unisolated(install):
            yield from ((each, f"{place}:{line}") for each in _find_named_files(command, files, "")[1])


def _is_unisolated(install: PackageInstall) -> bool:
    return any(option.value.startswith("--no-build-isolation") for option, _ in install.options)


def _find_package_folders(command: ShellCommand, files: ProjectFiles, folder: str) -> Iterator[str]:
    """Find the packages below the project's folder that a command run in `folder` installs."""
    install = find_package_install(command)
    named = (*install.option_values("-e", "--editable"), *(each.value for each in install.packages)) if install else ()
    local = [files.within(_EXTRAS.sub("", each), beside=folder) for each in named if is_local_path(each)]
    if install and any(option.value in ("-e", "--editable") for option, _ in install.options):
        # What can be edited is a folder, with or without a slash, and with what its author takes for its name.
        by_name = {canonicalize_name(name): name for name in files.names(folder.rstrip("/") or ".")}
        names = [found[1] for found in map(_NAMED.fullmatch, named) if found]
        local += [f"{folder}{by_name.get(canonicalize_name(name), '.')}" for name in names]
    for place in (*local, *(_find_own_folder(each, files) for each in named)):
        if place and place != "." and not {SETUP_PY, PYPROJECT}.isdisjoint(files.names(place)):
            yield place


def _find_own_folder(address: str, files: ProjectFiles) -> str:
    """Find the folder that an address of the project's own repository names; "" for another address."""
    source, _, inner = address.partition("#subdirectory=")
    named = _VCS.fullmatch(source)
    is_own = named and canonicalize_name(named[1]) in _list_own_names(files, "")
    return files.within(inner.partition("&")[0]) or "" if is_own and inner else ""


def _find_named_files(command: ShellCommand, files: ProjectFiles, folder: str) -> tuple[str, tuple[str, ...]]:
    """Find the environment of conda and the requirement files that a command run in `folder` installs from, if they exist."""
    if command.values[1:2] == ("env",) and command.program.endswith(("conda", "mamba")):
        words = " ".join(command.values)
        named = re.search(r"(?:-f|--file)[ =](\S+)", words)
        names = [named[1]] if named else ENVIRONMENTS
        places = (files.within(name, beside=folder) for name in names)
        return next((each for each in places if each and files.has(each)), ""), ()
    install = find_package_install(command)
    if install is None or install.tool not in ("pip", "uv"):
        return "", ()
    paths = (
        files.within(each, beside=folder)
        for each in install.option_values(*REQUIREMENT_FILE_OPTIONS)
        if "://" not in each
    )
    return "", tuple(near for each in paths if each and (near := _find_near(each, files)))


def _find_near(path: str, files: ProjectFiles) -> str:
    """Find a file that a guide names, or the one whose name its author misspelled; "" for neither."""
    folder, slash, name = path.rpartition("/")
    near = [name] if files.has(path) else get_close_matches(name, files.names(folder or "."), 1, cutoff=0.9)
    return f"{folder}{slash}{near[0]}" if near else ""


def add_guide_packages(installed: InstallFiles, found: RequirementCollector, *, own: str) -> None:
    """Add what the section installs besides the files that it names; what these ask for stays as they say it.

    What compiles for hours counts where programs import it.
    """
    compiled = load_tables().compiled.packages
    known = {*_list_own_names(found.files, own), *_TOOLS, *compiled, *(need.name for need in found.needs)}
    known |= {canonicalize_name(folder.rpartition("/")[2]) for folder in installed.folders}
    role, found.role = found.role, RequirementRole.GENERATED
    for install, path, line in installed.packages:
        before = len(found.needs) + len(found.conda)
        _read_install(install, path, line, known, found)
        if len(found.needs) + len(found.conda) > before and path not in found.paths:
            found.paths.append(path)
    found.role = role


def find_guide_python(files: ProjectFiles) -> PackageRequirement | None:
    """Find the Python of the environment that a guide has its reader make, else the one that it asks for; None for neither."""
    for path in list_guides(files):
        for line, part, _ in _list_parts(files.read(path, "guide") or ""):
            installs = map(find_package_install, parse_shell_text((part["command"] or "").partition(" #")[0]))
            words = (
                word.value for install in installs if install and install.tool == "conda" for word in install.packages
            )
            of_conda = (found[1] for found in map(_PYTHON_OF_CONDA.match, words) if found)
            if python := part["python"] or next(of_conda, ""):
                return PackageRequirement("python", f"=={python}.*", path, line)
    for path in list_guides(files):
        lines = enumerate(_split_lines(files.read(path, "guide") or ""), 1)
        found = ((line, _PYTHON_IN_PROSE.search(text)) for line, text in lines if not UNSUITED.search(text))
        for line, named in ((line, named) for line, named in found if named):
            is_open = named["oldest"] or named["more"]
            limit = f",<3.{int(named['last']) + 1}" if named["last"] else ""
            specifier = f">={named['first']}{limit}" if is_open or limit else f"=={named['first']}.*"
            return PackageRequirement("python", specifier, path, line)
    return None


def has_node_steps(files: ProjectFiles) -> bool:
    """Return whether a guide has its reader install packages of JavaScript."""
    return any(_OF_NODE.search(files.read(path, "guide") or "") for path in list_guides(files))


def list_guides(files: ProjectFiles) -> Iterator[str]:
    """List the guides, and after them the scripts that their names say install the project."""
    paths = [f"{folder}{name}" for folder in _FOLDERS for name in files.names(folder or ".")]
    yield from (each for each in paths if _GUIDE.fullmatch(each.rpartition("/")[2]))
    scripts = (*files.names("."), *(f"scripts/{name}" for name in files.names("scripts")))
    for path in scripts:
        if _SCRIPT.fullmatch(path.rpartition("/")[2]) and not _OTHER_MACHINE.search(path):
            yield path


def _list_own_names(files: ProjectFiles, own: str) -> set[str]:
    names = (own, files.folder.rpartition("/")[2], *_OWN_NAME.findall(files.read(SETUP_PY, "build") or ""))
    return {canonicalize_name(name) for name in names if name}


@lru_cache(maxsize=8)
def _list_parts(text: str) -> tuple[tuple[int, re.Match[str], int], ...]:
    """List the commands and environments of a guide with their lines and the number of their section.

    Those of sections aside are left out; a comment in a block of code counts to its end.
    """
    is_section_aside = is_aside = is_code = False
    line, before, section = 1, 0, 0
    deepest = outer = 6  # of Markdown's headings
    found: list[tuple[int, re.Match[str], int]] = []
    for part in _PART.finditer(text):
        if part["fence"]:
            is_code, is_aside = not is_code, is_section_aside
        elif heading := part["heading"] or part["html"]:
            # "Quick start / Demo" is for every reader.
            whole = any(_SETUP.search(each) and not ASIDE.search(each) for each in _AND.split(heading))
            is_aside = (bool(ASIDE.search(heading)) and not whole) or (is_code and is_section_aside)
            is_section_aside = is_section_aside if is_code else is_aside
            depth = part[0].count("#", 0, len(part[0]) - len(heading))
            if not is_code and not (depth > outer and _STEP.match(heading)):
                section, outer = section + 1, depth if _SETUP.search(heading) else deepest
        elif not is_aside:
            line += text.count("\n", before, part.start())
            before = part.start()
            found.append((line, part, section))
    return tuple(found)


def _read_install(install: PackageInstall, path: str, line: int, known: set[str], found: RequirementCollector) -> None:
    tables = load_tables()
    indexed = {*tables.imports.distributions().values(), *tables.compiled.packages, *_OF_TORCH}
    for value in (name_as_on_index(word.value) for word in install.packages):
        # A wheel is of its author's Python and torch: the plan takes that release for its own.
        wheel = WHEEL.search(value)
        value = f"{wheel[1]}=={wheel[2]}" if wheel and canonicalize_name(wheel[1]) in indexed else value
        named = _NAMED.fullmatch(value)
        if "://" in value or value.endswith(".whl"):
            _read_address(value, path, line, known, found)
        elif named and not is_local_path(value):
            name = canonicalize_name(named[1])
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
                # `jax[tpu]` is jax on its author's machine.
                extras = [each for each in (named["extras"] or "").split(",") if not _OTHER_MACHINE.search(each)]
                # A version that a script holds is one that it states, as far as it fits.
                version = "" if path.endswith(".sh") and named[3].startswith("==") else named[3]
                found.need(f"{named[1]}[{','.join(extras)}]{version}", path, line)
                if _is_unisolated(install):
                    found.needs[-1] = replace(found.needs[-1], unisolated_by=f"{path}:{line}")


def _read_address(value: str, path: str, line: int, known: set[str], found: RequirementCollector) -> None:
    """Read a known package of a Git repository, which was newer than its releases; a commit counts before none.

    Others are often for one purpose among many, and compile for long.
    """
    source, tables = _VCS.fullmatch(value), load_tables()
    name = canonicalize_name(source[1]) if source else ""
    earlier = [need for need in found.needs if need.name == name and need.path == path and "@" not in need.url]
    if _find_own_folder(value, found.files):
        return  # It is installed from there.
    if source is None or name not in tables.imports.distributions().values() or name in tables.compiled.packages:
        because = "devkit uses only package names from a guide; put an address into [project] packages in devkit.toml"
        found.exclude(value, path, line, because)
    elif name not in known or (earlier and source[2]):
        known.add(name)
        found.needs = [need for need in found.needs if need not in earlier]
        read_requirement_lines(iter([(line, value)]), path, found)
