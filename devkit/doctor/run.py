"""Runs checks over facts. A check that breaks costs its own result, never the report."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from types import TracebackType

from devkit.doctor.model import Check, Crashed, Finding, Found, NotApplicable, Outcome, Passed, Skipped, Verdict
from devkit.facts.model import Facts
from devkit.text import on_one_line


def run(checks: Iterable[Check], facts: Facts, *, clock: Callable[[], float]) -> tuple[Outcome, ...]:
    """The outcome of each check, in the order given. `clock` reads seconds from any fixed start."""
    outcomes = []
    for check in checks:
        started_s = clock()
        verdict = _verdict(check, facts)
        outcomes.append(Outcome(check, verdict, (clock() - started_s) * 1000))
    return tuple(outcomes)


def _verdict(check: Check, facts: Facts) -> Verdict:
    try:
        findings = tuple(check.run(facts))
    except NotApplicable as reason:
        return Skipped(on_one_line(reason.reason))
    except Exception as error:  # noqa: BLE001 - a bug in one check must not take the others' results with it
        return Crashed(on_one_line(f"{type(error).__name__}: {error}") + f" ({_place(error.__traceback__)})")
    return Found(tuple(map(_plain, findings))) if findings else Passed()


def _plain(finding: Finding) -> Finding:
    """The same finding, safe to print: files and programs put into it what they like."""
    evidence = tuple(on_one_line(reading) for reading in finding.evidence)
    return replace(
        finding, message=on_one_line(finding.message), subject=on_one_line(finding.subject), evidence=evidence
    )


def _place(trace: TracebackType | None) -> str:
    """Where the error was raised: the innermost frame's function and line."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f"in {trace.tb_frame.f_code.co_name}, line {trace.tb_lineno}"
