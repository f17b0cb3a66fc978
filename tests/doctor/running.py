"""Run one check, or all of them, on facts."""

from devkit.doctor.model import Found
from devkit.doctor.registry import BY_CODE, CHECKS
from devkit.doctor.report.report import build_report
from devkit.doctor.runner import SEVERITY_RANKS, run_checks


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


def find_codes(facts):
    """List the codes of all checks that found something other than a note, in print order."""
    return [shown.check.code for shown in build_full_report(facts).findings if shown.finding.severity.value != "note"]
