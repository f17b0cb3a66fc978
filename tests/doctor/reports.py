"""Reports put together by hand, for the tests of every form of showing one."""

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
from devkit.doctor.report.report import build_report
from tests.doctor.machines import healthy


def nothing(facts):
    """The condition in one sentence.

    Why it matters: because.
    How it is seen: so.
    Source: Vendor, a page, https://docs.example.org/a-page.
    """
    yield from ()


def a_finding(severity=Severity.ERROR, message="the cause", **changes):
    values = {
        "fix": Fix("Do this.", ("sudo do",), Side.HOST, root=True, restart=Restart.HOST),
        "evidence": ("a reading",),
        "confidence": Confidence.LIKELY,
    }
    return Finding(severity, message, **values | changes)


def an_outcome(code, *findings, verdict=None, causes=()):
    return Outcome(Check(code, f"{code} is fine", nothing, causes=causes), verdict or Found(findings), 1.5)


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
