"""A project's container files and requirements: the readers are loaded only where it has files for them."""

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from devkit.facts.dependencies import (
    NO_DEPENDENCIES,
    NOTHING_CHOSEN,
    TORCH_FAMILY,
    Dependencies,
    DependencyChoice,
    ImportedPackage,
    PackageRequirement,
    RequirementRole,
)
from devkit.facts.project import Project
from devkit.facts.values import Unknown
from devkit.probe.host import Host, LocalHost, ask_git
from devkit.probe.project.files import (
    C_BUILDS,
    CONTAINER_FILE_NAMES,
    DEPENDENCY_FILE_NAMES,
    OTHER_LANGUAGES,
    ProjectFiles,
)

MAX_LOCK_BYTES = 4 << 20
"""A lock file of a large project holds two mebibytes."""
_DEVELOPMENT = re.compile(r"dev(?:elop(?:ment)?)?|tests?|testing", re.IGNORECASE)
"""Names of extras and groups for those who work on a project."""


def read_local_dependencies(folder: str, choice: DependencyChoice = NOTHING_CHOSEN) -> Dependencies:
    """Read the requirements of a folder of this machine. Without a file that shows any, no reader is loaded."""
    try:
        names = os.listdir(folder)  # noqa: PTH208 - pathlib is what would take the time
    except OSError:
        return NO_DEPENDENCIES
    kinds = (DEPENDENCY_FILE_NAMES, OTHER_LANGUAGES, C_BUILDS)
    is_shown = any(name.endswith(".py") or any(kind.fullmatch(name) for kind in kinds) for name in names)
    below = ("*/requirements.txt", "*/CMakeLists.txt", "*/*/requirements.txt")
    if not (choice.packages or choice.requirements or is_shown or any(any(Path(folder).glob(each)) for each in below)):
        return NO_DEPENDENCIES
    return read_dependencies(LocalHost(), project=folder, choice=choice)


def read_project(host: Host, *, project: str) -> Project | Unknown | None:
    """Read the files of the folder `project`; None when there is no such folder."""
    files = ProjectFiles(host, project)
    found = host.stat(files.folder)
    if found is None or found.kind != "directory":
        return None
    if not any(map(CONTAINER_FILE_NAMES.match, files.names("."))):
        return Project(
            folder=files.folder,
            dev_containers=(),
            services=(),
            dockerfiles=(),
            installs=(),
            locks=(),
            env_files=(),
            files=(),
            main_list="",
            builds=(),
            other_services=(),
        )
    from devkit.probe.project.contents import read_project_contents

    return read_project_contents(files)


def read_dependencies(host: Host, *, project: str, choice: DependencyChoice = NOTHING_CHOSEN) -> Dependencies:
    """Read the requirements of the folder `project`; never raises for what its files contain."""
    from devkit.probe.dependencies.framework import find_cuda_build, find_framework
    from devkit.probe.dependencies.local_builds import find_local_builds, read_submodules
    from devkit.probe.dependencies.package_manager import read_with_package_manager
    from devkit.probe.dependencies.system_packages import find_started_programs, find_system_packages

    files = ProjectFiles(host, project, most_bytes=MAX_LOCK_BYTES)
    found = read_with_package_manager(files, choice)
    builds = find_local_builds(files, (each.place for each in found.local))
    modules = read_submodules(files)
    framework, because = find_framework(files, found)
    whole: dict[str, Any] = {
        "name": found.name or next((each.name for each in builds if each.path == "."), ""),
        "builds": builds,
        "system": find_system_packages(files, found.files),
        "programs": find_started_programs(files),
        "submodules": modules,
        "missing_submodules": tuple(path for path in modules if not files.names(path)),
        "uses_lfs": "filter=lfs" in (files.read(".gitattributes", "attributes") or ""),
        "framework": framework,
        "framework_because": because,
        "cuda_build": find_cuda_build(files),
    }
    variants = (replace(each, dependencies=replace(each.dependencies, **whole)) for each in found.torch_builds)
    without = found.without_guide and replace(found.without_guide, **whole)
    return replace(found, **whole, torch_builds=tuple(variants), without_guide=without)


def read_local_imports(
    folder: str, dependencies: Dependencies, *, is_for_work: bool = False
) -> tuple[ImportedPackage, ...]:
    """Read which packages the programs in a folder of this machine import and no file of the project asks for.

    For work on the project, those count that its tests import and its functions, below `try` too, and are quick to install.
    """
    from devkit.compat.version_tables import load_tables
    from devkit.probe.dependencies.imports import find_imported_packages
    from devkit.probe.dependencies.requirement_lists import list_named_packages

    # What an extra brings is known to the project, chosen or not.
    available = dependencies.available
    everything = DependencyChoice((*dependencies.extras, *available.extras), (*dependencies.groups, *available.groups))
    whole = read_local_dependencies(folder, everything) if available != NOTHING_CHOSEN else dependencies
    asks = dependencies.asks_for_packages
    guided = {need.name: need for need in (read_local_guide(folder, dependencies) if asks else ())}
    files, imports = ProjectFiles(LocalHost(), folder), load_tables().imports
    declared = {need.name for need in (*dependencies.needs, *whole.needs)} | {each.name for each in dependencies.conda}
    named = {name.replace("-", "_"): name for name in guided}
    known = named | imports.distributions(with_compiled=asks)
    found = find_imported_packages(files, declared=declared, distributions=known)
    if is_for_work:
        # Any list of the project may name a package that no table has. Another framework brings CUDA once more.
        names = {*list_named_packages(files)} - {*load_tables().compiled.packages, *TORCH_FAMILY}
        known = {name.replace("-", "_"): name for name in names} | named | imports.distributions()
        rows = (row for row in load_tables().frameworks.packages if row.framework != dependencies.framework)
        others = {name for row in rows if not row.flexible for name in row.names}
        known = {module: name for module, name in known.items() if name not in others}
        declared |= {each.name for each in found}
        found += find_imported_packages(files, declared=declared, distributions=known, is_for_work=True)
    return tuple(replace(each, guide=guided.get(each.name)) for each in found)


def confirm_packages(folder: str, packages: Mapping[str, str]) -> dict[str, str]:
    """Return those of the packages by module whose newest wheel has all that the programs in a folder use of the module.

    The index is asked; what it does not answer in time is not confirmed, and neither is anything where it may not be asked.
    """
    from devkit.probe.dependencies.imports import list_uses, read_programs
    from devkit.probe.package_indexes import find_offline_setting
    from devkit.probe.release_names import DEADLINE_S, has_names
    from devkit.probe.wheel_files import run_side_by_side

    if not packages or find_offline_setting():
        return {}
    programs = read_programs(ProjectFiles(LocalHost(), folder), is_library=False, with_tests=True)
    uses = {name for _, text in programs for name, _ in list_uses(text, packages)}
    tasks = {
        module: partial(has_names, name, {module, *(each for each in uses if each.partition(".")[0] == module)})
        for module, name in packages.items()
    }
    confirmed = run_side_by_side(tasks, DEADLINE_S)
    return {module: name for module, name in packages.items() if confirmed.get(module)}


def find_development_choice(folder: str, dependencies: Dependencies) -> DependencyChoice:
    """Find the extras and groups for work on a project: those for development and tests, and extras that programs import.

    An import counts wherever it stands: mostly below `try`. Extras that bring a build of torch are left to the plan, which
    takes the one that fits.
    """
    from devkit.compat.version_tables import load_tables
    from devkit.probe.dependencies.imports import IMPORT, read_programs
    from devkit.probe.dependencies.requirement_lists import is_for_all

    distributions = load_tables().imports.distributions(with_compiled=True)
    offered = _read_offers(folder, dependencies)
    names = {name.replace("-", "_"): name for each in offered.values() for name in each} | distributions
    files = ProjectFiles(LocalHost(), folder)
    programs = read_programs(files, is_library=False, with_tests=True)
    imported = {names.get(module, "") for _, text in programs for module in IMPORT.findall(text)}
    return DependencyChoice(
        extras=tuple(
            each
            for each, brings in offered.items()
            if _DEVELOPMENT.fullmatch(each) or (brings & imported and is_for_all(each))
        ),
        groups=tuple(filter(_DEVELOPMENT.fullmatch, dependencies.available.groups)),
    )


def find_listing_extra(folder: str, dependencies: Dependencies, names: Collection[str]) -> str:
    """Find the extra that lists the most of these packages and not more others, "" for none."""
    from devkit.probe.dependencies.requirement_lists import is_for_all

    offers = {extra: brings for extra, brings in _read_offers(folder, dependencies).items() if is_for_all(extra)}
    others = {extra: len(brings - {*names}) - len(brings & {*names}) for extra, brings in offers.items() if brings}
    return min((extra for extra in others if others[extra] <= 0), key=lambda extra: others[extra], default="")


def _read_offers(folder: str, dependencies: Dependencies) -> dict[str, set[str]]:
    """Read what each extra adds that is not chosen and brings no build of torch, which the plan chooses."""
    builds = {each.choice for each in dependencies.torch_builds}
    # A lock limits what no extra in use brings, too.
    own = {need.name for need in dependencies.needs if need.role is not RequirementRole.CONSTRAINT}
    offered: dict[str, set[str]] = {}
    for extra in dependencies.available.extras:
        if f"--extra {extra}" not in builds:
            choice = DependencyChoice((*dependencies.extras, extra), dependencies.groups)
            offered[extra] = {need.name for need in read_local_dependencies(folder, choice).needs} - own
    return offered


def read_local_guide(folder: str, dependencies: Dependencies) -> tuple[PackageRequirement, ...]:
    """Read which packages the guide in a folder of this machine installs and no file of the project asks for."""
    from devkit.probe.dependencies.guides import list_guide_packages
    from devkit.probe.dependencies.imports import is_among

    declared = [need.name for need in dependencies.needs]
    found = list_guide_packages(ProjectFiles(LocalHost(), folder), own=dependencies.name)
    return tuple(need for need in found if not is_among(need.name, declared))


_CODE = (
    *("*.py", "*.pyx", "*.ipynb", "*.cu", "*.cpp"),
    *("pyproject.toml", "setup.cfg", "*requirements*.txt", "environment*.yml", "environment*.yaml"),
)
"""A change of these alone counts: the README of an abandoned project is still corrected."""


def read_last_change(root: Path) -> str:
    """Return the day of the last commit below `root` that changed code or requirements, "" without a history."""
    words = ("-c", "log.showSignature=false", "log", "--max-count=1", "--format=%cs", "--", *_CODE)
    done = ask_git(root, *words)
    day = done.out.strip()
    return day if done.code == 0 and re.fullmatch(r"\d{4}-\d\d-\d\d", day) else ""
