"""Runs checks over facts. A check that breaks costs its own result, never the report."""

from collections.abc import Callable, Iterable
from types import TracebackType

from devkit.doctor.model import Check, Crashed, Found, NotApplicable, Outcome, Passed, Skipped, Verdict
from devkit.facts.model import Facts


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
        return Skipped(reason.reason)
    except Exception as error:  # noqa: BLE001 - a bug in one check must not take the others' results with it
        return Crashed(f"{type(error).__name__}: {error} ({_place(error.__traceback__)})")
    return Found(findings) if findings else Passed()


def _place(trace: TracebackType | None) -> str:
    """Where the error was raised: the innermost frame's function and line."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f"in {trace.tb_frame.f_code.co_name}, line {trace.tb_lineno}"
