"""Run checks over a host and its dev container, and mark which findings follow from which."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

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
from devkit.text import escape_ci_commands, to_one_line

SEVERITY_RANKS: Mapping[Severity, int] = {Severity.NOTE: 0, Severity.WARNING: 1, Severity.ERROR: 2}

DEV_CONTAINER = "dev container"
"""`seen_in` of findings from inside the dev container."""

WORKLOAD_PREFIXES = ("CON", "CUD", "PYT", "MEM")
"""Prefixes of checks that matter where the workload runs: with a dev container, the host's own Python does not."""


def run_on_host_and_container(
    checks: Iterable[Check], facts: Facts, *, clock: Callable[[], float]
) -> tuple[Outcome, ...]:
    """Run each check on the host's facts and, where they hold some, on those of the running dev container.

    Args:
        clock: reads seconds from any fixed start.
    """
    checks = tuple(checks)
    outside = run_checks(checks, facts, clock=clock)
    if not isinstance(facts.inside, Facts):
        return outside
    inside = run_checks(checks, facts.inside, clock=clock)
    return tuple(_join(host, container) for host, container in zip(outside, inside, strict=True))


def run_checks(checks: Iterable[Check], facts: Facts, *, clock: Callable[[], float]) -> tuple[Outcome, ...]:
    """Run each check once, in the order given. A check that crashes costs its own result, never the report."""
    outcomes = []
    for check in checks:
        started_s = clock()
        verdict = _run_check(check, facts)
        outcomes.append(Outcome(check, verdict, (clock() - started_s) * 1000))
    return tuple(outcomes)


def _run_check(check: Check, facts: Facts) -> CheckVerdict:
    try:
        # Files and programs may have put anything into a finding: make it safe to print.
        findings = tuple(
            replace(
                finding,
                message=to_one_line(finding.message),
                subject=to_one_line(finding.subject),
                evidence=tuple(map(to_one_line, finding.evidence)),
                location=finding.location and replace(finding.location, path=to_one_line(finding.location.path)),
                fix=replace(
                    finding.fix,
                    summary=to_one_line(finding.fix.summary),
                    commands=tuple(map(_escape_command, finding.fix.commands)),
                ),
            )
            for finding in check.run(facts)
        )
    except NotApplicable as reason:
        return Skipped(to_one_line(reason.reason), reason.is_lost)
    except Exception as error:  # noqa: BLE001 - a bug in one check must not take the others' results with it
        frame = error.__traceback__
        while frame is not None and frame.tb_next is not None:
            frame = frame.tb_next
        place = "" if frame is None else f"in {frame.tb_frame.f_code.co_name}, line {frame.tb_lineno}"
        return Crashed(to_one_line(f"{type(error).__name__}: {error}") + f" ({place})")
    return Found(findings) if findings else Passed()


def _escape_command(text: str) -> str:
    """Escape what a terminal or the log of a CI would act on, a new line included; never cut: half a command is another one."""
    return escape_ci_commands("".join(char if char.isprintable() else ascii(char)[1:-1] for char in text))


def _join(host: Outcome, container: Outcome) -> Outcome:
    """Join both outcomes of a check: findings, then a crash, then what could not be judged for a lost fact, then passed."""
    inside = container.verdict
    if isinstance(inside, Found):
        inside = Found(tuple(replace(finding, seen_in=DEV_CONTAINER) for finding in inside.findings))
    is_judged = not isinstance(inside, Skipped) or (inside.is_lost and not isinstance(host.verdict, Found | Crashed))
    if host.check.code.startswith(WORKLOAD_PREFIXES) and is_judged:
        return replace(container, verdict=inside)
    verdict = host.verdict
    match host.verdict, inside:
        case Found(on_host), Found(in_container):
            # A fault of the host shows in its container, too: one cause, not two.
            worst = max(SEVERITY_RANKS[finding.severity] for finding in on_host)
            following = (
                replace(finding, follows_from=host.check.code) if worst >= SEVERITY_RANKS[finding.severity] else finding
                for finding in in_container
            )
            verdict = Found((*on_host, *following))
        case (Found() as found, _) | (_, Found() as found):
            verdict = found
        case Skipped(is_lost=True), Passed():
            pass
        case (Skipped() | Passed(), other) if not isinstance(other, Skipped):
            verdict = other
    return replace(host, verdict=verdict, ms=host.ms + container.ms)


def mark_root_causes(outcomes: Iterable[Outcome]) -> tuple[Outcome, ...]:
    """Give each finding the code of the root cause that it follows from.

    A finding follows from a check that names its code in `causes` and that found something at least as severe: a
    warning never hides an error, and the inside of a container never the outside. The causes form no cycle; a test
    proves it of the registry.
    """
    outcomes = tuple(outcomes)
    found = [(outcome.check, outcome.verdict.findings) for outcome in outcomes if isinstance(outcome.verdict, Found)]

    def find_root(code: str, finding: Finding) -> str | None:
        for check, findings in found:
            if code not in check.causes:
                continue
            # A fault inside a container causes nothing outside it.
            able = [other for other in findings if finding.seen_in or not other.seen_in]
            worst = max(able, key=lambda other: SEVERITY_RANKS[other.severity], default=None)
            if worst is not None and SEVERITY_RANKS[worst.severity] >= SEVERITY_RANKS[finding.severity]:
                return find_root(check.code, worst) or check.code
        return None

    marked = []
    for outcome in outcomes:
        if isinstance(outcome.verdict, Found):
            findings = tuple(
                replace(finding, follows_from=find_root(outcome.check.code, finding) or finding.follows_from)
                for finding in outcome.verdict.findings
            )
            outcome = replace(outcome, verdict=Found(findings))
        marked.append(outcome)
    return tuple(marked)
