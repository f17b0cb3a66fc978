from tests.fuzz.profile import NAME


def pytest_terminal_summary(terminalreporter):
    if any("tests/fuzz" in report.nodeid for report in terminalreporter.stats.get("passed", ())):
        terminalreporter.write_line(f"fuzz: {NAME}")
