from devkit.doctor.model import Check, Crashed, Finding, Fix, Found, NotApplicable, Passed, Severity, Skipped
from devkit.doctor.runner import run_checks
from tests.doctor.machines import healthy

FINDING = Finding(Severity.ERROR, "something is wrong", Fix("Do something."))


def passes(facts):
    yield from ()


def finds(facts):
    yield FINDING


def skips(facts):
    raise NotApplicable("nothing to judge")
    yield


def breaks(facts):
    yield FINDING
    raise ZeroDivisionError("by nought")


def made(code, body):
    return Check(code, "All is well", body)


def test_each_way_a_check_may_end():
    checks = [made("AAA001", passes), made("AAA002", finds), made("AAA003", skips)]
    outcomes = run_checks(checks, healthy(), clock=lambda: 0.0)
    assert [outcome.verdict for outcome in outcomes] == [Passed(), Found((FINDING,)), Skipped("nothing to judge")]


def test_a_check_that_breaks_costs_only_itself():
    broken, fine = run_checks([made("AAA001", breaks), made("AAA002", passes)], healthy(), clock=lambda: 0.0)
    assert isinstance(broken.verdict, Crashed)
    assert broken.verdict.error.startswith("ZeroDivisionError: by nought (in breaks, line ")
    assert fine.verdict == Passed()


def test_the_clock_is_the_callers():
    ticks = iter([1.0, 1.25, 2.0, 2.5])
    outcomes = run_checks([made("AAA001", passes), made("AAA002", passes)], healthy(), clock=lambda: next(ticks))
    assert [outcome.ms for outcome in outcomes] == [250.0, 500.0]
