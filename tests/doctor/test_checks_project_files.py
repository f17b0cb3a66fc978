"""Checks of the project's own files: nothing is found in what devkit writes, and a repair leaves nothing of its finding."""

import json
from pathlib import Path

import pytest

from devkit.doctor.model import Found, Passed, RepairKind, Severity, Skipped
from devkit.facts.model import EngineKind, FileState
from devkit.facts.values import Unknown
from devkit.probe.host import LocalHost
from devkit.probe.project.reader import read_project
from devkit.render.repair import apply_edit, compute_edits
from tests.doctor.machines import changed, healthy, inside, r, windows_guest, without_gpu
from tests.doctor.projects import COMPOSE, DEV, IMAGE, compose_dev, dev, files_of, on, service
from tests.doctor.running import build_full_report, find_all, find_codes, find_only, run_check

ALL = [f"PRJ{number:03d}" for number in range(1, 32)]


@pytest.mark.parametrize(
    ("files", "verdict", "severity"),
    [
        pytest.param(files_of(dev=dev(), image=IMAGE), Passed, None, id="whole files"),
        pytest.param({DEV: '{"a": 1 "b": 2}'}, Found, Severity.ERROR, id="broken devcontainer.json"),
        pytest.param({DEV: "[]"}, Found, Severity.ERROR, id="devcontainer.json that is a list"),
        pytest.param({"compose.yaml": "services: [a"}, Found, Severity.ERROR, id="broken Compose file"),
        pytest.param({"compose.yaml": "services: [a]"}, Found, Severity.ERROR, id="services that are a list"),
        pytest.param(files_of(dev=dev()), Found, Severity.ERROR, id="no Dockerfile where one is named"),
        pytest.param(
            {**files_of(dev=dev(), image=IMAGE), "pyproject.toml": "a = ["}, Found, Severity.WARNING, id="broken TOML"
        ),
        pytest.param({"README.md": "x"}, Skipped, None, id="no such files"),
    ],
)
def test_files_can_be_read(tmp_path, files, verdict, severity):
    result = run_check("PRJ001", on(tmp_path, files))
    assert isinstance(result, verdict)
    assert severity is None or result.findings[0].severity is severity


def test_the_place_of_the_mistake_is_named(tmp_path):
    finding = find_only("PRJ001", on(tmp_path, {DEV: '{\n  "name": "a"\n  "image": "b"\n}'}))
    assert (finding.location.path, finding.location.line) == (DEV, 3)
    assert "expected a comma" in finding.message


def test_files_outside_of_the_project_are_left_alone(tmp_path):
    files = files_of(dev=dev(build={"dockerfile": "../../elsewhere/Dockerfile"}))
    facts = on(tmp_path / "project", files)
    assert [file.state for file in facts.project.files] == [FileState.READ, FileState.OUTSIDE]
    assert isinstance(run_check("PRJ001", facts), Passed)


@pytest.mark.parametrize(
    ("requirements", "verdict"),
    [
        pytest.param({"gpu": True}, Passed, id="true"),
        pytest.param({"gpu": False}, Passed, id="false"),
        pytest.param({"gpu": "optional"}, Passed, id="optional"),
        pytest.param({"gpu": {"cores": 1000, "memory": "32gb"}}, Passed, id="an object"),
        pytest.param({"gpu": "all"}, Found, id="all"),
        pytest.param({"gpu": 1}, Found, id="a number of GPUs"),
        pytest.param({"gpu": {"memory": "32GB"}}, Found, id="an object with a capital unit"),
        pytest.param({"gpu": {"count": 2}}, Found, id="an object with a key of its own"),
        pytest.param({"gpus": True}, Found, id="gpus"),
        pytest.param({"memory": "16gb", "storage": "100gb", "cpus": 8}, Passed, id="small units"),
        pytest.param({"memory": "16GB"}, Found, id="capital units"),
        pytest.param({"memory": "16g"}, Found, id="half a unit"),
        pytest.param({"memory": 16}, Found, id="memory as a number"),
        pytest.param({"cpus": "8"}, Found, id="cpus as text"),
        pytest.param({"cuda": "12"}, Found, id="an invented key"),
    ],
)
def test_host_requirements_are_spelled_right(tmp_path, requirements, verdict):
    assert isinstance(
        run_check("PRJ008", on(tmp_path, files_of(dev=dev(hostRequirements=requirements), image=IMAGE))), verdict
    )


@pytest.mark.parametrize(
    ("requirements", "repaired"),
    [
        pytest.param({"memory": "16 GB"}, [("set", "memory", '"16gb"')], id="a unit in capitals"),
        pytest.param({"gpus": True}, [("set", "gpu", "true"), ("remove", "gpus", "")], id="a key in the plural"),
        pytest.param({"gpus": "optional"}, [("set", "gpu", '"optional"'), ("remove", "gpus", "")], id="and optional"),
        pytest.param({"cpus": "8"}, [("remove", "cpus", "")], id="text instead of a number"),
    ],
)
def test_the_repair_spells_them_right(tmp_path, requirements, repaired):
    finding = find_only("PRJ008", on(tmp_path, files_of(dev=dev(hostRequirements=requirements), image=IMAGE)))
    assert [(one.kind.value, one.key[-1], one.value) for one in finding.fix.repairs] == repaired


@pytest.mark.parametrize("key", ["gpus", "runtime", "shm_size", "environment", "deploy"])
def test_keys_of_compose_are_not_heard_in_devcontainer_json(tmp_path, key):
    finding = find_only("PRJ009", on(tmp_path, files_of(dev=dev(**{key: "x"}), image=IMAGE)))
    assert key in finding.message


def test_run_args_are_not_heard_beside_compose(tmp_path):
    def with_args(*arguments):
        return files_of(dev=compose_dev(runArgs=[*arguments]), compose=service(), image=IMAGE)

    assert find_only("PRJ009", on(tmp_path, with_args("--gpus", "all"))).severity is Severity.ERROR
    finding = find_only("PRJ009", on(tmp_path, with_args("--init")))
    assert finding.severity is Severity.WARNING
    assert [one.kind for one in finding.fix.repairs] == [RepairKind.REMOVE]
    assert isinstance(run_check("PRJ009", on(tmp_path, with_args())), Passed)


def test_what_editors_pass_over_is_explained_once(tmp_path):
    asked = files_of(dev=dev(runArgs=None, hostRequirements={"gpu": "optional"}), image=IMAGE)
    finding = find_only("PRJ010", on(tmp_path, asked))
    assert finding.severity is Severity.NOTE
    assert "JetBrains" in finding.message
    assert isinstance(run_check("PRJ010", on(tmp_path, files_of(dev=dev(), image=IMAGE))), Passed)
    explicit = files_of(dev=dev(hostRequirements={"gpu": "optional"}), image=IMAGE)
    assert isinstance(run_check("PRJ010", on(tmp_path, explicit)), Passed)


@pytest.mark.parametrize(
    "machine", [healthy(), without_gpu(), windows_guest(), inside()], ids=["host", "laptop", "wsl", "container"]
)
def test_a_project_without_container_files_is_skipped_with_a_reason(tmp_path, machine):
    facts = on(tmp_path, {"main.py": "print()"}, machine)
    for code in ALL:
        verdict = run_check(code, facts)
        assert isinstance(verdict, Skipped | Passed)
        assert code == "PRJ031" or verdict.reason


@pytest.mark.parametrize("project", [None, Unknown("the folder did not answer")], ids=["no folder", "unread"])
def test_nothing_is_said_of_a_project_that_was_not_read(project):
    assert find_codes(changed(healthy(), {"project": project})) == []


def test_one_broken_file_hides_no_other(tmp_path):
    files = files_of(dev=compose_dev(), compose=service(request=""), image=IMAGE)
    files["pyproject.toml"] = "x = ["
    assert [finding.subject for finding in find_all("PRJ001", on(tmp_path, files))] == ["pyproject.toml:1"]
    assert find_codes(on(tmp_path, files)) == ["PRJ001", "PRJ005"]


def test_a_message_never_carries_the_value_of_a_variable(tmp_path):
    text = json.dumps({"image": "python:3.12", "containerEnv": {"HF_TOKEN": "hf_" + "a" * 30}})
    facts = on(tmp_path, {DEV: text, COMPOSE: ""})
    assert "aaaa" not in repr(facts)


# What devkit itself writes gets no finding: neither its examples nor its own dev container.


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


# A repair, made, leaves nothing of its finding: on the very files that showed it.


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
