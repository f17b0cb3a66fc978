"""Runs one check, or all of them, on facts."""

from devkit.doctor.model import Found
from devkit.doctor.registry import BY_CODE, CHECKS
from devkit.doctor.report.report import build_report
from devkit.doctor.runner import run_checks


def ask(code, facts):
    """The verdict of one check."""
    return run_checks([BY_CODE[code]], facts, clock=lambda: 0.0)[0].verdict


def found(code, facts):
    """The findings of one check, which must have found something."""
    verdict = ask(code, facts)
    assert isinstance(verdict, Found), f"{code} found nothing: {verdict}"
    return verdict.findings


def first(code, facts):
    """The only finding of one check."""
    (finding,) = found(code, facts)
    return finding


def examined(facts):
    """The report of all checks."""
    return build_report(facts, run_checks(CHECKS, facts, clock=lambda: 0.0), devkit="0.1.0")


def codes(facts):
    """Codes of all checks that found something other than a note, in print order."""
    return [shown.check.code for shown in examined(facts).findings if shown.finding.severity.value != "note"]
