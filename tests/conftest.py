"""What the closing summary says of the suites. Here: a process that only hands tests out sees no folder of them."""

from tests.faults.conftest import CASES
from tests.fuzz.profile import NAME


def pytest_terminal_summary(terminalreporter):
    reports = [*terminalreporter.stats.get("passed", ()), *terminalreporter.stats.get("failed", ())]
    cases = sum(value for report in reports for name, value in report.user_properties if name == CASES)
    if cases:
        terminalreporter.write_line(f"fault injection: {cases} cases")
    targets = sum(report.nodeid.startswith("tests/fuzz/") for report in reports)
    if targets:
        terminalreporter.write_line(f"fuzz: {targets} targets, {NAME}")
