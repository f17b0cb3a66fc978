"""The project's running dev container is found by its label and read through the engine's own command."""

import pytest

from devkit.facts.model import Engine, EngineKind, Facts, RunningContainer
from devkit.facts.store import format_facts
from devkit.facts.values import Unknown
from devkit.probe.engine.containers import DOCTOR_COMMAND, find_project_container, read_facts_inside
from devkit.probe.host import NOT_FOUND, TIMED_OUT, ProgramResult
from tests.doctor.machines import changed, healthy
from tests.doctor.machines import inside as healthy_inside

BOX = RunningContainer("0123456789ab", "app-dev-1", "app", "/home/dev/project", "driver")
OTHER = RunningContainer("ba9876543210", "db-1", "postgres", "", "")


class AnsweringHost:
    """Answers every command with one `ProgramResult` and records the commands; the part of `Host` that is used."""

    def __init__(self, done):
        self.done = done
        self.asked = []

    def run(self, argv, *, deadline_s):
        self.asked.append((tuple(argv), deadline_s))
        return self.done


def engine_with(*containers, kind=EngineKind.DOCKER):
    engine = changed(healthy(), {"engine.containers": containers, "engine.kind": kind}).engine
    assert isinstance(engine, Engine)
    return engine


def read(done, *containers, project="/home/dev/project", kind=EngineKind.DOCKER):
    host = AnsweringHost(done)
    return read_facts_inside(host, engine_with(*containers, kind=kind), project=project, deadline_s=1.5), host


def test_the_inside_is_read_as_facts():
    facts, host = read(ProgramResult(1, format_facts(healthy_inside()), "Facts saved to /dev/stdout."), OTHER, BOX)
    assert facts == healthy_inside()
    assert host.asked == [(("docker", "exec", BOX.id, *DOCTOR_COMMAND), 1.5)]


def test_podman_runs_by_its_own_command():
    _, host = read(ProgramResult(0, format_facts(healthy_inside()), ""), BOX, kind=EngineKind.PODMAN)
    assert host.asked[0][0][0] == "podman"


@pytest.mark.parametrize(
    ("folder", "project", "is_it"),
    [
        pytest.param("/work/app", "/work/app", True, id="the same folder"),
        pytest.param("/work/app/", "/work/app", True, id="a trailing slash"),
        pytest.param("/work/app", "/work/app/src", True, id="from a folder below"),
        pytest.param("/work/app", "/work/apple", False, id="a name that begins alike"),
        pytest.param("/work/app/src", "/work/app", False, id="a container of a folder below"),
        pytest.param("c:\\work\\app", "c:/work/app", True, id="Windows separators"),
        pytest.param("", "/work/app", False, id="no dev container"),
    ],
)
def test_a_container_belongs_to_its_folder(folder, project, is_it):
    box = RunningContainer("0123456789ab", "one", "app", folder, "")
    assert (find_project_container((box,), project) is box) == is_it


def test_the_nearest_folder_wins():
    near = RunningContainer("1", "near", "app", "/work/app", "")
    far = RunningContainer("2", "far", "app", "/work", "")
    assert find_project_container((far, near), "/work/app/src") is near


@pytest.mark.parametrize(
    ("done", "says"),
    [
        pytest.param(
            ProgramResult(127, "", "OCI runtime exec failed: executable file not found"),
            "not installed",
            id="no devkit inside",
        ),
        pytest.param(ProgramResult(126, "", "permission denied"), "not installed", id="devkit that cannot be executed"),
        pytest.param(ProgramResult(TIMED_OUT, "", ""), "did not answer within 1.5 s", id="an inside that hangs"),
        pytest.param(
            ProgramResult(NOT_FOUND, "", "no such program"), "docker command is missing", id="no docker command"
        ),
        pytest.param(ProgramResult(2, "", "Error: no such option"), "no such option", id="a devkit that fails"),
        pytest.param(ProgramResult(0, "{}", ""), "status 0", id="an answer that is no facts"),
        pytest.param(
            ProgramResult(1, format_facts(healthy_inside())[:100], ""), "status 1", id="an answer that is cut off"
        ),
    ],
)
def test_an_inside_that_cannot_be_read_is_unknown_with_the_reason(done, says):
    facts, _ = read(done, BOX)
    assert isinstance(facts, Unknown)
    assert says in facts.reason
    assert BOX.name in facts.reason


@pytest.mark.parametrize(
    "engine",
    [
        pytest.param(engine_with(OTHER), id="no dev container runs"),
        pytest.param(engine_with(), id="nothing runs"),
        pytest.param(changed(healthy(), {"engine.containers": Unknown("an old engine")}).engine, id="not known"),
        pytest.param(Unknown("no engine"), id="no engine"),
    ],
)
def test_without_a_dev_container_there_is_no_inside(engine):
    host = AnsweringHost(ProgramResult(0, "", ""))
    assert read_facts_inside(host, engine, project="/home/dev/project", deadline_s=1.0) is None
    assert host.asked == []


def test_facts_of_both_sides_travel_in_one_file():
    from dataclasses import replace

    from devkit.facts.redact import redact_facts
    from devkit.facts.store import parse_facts

    both = replace(healthy(), inside=healthy_inside())
    assert parse_facts(format_facts(both)) == both
    assert isinstance(redact_facts(both).inside, Facts)
