"""Explains one choice in full: why it was made, and what spoke against each of the others."""

from collections.abc import Iterator
from typing import TypeVar

from devkit.compat.load import Tables
from devkit.compat.rows import Bitsandbytes, Package
from devkit.compat.rules import CudaSupport
from devkit.compat.specifiers import meets, meets_python, requirement_parts
from devkit.facts.record import record
from devkit.facts.values import Release
from devkit.solver import constraints, hardware
from devkit.solver.judge import Verdict, judge, preference
from devkit.solver.model import Conflict, Plan, Reason, Request, Vendor
from devkit.solver.quantisation import why_not
from devkit.solver.question import Candidate, Question, candidates
from devkit.solver.solve import question_of

AnyRow = TypeVar("AnyRow", Package, Bitsandbytes)

BUILD_FIELDS = ("torch", "cuda", "rocm", "torch_index")
"""Choices that fall together: each torch build is one candidate."""


@record
class Other:
    """A choice that was not made. `rule` is the first that refuses it, "" when it fits and another is preferred."""

    choice: str
    rule: str
    says: str
    source: str


@record
class Why:
    """One choice: its reason, None where there is no plan, and the others, newest first."""

    field: str
    reason: Reason | None
    others: tuple[Other, ...]


def why(request: Request, tables: Tables, answer: Plan | Conflict, field: str) -> Why | None:
    """Why `answer` to a request has what it has in a field; None for a field that is no choice."""
    question = question_of(request, tables)
    if isinstance(answer, Conflict):
        return Why(field, None, tuple(_builds(question, None))) if field in BUILD_FIELDS else None
    reason = next((reason for reason in answer.reasons if reason.field == field), None)
    if reason is None:
        return None
    return Why(field, reason, tuple(_others(field, reason, question, answer)))


def _others(field: str, reason: Reason, question: Question, plan: Plan) -> Iterator[Other]:
    if field in BUILD_FIELDS:
        yield from _builds(question, plan)
    elif field == "python":
        yield from _pythons(question, plan)
    elif field == constraints.BITSANDBYTES:
        for row in _newer(question.tables.stack.bitsandbytes, reason.value):
            says = why_not(row, _winner(question, plan), question)
            yield Other(f"{field} {row.version}", "B1", says, row.source[0])
    else:
        rows = tuple(row for row in question.tables.stack.packages if row.name == field)
        for package in _newer(rows, reason.value):
            yield Other(f"{field} {package.version}", "P1", _why_not(package, question, plan), package.source[0])


def _builds(question: Question, plan: Plan | None) -> Iterator[Other]:
    """Every build as new as the chosen one or newer; all of them where none was chosen."""
    yield from _unpublished(question, plan)
    verdicts = [judge(each, question) for each in candidates(question) if plan is None or _is_no_older(each, plan)]
    chosen = next((verdict for verdict in verdicts if plan is not None and _is(verdict.candidate, plan)), None)
    for verdict in verdicts:
        if verdict is chosen:
            continue
        if verdict.refusals:
            first = verdict.refusals[0]
            yield Other(str(verdict.candidate), first.rule, first.says, first.source)
        elif chosen is not None:
            says = _less_preferred(verdict, chosen, question)
            yield Other(str(verdict.candidate), "", says, verdict.candidate.index.source[0])


def _unpublished(question: Question, plan: Plan | None) -> Iterator[Other]:
    """Newer releases of which the wishes leave no build."""
    has_builds = {each.release.version for each in candidates(question)}
    for row in sorted(question.tables.torch.releases, key=lambda row: row.version, reverse=True):
        if plan is not None and row.version > Release.read(plan.torch) and row.version not in has_builds:
            says = "not known to be published for ROCm" if question.vendor is Vendor.ROCM else "not the one asked for"
            yield Other(f"torch {row.version}", "W2", says, row.source[0])


def _less_preferred(verdict: Verdict, chosen: Verdict, question: Question) -> str:
    """Why a build that fits lost to the chosen one: the first part of the preference in which they differ (W5)."""
    keys = zip(preference(verdict, question), preference(chosen, question), strict=True)
    differs = next((place for place, (one, other) in enumerate(keys) if one != other), -1)
    support = hardware.support(verdict.candidate, question)
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


def _pythons(question: Question, plan: Plan) -> Iterator[Other]:
    """The other Pythons, best first."""
    winner = _winner(question, plan)
    asked = constraints.of(constraints.PYTHON, question)
    with_image = {row.python for row in question.tables.images.python_images}
    for row in sorted(question.tables.stack.pythons, key=lambda row: row.rank):
        if row.version == plan.python:
            continue
        unmet = next((each for each in asked if not meets_python(row.version, each.specifier)), None)
        rule, says = "", f"fits; Python {plan.python} was asked for or is served more widely"
        if unmet is not None:
            rule, says = "P2", constraints.spoken(unmet)
        elif row.version not in winner.release.pythons:
            rule, says = "W7", f"torch {plan.torch} has no wheel for it"
        elif row.version not in with_image:
            rule, says = "I1", "no base image with it is known"
        yield Other(f"Python {row.version}", rule, says, row.source[0])


def _why_not(row: Package, question: Question, plan: Plan) -> str:
    """What a newer release of a package asks for that the plan does not have."""
    versions = {**dict(plan.packages), "torch": plan.torch}
    for asked in constraints.of(row.name, question):
        if not meets(row.version, asked.specifier):
            return constraints.spoken(asked)
    if not meets_python(plan.python, row.python):
        return f"needs Python {row.python}"
    for name, specifier in map(requirement_parts, row.requires):
        if name in versions and not meets(versions[name], specifier):
            return f"needs {name}{specifier}; the plan has {versions[name]}"
    return "does not fit the other packages"


def _newer(rows: tuple[AnyRow, ...], version: str) -> list[AnyRow]:
    """The rows before that of a version: tables list the newest first. None before one that they do not list."""
    versions = [row.version for row in rows]
    return list(rows[: versions.index(version)]) if version in versions else []


def _winner(question: Question, plan: Plan) -> Candidate:
    return next(each for each in candidates(question) if _is(each, plan))


def _is(candidate: Candidate, plan: Plan) -> bool:
    return (str(candidate.release.version), candidate.index.label) == (plan.torch, plan.variant)


def _is_no_older(candidate: Candidate, plan: Plan) -> bool:
    return candidate.release.version >= Release.read(plan.torch)
