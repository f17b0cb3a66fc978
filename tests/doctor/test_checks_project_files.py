import json

import pytest

from devkit.doctor.model import Found, Passed, RepairKind, Severity, Skipped
from devkit.facts.model import FileState
from devkit.facts.values import Unknown
from tests.doctor.machines import changed, healthy, inside, windows_guest, without_gpu
from tests.doctor.projects import COMPOSE, DEV, IMAGE, compose_dev, dev, files_of, on, service
from tests.doctor.running import find_all, find_codes, find_only, run_check

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
