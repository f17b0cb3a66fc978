"""What a project's guide has its reader install: README, INSTALL and others, and after them its scripts for that.

The packages that it names count for a project without a dependency file. For any other count the project's own extras, and
what the project's programs import as well: many guides have their reader install flash-attn after requirements.txt.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import groupby

from devkit.compat.specifiers import canonicalize_name
from devkit.compat.version_tables import load_tables
from devkit.facts.dependencies import (
    NOTHING_CHOSEN,
    TORCH_WHEELS,
    ExcludedPackage,
    PackageRequirement,
    RequirementRole,
)
from devkit.facts.values import MAX_SHOWN_CHARACTERS
from devkit.probe.dependencies.conda import ENVIRONMENTS, read_conda_spec
from devkit.probe.dependencies.imports import read_programs
from devkit.probe.dependencies.local_builds import read_submodules
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
from devkit.probe.dependencies.steps import (
    OTHER_MACHINE,
    TOOLS,
    Step,
    list_guides,
    list_own_names,
    list_steps,
    locate,
    read_lines,
)
from devkit.probe.project.files import DEPENDENCY_FILE_NAMES, ProjectFiles

ALL_EXTRAS = ("*",)
_OF_TORCH = ("torch", "torchvision", "torchaudio")
_MAKES_PYTHON = re.compile(
    r"(?:conda|mamba|micromamba)\b.* python={1,2}(3\.\d+)|uv venv .*?(?:--python|-p)[ =](?:python)?(3\.\d+)"
    r"|virtualenv .*?(?:--python|-p)[ =]\S*python(3\.\d+)|python(3\.\d+) -m venv"
)
_PYTHON_IN_PROSE = re.compile(
    r"(?<![\w./#-])[Pp]ython(?:[ \t]+[Vv]ersion)?[ \t:`*]{0,4}(?P<oldest>(?:>=|≥)?)[ \t`]{0,2}(?P<first>3\.\d+)(?:\.\d+)?"
    r"(?:[ \t]*(?:-|\u2013|to)[ \t]*3\.(?P<last>\d+))?"
    r"(?P<more>[`*)]{0,3}(?:\+|,?[ \t]+(?:or|and)[ \t]+(?:newer|later|higher|above|up|greater)))?"
)
"""A Python in the words of a guide: `Python 3.10`, `Python version 3.10.8`, `Python >= 3.8`, `Python 3.8-3.10`, `Python 3.9+`."""
UNSUITED = re.compile(r"(?i)\b(?:not?|never|without|drop\w*|below|older|deprecat\w*|unsupported)\b|n't\b")
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
    known = {*list_own_names(found.files, own), *TOOLS}
    for path in list_guides(found.files):
        before = len(found.needs) + len(found.conda)
        found.role = RequirementRole.GENERATED
        for step in list_followed(found.files, path):
            _read_install(step, known, found)
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
    names = list_own_names(files, own)
    for path in list_guides(files):
        for step in list_followed(files, path):
            for value in step.packages:
                named = _NAMED.fullmatch(value)
                own_named = named if named and canonicalize_name(named[1]) in names else _ITSELF.fullmatch(value)
                if (named := own_named) and not step.folder:
                    return tuple((named["extras"] or "").replace(",", " ").split()), step.origin
            words = step.command.values
            if words[:2] == ("uv", "sync"):
                extras = re.findall(r"--extra[ =]([\w.-]+)", " ".join(words))
                return ALL_EXTRAS if "--all-extras" in words else tuple(extras), step.origin
    return (), ""


@dataclass(frozen=True)
class InstallFiles:
    """The files that the installation section of a guide has its reader install from, the first of them at `origin`.

    `conda` is an environment.yml, "" for none, `lists` are requirement files, `folders` packages of the project's own below
    its folder, each with its file and line, `steps` what the section runs. `unisolated` are the lists whose packages are
    built without isolation, each with the line that says so.
    """

    origin: str
    conda: str = ""
    lists: tuple[str, ...] = ()
    folders: tuple[tuple[str, str], ...] = ()
    steps: tuple[Step, ...] = ()
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
        for _, group in groupby(list_followed(files, path), key=lambda step: step.section):
            found: InstallFiles | None = None
            named_first = ""
            folders: dict[str, str] = {}
            for step in (steps := list(group)):
                conda, lists, _ = _find_named_files(step, files)
                # `pip install -r requirements/<see the table>` has its reader choose.
                is_open = step.path == path and any(re.search(r"[<{$]", each) for each in step.lists)
                if is_open or (found is None and step.command.values[:2] in _SYNCS):
                    return None
                inner = [*_find_package_folders(step, files)]
                folders |= {each: step.origin for each in inner if each not in folders}
                words = map(_NAMED.fullmatch, (each for each in step.packages if not is_local_path(each)))
                named = {each[1] for each in words if each} - TOOLS
                # A script of the project's own is a guide that was tried.
                is_run = step.path != path or (is_bare and path.endswith(".sh"))
                installs = conda or lists or (is_bare and inner) or (is_run and named)
                if found:
                    found = replace(found, lists=tuple(dict.fromkeys((*found.lists, *lists))))
                elif installs:
                    found = InstallFiles(step.origin, conda, lists)
                install = step.install
                if install and install.verb.value == "create" and named:
                    named_first = named_first or step.origin
            whole = InstallFiles(named_first, folders=tuple(folders.items()), steps=tuple(steps))
            made = made or (whole if named_first else None)
            if found:
                # Wherever the guide says so.
                built = (each for each in list_followed(files, path) if _is_unisolated(each))
                unisolated = tuple((name, each.origin) for each in built for name in _find_named_files(each, files)[1])
                return replace(found, folders=whole.folders, steps=whole.steps, unisolated=unisolated)
    return made if any(map(files.has, ENVIRONMENTS)) and not any(map(files.has, MAIN_LISTS)) else None


_SYNCS = (
    ("uv", "sync"),
    *((tool, verb) for tool in ("poetry", "pdm", "pipenv", "pixi") for verb in ("install", "sync")),
)


def list_followed(files: ProjectFiles, path: str) -> Iterator[Step]:
    """List the steps of a guide that a reader with this machine follows."""
    return (step for step in list_steps(files, path) if not step.aside)


def _is_unisolated(step: Step) -> bool:
    options = step.install.options if step.install else ()
    return any(option.value.startswith("--no-build-isolation") for option, _ in options)


def _find_package_folders(step: Step, files: ProjectFiles) -> Iterator[str]:
    """Find the packages below the project's folder that a step installs, in git submodules that are not fetched as well."""
    install = step.install
    named = (*(install.option_values("--editable") if install else ()), *step.packages)
    written = [each for each in (_EXTRAS.sub("", each) for each in named) if is_local_path(each)]
    if install and any(option.value in ("-e", "--editable") for option, _ in install.options):
        # What can be edited is a folder, with or without a slash, and with what its author takes for its name.
        written += [found[1] for found in map(_NAMED.fullmatch, named) if found]
    local = (files.within(each, beside=step.folder) for each in written)
    modules = read_submodules(files)
    for place in (*local, *(_find_own_folder(each, files) for each in named)):
        near = _find_near(place, files) if place and place != "." else ""
        if near and (near in modules or not {SETUP_PY, PYPROJECT}.isdisjoint(files.names(near))):
            yield near


def _find_own_folder(address: str, files: ProjectFiles) -> str:
    """Find the folder that an address of the project's own repository names; "" for another address."""
    source, _, inner = address.partition("#subdirectory=")
    named = _VCS.fullmatch(source)
    is_own = named and canonicalize_name(named[1]) in list_own_names(files, "")
    return files.within(inner.partition("&")[0]) or "" if is_own and inner else ""


def _find_named_files(step: Step, files: ProjectFiles) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """Find the environment of conda and the requirement files that a step installs from, and what of them does not exist."""
    is_conda = step.command.values[1:2] == ("env",) and step.command.program.endswith(("conda", "mamba"))
    named = re.search(r"(?:-f|--file)[ =](\S+)", " ".join(step.command.values)) if is_conda else None
    names = [each for each in (named.groups() if named else step.lists) if not re.search(r"://|[<{$]", each)]
    places = {each: files.within(each, beside=step.folder) or "" for each in names}
    near = {each: _find_near(place, files) for each, place in places.items()}
    if is_conda and not named:
        near = {each: each for each in (f"{step.folder}{name}" for name in ENVIRONMENTS) if files.has(each)}
    exist = tuple(filter(None, near.values()))
    missing = tuple(each for each, place in near.items() if not place)
    return (next(iter(exist), ""), (), missing) if is_conda else ("", exist, missing)


def _find_near(path: str, files: ProjectFiles) -> str:
    """Find a file that a guide names, or the one whose name its author misspelled; "" for neither."""
    path = locate(path, files)
    folder, slash, name = path.rpartition("/")
    names = files.names(folder or ".")
    same = [each for each in names if canonicalize_name(each) == canonicalize_name(name)]
    near = [name] if files.has(path) else same or get_close_matches(name, names, 1, cutoff=0.9)
    return f"{folder}{slash}{near[0]}" if near else ""


def list_not_followed(found: RequirementCollector, *, own: str, origin: str) -> Iterator[ExcludedPackage]:
    """List the steps of the guides that install something besides `found` and are not followed, each with its reason.

    `origin` is the step that chose the section that is followed, "" where the project's own files count. Packages that only
    a guide names are known otherwise.
    """
    known = {*list_own_names(found.files, own), *TOOLS, *(need.name for need in found.needs), *found.paths}
    known |= {name for _, name, _ in found.conda} | {each.place for each in found.local}
    said = {f"{each.path}:{each.line}" for each in found.left_out}
    steps = [each for path in list_guides(found.files) for each in list_steps(found.files, path)]
    followed = {each.origin for each in steps if not each.aside}
    for step in (each for each in steps if not (each.aside and each.origin in followed)):
        install, because = step.install, step.aside
        _, lists, missing = _find_named_files(step, found.files)
        named = (_VCS.fullmatch(each) or (because and _NAMED.fullmatch(each)) for each in step.packages)
        wanted = {canonicalize_name(each[1]) for each in named if each} | {*_find_package_folders(step, found.files)}
        wanted |= {*lists} if because else set()
        places = install.option_values("-f", "--find-links", "--extra-index-url") if install else ()
        if missing:
            because = because or f"the project has no {missing[0]}"
        elif wanted - known and not because:
            because = f"{origin} begins what is followed" if origin else "the project's files say what it needs"
        elif not because and any("://" in each and TORCH_WHEELS not in each for each in places):
            because = "the plan chooses the places of packages"
        elif (install and not wanted - known) or {"venv", "virtualenv"} & {*step.command.values}:
            because = ""
        if because and step.origin not in said:
            yield ExcludedPackage(" ".join(step.command.values)[:MAX_SHOWN_CHARACTERS], step.path, step.line, because)
            known |= wanted
            said.add(step.origin)


def add_guide_packages(installed: InstallFiles, found: RequirementCollector, *, own: str) -> None:
    """Add what the section installs besides the files that it names; what these ask for stays as they say it.

    What compiles for hours counts where programs import it.
    """
    compiled = load_tables().compiled.packages
    known = {*list_own_names(found.files, own), *TOOLS, *compiled, *(need.name for need in found.needs)}
    known |= {canonicalize_name(folder.rpartition("/")[2]) for folder, _ in installed.folders}
    role, found.role = found.role, RequirementRole.GENERATED
    for step in installed.steps:
        before = len(found.needs) + len(found.conda)
        _read_install(step, known, found)
        if len(found.needs) + len(found.conda) > before and step.path not in found.paths:
            found.paths.append(step.path)
    found.role = role


def find_guide_python(files: ProjectFiles) -> PackageRequirement | None:
    """Find the Python of the environment that a guide has its reader make, else the one that it asks for; None for neither."""
    for path in list_guides(files):
        for step in list_followed(files, path):
            if python := _MAKES_PYTHON.match(" ".join(step.command.values)):
                return PackageRequirement("python", f"=={next(filter(None, python.groups()))}.*", step.path, step.line)
    for path in list_guides(files):
        for line in read_lines(files.read(path, "guide") or ""):
            if not UNSUITED.search(line.text) and (named := _PYTHON_IN_PROSE.search(line.text)):
                is_open = named["oldest"] or named["more"]
                limit = f",<3.{int(named['last']) + 1}" if named["last"] else ""
                specifier = f">={named['first']}{limit}" if is_open or limit else f"=={named['first']}.*"
                return PackageRequirement("python", specifier, path, line.number)
    return None


def has_node_steps(files: ProjectFiles) -> bool:
    """Return whether a guide has its reader install packages of JavaScript."""
    return any(
        step.command.program in ("npm", "yarn", "pnpm")
        for path in list_guides(files)
        for step in list_steps(files, path)
    )


def _read_install(step: Step, known: set[str], found: RequirementCollector) -> None:
    install, path, line, tables = step.install, step.path, step.line, load_tables()
    indexed = {*tables.imports.distributions().values(), *tables.compiled.packages, *_OF_TORCH}
    for value in map(name_as_on_index, step.packages):
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
            elif install and install.tool == "conda":
                read_conda_spec(value, path, line, found)
            else:
                # `jax[tpu]` is jax on its author's machine.
                extras = [each for each in (named["extras"] or "").split(",") if not OTHER_MACHINE.search(each)]
                # A version that a script holds is one that it states, as far as it fits.
                version = "" if path.endswith(".sh") and named[3].startswith("==") else named[3]
                found.need(f"{named[1]}[{','.join(extras)}]{version}", path, line)
                if _is_unisolated(step):
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
