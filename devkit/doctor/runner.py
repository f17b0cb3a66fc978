"""One judgement over both sides: the host, and the project's dev container that runs on it."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from types import TracebackType

from devkit.doctor.model import (
    Check,
    CheckVerdict,
    Crashed,
    Finding,
    Found,
    NotApplicable,
    Outcome,
    Passed,
    Severity,
    Skipped,
)
from devkit.facts.model import Facts
from devkit.text import to_one_line

# Tells causes from consequences: at most one root cause is shown for each chain.

SEVERITY_RANKS: Mapping[Severity, int] = {Severity.NOTE: 0, Severity.WARNING: 1, Severity.ERROR: 2}


def mark_root_causes(outcomes: Iterable[Outcome]) -> tuple[Outcome, ...]:
    """The same outcomes, each finding carrying the code of the root cause that it follows from.

    A finding follows from a check that names its code in `causes` and that found something at least as severe:
    a warning never hides an error, and the inside of a container never the outside. The causes form no cycle; a test
    proves it of the registry.
    """
    outcomes = tuple(outcomes)
    roots = _Roots(outcomes)
    return tuple(_mark_causes(outcome, roots) for outcome in outcomes)


def _mark_causes(outcome: Outcome, roots: "_Roots") -> Outcome:
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
            heaviest = max(able, key=lambda other: SEVERITY_RANKS[other.severity], default=None)
            if (
                heaviest is not None
                and code in check.causes
                and SEVERITY_RANKS[heaviest.severity] >= SEVERITY_RANKS[finding.severity]
            ):
                return self.of(check.code, heaviest) or check.code
        return None


# Runs checks over facts. A check that breaks costs its own result, never the report.


def run_checks(checks: Iterable[Check], facts: Facts, *, clock: Callable[[], float]) -> tuple[Outcome, ...]:
    """The outcome of each check, in the order given. `clock` reads seconds from any fixed start."""
    outcomes = []
    for check in checks:
        started_s = clock()
        verdict = _verdict(check, facts)
        outcomes.append(Outcome(check, verdict, (clock() - started_s) * 1000))
    return tuple(outcomes)


def _verdict(check: Check, facts: Facts) -> CheckVerdict:
    try:
        findings = tuple(check.run(facts))
    except NotApplicable as reason:
        return Skipped(to_one_line(reason.reason))
    except Exception as error:  # noqa: BLE001 - a bug in one check must not take the others' results with it
        return Crashed(to_one_line(f"{type(error).__name__}: {error}") + f" ({_place(error.__traceback__)})")
    return Found(tuple(map(_plain, findings))) if findings else Passed()


def _plain(finding: Finding) -> Finding:
    """The same finding, safe to print: files and programs put into it what they like."""
    evidence = tuple(to_one_line(reading) for reading in finding.evidence)
    return replace(
        finding, message=to_one_line(finding.message), subject=to_one_line(finding.subject), evidence=evidence
    )


def _place(trace: TracebackType | None) -> str:
    """Where the error was raised: the innermost frame's function and line."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f"in {trace.tb_frame.f_code.co_name}, line {trace.tb_lineno}"


DEV_CONTAINER = "dev container"
"""What findings from the inside carry as `seen_in`."""

WORKLOAD_PREFIXES = ("CON", "CUD", "PYT", "MEM")
"""Domains that matter where the workload runs: once its container is known, the host's own Python does not."""


def run_on_host_and_container(
    checks: Iterable[Check], facts: Facts, *, clock: Callable[[], float]
) -> tuple[Outcome, ...]:
    """The outcome of each check on these facts, and on those of the running dev container where they hold some."""
    checks = tuple(checks)
    outside = run_checks(checks, facts, clock=clock)
    if not isinstance(facts.inside, Facts):
        return outside
    inside = run_checks(checks, facts.inside, clock=clock)
    return tuple(_join_sides(host, container) for host, container in zip(outside, inside, strict=True))


def _join_sides(host: Outcome, container: Outcome) -> Outcome:
    container = replace(container, verdict=_mark_seen_in(container.verdict))
    if host.check.code.startswith(WORKLOAD_PREFIXES) and not isinstance(container.verdict, Skipped):
        return container
    return replace(host, verdict=_join_verdicts(host, container), ms=host.ms + container.ms)


def _mark_seen_in(verdict: CheckVerdict) -> CheckVerdict:
    if not isinstance(verdict, Found):
        return verdict
    return Found(tuple(replace(finding, seen_in=DEV_CONTAINER) for finding in verdict.findings))


def _join_verdicts(host: Outcome, container: Outcome) -> CheckVerdict:
    """Findings before a crash, a crash before passed, passed before skipped; findings of both sides together."""
    match host.verdict, container.verdict:
        case Found(outside), Found(within):
            return Found((*outside, *_mark_following(within, outside, host.check)))
        case (Found() as found, _) | (_, Found() as found):
            return found
        case (Skipped(), other) | (Passed(), other) if not isinstance(other, Skipped):
            return other
        case kept, _:
            return kept


def _mark_following(within: Iterable[Finding], outside: Iterable[Finding], check: Check) -> Iterator[Finding]:
    """What is wrong on the host under this code shows inside as well: one cause, not two."""
    heaviest = max(SEVERITY_RANKS[finding.severity] for finding in outside)
    for finding in within:
        yield replace(finding, follows_from=check.code) if heaviest >= SEVERITY_RANKS[finding.severity] else finding
