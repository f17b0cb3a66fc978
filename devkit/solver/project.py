"""Constraints from a project's own dependencies: those whose markers hold in the container."""

import posixpath
import re
from collections.abc import Iterator
from dataclasses import replace

from devkit.compat.specifiers import canonicalize_name, holds_in_container
from devkit.errors import DevkitError
from devkit.facts.dependencies import (
    TORCH_FAMILY,
    TORCH_WHEELS,
    Dependencies,
    DependencyChoice,
    Framework,
    PackageIndex,
    PackageManager,
    PackageRequirement,
)
from devkit.solver.plan import Constraint, Plan, Request
from devkit.text import find_similar, join_some, join_words, suggest

MAX_NAMED = 8

GUIDE = "guide"
"""The field of the reason why the installation section of the project's guide does not count."""

_SAFE_SPECIFIER = re.compile(r"[A-Za-z0-9_.,=<>!~*+\[\]-]+", re.ASCII)


def add_project_constraints(request: Request, dependencies: Dependencies, *, python: str | None) -> Request:
    """Add the constraints of the project on this Python; None as long as the Python is open."""
    machines = tuple({machine.machine for machine in request.machines})
    constraints = list_project_constraints(dependencies, machines=machines, python=python)
    return replace(request, constraints=request.constraints + constraints)


def list_project_constraints(
    dependencies: Dependencies, *, machines: tuple[str, ...], python: str | None
) -> tuple[Constraint, ...]:
    """List the project's constraints on packages and on Python that apply to one of these machines under Linux.

    As long as `python` is None, requirements that depend on it constrain nothing.
    """
    applying = [each for each in dependencies.needs if each.specifier and does_apply(each, machines, python)]
    return tuple(Constraint(each.name, each.specifier, each.origin) for each in (*dependencies.python, *applying))


def list_torch_siblings(dependencies: Dependencies, *, machines: tuple[str, ...], python: str) -> tuple[str, ...]:
    """List torchvision and torchaudio as the project requires them here, with the version of its lock."""
    specifiers: dict[str, list[str]] = {need.name: [] for need in dependencies.needs if need.name in TORCH_FAMILY[1:]}
    for limit in list_project_constraints(dependencies, machines=machines, python=python):
        # The build after the plus is the plan's to choose, as torch's is.
        if limit.name in specifiers and _SAFE_SPECIFIER.fullmatch(limit.specifier):
            specifiers[limit.name].append(limit.specifier.partition("+")[0])
    return tuple(f"{name}{','.join(dict.fromkeys(each))}" for name, each in sorted(specifiers.items()))


def validate_choice(choice: DependencyChoice, dependencies: Dependencies) -> None:
    """Raise DevkitError for a chosen extra or group that the project does not have, and for a list that no installer takes."""
    instead = "Or plan without the project's packages: --ignore-dependencies"
    for each in dependencies.unread:
        if not each.line:
            raise DevkitError(f"{each.path}: {each.problem}", f"Make it readable, or choose another list.\n{instead}")
        if each.correction and each.path in dependencies.files:
            raise DevkitError(f"{each.path}:{each.line}: {each.problem}", f"Write {each.correction}.\n{instead}")
    kinds = (
        ("extra", choice.extras, (*dependencies.extras, *dependencies.available.extras)),
        ("group", choice.groups, (*dependencies.groups, *dependencies.available.groups)),
    )
    for kind, chosen, known in kinds:
        spelled = {canonicalize_name(name): name for name in known}
        for name in chosen:
            if canonicalize_name(name) not in spelled:
                hint = suggest([spelled[each] for each in find_similar(canonicalize_name(name), spelled, count=1)], "")
                has = f"It has {join_words(known)}." if known else f"It has no {kind}s."
                raise DevkitError(f"the project has no {kind} {name!r}", f"{hint} {has}".strip())

    for path in choice.requirements:
        whole = posixpath.normpath(path.replace("\\", "/"))
        if whole not in dependencies.files:
            # Without the chosen list, the project's main list was read in its place.
            lists = (*dependencies.available.requirements, *dependencies.files)
            hint = suggest(find_similar(path, lists, count=1), "")
            has = f"It has {join_words(lists)}." if lists else "It has no requirements files."
            raise DevkitError(f"the project has no readable requirements file {path!r}", f"{hint} {has}".strip())
        held = {each.path for each in (*dependencies.needs, *dependencies.python)} | {
            each.path for each in dependencies.local
        }
        says = [each.problem for each in dependencies.unread if each.path == whole]
        if whole not in held and says:
            hint = "Leave it out of --requirements and devkit.toml: devkit finds environment.yml, pyproject.toml and locks by these names."
            because = says[0] if says[0].startswith("it is ") else "no line of it is a requirement"
            raise DevkitError(f"{path} is not a requirements file: {because}", hint)


def select_torch_build(dependencies: Dependencies, plan: Plan) -> Dependencies:
    """Return what to install for the plan: with the extra or group that it takes for its build of torch, if any."""
    if dependencies.without_guide and any(reason.field == GUIDE for reason in plan.reasons):
        dependencies = dependencies.without_guide
    chosen = {f"--{reason.field} {reason.value}" for reason in plan.reasons}
    return next((each.dependencies for each in dependencies.torch_builds if each.choice in chosen), dependencies)


def list_choices(dependencies: Dependencies) -> Iterator[str]:
    """List what the project offers and the image does not install, each with the flag that installs it."""
    is_silent = dependencies.tool is PackageManager.NONE and not dependencies.unread
    if is_silent and dependencies.framework is Framework.TORCH:
        yield "no dependency file, such as requirements.txt or pyproject.toml, was found, so the image gets the plan's packages"
    available = dependencies.available
    if origin := dependencies.extras_origin:
        kinds = "extra" if len(dependencies.extras) == 1 else "extras"
        yield f"installed with the {kinds} {join_some(dependencies.extras)}, as {origin} says; --extra NAME chooses others"
    for kind, names in (("extra", available.extras), ("group", available.groups)):
        if names:
            kinds = kind if len(names) == 1 else f"{kind}s"
            yield f"not installed: the {kinds} {join_some(names)}; --{kind} NAME installs one"
    if lists := available.requirements:
        kinds = "list" if len(lists) == 1 else "lists"
        instead = " instead" if any(path.endswith((".txt", ".in", ".lock")) for path in dependencies.files) else ""
        yield f"not installed: the {kinds} {join_some(lists)}; --requirements FILE installs one{instead}"
    if conda := dependencies.conda:
        channels = join_words(dependencies.conda_channels) if dependencies.conda_channels else "conda-forge"
        yield f"micromamba installs from {channels}: {join_some([each.spec for each in conda])}"
    if dependencies.local:
        shown = join_some([each.place for each in dependencies.local])
        yield f"installed as parts of the project when the container opens: {shown}"
    for each in dependencies.not_followed[:MAX_NAMED]:
        yield f"not followed: {each.path}:{each.line} {each.what}, because {each.because}"
    if more := dependencies.not_followed[MAX_NAMED:]:
        yield f"not followed: {len(more)} more commands, from {more[0].path}:{more[0].line} on"
    if dependencies.missing_submodules:
        shown = join_some(dependencies.missing_submodules)
        yield f"git submodules that are not fetched here: {shown}; the container fetches them when it opens"


def find_dependency_warnings(dependencies: Dependencies, plan: Plan) -> Iterator[str]:
    """Warn of requirements that were not read, packages that are left out, and indexes that are not used for torch."""
    problems: dict[tuple[str, str], dict[str, None]] = {}
    for unread in dependencies.unread:
        problems.setdefault((unread.path, unread.problem), {})[str(unread.line)] = None
    for (path, problem), numbers in problems.items():
        lines = list(numbers)
        shown = lines if len(lines) <= MAX_NAMED else [*lines[:MAX_NAMED], f"{len(lines) - MAX_NAMED} more lines"]
        yield f"{path}:{', '.join(shown)} is ignored: {problem}"
    left_out: dict[tuple[str, str], list[str]] = {}
    for each in dependencies.left_out:
        left_out.setdefault((each.path, each.because), []).append(each.what)
    for (path, because), names in left_out.items():
        yield f"not installed from {path}: {join_some(names)}; {because}"
    indexes: dict[str, list[PackageIndex]] = {}
    for index in dependencies.indexes:
        if TORCH_WHEELS in index.url:
            indexes.setdefault(index.path, []).append(index)
    for path, found in indexes.items() if plan.torch else ():
        if all(index.url.rstrip("/").rpartition("/")[2] != plan.variant for index in found):
            named = join_words([index.url for index in found])
            yield f"{path}:{found[0].line} names {named}: torch still comes from the plan's own index"


def strip_line_numbers(plan: Plan, dependencies: Dependencies) -> Plan:
    """Strip line numbers of the project's files from a plan that is stored: every edit above them moves the lines."""
    packages = (*dependencies.needs, *dependencies.python, *dependencies.stated)
    others = (*dependencies.system, *dependencies.programs)
    paths = {each.origin: each.path for each in packages} | {each.origin: each.path for each in others}
    if not paths:
        return plan
    origins = re.compile(rf"(?:{'|'.join(map(re.escape, paths))})(?!\d)")
    reasons = (replace(each, because=origins.sub(lambda found: paths[found[0]], each.because)) for each in plan.reasons)
    return replace(plan, reasons=tuple(reasons))


def does_apply(requirement: PackageRequirement, machines: tuple[str, ...], python: str | None) -> bool:
    """Return whether the marker of a requirement holds in the container, on one of these machines."""
    if not requirement.marker:
        return True
    if python is None and "python_" in requirement.marker:
        return False
    return any(
        holds_in_container(requirement.marker, machine=each, python=python or "3") for each in machines or ("x86_64",)
    )
