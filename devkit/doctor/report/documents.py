"""The JSON documents of the doctor: its report, the list of its checks, and the explanation of a text or a check."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from devkit.doctor.checks.loader import load_check
from devkit.doctor.model import (
    Check,
    Confidence,
    Crashed,
    Fix,
    Found,
    Location,
    Outcome,
    Restart,
    Severity,
    Side,
    Skipped,
    find_check_page,
)
from devkit.doctor.problems import group_problems, show_commands
from devkit.doctor.signatures.catalog import PREFIXES, find_covered_failures, find_symptoms
from devkit.doctor.signatures.model import Consequence, Match
from devkit.doctor.signatures.nearest import Nearest
from devkit.doctor.signatures.unknown import Unknown
from devkit.formats.documents import MAY_LACK, Json, Line, build_from, encode

if TYPE_CHECKING:
    from devkit.doctor.report.report import Report
    from devkit.doctor.report.stack import StackLayer

Code = Annotated[str, rf"^({'|'.join(PREFIXES)})\d{{3}}$"]
Text = Annotated[str, r"^[\s\S]{0,1000}$"]
Day = Annotated[str, r"^\d{4}-\d\d-\d\d$"]


@dataclass(frozen=True, kw_only=True)
class FixDocument:
    """The repair of a finding. `is_automatic`: `devkit doctor --fix` can do it."""

    summary: Line
    commands: tuple[str, ...]
    where: Side
    root: bool
    restart: Restart
    docs: str
    is_automatic: bool


@dataclass(frozen=True, kw_only=True)
class FindingDocument:
    """A fault. `follows_from` is the code of the check whose finding causes it."""

    severity: Severity
    message: Line
    subject: Text
    evidence: tuple[Text, ...]
    confidence: Confidence
    follows_from: Code | None
    seen_in: str
    location: Location | None
    fix: FixDocument


@dataclass(frozen=True, kw_only=True)
class OutcomeDocument:
    """The outcome of a check: `findings` where it was found, `reason` where it was skipped or crashed."""

    code: Code
    title: Line
    status: Literal["passed", "found", "skipped", "crashed"]
    reason: Text
    ms: float
    findings: tuple[FindingDocument, ...]


@dataclass(frozen=True, kw_only=True)
class ReadingDocument:
    """A reading of a layer."""

    name: Line
    value: Text


@dataclass(frozen=True, kw_only=True)
class LayerDocument:
    """A layer of the machine, from the hardware up."""

    name: str
    title: Line
    state: Literal["cause", "problem", "warning", "follows", "fine", "unjudged"]
    readings: tuple[ReadingDocument, ...]


@dataclass(frozen=True)
class LostReading:
    """One thing that was not read: the reason, and the codes of the checks for errors that needed it."""

    reason: Line
    checks: tuple[Code, ...]


@dataclass(frozen=True, kw_only=True)
class CauseDocument:
    """One more cause that an error may have."""

    code: Code | None
    cause: str
    confidence: Confidence
    speaks_for: tuple[str, ...]
    speaks_against: tuple[str, ...]
    fix: FixDocument


@dataclass(frozen=True, kw_only=True)
class MatchDocument:
    """A known error that a text shows."""

    code: Code | None
    title: str
    severity: Severity
    cause: str
    confidence: Confidence
    matched: str
    line: int | None
    source: str | None
    follows_from: Code | None
    also: tuple[str, ...]
    fix: FixDocument
    family: str | None
    speaks_for: tuple[str, ...]
    speaks_against: tuple[str, ...]
    alternatives: tuple[CauseDocument, ...]
    question: str | None
    consequences: tuple[Consequence, ...]


@dataclass(frozen=True, kw_only=True)
class DoctorDocument:
    """Printed by devkit doctor --json."""

    schema: Literal["devkit.doctor/1"] = "devkit.doctor/1"
    devkit: str
    taken_at: Annotated[str, r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00$"]
    data_as_of: Day | None
    verdict: Literal["healthy", "no-gpu", "warnings", "incomplete", "problems"]
    tried: bool
    """Whether a container, or CUDA itself, proved that the GPUs can be used."""
    trial: Line
    root_causes: tuple[Code, ...]
    layers: tuple[LayerDocument, ...]
    lost: tuple[LostReading, ...]
    outcomes: tuple[OutcomeDocument, ...]


@dataclass(frozen=True, kw_only=True)
class RemedyDocument:
    """A fix, and the machines that it is for: "" where that is every other one. Values of a machine are <their names>."""

    condition: str
    summary: str
    commands: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ProblemDocument:
    """Problems of a check that share their fixes."""

    messages: tuple[str, ...]
    fixes: tuple[RemedyDocument, ...]


@dataclass(frozen=True, kw_only=True)
class CheckDocument:
    """A check, the failures that it recognizes, and error texts that lead to it."""

    code: Code
    title: Line
    covers: tuple[str, ...]
    symptoms: tuple[str, ...]
    docs: str
    explanation: Mapping[str, str] | None = field(default=None, metadata=MAY_LACK)
    problems: tuple[ProblemDocument, ...] | None = field(default=None, metadata=MAY_LACK)
    causes: tuple[Code, ...] | None = field(default=None, metadata=MAY_LACK)


@dataclass(frozen=True, kw_only=True)
class ChecksDocument:
    """Printed by devkit doctor --list --json."""

    schema: Literal["devkit.checks/1"] = "devkit.checks/1"
    checks: tuple[CheckDocument, ...]


@dataclass(frozen=True, kw_only=True)
class ExplainDocument:
    """Printed by devkit explain --json."""

    schema: Literal["devkit.explain/1"] = "devkit.explain/1"
    check: CheckDocument | None = field(default=None, metadata=MAY_LACK)
    matches: tuple[MatchDocument, ...]
    nearest: tuple[Nearest, ...] = ()
    unknown: Unknown | None = field(default=None, metadata=MAY_LACK)
    not_read: str = ""


def build_report_document(report: "Report", layers: "Iterable[StackLayer]") -> Json:
    """Build the document of a report."""
    shown = []
    for layer in layers:
        readings = tuple(build_from(ReadingDocument, each) for each in layer.readings)
        shown.append(build_from(LayerDocument, layer, state=layer.state.name.lower(), readings=readings))
    return encode(
        build_from(
            DoctorDocument,
            report,
            data_as_of=report.data_as_of or None,
            verdict=report.health.value,
            layers=tuple(shown),
            outcomes=tuple(map(_build_outcome, report.outcomes)),
        )
    )


def build_check_list_document(checks: Iterable[Check]) -> Json:
    """Build the document of `--list --json`."""
    return encode(ChecksDocument(checks=tuple(map(_build_check, checks))))


def build_matches_document(
    found: Iterable[Match], nearest: Iterable[Nearest] = (), unknown: Unknown | None = None, not_read: str = ""
) -> Json:
    """Build the document of known errors in a text, best first, and of what it says itself where there are none."""
    matches = tuple(map(_build_match, found))
    return encode(ExplainDocument(matches=matches, nearest=tuple(nearest), unknown=unknown, not_read=not_read))


def build_explanation_document(check: Check) -> Json:
    """Build the document of a check, without matches."""
    problems = tuple(
        ProblemDocument(
            messages=group.messages,
            fixes=tuple(
                RemedyDocument(condition=each.condition, summary=each.summary, commands=show_commands(each.row))
                for each in group.remedies
            ),
        )
        for group in group_problems(check.code)
    )
    explained = _build_check(check, explanation=dict(check.explanation), problems=problems, causes=check.causes)
    return encode(ExplainDocument(check=explained, matches=()))


def build_fix_document(fix: Fix, code: str) -> Json:
    """Build the part of a document about a fix, whose page is that of the check `code` where it names none."""
    return encode(_build_fix(fix, code))


def _build_check(check: Check, **more: Any) -> CheckDocument:  # noqa: ANN401 - further fields
    return CheckDocument(
        code=check.code,
        title=check.title,
        covers=find_covered_failures(check.code),
        symptoms=find_symptoms(check.code),
        docs=find_check_page(check.code),
        **more,
    )


def _build_outcome(outcome: Outcome) -> OutcomeDocument:
    verdict, code = outcome.verdict, outcome.check.code
    found = verdict.findings if isinstance(verdict, Found) else ()
    reason = verdict.reason if isinstance(verdict, Skipped) else verdict.error if isinstance(verdict, Crashed) else ""
    return build_from(
        OutcomeDocument,
        outcome.check,
        status=type(verdict).__name__.lower(),
        reason=reason,
        ms=round(outcome.ms, 3),
        findings=tuple(build_from(FindingDocument, each, fix=_build_fix(each.fix, code)) for each in found),
    )


def _build_fix(fix: Fix, code: str) -> FixDocument:
    docs = fix.docs or (find_check_page(code) if code else "")
    return build_from(FixDocument, fix, docs=docs, is_automatic=bool(fix.repairs))


def _build_match(match: Match) -> MatchDocument:
    return build_from(
        MatchDocument,
        match,
        code=match.code or None,
        title=load_check(match.code).title if match.code else match.family,
        line=match.line or None,
        source=match.source or None,
        fix=_build_fix(match.fix, match.code),
        family=match.family or None,
        alternatives=tuple(
            build_from(CauseDocument, cause, code=cause.code or None, fix=_build_fix(cause.fix, cause.code))
            for cause in match.alternatives
        ),
        question=match.question or None,
    )
