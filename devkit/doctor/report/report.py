"""The report of a run: its verdict, its root causes, and its JSON document."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, assert_never

from devkit.compat.version_tables import load_tables
from devkit.doctor.model import (
    Check,
    Crashed,
    Finding,
    Fix,
    Found,
    Outcome,
    Passed,
    Severity,
    Skipped,
    find_check_page,
)
from devkit.doctor.preconditions import has_gpu_to_judge
from devkit.doctor.runner import mark_root_causes
from devkit.doctor.signatures.catalog import find_covered_failures, find_symptoms
from devkit.facts.model import Facts
from devkit.text import to_one_line

if TYPE_CHECKING:
    from devkit.doctor.report.stack import StackLayer


class Health(StrEnum):
    """The report's verdict: the worst severity found, notes aside; "incomplete" where an error may have been missed.

    NO_GPU: nothing was found, on a machine without an NVIDIA GPU to judge.
    """

    HEALTHY = "healthy"
    NO_GPU = "no-gpu"
    WARNINGS = "warnings"
    INCOMPLETE = "incomplete"
    PROBLEMS = "problems"


@dataclass(frozen=True)
class ReportedFinding:
    """A finding with the check that made it."""

    check: Check
    finding: Finding


@dataclass(frozen=True)
class LostReading:
    """One thing that was not read: the reason, and the codes of the checks for errors that needed it."""

    reason: str
    checks: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """The outcomes of a run with causes marked. Build it with `build_report`."""

    devkit: str
    taken_at: str
    outcomes: tuple[Outcome, ...]
    data_as_of: str
    """The date of the oldest version table that a check used, "" when none did."""
    has_gpu: bool

    @property
    def findings(self) -> tuple[ReportedFinding, ...]:
        """Every finding, in print order."""
        return tuple(
            ReportedFinding(outcome.check, finding)
            for outcome in self.outcomes
            if isinstance(outcome.verdict, Found)
            for finding in outcome.verdict.findings
        )

    @property
    def crashed(self) -> tuple[Outcome, ...]:
        """The checks that crashed."""
        return tuple(outcome for outcome in self.outcomes if isinstance(outcome.verdict, Crashed))

    @property
    def lost(self) -> tuple[LostReading, ...]:
        """Readings without which an error may have been missed, those that most checks needed first."""
        reasons: dict[str, list[str]] = {}
        for outcome in self.outcomes:
            verdict = outcome.verdict
            if isinstance(verdict, Skipped) and verdict.is_lost and outcome.check.worst is Severity.ERROR:
                reasons.setdefault(verdict.reason, []).append(outcome.check.code)
        most_first = sorted(reasons.items(), key=lambda each: -len(each[1]))
        return tuple(LostReading(reason, tuple(codes)) for reason, codes in most_first)

    @property
    def health(self) -> Health:
        """The verdict. A crashed check counts as a warning: what it would have found is unknown."""
        severities = {shown.finding.severity for shown in self.findings}
        if Severity.ERROR in severities:
            return Health.PROBLEMS
        if self.lost:
            return Health.INCOMPLETE
        if Severity.WARNING in severities or self.crashed:
            return Health.WARNINGS
        return Health.HEALTHY if self.has_gpu else Health.NO_GPU

    @property
    def headline(self) -> str:
        """The verdict in one line, where nothing worse than a note was found."""
        if self.health is Health.HEALTHY:
            return "nothing found that stops GPU work"
        return "no NVIDIA GPU found, so nothing says whether GPU work would run"

    @property
    def line(self) -> str:
        """The verdict with the first root cause, for whoever has one line."""
        if self.health is Health.INCOMPLETE:
            return f"{self.health}: {self.lost[0].reason}"
        if not self.root_causes:
            said = f"{self.crashed[0].check.code} crashed" if self.crashed else self.headline
            return f"{self.health}: {said}"
        message = next((each.finding.message for each in self.roots if each.check.code == self.root_causes[0]), "")
        more = f" ({', '.join(self.root_causes[1:4])} too)" if self.root_causes[1:] else ""
        return f"{self.health}: {self.root_causes[0]} {to_one_line(message)}{more}"

    @property
    def roots(self) -> tuple[ReportedFinding, ...]:
        """Findings that follow from no other, the worst first, otherwise in print order."""
        order = (Severity.ERROR, Severity.WARNING, Severity.NOTE)
        causes = [shown for shown in self.findings if shown.finding.follows_from is None]
        return tuple(sorted(causes, key=lambda shown: order.index(shown.finding.severity)))

    @property
    def root_causes(self) -> tuple[str, ...]:
        """Codes that decide the verdict: of root errors, or of root warnings where nothing is worse."""
        decisive = {
            Health.PROBLEMS: Severity.ERROR,
            Health.WARNINGS: Severity.WARNING,
            Health.INCOMPLETE: Severity.WARNING,
        }
        worst = decisive.get(self.health)
        return tuple(dict.fromkeys(shown.check.code for shown in self.roots if shown.finding.severity is worst))

    def following(self, code: str) -> tuple[ReportedFinding, ...]:
        """The findings that follow from the check `code`."""
        return tuple(shown for shown in self.findings if shown.finding.follows_from == code)

    def to_document(self, layers: "Iterable[StackLayer]" = ()) -> dict[str, Any]:
        """Return the document of `--json`; its fields are a contract."""
        return {
            "schema": "devkit.doctor/1",
            "devkit": self.devkit,
            "taken_at": self.taken_at,
            "data_as_of": self.data_as_of or None,
            "verdict": self.health.value,
            "root_causes": list(self.root_causes),
            "layers": [
                {
                    "name": layer.name,
                    "title": layer.title,
                    "state": layer.state.name.lower(),
                    "readings": [{"name": reading.name, "value": reading.value} for reading in layer.readings],
                }
                for layer in layers
            ],
            "lost": [{"reason": each.reason, "checks": list(each.checks)} for each in self.lost],
            "outcomes": [_build_outcome_document(outcome) for outcome in self.outcomes],
        }


def build_report(facts: Facts, outcomes: Iterable[Outcome], *, devkit: str) -> Report:
    """Build the report over `facts`, with each finding's root cause marked."""
    judged = mark_root_causes(outcomes)
    # Only now: checks are generators, and read their tables while they run.
    return Report(devkit, facts.taken_at, judged, load_tables().as_of, has_gpu_to_judge(facts))


def build_check_list_document(checks: Iterable[Check]) -> dict[str, Any]:
    """Build the document of `--list --json`."""
    return {
        "schema": "devkit.checks/1",
        "checks": [
            {
                "code": check.code,
                "title": check.title,
                "covers": list(find_covered_failures(check.code)),
                "symptoms": list(find_symptoms(check.code)),
                "docs": find_check_page(check.code),
            }
            for check in checks
        ],
    }


def _build_outcome_document(outcome: Outcome) -> dict[str, Any]:
    reason = ""
    findings: tuple[Finding, ...] = ()
    match outcome.verdict:
        case Passed():
            status = "passed"
        case Found(findings):
            status = "found"
        case Skipped(reason):
            status = "skipped"
        case Crashed(reason):
            status = "crashed"
        case _ as never:
            assert_never(never)
    return {
        "code": outcome.check.code,
        "title": outcome.check.title,
        "status": status,
        "reason": reason,
        "ms": round(outcome.ms, 3),
        "findings": [
            {
                "severity": finding.severity.value,
                "message": finding.message,
                "subject": finding.subject,
                "evidence": list(finding.evidence),
                "confidence": finding.confidence.value,
                "follows_from": finding.follows_from,
                "seen_in": finding.seen_in,
                "location": {"path": where.path, "line": where.line} if (where := finding.location) else None,
                "fix": build_fix_document(finding.fix, outcome.check.code),
            }
            for finding in findings
        ],
    }


def build_fix_document(fix: Fix, code: str) -> dict[str, Any]:
    """Build the part of a document about a fix. `is_automatic`: `devkit doctor --fix` can apply it.

    Where the fix names no page, that of the check `code` is it; "" has none.
    """
    return {
        "summary": fix.summary,
        "commands": list(fix.commands),
        "where": fix.where.value,
        "root": fix.root,
        "restart": fix.restart.value,
        "docs": fix.docs or (find_check_page(code) if code else ""),
        "is_automatic": bool(fix.repairs),
    }
