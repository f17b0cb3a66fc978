"""Constraints from a project's own dependencies: those whose markers hold in the container."""

import re
from collections.abc import Iterator
from dataclasses import replace

from devkit.facts.dependencies import Dependencies, PackageRequirement
from devkit.solver.plan import Constraint, Plan, Request
from devkit.text import join_words

MAX_NAMED = 8
TORCH_WHEELS = "download.pytorch.org/whl"

_MARKER_VARIABLES = {
    "implementation_name": "cpython",
    "os_name": "posix",
    "platform_python_implementation": "CPython",
    "platform_release": "",
    "platform_system": "Linux",
    "platform_version": "",
    "sys_platform": "linux",
    "extra": "",
}
"""The container's marker variables (PEP 508), but for machine and Python.

Source: https://packaging.python.org/specifications/dependency-specifiers/.
"""


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
    applying = [each for each in dependencies.needs if each.specifier and _applies(each, machines, python)]
    return tuple(Constraint(each.name, each.specifier, each.origin) for each in (*dependencies.python, *applying))


def find_dependency_warnings(dependencies: Dependencies) -> Iterator[str]:
    """Warn of requirements that were not read, packages that are left out, and indexes that are not used for torch."""
    for unread in dependencies.unread:
        yield f"{unread.origin} is not taken into account: {unread.problem}"
    left_out: dict[tuple[str, str], list[str]] = {}
    for each in dependencies.left_out:
        left_out.setdefault((each.path, each.because), []).append(each.what)
    for (path, because), names in left_out.items():
        shown = names if len(names) <= MAX_NAMED else [*names[:MAX_NAMED], f"{len(names) - MAX_NAMED} more"]
        yield f"not installed from {path}: {join_words(shown)}; {because}"
    for index in dependencies.indexes:
        if TORCH_WHEELS in index.url:
            yield f"{index.path}:{index.line} names {index.url}: torch still comes from the plan's own index"


def strip_line_numbers(plan: Plan, dependencies: Dependencies) -> Plan:
    """Strip line numbers of the project's files from a plan that is stored: every edit above them moves the lines."""
    paths = {need.origin: need.path for need in (*dependencies.needs, *dependencies.python)}
    if not paths:
        return plan
    origins = re.compile(rf"(?:{'|'.join(map(re.escape, paths))})(?!\d)")
    reasons = (replace(each, because=origins.sub(lambda found: paths[found[0]], each.because)) for each in plan.reasons)
    return replace(plan, reasons=tuple(reasons))


def _applies(requirement: PackageRequirement, machines: tuple[str, ...], python: str | None) -> bool:
    if not requirement.marker:
        return True
    if python is None and "python_" in requirement.marker:
        return False
    version = {"python_version": python or "3", "python_full_version": f"{python or '3'}.0"}
    from packaging.markers import InvalidMarker, Marker, UndefinedComparison, UndefinedEnvironmentName

    try:
        marker = Marker(requirement.marker)
        return any(
            marker.evaluate({**_MARKER_VARIABLES, "platform_machine": each, **version})
            for each in machines or ("x86_64",)
        )
    except (InvalidMarker, UndefinedComparison, UndefinedEnvironmentName):
        return True
