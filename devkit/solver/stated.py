"""A plan with the versions that the project's guides state, each as far as it fits; what does not is said, and why."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from textwrap import shorten

from devkit.compat.specifiers import satisfies, satisfies_python
from devkit.compat.version_tables import Tables
from devkit.facts.dependencies import Dependencies, PackageRequirement, Resolved
from devkit.facts.values import Unknown
from devkit.solver.plan import LATEST, PYTHON, Conflict, Constraint, Plan, Request
from devkit.solver.resolution import Resolve, plan_project

MAX_TRIES = 4
"""Plans with fewer and fewer of the stated versions, before one without."""
MAX_REASON_CHARACTERS = 200


def plan_stated(
    request: Request,
    dependencies: Dependencies,
    tables: Tables,
    resolve: Resolve | Unknown,
    *,
    recorded: Plan | None = None,
    wants_nearest: bool = True,
) -> Plan | Conflict:
    """Plan a project as `plan_project` does, with as many of the versions that its guides state as fit.

    What the user asks for goes before, and so do the releases of the requested day.
    """

    def plan(request: Request, kept: Mapping[str, PackageRequirement]) -> Plan | Conflict:
        torch = [Constraint(name, need.specifier, need.origin) for name, need in kept.items() if name == "torch"]
        lines = tuple(f"{name}{need.specifier}" for name, need in kept.items() if name != "torch")
        request = replace(request, constraints=(*request.constraints, *torch), stated=lines)
        # Requirements that nobody could install are set aside beside stated versions, too.
        nearest = wants_nearest and (not kept or has_aside)
        return plan_project(request, dependencies, tables, resolve, recorded=recorded, wants_nearest=nearest)

    has_aside = False
    without = plan(request, {})
    if isinstance(without, Conflict):
        return without
    has_aside = bool(without.overrides or (isinstance(without.resolution, Resolved) and without.resolution.absent))
    chosen = {*dict(request.pins), *(["torch"] if request.torch else [])}
    stated = {need.name: need for need in dependencies.stated if need.name not in chosen}
    installed = _list_versions(without)
    dated, because = request, dict[str, str]()
    if is_newest := _is_newest(without, request):
        # Then the stated versions need not be of the day either, and are looked for in this Python alone.
        python = Constraint(PYTHON, f"=={without.python}.*", f"--as-of {request.as_of}")
        dated = replace(request, as_of="", constraints=(*request.constraints, python))
    for _ in range(MAX_TRIES):
        kept = {name: need for name, need in stated.items() if name in installed and name not in because}
        if all(satisfies(installed[name], need.specifier) for name, need in kept.items()):
            break
        answer = plan(dated, kept)
        refused = dict(_list_refused(answer, dated, kept, without))
        if isinstance(answer, Plan) and not refused:
            says = [each for each in without.warnings if is_newest and each.endswith(f" {request.as_of}")]
            without = replace(answer, warnings=(*says, *answer.warnings))
            break
        because |= refused
    return _say_differences(without, request, dependencies, tables, because)


def _list_versions(plan: Plan) -> dict[str, str]:
    return plan.resolved | ({"torch": plan.torch} if plan.torch else {})


def _is_newest(plan: Plan, request: Request) -> bool:
    """Return whether a plan has the newest packages instead of those of the requested day."""
    return request.as_of not in ("", LATEST) and not plan.as_of


def _list_refused(
    answer: Plan | Conflict, request: Request, kept: Mapping[str, PackageRequirement], without: Plan
) -> Iterator[tuple[str, str]]:
    """List the stated versions that leave no plan, none of the requested day, or one that builds what has wheels, and why."""
    if isinstance(answer, Conflict):
        says = answer.blockers[0].says
        named = [name for name in kept if re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", says)]
        yield from ((name, says) for name in named or kept)
        return
    now, always = answer.resolution, without.resolution
    built = {*kept}.intersection(now.from_source if isinstance(now, Resolved) else ())
    if built := built.difference(always.from_source if isinstance(always, Resolved) else ()):
        yield from ((name, f"it has no wheel for Python {answer.python}") for name in built)
    elif _is_newest(answer, request):
        yield from ((name, f"no plan of {request.as_of} has it") for name in kept)


def _say_differences(
    plan: Plan, request: Request, dependencies: Dependencies, tables: Tables, because: Mapping[str, str]
) -> Plan:
    """Return the plan with a warning for each version that a guide states and it does not have."""
    says: list[str] = []
    resolved = _list_versions(plan)
    for need in dependencies.stated:
        version, wanted = resolved.get(need.name, ""), need.specifier.removeprefix("==")
        if version and not satisfies(version, need.specifier):
            reason = shorten(because.get(need.name, "it does not fit"), MAX_REASON_CHARACTERS, placeholder=" …")
            says.append(f"{need.origin} asks for {need.name} {wanted}: the plan has {version}, because {reason}")
        elif not version and need.specifier != wanted and isinstance(plan.resolution, Resolved):
            says.append(f"{need.origin} names {need.name} {wanted}, which nothing here installs")
    guide = dependencies.guide_python
    is_said = guide and any(each.startswith(f"{guide.origin} wants ") for each in plan.warnings)
    if guide and not (is_said or request.python or request.image or satisfies_python(plan.python, guide.specifier)):
        wanted = guide.specifier.removeprefix("==").removesuffix(".*")
        day = (plan.as_of or tables.as_of)[: len("2026-11")]
        ends = [row.eol for row in tables.stack.pythons if satisfies(row.version, guide.specifier)]
        reason = "the packages do not fit it" if ends else "no image here has it"
        reason = f"it has had no security fixes since {max(ends)}" if ends and max(ends) < day else reason
        says.append(f"{guide.origin} asks for Python {wanted}: the plan has {plan.python}, because {reason}")
    return replace(plan, warnings=(*plan.warnings, *says))
