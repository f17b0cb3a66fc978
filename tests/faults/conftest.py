import pytest

CASES = "faults"


@pytest.fixture
def count(record_property):
    """A function that adds cases to the number which the summary prints."""

    def add(cases):
        record_property(CASES, cases)

    return add


def pytest_terminal_summary(terminalreporter):
    reports = [*terminalreporter.stats.get("passed", ()), *terminalreporter.stats.get("failed", ())]
    cases = sum(value for report in reports for name, value in report.user_properties if name == CASES)
    if cases:
        terminalreporter.write_line(f"fault injection: {cases} cases")
