"""What devkit itself writes gets no finding: neither its examples nor its own dev container."""

from pathlib import Path

import pytest

from devkit.doctor.model import Skipped
from devkit.probe.host import LocalHost
from devkit.probe.project.reader import read_project
from tests.doctor.machines import changed, healthy, inside, windows_guest, without_gpu
from tests.doctor.running import build_full_report, find_codes, run_check

ROOT = Path(__file__).resolve().parents[2]
CONTAINERS = sorted((ROOT / "examples").glob("*/expected/.devcontainer"))
"""Other examples expect other files."""
EXAMPLES = {path.parents[1].name: path.parent for path in CONTAINERS} | {"devkit itself": ROOT}
MACHINES = {
    "a desktop": healthy(),
    "a laptop without a GPU": without_gpu(),
    "WSL": windows_guest(),
    "a dev container": inside(),
}


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("folder", EXAMPLES.values(), ids=EXAMPLES)
def test_files_that_devkit_writes_get_no_finding(folder, machine):
    facts = changed(machine, {"project": read_project(LocalHost(), project=str(folder))})
    assert facts.project.dev_containers
    assert facts.project.services
    assert [code for code in find_codes(facts) if code.startswith("PRJ")] == []
    assert not [one for one in build_full_report(facts).findings if one.check.code.startswith("PRJ")]


def test_they_are_looked_at_all_the_same():
    facts = changed(healthy(), {"project": read_project(LocalHost(), project=str(ROOT))})
    judged = [f"PRJ{number:03d}" for number in (1, 2, 4, 5, 7, 9, 12, 13, 14, 15, 16, 17, 19, 20, 25, 26, 28)]
    assert not [code for code in judged if isinstance(run_check(code, facts), Skipped)]
