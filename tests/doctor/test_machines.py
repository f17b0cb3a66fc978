"""Every recorded machine, judged: what its root findings are, and that a healthy one stays silent."""

import pytest

from devkit.doctor.model import Crashed, Severity
from devkit.doctor.report.report import Health
from devkit.doctor.runner import SEVERITY_RANKS
from devkit.facts.model import NvmlAnswer
from devkit.probe.gather import gather_facts
from devkit.probe.host import TIMED_OUT, ProgramResult
from tests.doctor.running import build_full_report
from tests.hosts import FOLDER, MACHINES, description_of, facts_of, machine
from tests.hosts.recorded_host import RecordedHost

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
    has_gpu = isinstance(facts_of(name).nvml, NvmlAnswer)
    assert report.health is (Health.HEALTHY if has_gpu else Health.NO_GPU)
    assert [shown.check.code for shown in report.findings if shown.finding.severity is not Severity.NOTE] == []


@pytest.mark.parametrize("name", MACHINES)
def test_no_check_finds_worse_than_its_row_says(name):
    for shown in build_full_report(facts_of(name)).findings:
        assert SEVERITY_RANKS[shown.finding.severity] <= SEVERITY_RANKS[shown.check.worst], shown.check.code


class Hanging:
    """A recorded machine on which one program hangs."""

    def __init__(self, name, argv):
        self._machine, self._argv = machine(name), argv

    def __getattr__(self, name):
        return getattr(self._machine, name)

    def run(self, argv, **settings):
        hangs = " ".join(argv).startswith(self._argv)
        return ProgramResult(TIMED_OUT, "", "") if hangs else self._machine.run(argv, **settings)


@pytest.mark.parametrize(
    ("name", "argv", "health"),
    [
        ("ubuntu-4090-ok", "modinfo", Health.INCOMPLETE),
        ("ubuntu-4090-ok", "nvidia-ctk", Health.INCOMPLETE),
        ("ubuntu-4090-ok", "journalctl", Health.INCOMPLETE),
        ("ubuntu-4090-ok", "docker compose", Health.INCOMPLETE),
        ("ubuntu-4090-ok", "/home/dev/project/.venv/bin/python", Health.INCOMPLETE),
        ("dgx-h100-ok", "systemctl", Health.INCOMPLETE),
        ("dgx-h100-ok", "/usr/bin/nv-fabricmanager", Health.INCOMPLETE),
        # The module is loaded, and the libraries are in folders that the loader knows without its cache.
        ("ubuntu-4090-ok", "dkms", Health.HEALTHY),
        ("ubuntu-4090-ok", "ldconfig", Health.HEALTHY),
    ],
)
def test_what_a_hung_program_leaves_of_the_verdict(name, argv, health):
    host = Hanging(name, argv)
    report = build_full_report(gather_facts(host, project=host.project, deadline_s=60.0))
    assert report.health is health
    assert [each.reason for each in report.lost if "did not answer in time" not in each.reason] == []


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("ubuntu-4090-ok", "/sys"),
        ("dgx-h100-ok", "/sys"),
        ("dgx-h100-ok", "/proc"),
        ("dgx-h100-ok", "/etc"),
        ("cdi-only-h100x8", "/etc"),
    ],
)
def test_a_machine_that_hides_a_folder_is_not_a_healthy_one(name, folder, tmp_path):
    for parent in ("ubuntu-4090-ok", "cdi-only-h100x8", "dgx-h100-ok"):
        (tmp_path / parent).symlink_to(FOLDER / parent)
    (tmp_path / "hidden").mkdir()
    description = f'extends = "{name}"\nremove = ["{folder}"]\n'
    (tmp_path / "hidden" / "machine.toml").write_text(description, encoding="utf-8")
    host = RecordedHost(tmp_path / "hidden")
    report = build_full_report(gather_facts(host, project=host.project, deadline_s=60.0))
    reasons = [each.reason for each in report.lost]
    assert report.health in (Health.INCOMPLETE, Health.PROBLEMS)
    assert f"{folder} is empty or may not be read" in reasons
    assert ("/sys/bus/pci/devices is not visible here" in reasons) is (folder == "/sys")
