"""One choice of a plan in full: its reason, and what ruled out or ranked lower each alternative (`plan --why`)."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from devkit.compat.rules import CudaSupport
from devkit.compat.specifiers import satisfies, satisfies_python, split_requirement
from devkit.compat.version_tables import BitsandbytesRelease, PackageRelease, Tables
from devkit.compat.wheels import describe_foreign_wheel, find_foreign_wheels
from devkit.facts.values import Release
from devkit.formats.documents import MAY_LACK, Json, build_from, encode
from devkit.solver.candidates import Problem, build_problem, find_candidate, is_chosen, list_candidates
from devkit.solver.evaluate import Evaluation, evaluate_candidate
from devkit.solver.output import (
    ConflictDocument,
    build_conflict_document,
    format_age,
    format_conflict,
    format_reason,
)
from devkit.solver.packages import BITSANDBYTES, explain_bitsandbytes_rejection
from devkit.solver.plan import PYTHON, RESOLUTION, Conflict, Plan, Reason, Request, Vendor
from devkit.text import count_days, wrap_text

BUILD_FIELDS = ("torch", "cuda", "rocm", "torch_index")
"""Choices that are made together: each torch build is one candidate."""

ReleaseT = TypeVar("ReleaseT", PackageRelease, BitsandbytesRelease)


@dataclass(frozen=True)
class Alternative:
    """An alternative to a choice. `rule` is the first that refuses it, None or "" when it fits and ranks lower."""

    choice: str
    rule: str | None
    says: str
    source: str


@dataclass(frozen=True, kw_only=True)
class WhyDocument:
    """Printed by devkit plan --why FIELD --json."""

    schema: Literal["devkit.why/1"] = "devkit.why/1"
    verdict: Literal["plan", "conflict"]
    field: str
    value: str | None = None
    because: str | None = None
    source: str | None = None
    confidence: str | None = None
    others: tuple[Alternative, ...]
    conflict: ConflictDocument | None
    data_as_of: str
    data_age_days: int | None = dataclasses.field(default=None, metadata=MAY_LACK)


@dataclass(frozen=True)
class Explanation:
    """One choice: its reason, None where there is no plan, and the alternatives, newest first."""

    field: str
    reason: Reason | None
    others: tuple[Alternative, ...]


def explain_choice(request: Request, tables: Tables, answer: Plan | Conflict, field: str) -> Explanation | None:
    """Explain why `answer` to a request has its value in a field; None for a field that is not a choice."""
    problem = build_problem(request, tables)
    if isinstance(answer, Conflict):
        return Explanation(field, None, tuple(_list_builds(problem, None))) if field in BUILD_FIELDS else None
    reasons = {reason.field: reason for reason in answer.reasons}
    reason = reasons.get(field)
    if reason is None and RESOLUTION in reasons and field in answer.resolved:
        reason = replace(reasons[RESOLUTION], field=field, value=answer.resolved[field])
    if reason is None:
        return None
    return Explanation(field, reason, tuple(_list_alternatives(field, reason, problem, answer)))


def serialize_choice(found: Explanation, answer: Plan | Conflict, *, today: str) -> Json:
    """Serialize one choice for JSON; without a plan it has a conflict in place of a reason."""
    why = build_from(
        WhyDocument,
        found.reason,
        verdict="plan" if isinstance(answer, Plan) else "conflict",
        field=found.field,
        others=tuple(replace(each, rule=each.rule or None) for each in found.others),
        conflict=build_conflict_document(answer),
        data_as_of=answer.data_as_of,
        data_age_days=count_days(answer.data_as_of, today),
    )
    return encode(why)


def format_choice(found: Explanation, answer: Plan | Conflict, *, width: int, today: str) -> str:
    """Format one choice, folded to `width` columns: the reason or the conflict, then the alternatives."""
    parts = [format_reason(found.reason, width=width)] if found.reason else []
    if isinstance(answer, Conflict):
        parts.append(format_conflict(answer, width=width))
    if found.others:
        # A line for each alternative: name, rule, and what the rule says; long texts continue below.
        names = max(len(each.choice) for each in found.others)
        rules = max(len(each.rule or "fits") for each in found.others)
        left = names + rules + 6
        lines = ["Not chosen:"]
        for each in found.others:
            head = f"  {each.choice:<{names}}  {each.rule or 'fits':<{rules}}  "
            lines.append(head + wrap_text(each.says, width=max(width, left + 30), indent=" " * left)[left:])
        parts.append("\n".join(lines))
    return "\n\n".join([*parts, format_age(answer, today)])


def _list_alternatives(field: str, reason: Reason, problem: Problem, plan: Plan) -> Iterator[Alternative]:
    if not plan.torch:
        return
    if field in BUILD_FIELDS:
        yield from _list_builds(problem, plan)
    elif field == PYTHON:
        yield from _list_pythons(problem, plan)
    elif field == BITSANDBYTES and field in dict(plan.packages):
        environment = evaluate_candidate(find_candidate(problem, plan), problem).environment
        for row in _list_newer(problem.tables.stack.bitsandbytes, reason.value):
            says = explain_bitsandbytes_rejection(row, environment, problem)
            yield Alternative(f"{field} {row.version}", "B1", says, row.source[0])
    elif field in dict(plan.packages):
        rows = tuple(row for row in problem.tables.stack.packages if row.name == field)
        for package in _list_newer(rows, reason.value):
            says = _explain_package_rejection(package, problem, plan)
            yield Alternative(f"{field} {package.version}", "P1", says, package.source[0])


def _list_builds(problem: Problem, plan: Plan | None) -> Iterator[Alternative]:
    """List every build as new as the chosen one or newer; all of them where none was chosen."""
    candidates = list_candidates(problem)
    chosen_release = Release.parse(plan.torch) if plan is not None else None
    published = {each.release.version for each in candidates}
    for row in sorted(problem.tables.torch.releases, key=lambda row: row.version, reverse=True):
        # Newer releases of which the request leaves no build.
        if chosen_release is not None and row.version > chosen_release and row.version not in published:
            is_rocm = problem.vendor is Vendor.ROCM
            says = "not known to be published for ROCm" if is_rocm else "not the requested one"
            yield Alternative(f"torch {row.version}", "W2", says, row.source[0])
    evaluations = [
        evaluate_candidate(each, problem)
        for each in candidates
        if chosen_release is None or each.release.version >= chosen_release
    ]
    chosen = next((each for each in evaluations if plan is not None and is_chosen(each.candidate, plan)), None)
    for evaluation in evaluations:
        if evaluation is chosen:
            continue
        if evaluation.refusals:
            first = evaluation.refusals[0]
            yield Alternative(str(evaluation.candidate), first.rule, first.says, first.source)
        elif chosen is not None:
            says, source = _explain_preference(evaluation, chosen), evaluation.candidate.index.source[0]
            versions, cuda = plan.resolved if plan is not None else {}, evaluation.candidate.cuda
            if cuda and (foreign := next(find_foreign_wheels(versions, str(cuda), problem.tables), None)):
                says = f"runs here, but {describe_foreign_wheel(foreign, versions)}"
            elif evaluation.candidate.release.version > chosen.candidate.release.version:
                says = f"fits; the project's packages are resolved with torch {chosen.candidate.release.version}"
            yield Alternative(str(evaluation.candidate), "", says, source)


def _explain_preference(evaluation: Evaluation, chosen: Evaluation) -> str:
    """Explain why a build that fits lost to the chosen one: by the first part of the preference that differs (W5)."""
    keys = zip(evaluation.preference_key, chosen.preference_key, strict=True)
    differs = next((place for place, (one, other) in enumerate(keys) if one != other), -1)
    limited = "forward" if evaluation.environment.support is CudaSupport.FORWARD else "minor version"
    reasons = (
        f"fits with doubts: {evaluation.doubts[0].says}" if evaluation.doubts else "fits with doubts",
        "fits only by forward compatibility",
        "fits, but is older",
        f"fits by {limited} compatibility; {chosen.candidate} has full support",
        f"fits, but plain pip would install {chosen.candidate.index.label}",
        "fits, but its CUDA is older",
    )
    return reasons[differs]


def _list_pythons(problem: Problem, plan: Plan) -> Iterator[Alternative]:
    """List the other Pythons, best first."""
    winner = find_candidate(problem, plan)
    constraints = problem.request.constraints_on(PYTHON)
    with_image = {row.python for row in problem.tables.images.python_images}
    because = "was requested" if problem.request.python else "is more widely supported"
    for row in sorted(problem.tables.stack.pythons, key=lambda row: row.rank):
        if row.version == plan.python:
            continue
        unmet = next((each for each in constraints if not each.is_met_by(row.version)), None)
        rule, says = "", f"fits, but Python {plan.python} {because}"
        if unmet is not None:
            rule, says = "P2", str(unmet)
        elif row.version not in winner.release.pythons:
            rule, says = "W7", f"torch {plan.torch} has no wheel for it"
        elif row.version not in with_image:
            rule, says = "I1", "no base image with it is known"
        yield Alternative(f"Python {row.version}", rule, says, row.source[0])


def _explain_package_rejection(row: PackageRelease, problem: Problem, plan: Plan) -> str:
    """Explain what a newer release of a package needs that the plan does not have."""
    versions = {**dict(plan.packages), "torch": plan.torch}
    for constraint in problem.request.constraints_on(row.name):
        if not constraint.is_met_by(row.version):
            return str(constraint)
    if not satisfies_python(plan.python, row.python):
        return f"needs Python {row.python}"
    for name, specifier in map(split_requirement, row.requires):
        if name in versions and not satisfies(versions[name], specifier):
            return f"needs {name}{specifier}; the plan has {versions[name]}"
    return "does not fit the other packages"


def _list_newer(rows: tuple[ReleaseT, ...], version: str) -> list[ReleaseT]:
    """List the rows before that of a version: tables have the newest first. None before one that they do not list."""
    versions = [row.version for row in rows]
    return list(rows[: versions.index(version)]) if version in versions else []
