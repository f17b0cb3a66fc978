"""Explains one choice in full: why it was made, and what spoke against each of the others."""

from collections.abc import Iterator
from typing import TypeVar

from devkit.compat.rules import CudaSupport
from devkit.compat.specifiers import satisfies, satisfies_python, split_requirement
from devkit.compat.version_tables import BitsandbytesRelease, PackageRelease, Tables
from devkit.facts.values import Release, record
from devkit.solver import gpu_support, packages
from devkit.solver.candidates import Candidate, Problem, list_candidates
from devkit.solver.evaluate import Evaluation, evaluate_candidate, get_preference_key
from devkit.solver.output import Json, format_age, format_conflict, format_reason, serialize_age, serialize_conflict
from devkit.solver.packages import explain_bitsandbytes_rejection
from devkit.solver.plan import Conflict, Plan, Reason, Request, Vendor
from devkit.solver.solve import build_problem
from devkit.text import wrap_text

ReleaseT = TypeVar("ReleaseT", PackageRelease, BitsandbytesRelease)

BUILD_FIELDS = ("torch", "cuda", "rocm", "torch_index")
"""Choices that fall together: each torch build is one candidate."""


@record
class Alternative:
    """A choice that was not made. `rule` is the first that refuses it, "" when it fits and another is preferred."""

    choice: str
    rule: str
    says: str
    source: str


@record
class Explanation:
    """One choice: its reason, None where there is no plan, and the others, newest first."""

    field: str
    reason: Reason | None
    others: tuple[Alternative, ...]


def explain_choice(request: Request, tables: Tables, answer: Plan | Conflict, field: str) -> Explanation | None:
    """Why `answer` to a request has what it has in a field; None for a field that is no choice."""
    question = build_problem(request, tables)
    if isinstance(answer, Conflict):
        return Explanation(field, None, tuple(_builds(question, None))) if field in BUILD_FIELDS else None
    reason = next((reason for reason in answer.reasons if reason.field == field), None)
    if reason is None:
        return None
    return Explanation(field, reason, tuple(_others(field, reason, question, answer)))


def _others(field: str, reason: Reason, question: Problem, plan: Plan) -> Iterator[Alternative]:
    if field in BUILD_FIELDS:
        yield from _builds(question, plan)
    elif field == "python":
        yield from _pythons(question, plan)
    elif field == packages.BITSANDBYTES:
        for row in _newer(question.tables.stack.bitsandbytes, reason.value):
            says = explain_bitsandbytes_rejection(row, _winner(question, plan), question)
            yield Alternative(f"{field} {row.version}", "B1", says, row.source[0])
    else:
        rows = tuple(row for row in question.tables.stack.packages if row.name == field)
        for package in _newer(rows, reason.value):
            yield Alternative(f"{field} {package.version}", "P1", _why_not(package, question, plan), package.source[0])


def _builds(question: Problem, plan: Plan | None) -> Iterator[Alternative]:
    """Every build as new as the chosen one or newer; all of them where none was chosen."""
    yield from _unpublished(question, plan)
    verdicts = [
        evaluate_candidate(each, question)
        for each in list_candidates(question)
        if plan is None or _is_no_older(each, plan)
    ]
    chosen = next((verdict for verdict in verdicts if plan is not None and _is(verdict.candidate, plan)), None)
    for verdict in verdicts:
        if verdict is chosen:
            continue
        if verdict.refusals:
            first = verdict.refusals[0]
            yield Alternative(str(verdict.candidate), first.rule, first.says, first.source)
        elif chosen is not None:
            says = _less_preferred(verdict, chosen, question)
            yield Alternative(str(verdict.candidate), "", says, verdict.candidate.index.source[0])


def _unpublished(question: Problem, plan: Plan | None) -> Iterator[Alternative]:
    """Newer releases of which the wishes leave no build."""
    has_builds = {each.release.version for each in list_candidates(question)}
    for row in sorted(question.tables.torch.releases, key=lambda row: row.version, reverse=True):
        if plan is not None and row.version > Release.parse(plan.torch) and row.version not in has_builds:
            says = "not known to be published for ROCm" if question.vendor is Vendor.ROCM else "not the one asked for"
            yield Alternative(f"torch {row.version}", "W2", says, row.source[0])


def _less_preferred(verdict: Evaluation, chosen: Evaluation, question: Problem) -> str:
    """Why a build that fits lost to the chosen one: the first part of the preference in which they differ (W5)."""
    keys = zip(get_preference_key(verdict, question), get_preference_key(chosen, question), strict=True)
    differs = next((place for place, (one, other) in enumerate(keys) if one != other), -1)
    support = gpu_support.find_cuda_support(verdict.candidate, question)
    limited = "forward" if support is CudaSupport.FORWARD else "minor version"
    reasons = (
        f"fits with doubts: {verdict.doubts[0].says}" if verdict.doubts else "fits with doubts",
        "fits by forward compatibility only",
        "fits, and is older",
        f"fits by {limited} compatibility; {chosen.candidate} has full support",
        f"fits; plain pip would bring {chosen.candidate.index.label}",
        "fits, and its CUDA is older",
    )
    return reasons[differs]


def _pythons(question: Problem, plan: Plan) -> Iterator[Alternative]:
    """The other Pythons, best first."""
    winner = _winner(question, plan)
    asked = packages.find_constraints(packages.PYTHON, question)
    with_image = {row.python for row in question.tables.images.python_images}
    for row in sorted(question.tables.stack.pythons, key=lambda row: row.rank):
        if row.version == plan.python:
            continue
        unmet = next((each for each in asked if not satisfies_python(row.version, each.specifier)), None)
        rule, says = "", f"fits; Python {plan.python} was asked for or is served more widely"
        if unmet is not None:
            rule, says = "P2", packages.describe_constraint(unmet)
        elif row.version not in winner.release.pythons:
            rule, says = "W7", f"torch {plan.torch} has no wheel for it"
        elif row.version not in with_image:
            rule, says = "I1", "no base image with it is known"
        yield Alternative(f"Python {row.version}", rule, says, row.source[0])


def _why_not(row: PackageRelease, question: Problem, plan: Plan) -> str:
    """What a newer release of a package asks for that the plan does not have."""
    versions = {**dict(plan.packages), "torch": plan.torch}
    for asked in packages.find_constraints(row.name, question):
        if not satisfies(row.version, asked.specifier):
            return packages.describe_constraint(asked)
    if not satisfies_python(plan.python, row.python):
        return f"needs Python {row.python}"
    for name, specifier in map(split_requirement, row.requires):
        if name in versions and not satisfies(versions[name], specifier):
            return f"needs {name}{specifier}; the plan has {versions[name]}"
    return "does not fit the other packages"


def _newer(rows: tuple[ReleaseT, ...], version: str) -> list[ReleaseT]:
    """The rows before that of a version: tables list the newest first. None before one that they do not list."""
    versions = [row.version for row in rows]
    return list(rows[: versions.index(version)]) if version in versions else []


def _winner(question: Problem, plan: Plan) -> Candidate:
    return next(each for each in list_candidates(question) if _is(each, plan))


def _is(candidate: Candidate, plan: Plan) -> bool:
    return (str(candidate.release.version), candidate.index.label) == (plan.torch, plan.variant)


def _is_no_older(candidate: Candidate, plan: Plan) -> bool:
    return candidate.release.version >= Release.parse(plan.torch)


# Shows one choice in full: as text for people, and as the document that `plan --why FIELD --json` prints.

SCHEMA = "devkit.why/1"

_INDENT = "  "
_GAP = 2


def serialize_choice(found: Explanation, answer: Plan | Conflict, *, today: str | None) -> Json:
    """The document of one choice, ready for JSON; without a plan it has a conflict in place of a reason."""
    reason = found.reason
    return {
        "schema": SCHEMA,
        "verdict": "plan" if isinstance(answer, Plan) else "conflict",
        "field": found.field,
        "value": reason.value if reason else None,
        "because": reason.because if reason else None,
        "source": reason.source if reason else None,
        "confidence": str(reason.confidence) if reason else None,
        "others": [
            {"choice": each.choice, "rule": each.rule or None, "says": each.says, "source": each.source}
            for each in found.others
        ],
        "conflict": serialize_conflict(answer) if isinstance(answer, Conflict) else None,
        **serialize_age(answer, today),
    }


def format_choice(found: Explanation, answer: Plan | Conflict, *, width: int, today: str | None) -> str:
    """One choice for people, folded to `width` columns: the reason or the conflict, then what else there was."""
    parts = [format_reason(found.reason, width=width)] if found.reason else []
    if isinstance(answer, Conflict):
        parts.append(format_conflict(answer, width=width))
    if found.others:
        parts.append(_format_alternatives(found.others, width=width))
    return "\n\n".join([*parts, format_age(answer, today)])


def _format_alternatives(others: tuple[Alternative, ...], *, width: int) -> str:
    """A line per choice: its name, the rule, what it says; in what a rule says, long texts go on below."""
    names = max(len(each.choice) for each in others)
    rules = max(len(each.rule or "fits") for each in others)
    left = len(_INDENT) + names + rules + 2 * _GAP
    lines = ["Not chosen:"]
    for each in others:
        head = f"{_INDENT}{each.choice:<{names}}{' ' * _GAP}{each.rule or 'fits':<{rules}}{' ' * _GAP}"
        lines.append(head + wrap_text(each.says, width=max(width, left + 30), indent=" " * left)[left:])
    return "\n".join(lines)
