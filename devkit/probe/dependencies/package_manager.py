"""The package manager of a project, and the files that it reads."""

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

from devkit.compat.specifiers import canonicalize_name
from devkit.facts.dependencies import (
    NO_DEPENDENCIES,
    NOTHING_CHOSEN,
    OUTSIDE_OF_PROJECT,
    SETTINGS_FILE,
    Dependencies,
    DependencyChoice,
    LocalPackage,
    PackageManager,
    RequirementRole,
    TorchBuild,
)
from devkit.probe.dependencies.conda import (
    ENVIRONMENTS,
    choose_conda_packages,
    find_other_system,
    read_conda_environment,
    read_list,
)
from devkit.probe.dependencies.guides import (
    ALL_EXTRAS,
    InstallFiles,
    add_guide_packages,
    find_guide_python,
    find_install_files,
    find_own_extras,
    has_node_steps,
    list_not_followed,
    read_guides,
)
from devkit.probe.dependencies.local_builds import find_own_packages
from devkit.probe.dependencies.lock_files import (
    add_locked_packages,
    find_torch_only_packages,
    fits_poetry,
    fits_uv,
    parse_lock,
    select_installed,
)
from devkit.probe.dependencies.manifests import (
    DEV_GROUP,
    PIPFILE,
    PIPFILE_LOCK,
    PYPROJECT,
    SETUP_CFG,
    read_hatch_environment,
    read_pipfile,
    read_pipfile_lock,
    read_poetry,
    read_project_table,
    read_setup_cfg,
    read_toml_file,
    read_workspace,
)
from devkit.probe.dependencies.requirement_lists import (
    DEVELOPMENT_LISTS,
    MAIN_LISTS,
    choose_main_list,
    find_lists,
    is_for_all,
)
from devkit.probe.dependencies.requirements import (
    VCS,
    RequirementCollector,
    number_lines,
)
from devkit.probe.dependencies.setup_py import SETUP_PY, read_setup_py
from devkit.probe.dependencies.stated import read_stated
from devkit.probe.documents import LineFinder, find_toml_line, get_object, get_objects, get_text
from devkit.probe.project.dockerfile import is_ignored, parse_ignore_file
from devkit.probe.project.files import DEPENDENCY_FILE_NAMES, MAX_FOLDERS, ProjectFiles
from devkit.text import join_some, join_words

PYTHON_VERSION = ".python-version"
POETRY_LOCK = "poetry.lock"
IGNORE = ".dockerignore"
NOT_READ = {
    "pixi.toml": "`pixi workspace export conda-environment environment.yml` writes what devkit reads",
    **dict.fromkeys(("conda-lock.yml", "conda-lock.yaml"), "devkit reads the environment.yml behind it"),
}
"""Files of tools whose formats devkit does not read, each with what it reads instead."""
_BY_FILE = (
    (PackageManager.UV, ("uv.lock",)),
    (PackageManager.POETRY, (POETRY_LOCK,)),
    (PackageManager.PDM, ("pdm.lock",)),
    (PackageManager.PIPENV, (PIPFILE_LOCK, PIPFILE)),
    (PackageManager.CONDA, ENVIRONMENTS),
)
_DATED = re.compile(r"^exclude-newer\b", re.MULTILINE)
_PYTHON = re.compile(r"(?:cpython-?)?(\d+\.\d+)(?:\.\d+)?")


def read_with_package_manager(files: ProjectFiles, choice: DependencyChoice) -> Dependencies:
    """Read the project's requirements from the files of the package manager that it uses, with the chosen extras."""
    found = RequirementCollector(files, choice)
    read = read_toml_file(PYPROJECT, found) if files.has(PYPROJECT) else None
    document, content = read or ({}, "")
    name = get_text(get_object(document, "project"), "name") or get_text(get_object(document, "tool", "poetry"), "name")
    lists = find_lists(files)
    installed = find_install_files(files) if not (choice.requirements or choice.no_guide) else None
    main, shown, tool, because, named, environment = _choose_source(document, found, lists, installed)
    read_workspace(document, content, found)
    lock, family = _read(tool, document, content, found, named, environment)
    if shown_below := _add_below(installed, lists, found, own=name):
        tool, because = PackageManager.PIP, shown_below
    # A list of another name counts where nothing else says what the project needs.
    asks = any(need.role is not RequirementRole.CONSTRAINT for need in found.needs)
    if main and main not in found.paths and not lock and not asks:
        found.role = RequirementRole.PASSED_THROUGH
        read_list(main, found)
        if not found.is_whole:
            found.generate_lists()
        because = shown if tool is PackageManager.NONE else f"{because}, and {shown}"
        because += _name_other_programs(main, files)
        tool = tool if tool is PackageManager.CONDA else PackageManager.PIP
    if not lock:
        _take_own_packages(found)
        # Two files may call one package by its name and by its repository's: `SAM-2 @ git+…/sam2.git` is sam2, too.
        sources = {need.name: VCS.match(need.url) for need in found.needs if need.url}
        called = {name: canonicalize_name(each[1]) for name, each in sources.items() if each}
        twice = {
            each for name, each in called.items() if each.replace("-", "") == name.replace("-", "")
        } - sources.keys()
        found.needs = [need for need in found.needs if need.name not in twice]
    found.role = RequirementRole.GENERATED
    says_nothing = not (main or lock or found.needs or found.conda or found.local or found.unread or found.is_computed)
    if says_nothing and (guide := read_guides(found, own=name)):
        because = f"{guide} has its reader install packages"
        tool = PackageManager.PIP if tool is PackageManager.NONE else tool
    _name_unread_formats(tool, document, content, found)
    builds = tuple(_read_torch_builds(document, found))
    if found.extras and not found.choice.extras:
        extras, origin = find_own_extras(files, own=name)
        # The extra that brings a build of torch follows from the machine, not from that of the guide's author.
        of_torch = {build.choice for build in builds}
        open_extras = [each for each in found.extras if f"--extra {each}" not in of_torch]
        if known := tuple(each for each in open_extras if extras == ALL_EXTRAS or each in extras):
            whole = read_with_package_manager(files, replace(choice, extras=known))
            # What only the build knows may not compile when the container opens; the project itself does without it.
            if found.is_computed or not whole.is_computed:
                return replace(whole, extras_origin=origin)
    conda = choose_conda_packages(found) if found.conda else ()
    for package in choice.packages:
        found.need(package, SETTINGS_FILE, 1)
    found.paths += [SETTINGS_FILE] if choice.packages else []
    if choice.packages and tool is PackageManager.NONE:
        tool, because = PackageManager.PIP, f"{SETTINGS_FILE} names packages"
    _python_version(found)
    lock = _leave_out_hidden(found, lock)
    if not found.paths and not found.unread and not lists and not choice.packages:
        return NO_DEPENDENCIES
    # uv compares a lock where it has all that the lock was made from: folders, and a date that its user's settings held.
    has_members = "workspace" in get_object(document, "tool", "uv")
    is_local = bool(found.local) or any(each.because == OUTSIDE_OF_PROJECT for each in found.left_out)
    # Each tool has its own key for "this is not a package".
    tables = get_object(document, "tool")
    says = (("poetry", "package-mode"), ("uv", "package"), ("pdm", "distribution"))
    is_no_package = any(get_object(tables, name).get(key) is False for name, key in says)
    without = read_with_package_manager(files, replace(choice, no_guide=True)) if installed else None
    return Dependencies(
        tool=tool,
        because=because,
        without_guide=without,
        files=tuple(found.paths),
        lock=lock,
        set_aside=tuple(
            name for _, names in _BY_FILE for name in names if files.has(name) and name not in (*found.paths, lock)
        ),
        lists=tuple(found.lists),
        included=tuple(found.included),
        extras=tuple(name for name, is_chosen in found.extras.items() if is_chosen),
        groups=tuple(name for name, is_installed in found.groups.items() if is_installed),
        available=DependencyChoice(
            extras=tuple(name for name, is_chosen in found.extras.items() if not is_chosen),
            groups=tuple(name for name, is_installed in found.groups.items() if not is_installed),
            requirements=tuple(path for path in lists if path not in found.paths),
        ),
        torch_builds=builds,
        needs=tuple(found.needs),
        python=tuple(found.python),
        guide_python=find_guide_python(files),
        stated=() if lock or choice.no_guide else read_stated(found),
        indexes=tuple(found.indexes),
        unread=tuple(found.unread),
        left_out=tuple(found.left_out),
        not_followed=()
        if choice.no_guide
        else tuple(list_not_followed(found, own=name, origin=installed.origin if installed else "")),
        local=tuple(found.local),
        conda=conda,
        conda_channels=tuple(dict.fromkeys(found.conda_channels)),
        torch_family=family,
        has_members=has_members,
        can_check_lock=not (has_members or is_local or found.is_lock_dated),
        name=canonicalize_name(name),
        is_computed=found.is_computed,
        builds_itself=not is_no_package and ("build-system" in document or files.has(SETUP_PY)),
    )


def _name_other_programs(main: str, files: ProjectFiles) -> str:
    """Name the folders besides that of a list below the project's own that have programs and a guide to them; "" for none."""
    own, nested, _ = main.partition("/")
    folders = [each for each in files.names(".") if nested and "." not in each and each != own][:MAX_FOLDERS]
    inner = ((each, " ".join(files.names(each))) for each in folders)
    others = [each for each, names in inner if re.search(r"(?i)\breadme", names) and re.search(r"\.py\b", names)]
    says = "other programs with their own guides, which `devkit init FOLDER` plans"
    return f"; {join_some(others)}: {says}" if others else ""


def _choose_source(
    document: dict[str, Any], found: RequirementCollector, lists: tuple[str, ...], installed: InstallFiles | None
) -> tuple[str, str, PackageManager, str, tuple[str, ...], str]:
    """Choose what counts: the user's lists, then those of the guide's installation section, then files by their names.

    Returns: the main list and what shows it, the tool and what shows it, the lists to read, and the environment of conda.
    """
    main, shown = choose_main_list(found.files, lists)
    if chosen := found.choice.requirements:
        return main, shown, PackageManager.PIP, f"{join_words(chosen)} was chosen", chosen, ""
    if installed is None:
        is_usual = main in MAIN_LISTS
        tool, because = _tool(document, found, shown if is_usual else "")
        environment = next(filter(found.files.has, ENVIRONMENTS), "")
        return main, shown, tool, because, (main,) if is_usual and tool is PackageManager.PIP else (), environment
    named = tuple(filter(is_for_all, installed.lists)) or installed.lists
    shown = join_words([*filter(None, (installed.conda,)), *named] or ["the packages"])
    because = f"{installed.origin} installs {shown}"
    if installed.conda:
        return "", because, PackageManager.CONDA, because, named, installed.conda
    return next(iter(named), ""), because, PackageManager.PIP, because, named, ""


def _leave_out_hidden(found: RequirementCollector, lock: str) -> str:
    """Leave out what the project's .dockerignore keeps from the build of an image; return the lock, "" for a hidden one."""
    paths = (*found.lists, *found.included, *((PYPROJECT, lock) if lock else ()))
    ignored = parse_ignore_file(found.files.read(IGNORE, "ignore") or "") if paths else []
    hidden = [path for path in dict.fromkeys(paths) if is_ignored(path, ignored)]
    for path in hidden:
        found.add_unreadable(IGNORE, 1, f"it hides {path} from the image build; add the line !{path}")
    if hidden:
        found.generate_lists()
    return "" if lock in hidden or PYPROJECT in hidden else lock


def _add_below(installed: InstallFiles | None, lists: tuple[str, ...], found: RequirementCollector, *, own: str) -> str:
    """Add what the guide installs besides its files, else the only package below a folder that says nothing of packages.

    Returns: what shows that package, "" for none.
    """
    if installed:
        unisolated = dict(installed.unisolated)
        found.needs = [replace(each, unisolated_by=unisolated.get(each.path, "")) for each in found.needs]
        if any(need.unisolated_by and need.url for need in found.needs):
            found.generate_lists()  # an address of what is built without isolation is for no installer
        for folder, origin in installed.folders:
            _add_folder(folder, origin, found)
        add_guide_packages(installed, found, own=own)
    names = found.files.names(".")
    if installed or lists or found.choice.no_guide or any(map(DEPENDENCY_FILE_NAMES.fullmatch, names)):
        return ""
    places = [name for name in names if "." not in name][:MAX_FOLDERS]
    packages = [each for each in places if not {SETUP_PY, PYPROJECT}.isdisjoint(found.files.names(each))]
    if len(packages) != 1:
        return ""
    _add_folder(packages[0], packages[0], found)
    return f"{packages[0]} is the only package here"


def _add_folder(folder: str, origin: str, found: RequirementCollector) -> None:
    """Add a package below the project's folder with what its own files ask for, which `origin` has installed."""
    files = ProjectFiles(found.files.host, found.files.absolute(folder))
    inner = read_with_package_manager(files, replace(NOTHING_CHOSEN, no_guide=True))
    path, _, line = origin.partition(":")
    # A git submodule that is not fetched is an empty folder.
    if inner.builds_itself or not files.names("."):
        found.local.append(LocalPackage(folder, path, int(line or 1)))
    found.paths += [f"{folder}/{each}" for each in inner.files]
    found.is_computed |= inner.is_computed
    found.python += [replace(each, path=f"{folder}/{each.path}") for each in inner.python]
    found.unread += [replace(each, path=f"{folder}/{each.path}") for each in inner.unread]
    for need in inner.needs:
        role = RequirementRole.CONSTRAINT if need.role is RequirementRole.CONSTRAINT else RequirementRole.GENERATED
        found.needs.append(replace(need, path=f"{folder}/{need.path}", role=role))


def _take_own_packages(found: RequirementCollector) -> None:
    """Take requirements that a folder of the project is the package of from there: the registry may have none or another."""
    own = find_own_packages(found.files) if found.needs else {}
    local = [need for need in found.needs if need.name in own and not need.url]
    if not local:
        return
    if any(need.role is RequirementRole.PASSED_THROUGH for need in local):
        found.generate_lists()
    found.needs = [need for need in found.needs if need.name not in own or need.url]
    for need in local:
        if need.role is not RequirementRole.CONSTRAINT:
            found.need_local(own[need.name], "", 1)
            found.local[-1] = replace(found.local[-1], path=need.path, line=need.line)


def _name_unread_formats(
    tool: PackageManager, document: dict[str, Any], content: str, found: RequirementCollector
) -> None:
    for path in filter(found.files.has, NOT_READ if tool is not PackageManager.CONDA else ()):
        found.add_unreadable(path, 1, NOT_READ[path])
    if "pixi" in get_object(document, "tool"):
        found.add_unreadable(PYPROJECT, LineFinder(content).find("[tool.pixi"), NOT_READ["pixi.toml"])
    if found.needs and has_node_steps(found.files):
        folders = ("", *(f"{name}/" for name in found.files.names(".") if "." not in name))
        manifests = (
            path for path in (f"{each}package.json" for each in folders[:MAX_FOLDERS]) if found.files.has(path)
        )
        for path in islice(manifests, 1):
            found.exclude("packages of JavaScript", path, 1, "--apt nodejs --apt npm adds Debian's Node.js")


def _read_torch_builds(document: dict[str, Any], found: RequirementCollector) -> Iterator[TorchBuild]:
    """Read what each extra or group brings that takes torch from its own index; nothing where one is chosen.

    Source: https://docs.astral.sh/uv/guides/integration/pytorch/.
    """
    uv = get_object(document, "tool", "uv")
    urls = {get_text(index, "name"): get_text(index, "url") for index in get_objects(uv, "index")}
    sources = get_objects(get_object(uv, "sources"), "torch")
    ways = [(kind, get_text(source, kind), source) for source in sources for kind in ("extra", "group")]
    offered = [(kind, name, source) for kind, name, source in ways if name in getattr(found, f"{kind}s")]
    if any(getattr(found, f"{kind}s")[name] for kind, name, _ in offered):
        return
    for kind, name, source in offered:
        label = urls.get(get_text(source, "index"), "").rstrip("/").rpartition("/")[2]
        more: Any = {f"{kind}s": (*getattr(found.choice, f"{kind}s"), name)}
        dependencies = read_with_package_manager(found.files, replace(found.choice, **more))
        yield TorchBuild(label, f"--{kind} {name}", dependencies)


def _tool(document: dict[str, Any], found: RequirementCollector, shown: str) -> tuple[PackageManager, str]:
    """The tool and what shows it: its lock or own file, then a list for pip, then what pyproject.toml holds."""
    files = found.files
    for tool, names in _BY_FILE:
        if not _fits_lock(tool, document, files):
            continue
        if name := next((name for name in names if files.has(name)), ""):
            system = find_other_system(files.read(name, "dependencies") or "") if tool is PackageManager.CONDA else ""
            if not system or not (shown or any(map(files.has, (PYPROJECT, SETUP_PY, SETUP_CFG)))):
                return tool, f"the project has {name}"
            found.exclude("its packages", name, 1, f"it was exported on {system}")
    tables = get_object(document, "tool")
    if "dependencies" in get_object(tables, "poetry"):
        return PackageManager.POETRY, f"{PYPROJECT} has a table [tool.poetry]"
    # A list for pip goes before settings of uv and PDM, which may be there for other purposes as well.
    for tool, key in ((PackageManager.UV, "uv"), (PackageManager.PDM, "pdm")):
        if key in tables and not shown:
            return tool, f"{PYPROJECT} has a table [tool.{key}]"
    others = (*DEVELOPMENT_LISTS, PYPROJECT, SETUP_PY, SETUP_CFG)
    shown = shown or next((f"the project has {name}" for name in others if files.has(name)), "")
    return (PackageManager.PIP, shown) if shown else (PackageManager.NONE, NO_DEPENDENCIES.because)


def _fits_lock(tool: PackageManager, document: dict[str, Any], files: ProjectFiles) -> bool:
    """Return whether the lock of a tool, if the project has one, was made from its pyproject.toml."""
    path = f"{tool.lower()}.lock"
    fits = {PackageManager.UV: fits_uv, PackageManager.POETRY: fits_poetry}.get(tool)
    return fits is None or not files.has(path) or fits(document, files.read(path, "dependencies") or "")


def _read(
    tool: PackageManager,
    document: dict[str, Any],
    content: str,
    found: RequirementCollector,
    lists: tuple[str, ...],
    environment: str,
) -> tuple[str, tuple[str, ...]]:
    """The files of the tool: the path of its lock, "" for none, and what this holds for torch alone.

    `lists` and `environment` are those of the guide or the user, or the usual ones.
    """
    match tool:
        case PackageManager.UV | PackageManager.POETRY | PackageManager.PDM:
            return _of_pyproject(tool, document, content, found)
        case PackageManager.PIPENV:
            found.role = RequirementRole.GENERATED
            read_pipfile(found)
            return read_pipfile_lock(found) if found.files.has(PIPFILE_LOCK) else ("", ())
        case PackageManager.CONDA:
            found.role = RequirementRole.GENERATED
            read_conda_environment(environment, found)
            found.role = RequirementRole.PASSED_THROUGH
            for path in lists:
                if path not in found.paths:
                    read_list(path, found)
            if not found.is_whole:
                found.generate_lists()
        case PackageManager.PIP:
            _of_pip(document, content, found, lists)
        case PackageManager.NONE:
            pass
    return "", ()


def _of_pyproject(
    tool: PackageManager, document: dict[str, Any], content: str, found: RequirementCollector
) -> tuple[str, tuple[str, ...]]:
    """pyproject.toml, and the lock beside it: its path, and what it holds for torch alone."""
    read_project_table(document, content, found)
    if tool is PackageManager.POETRY:
        found.role = RequirementRole.GENERATED
        read_poetry(document, content, found)
    path = f"{tool.lower()}.lock"
    if not found.files.has(path) or not _fits_lock(tool, document, found.files):
        return "", ()
    locked = found.text(path)
    if locked is None:
        return "", ()
    try:
        packages = parse_lock(locked)
    except ValueError as error:
        found.add_unreadable(path, find_toml_line(error), "it is not TOML")
        return "", ()
    if tool is PackageManager.UV:
        found.is_lock_dated = "exclude-newer" not in get_object(document, "tool", "uv") and bool(_DATED.search(locked))
        chosen = ([name for name, is_in in each.items() if is_in] for each in (found.extras, found.groups))
        packages = select_installed(packages, extras=next(chosen), groups=next(chosen))
    add_locked_packages(packages, path, found)
    return path, find_torch_only_packages(packages, found.needs)


def _of_pip(document: dict[str, Any], content: str, found: RequirementCollector, lists: tuple[str, ...]) -> None:
    """Requirement files, the chosen ones or the usual, and what the project's own metadata asks for besides."""
    for path in lists:
        read_list(found.files.within(path) or path, found)
    for path in () if found.choice.requirements else DEVELOPMENT_LISTS:
        if found.files.has(path):
            read_list(path, found, group=DEV_GROUP)
    if not found.is_whole:
        found.generate_lists()
    read_project_table(document, content, found)
    found.role = RequirementRole.GENERATED
    lines = LineFinder(content)
    for entry in read_hatch_environment(document):
        found.need(entry, PYPROJECT, lines.find(entry), group="hatch")
    if not get_object(document, "project"):
        if found.files.has(SETUP_CFG):
            read_setup_cfg(found)
        if found.files.has(SETUP_PY):
            read_setup_py(found)


def _python_version(found: RequirementCollector) -> None:
    """The first line of .python-version, as pyenv and uv read it."""
    content = found.text(PYTHON_VERSION) if found.files.has(PYTHON_VERSION) else None
    for number, line in number_lines(content or ""):
        bare = line.partition("#")[0].strip()
        if not bare:
            continue
        version = _PYTHON.fullmatch(bare)
        if version is None:
            found.add_unreadable(PYTHON_VERSION, number, f"{ascii(bare)[:60]} is not a version of CPython")
        else:
            found.add_python(f"=={version[1]}.*", PYTHON_VERSION, number)
        return
