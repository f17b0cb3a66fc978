"""A repair, made, leaves nothing of its finding: on the very files that showed it."""

import pytest

from devkit.doctor.model import Passed, Skipped
from devkit.facts.model import EngineKind
from devkit.render.repair import apply_edit, compute_edits
from tests.doctor.machines import changed, healthy, r, windows_guest, without_gpu
from tests.doctor.projects import COMPOSE, DEV, IMAGE, compose_dev, files_of, on, service
from tests.doctor.running import find_all, run_check

COMMENTED = """\
{
  // GPUs of the lab
  "build": { "dockerfile": "Dockerfile" }, // one image
  %s,
  "remoteUser": "dev",
}
"""
PODMAN = changed(healthy(), {"engine.kind": EngineKind.PODMAN})
OLD_COMPOSE = changed(healthy(), {"compose.version": r("2.27.0")})


def commented(line):
    return files_of(dev=COMMENTED % line, image=IMAGE)


def composed(text, **changes):
    return files_of(dev=compose_dev(**changes), compose=f"# by hand\n{text}", image=IMAGE)


CASES = {
    "a flag in one string": ("PRJ002", commented('"runArgs": ["--gpus all", "--init"]'), healthy()),
    "a list without quotes": ("PRJ003", commented('"runArgs": ["--gpus", "device=0,1"]'), healthy()),
    "two requests in one service": ("PRJ004", composed(service("gpus: all")), healthy()),
    "a flag beside hostRequirements": (
        "PRJ004",
        commented('"hostRequirements": {"gpu": true}, "runArgs": ["--gpus=all"]'),
        healthy(),
    ),
    "nothing asks": ("PRJ005", commented('"runArgs": ["--shm-size=8g"]'), healthy()),
    "no service asks": ("PRJ005", composed(service(request="")), healthy()),
    "hostRequirements with Docker Desktop": ("PRJ006", commented('"hostRequirements": {"gpu": true}'), windows_guest()),
    "hostRequirements with Podman": ("PRJ006", commented('"hostRequirements": {"gpu": "optional"}'), PODMAN),
    "hostRequirements with Compose": (
        "PRJ007",
        composed(service(request=""), hostRequirements={"gpu": True}),
        OLD_COMPOSE,
    ),
    "a unit in capitals": ("PRJ008", commented('"hostRequirements": {"gpu": {"memory": "16GB"}}'), healthy()),
    "a key in the plural": ("PRJ008", commented('"hostRequirements": {"gpus": true, "cpus": 4}'), healthy()),
    "a flag on a laptop": ("PRJ011", commented('"runArgs": ["--gpus", "all"]'), without_gpu()),
    "a short form that is too new": ("PRJ012", composed(service(request="    gpus: all\n")), OLD_COMPOSE),
    "count and device_ids": (
        "PRJ013",
        composed(service().replace("count: all", 'count: 1\n              device_ids: ["0"]')),
        healthy(),
    ),
    "no capabilities": ("PRJ013", composed(service().replace("              capabilities: [gpu]\n", "")), healthy()),
    "the host's IPC": ("PRJ014", composed(service("ipc: host", shm="")), healthy()),
    "a privileged service": ("PRJ015", composed(service("privileged: true")), healthy()),
    "a privileged dev container": ("PRJ015", commented('"privileged": true'), healthy()),
    "shared memory of a service": ("PRJ020", composed(service(shm="")), healthy()),
    "shared memory in runArgs": ("PRJ020", commented('"runArgs": ["--gpus", "all"]'), healthy()),
}


@pytest.mark.parametrize(("code", "files", "machine"), CASES.values(), ids=CASES)
def test_a_repair_leaves_nothing_of_its_finding(tmp_path, code, files, machine):
    findings = find_all(code, on(tmp_path, files, machine))
    repairs = [repair for finding in findings for repair in finding.fix.repairs]
    assert repairs
    for edit in compute_edits(repairs, tmp_path, home=tmp_path):
        apply_edit(edit)
    repaired = {path: (tmp_path / path).read_text(encoding="utf-8") for path in files}
    assert isinstance(run_check(code, on(tmp_path, repaired, machine)), Passed | Skipped)
    kept = repaired[DEV] if "GPUs of the lab" in files[DEV] else repaired[COMPOSE]
    assert "// GPUs of the lab" in kept or "# by hand" in kept
