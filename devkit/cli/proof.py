"""How sure a plan is: what was resolved, what is built from source, and whether the wheels hold what programs import."""

import sys
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from packaging.version import Version

from devkit.compat.version_tables import load_tables
from devkit.facts.dependencies import TORCH_FAMILY, Dependencies, Resolved
from devkit.facts.values import Unknown
from devkit.solver.plan import CompileMode, Plan
from devkit.text import format_count, join_some, join_words

if TYPE_CHECKING:
    from devkit.render.project import DevkitProject
    from devkit.verify.plan_proof import PlanProof

MAX_LACKING = 2
"""Packages of which the first line shows a name that they lack."""
_OF_TORCH = ("torchgen", "functorch", "triton", "nvidia")


def try_plan(project: "DevkitProject", plan: Plan) -> "PlanProof":
    """Try the plan in a throw-away environment, which is removed whatever ends this process."""
    from devkit.cli.terminal import StepPrinter
    from devkit.render.container.settings import find_torch_index
    from devkit.render.project import build_container_settings
    from devkit.verify.plan_proof import prove_plan
    from devkit.verify.process import interrupt_on_termination

    with interrupt_on_termination(), closing(StepPrinter()) as progress:
        index = find_torch_index(plan, build_container_settings(project))
        return prove_plan(
            project.root, project.dependencies, plan, project.settings.command, progress, torch_index=index
        )


def describe_proof(root: Path, dependencies: Dependencies, plan: Plan) -> str:
    """Describe in one line how far the plan is proven. Reads the file lists of wheels on the index, each once."""
    found = plan.resolution
    if isinstance(found, Unknown):
        return f"not checked: {found.reason}"
    if not isinstance(found, Resolved):
        return "resolved with the version tables; the project does not require any package"
    wheels = {each.name for each in plan.compiled if each.mode is CompileMode.WHEEL}
    built = [f"{name} {dict(found.packages)[name]}" for name in found.from_source if name not in wheels]
    says = [f"{len(built)} built from source ({join_some(built)})"] if built else []
    if others := [name for name, pythons in found.elsewhere if pythons and name not in wheels]:
        says.append(f"{join_words(others)} may not build: the index has wheels, but none for Python {plan.python}")
    read = {each.package for each in found.builds} | wheels
    if unknown := [name for name in found.from_source if name not in read]:
        says.append(f"the build requirements of {join_some(unknown)} were not read")
    if found.unread:
        says.append(f"the requirements of {format_count(len(found.unread), 'package')} not checked")
    aside = [*(each.partition("==")[0] for each in plan.overrides), *found.absent]
    unmet = (
        f", but {format_count(len(aside), 'requirement')} cannot be met as written: {join_some(aside)}" if aside else ""
    )
    return "; ".join((f"resolved{unmet}", *says, *_list_imports(root, dependencies, plan, found)))


def _list_imports(root: Path, dependencies: Dependencies, plan: Plan, found: Resolved) -> list[str]:
    """List the imports that no resolved wheel provides, or say that there are none, or that this was not checked."""
    from devkit.probe.dependencies.imports import find_python_2, find_syntax_error, read_programs
    from devkit.probe.host import LocalHost
    from devkit.probe.project.files import ProjectFiles

    own, needed, unread, modules = find_unprovided(root, dependencies, plan, found)
    names = {name for name, _ in found.packages} - {*TORCH_FAMILY}
    if names and names <= {*unread}:
        return ["imports not checked: the index does not list the contents of wheels"]
    programs = list(read_programs(ProjectFiles(LocalHost(), str(root)), is_library=True))
    if not programs:
        return []
    first: dict[str, _Missing] = {}
    for each in (*needed, *own):
        first.setdefault(each[0], each)
    missing = [f"{name} ({path}:{line})" for name, path, line in first.values()]
    doubt = f", {len(unread)} packages not read" if unread else ""
    old = [f"{path}:{line}" for path, text in programs if (line := find_python_2(text))]
    does = "is Python 2 and does" if len(old) == 1 else "are Python 2 and do"
    says = (
        [f"{format_count(len(old), 'program')} {does} not start: {join_some(old)} (2to3 converts such code)"]
        if old
        else []
    )
    is_old = {each.rpartition(":")[0] for each in old}
    if unparsed := [path for path, text in programs if path not in is_old and find_syntax_error(text)]:
        doubt += f", Python {'.'.join(map(str, sys.version_info[:2]))} cannot parse {join_some(unparsed)}"
    if missing:
        says.append(f"{format_count(len(missing), 'import')} not found: {join_some(missing)}{doubt}")
    says += _list_lacking(programs, found, modules)
    all_found = f"every import in the programs has a package{doubt}; the programs were not run (--prove runs them)"
    return says if missing else [*says, all_found]


def _list_lacking(programs: list[tuple[str, str]], found: Resolved, modules: Mapping[str, frozenset[str]]) -> list[str]:
    """List the resolved packages that lack names which programs use, as a release after the one they were written for does."""
    from devkit.probe.dependencies.imports import list_uses
    from devkit.probe.release_names import Wheel, list_lacking
    from devkit.probe.wheel_files import DEADLINE_S, run_side_by_side

    # Of what comes with torch, such as triton, the wheel is known and the version is not.
    wheels, versions = dict(found.wheels), dict(found.packages)
    read = wheels.keys() & versions.keys()
    homes = {module: package for package, tops in modules.items() if package in read for module in tops}
    uses: dict[str, dict[str, str]] = {}
    for path, text in programs:
        for name, line in list_uses(text, homes.keys()):
            uses.setdefault(homes[name.partition(".")[0]], {}).setdefault(name, f"{path}:{line}")
    tasks = {
        name: partial(list_lacking, Wheel(Version(versions[name]), wheels[name]), each) for name, each in uses.items()
    }
    lacking = run_side_by_side(tasks, DEADLINE_S)
    unread = [name for name in tasks if name not in lacking]
    says = [
        f"{name} {versions[name]} lacks {join_some([f'{each} ({uses[name][each]})' for each in lacks], 1)}"
        for name, lacks in lacking.items()
        if lacks
    ]
    if more := len(says[MAX_LACKING:]):
        says[MAX_LACKING:] = [f"{format_count(more, 'more package')} {'lacks' if more == 1 else 'lack'} names, too"]
    return says + ([f"whether {join_some(unread)} has all that programs use of it was not checked"] if unread else [])


_Missing = tuple[str, str, int]
"""A module with the file and line of its import."""


class Unprovided(NamedTuple):
    """Imports without a package: `own` of the project, and those `needed` by the guide's programs and by packages.

    `unread` are packages whose modules are not known; the
    others have these `modules`.
    """

    own: list[_Missing]
    needed: list[_Missing]
    unread: list[str]
    modules: "Mapping[str, frozenset[str]]"


def find_unprovided(root: Path, dependencies: Dependencies, plan: Plan, found: Resolved) -> Unprovided:
    """Find what no resolved wheel provides of the imports of a project, and of those of the packages that it imports."""
    from devkit.probe.dependencies.imports import find_unprovided_imports, list_dotted_imports, read_programs
    from devkit.probe.host import LocalHost
    from devkit.probe.project.files import ProjectFiles
    from devkit.probe.wheel_files import WheelReader
    from devkit.verify.plan_proof import list_reached_imports
    from devkit.verify.project_stages import find_programs

    files = ProjectFiles(LocalHost(), str(root))
    reader = WheelReader(dict(found.wheels))
    modules = reader.modules | {each.package: each.provides for each in found.builds if each.provides}
    unread = [name for name, _ in found.packages if name not in modules and name not in TORCH_FAMILY]
    unread += [need.name for need in dependencies.needs if need.url] + [each.name for each in dependencies.conda]
    # What cannot be read may bring the module of its name, and those that the tables know.
    of_torch = [name for name in TORCH_FAMILY if name in plan.resolved]
    provided = {name.replace("-", "_") for name in (*unread, *of_torch)} | {*(_OF_TORCH if plan.torch else ())}
    provided |= {module for module, name in load_tables().imports.distributions().items() if name in unread}
    provided |= {each.name.replace("-", "_") for each in plan.compiled if each.path}
    provided = provided.union(*modules.values())
    reached = list_reached_imports(root, (path for _, path in find_programs(root)))
    # A package such as simpleitk has SimpleITK.
    lower = {name.replace("-", "_") for name in unread}
    own = [each for each in find_unprovided_imports(files, provided, reached) if each[0].lower() not in lower]
    programs = read_programs(files, is_library=True)
    names = {name for path, text in programs for name, _ in list_dotted_imports(text, path.split("/")[:-1])}
    names |= {name for name, _, _ in reached}
    imported = reader.list_imports(name for name in names if name.partition(".")[0] in provided)
    present = provided | sys.stdlib_module_names
    tops = {name.partition(".")[0] for name, _, _ in reached}
    needed = [each for each in own if each[0] in tops]
    return Unprovided(
        own, [*needed, *(each for name, each in imported.items() if name not in present)], unread, modules
    )
