"""Run one check, or all of them, on facts; and reports put together by hand for every form of showing one."""

from functools import cache

from devkit.doctor.model import (
    Check,
    Confidence,
    Crashed,
    Finding,
    Fix,
    Found,
    Location,
    Outcome,
    Passed,
    Restart,
    Severity,
    Side,
    Skipped,
)
from devkit.doctor.registry import BY_CODE, CHECKS
from devkit.doctor.report.report import build_report
from devkit.doctor.runner import SEVERITY_RANKS, run_checks
from tests.doctor.machines import healthy
from tests.hosts import facts_of

# Run one check, or all of them, on facts.


def run_check(code, facts):
    """Return the verdict of one check."""
    return run_checks([BY_CODE[code]], facts, clock=lambda: 0.0)[0].verdict


def find_all(code, facts):
    """Return the findings of one check, which must have found something."""
    verdict = run_check(code, facts)
    assert isinstance(verdict, Found), f"{code} found nothing: {verdict}"
    worst = max(SEVERITY_RANKS[finding.severity] for finding in verdict.findings)
    assert worst <= SEVERITY_RANKS[BY_CODE[code].worst], f"the row of {code} says that it finds nothing as bad"
    return verdict.findings


def find_only(code, facts):
    """Return the only finding of one check."""
    (finding,) = find_all(code, facts)
    return finding


def build_full_report(facts):
    """Build the report of all checks."""
    return build_report(facts, run_checks(CHECKS, facts, clock=lambda: 0.0), devkit="0.1.0")


@cache
def report_of(machine):
    """Build the report of a recorded machine."""
    return build_full_report(facts_of(machine))


def find_codes(facts):
    """List the codes of all checks that found something other than a note, in print order."""
    return [shown.check.code for shown in build_full_report(facts).findings if shown.finding.severity.value != "note"]


# Reports put together by hand, for the tests of every form of showing one.


def nothing(facts):
    yield from ()


EXPLANATION = (
    ("", "The condition in one sentence."),
    ("Why it matters", "because."),
    ("How devkit checks it", "so."),
    ("Source", "Vendor, a page, https://docs.example.org/a-page."),
)


def a_finding(severity=Severity.ERROR, message="the cause", **changes):
    values = {
        "fix": Fix("Do this.", ("sudo do",), Side.HOST, root=True, restart=Restart.HOST),
        "evidence": ("a reading",),
        "confidence": Confidence.LIKELY,
    }
    return Finding(severity, message, **values | changes)


def an_outcome(code, *findings, verdict=None, causes=()):
    check = Check(code, f"{code} is fine", nothing, causes=causes, explanation=EXPLANATION)
    return Outcome(check, verdict or Found(findings), 1.5)


ROOT = an_outcome("DRV901", a_finding(), causes=("CUD901",))
CONSEQUENCE = an_outcome("CUD901", a_finding(message="the consequence"))
IN_A_FILE = an_outcome("PRJ901", a_finding(Severity.WARNING, "a line is wrong", location=Location("a/b c.yml", 7)))
NOTE = an_outcome("GPU901", a_finding(Severity.NOTE, "a note", subject="GPU 3"))
PASSED = an_outcome("ENG901", verdict=Passed())
SKIPPED = an_outcome("CON901", verdict=Skipped("nothing to judge"))
HUNG = an_outcome("DRV902", verdict=Skipped("`modinfo` did not answer in time", is_lost=True))
CRASHED = an_outcome("STO901", verdict=Crashed("KeyError: 'x'"))
EVERYTHING = (NOTE, ROOT, PASSED, CONSEQUENCE, SKIPPED, IN_A_FILE, CRASHED)


def a_report(*outcomes):
    return build_report(healthy(), outcomes, devkit="0.1.0")
