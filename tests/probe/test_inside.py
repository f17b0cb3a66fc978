"""The project's running dev container is found by its label and asked through the engine's own command."""

import pytest

from devkit.facts.model import Engine, EngineKind, Facts, RunningContainer
from devkit.facts.store import to_json
from devkit.facts.values import Unknown
from devkit.probe.host import NOT_FOUND, TIMED_OUT, Done
from devkit.probe.inside import ASK, container_of_project, read_inside
from tests.doctor.machines import changed, healthy
from tests.doctor.machines import inside as healthy_inside

BOX = RunningContainer("0123456789ab", "app-dev-1", "app", "/home/dev/project", "driver")
OTHER = RunningContainer("ba9876543210", "db-1", "postgres", "", "")


class AnsweringHost:
    """Answers every command with one `Done` and remembers what was asked; the part of `Host` that is used."""

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
    return read_inside(host, engine_with(*containers, kind=kind), project=project, deadline_s=1.5), host


def test_the_inside_is_read_as_facts():
    facts, host = read(Done(1, to_json(healthy_inside()), "Facts saved to /dev/stdout."), OTHER, BOX)
    assert facts == healthy_inside()
    assert host.asked == [(("docker", "exec", BOX.id, *ASK), 1.5)]


def test_podman_is_asked_by_its_own_command():
    _, host = read(Done(0, to_json(healthy_inside()), ""), BOX, kind=EngineKind.PODMAN)
    assert host.asked[0][0][0] == "podman"


@pytest.mark.parametrize(
    ("folder", "project", "is_it"),
    [
        pytest.param("/work/app", "/work/app", True, id="the same folder"),
        pytest.param("/work/app/", "/work/app", True, id="a trailing slash"),
        pytest.param("/work/app", "/work/app/src", True, id="asked from a folder below"),
        pytest.param("/work/app", "/work/apple", False, id="a name that begins alike"),
        pytest.param("/work/app/src", "/work/app", False, id="a container of a folder below"),
        pytest.param("c:\\work\\app", "c:/work/app", True, id="Windows separators"),
        pytest.param("", "/work/app", False, id="no dev container"),
    ],
)
def test_a_container_belongs_to_its_folder(folder, project, is_it):
    box = RunningContainer("0123456789ab", "one", "app", folder, "")
    assert (container_of_project((box,), project) is box) == is_it


def test_the_nearest_folder_wins():
    near = RunningContainer("1", "near", "app", "/work/app", "")
    far = RunningContainer("2", "far", "app", "/work", "")
    assert container_of_project((far, near), "/work/app/src") is near


@pytest.mark.parametrize(
    ("done", "says"),
    [
        pytest.param(
            Done(127, "", "OCI runtime exec failed: executable file not found"), "not installed", id="no devkit inside"
        ),
        pytest.param(Done(126, "", "permission denied"), "not installed", id="devkit that cannot be executed"),
        pytest.param(Done(TIMED_OUT, "", ""), "did not answer within 1.5 s", id="an inside that hangs"),
        pytest.param(Done(NOT_FOUND, "", "no such program"), "docker command is missing", id="no docker command"),
        pytest.param(Done(2, "", "Error: no such option"), "no such option", id="a devkit that fails"),
        pytest.param(Done(0, "{}", ""), "status 0", id="an answer that is no facts"),
        pytest.param(Done(1, to_json(healthy_inside())[:100], ""), "status 1", id="an answer that is cut off"),
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
    host = AnsweringHost(Done(0, "", ""))
    assert read_inside(host, engine, project="/home/dev/project", deadline_s=1.0) is None
    assert host.asked == []


def test_facts_of_both_sides_travel_in_one_file():
    from dataclasses import replace

    from devkit.facts.store import from_json, redacted

    both = replace(healthy(), inside=healthy_inside())
    assert from_json(to_json(both)) == both
    assert isinstance(redacted(both).inside, Facts)
