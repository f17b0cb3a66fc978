"""Plans for a project: what its own files ask for limits the choice, and what they leave open is said."""

import re
from collections.abc import Iterator
from dataclasses import replace

from devkit.compat.version_tables import Confidence, Tables
from devkit.facts.dependencies import Dependencies, PackageManager, PackageRequirement
from devkit.solver.plan import Conflict, Constraint, Plan, Reason, Request
from devkit.solver.solve import solve
from devkit.text import join_words

MOST_ROUNDS = 3
"""What is asked for may depend on the Python, and the Python on what is asked for."""
MOST_NAMED = 8
TORCH_WHEELS = "download.pytorch.org/whl"


def solve_project(request: Request, dependencies: Dependencies, tables: Tables) -> Plan | Conflict:
    """The plan for a request in a project with these dependencies; says in the plan what was read and what was not."""
    python = request.python
    answer: Plan | Conflict
    for _ in range(MOST_ROUNDS):
        answer = solve(add_project_constraints(request, dependencies, python=python), tables)
        if isinstance(answer, Conflict) or answer.python == python:
            break
        python = answer.python
    return answer if isinstance(answer, Conflict) or not dependencies.files else _told(answer, dependencies)


def strip_line_numbers(plan: Plan, dependencies: Dependencies) -> Plan:
    """The plan for files that are kept: its reasons name files without lines, which every edit above them moves."""
    paths = {need.origin: need.path for need in (*dependencies.needs, *dependencies.python)}
    if not paths:
        return plan
    origins = re.compile(rf"(?:{'|'.join(map(re.escape, paths))})(?!\d)")
    said = (replace(each, because=origins.sub(lambda found: paths[found[0]], each.because)) for each in plan.reasons)
    return replace(plan, reasons=tuple(said))


def add_project_constraints(request: Request, dependencies: Dependencies, *, python: str | None) -> Request:
    """The request with what the project asks for on this Python; None as long as it is open."""
    machines = tuple({machine.machine for machine in request.machines})
    limits = list_project_constraints(dependencies, machines=machines, python=python)
    return replace(request, constraints=request.constraints + limits)


def list_project_constraints(
    dependencies: Dependencies, *, machines: tuple[str, ...], python: str | None
) -> tuple[Constraint, ...]:
    """What the project asks of packages and of Python, as far as it concerns one of these machines under Linux.

    As long as `python` is None, lines that depend on it limit nothing.
    """
    asked = [need for need in dependencies.needs if need.specifier and _concerns(need, machines, python)]
    return tuple(Constraint(need.name, need.specifier, need.origin) for need in (*dependencies.python, *asked))


def _concerns(need: PackageRequirement, machines: tuple[str, ...], python: str | None) -> bool:
    if not need.marker:
        return True
    if python is None and "python_" in need.marker:
        return False
    from packaging.markers import InvalidMarker, Marker, UndefinedComparison, UndefinedEnvironmentName

    try:
        marker = Marker(need.marker)
        return any(marker.evaluate(_environment(machine, python or "3")) for machine in machines or ("x86_64",))
    except (InvalidMarker, UndefinedComparison, UndefinedEnvironmentName):
        return True


def _environment(machine: str, python: str) -> dict[str, str]:
    """The container's variables of PEP 508. Source: https://packaging.python.org/specifications/dependency-specifiers/."""
    return {
        "implementation_name": "cpython",
        "os_name": "posix",
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": f"{python}.0",
        "python_version": python,
        "sys_platform": "linux",
        "extra": "",
    }


def _told(plan: Plan, dependencies: Dependencies) -> Plan:
    """The plan with the reason for how the project's packages are installed, and with what was left open."""
    warnings = (*plan.warnings, *dict.fromkeys(_warnings(dependencies)))
    if dependencies.tool is PackageManager.NONE:
        return replace(plan, warnings=warnings)
    source = dependencies.lock or dependencies.files[0]
    reason = Reason("dependencies", dependencies.tool.value, dependencies.because, source, Confidence.CONFIRMED)
    return replace(plan, reasons=(*plan.reasons, reason), warnings=warnings)


def _warnings(dependencies: Dependencies) -> Iterator[str]:
    for unread in dependencies.unread:
        yield f"{unread.origin} is not taken into account: {unread.problem}"
    left_out: dict[tuple[str, str], list[str]] = {}
    for each in dependencies.left_out:
        left_out.setdefault((each.path, each.because), []).append(each.what)
    for (path, because), names in left_out.items():
        shown = names if len(names) <= MOST_NAMED else [*names[:MOST_NAMED], f"{len(names) - MOST_NAMED} more"]
        yield f"not installed from {path}: {join_words(shown)}; {because}"
    for index in dependencies.indexes:
        if TORCH_WHEELS in index.url:
            yield f"{index.path}:{index.line} names {index.url}: torch still comes from the plan's own index"
