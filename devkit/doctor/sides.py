"""One judgement over both sides: the host, and the project's dev container that runs on it."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from devkit.doctor.cascade import WEIGHT
from devkit.doctor.model import Check, Finding, Found, Outcome, Passed, Skipped, Verdict
from devkit.doctor.run import run
from devkit.facts.model import Facts

INSIDE = "dev container"
"""What findings from the inside carry as `seen_in`."""

OF_THE_WORKLOAD = ("CON", "CUD", "PYT", "MEM")
"""Domains that matter where the workload runs: once its container is known, the host's own Python does not."""


def judge(checks: Iterable[Check], facts: Facts, *, clock: Callable[[], float]) -> tuple[Outcome, ...]:
    """The outcome of each check on these facts, and on those of the running dev container where they hold some."""
    checks = tuple(checks)
    outside = run(checks, facts, clock=clock)
    if not isinstance(facts.inside, Facts):
        return outside
    inside = run(checks, facts.inside, clock=clock)
    return tuple(_joined(host, container) for host, container in zip(outside, inside, strict=True))


def _joined(host: Outcome, container: Outcome) -> Outcome:
    container = replace(container, verdict=_marked(container.verdict))
    if host.check.code.startswith(OF_THE_WORKLOAD) and not isinstance(container.verdict, Skipped):
        return container
    return replace(host, verdict=_worse(host, container), ms=host.ms + container.ms)


def _marked(verdict: Verdict) -> Verdict:
    if not isinstance(verdict, Found):
        return verdict
    return Found(tuple(replace(finding, seen_in=INSIDE) for finding in verdict.findings))


def _worse(host: Outcome, container: Outcome) -> Verdict:
    """Findings before a crash, a crash before passed, passed before skipped; findings of both sides together."""
    match host.verdict, container.verdict:
        case Found(outside), Found(within):
            return Found((*outside, *_following(within, outside, host.check)))
        case (Found() as found, _) | (_, Found() as found):
            return found
        case (Skipped(), other) | (Passed(), other) if not isinstance(other, Skipped):
            return other
        case kept, _:
            return kept


def _following(within: Iterable[Finding], outside: Iterable[Finding], check: Check) -> Iterator[Finding]:
    """What is wrong on the host under this code shows inside as well: one cause, not two."""
    heaviest = max(WEIGHT[finding.severity] for finding in outside)
    for finding in within:
        yield replace(finding, follows_from=check.code) if heaviest >= WEIGHT[finding.severity] else finding
