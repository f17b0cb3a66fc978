"""Tells causes from consequences: at most one root cause is shown for each chain."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from devkit.doctor.model import Finding, Found, Outcome, Severity

WEIGHT: Mapping[Severity, int] = {Severity.NOTE: 0, Severity.WARNING: 1, Severity.ERROR: 2}


def cascade(outcomes: Iterable[Outcome]) -> tuple[Outcome, ...]:
    """The same outcomes, each finding carrying the code of the root cause that it follows from.

    A finding follows from a check that names its code in `causes` and that found something at least as severe:
    a warning never hides an error, and the inside of a container never the outside. The causes form no cycle; a test
    proves it of the registry.
    """
    outcomes = tuple(outcomes)
    roots = _Roots(outcomes)
    return tuple(_marked(outcome, roots) for outcome in outcomes)


def _marked(outcome: Outcome, roots: "_Roots") -> Outcome:
    if not isinstance(outcome.verdict, Found):
        return outcome
    findings = tuple(
        replace(finding, follows_from=roots.of(outcome.check.code, finding) or finding.follows_from)
        for finding in outcome.verdict.findings
    )
    return replace(outcome, verdict=Found(findings))


class _Roots:
    """Finds the first cause of a finding, following chains of causes up."""

    def __init__(self, outcomes: tuple[Outcome, ...]) -> None:
        self._found = tuple(
            (outcome.check, outcome.verdict.findings) for outcome in outcomes if isinstance(outcome.verdict, Found)
        )

    def of(self, code: str, finding: Finding) -> str | None:
        """The code at the top of the chain above `code`, or None when nothing caused this finding."""
        for check, findings in self._found:
            # What is wrong inside of a container is no cause of what is wrong outside.
            able = [other for other in findings if finding.seen_in or not other.seen_in]
            heaviest = max(able, key=lambda other: WEIGHT[other.severity], default=None)
            if heaviest is not None and code in check.causes and WEIGHT[heaviest.severity] >= WEIGHT[finding.severity]:
                return self.of(check.code, heaviest) or check.code
        return None
