"""The report of a run: its verdict, its root causes, and its JSON document."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

from devkit.compat.version_tables import load_tables
from devkit.doctor.model import Check, Crashed, Finding, Found, Outcome, Severity, Skipped
from devkit.doctor.preconditions import has_gpu_to_judge
from devkit.doctor.report.documents import LostReading, build_report_document
from devkit.doctor.runner import mark_root_causes
from devkit.doctor.trials import describe_outcome, describe_trials, describe_untried, is_tried, weigh_by_trials
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
class Report:
    """The outcomes of a run with causes marked. Build it with `build_report`."""

    devkit: str
    taken_at: str
    outcomes: tuple[Outcome, ...]
    data_as_of: str
    """The date of the oldest version table that a check used, "" when none did."""
    has_gpu: bool
    tried: bool = False
    """Whether a container, or CUDA itself, proved that the GPUs can be used."""
    trial: str = "not tried"
    """What was tried and how it ended, in a line."""
    proof: str = "settings look right, but not tried"
    """What was proved, where nothing is wrong: "containers start with 2 GPUs"; or that nothing was."""
    untried: str = ""
    """What of the project shows only where it starts, as the end of a line."""

    @cached_property
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

    @cached_property
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
            return self.proof
        return "no NVIDIA GPU found, so it is unknown whether GPU work would run"

    @property
    def line(self) -> str:
        """The verdict with the first root cause, for a single line of output."""
        if self.health is Health.INCOMPLETE:
            return f"{self.health}: {self.lost[0].reason}"
        if not self.root_causes:
            said = f"{self.crashed[0].check.code} crashed" if self.crashed else self.headline
            return f"{self.health}: {said}"
        message = next((each.finding.message for each in self.roots if each.check.code == self.root_causes[0]), "")
        more = f" ({', '.join(self.root_causes[1:4])} too)" if self.root_causes[1:] else ""
        return f"{self.health}: {self.root_causes[0]} {to_one_line(message)}{more}"

    @cached_property
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
        return build_report_document(self, layers)


def build_report(facts: Facts, outcomes: Iterable[Outcome], *, devkit: str) -> Report:
    """Build the report over `facts`, with each finding's root cause marked."""
    judged = mark_root_causes(weigh_by_trials(outcomes, facts))
    # Only now: checks are generators, and read their tables while they run.
    return Report(
        devkit,
        facts.taken_at,
        judged,
        load_tables().as_of,
        has_gpu_to_judge(facts),
        is_tried(facts),
        describe_trials(facts),
        describe_outcome(facts),
        describe_untried(facts),
    )
