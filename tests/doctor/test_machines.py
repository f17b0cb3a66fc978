"""Every recorded machine, judged: what its root findings are, and that a healthy one stays silent."""

import pytest

from devkit.doctor.model import Crashed, Severity
from devkit.doctor.report.report import Health
from devkit.doctor.runner import SEVERITY_RANKS
from tests.doctor.running import build_full_report
from tests.hosts import MACHINES, description_of, facts_of

HEALTHY = tuple(name for name in MACHINES if not description_of(name).get("finds"))


@pytest.mark.parametrize("name", MACHINES)
def test_the_root_findings_of_a_recorded_machine_are_those_it_stands_for(name):
    report = build_full_report(facts_of(name))
    roots = [shown.check.code for shown in report.roots if shown.finding.severity is not Severity.NOTE]
    assert list(dict.fromkeys(roots)) == description_of(name)["finds"]
    assert not [outcome for outcome in report.outcomes if isinstance(outcome.verdict, Crashed)]


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_machine_stays_silent(name):
    report = build_full_report(facts_of(name))
    assert report.health is Health.HEALTHY
    assert [shown.check.code for shown in report.findings if shown.finding.severity is not Severity.NOTE] == []


@pytest.mark.parametrize("name", MACHINES)
def test_no_check_finds_worse_than_its_row_says(name):
    for shown in build_full_report(facts_of(name)).findings:
        assert SEVERITY_RANKS[shown.finding.severity] <= SEVERITY_RANKS[shown.check.worst], shown.check.code
