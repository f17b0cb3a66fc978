"""Starting a dev container, with programs that stand in for the engine's and for the dev container CLI."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from devkit.devcontainer.configuration import find_dev_container
from devkit.devcontainer.engine import EngineClient, Failure
from devkit.devcontainer.starting import Started, start_dev_container, stop_dev_container
from devkit.probe.host import LocalHost

ENGINE = """#!/bin/sh
cd {folder} && echo "$*" >>calls
case "$*" in
    ps*) cat id 2>/dev/null; exit 0 ;;
    "container inspect"*) cat state.json ;;
    *" build"*) cat build; ! grep -q ERROR build ;;
    *" up "*) echo 0123 >id ;;
    exec*)
        while [ "$1" != 0123 ]; do shift; done
        shift
        HOME={folder} exec "$@" ;;
esac
"""
"""Runs in this folder what is to run in the container, so that its home is this folder, too."""
CLI = """#!/bin/sh
echo "$*" >>{folder}/calls
echo 0123 >{folder}/id
echo '{{"outcome": "success", "remoteUser": "vscode", "remoteWorkspaceFolder": "/workspaces/a"}}'
"""
GENERATED = {
    "dockerComposeFile": "docker-compose.yml",
    "service": "dev",
    "updateRemoteUserUID": False,
    "postCreateCommand": {"one": "echo created >>ran", "two": ["test", "!", "-e", "fails"]},
    "postStartCommand": "echo started >>ran",
}


@dataclass
class Project:
    """A project beside its engine."""

    folder: Path
    said: list[str] = field(default_factory=list)

    def client(self) -> EngineClient:
        return EngineClient(LocalHost(), "docker", find_dev_container(self.folder / "project", env={}))

    def describe(self, **changes: object) -> None:
        """Let the engine describe its container."""
        state = {"Id": "0123", "Created": "today", "State": {"Running": True, "StartedAt": "now"}, **changes}
        (self.folder / "state.json").write_text(json.dumps([state]))

    def start(self, **options: bool) -> Started | Failure:
        return start_dev_container(self.client(), self.said.append, **options)

    def read(self, name: str) -> list[str]:
        file = self.folder / name
        return file.read_text().splitlines() if file.exists() else []


@pytest.fixture
def project(tmp_path, monkeypatch):
    folder = tmp_path / "project/.devcontainer"
    folder.mkdir(parents=True)
    (folder / "devcontainer.json").write_text(json.dumps(GENERATED))
    (folder / "docker-compose.yml").write_text("# Written by devkit\n")
    (tmp_path / "build").write_text("#7 [2/2] RUN work\n#7 DONE 1.5s\n")
    for name, text in (("docker", ENGINE), ("devcontainer", CLI)):
        (tmp_path / name).write_text(text.format(folder=tmp_path))
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = Project(tmp_path)
    found.describe()
    return found


def test_what_is_up_to_date_is_kept_and_each_command_runs_once(project):
    first = project.start()
    assert isinstance(first, Started)
    assert (first.action, first.built) == ("created", ("2/2 RUN work",))
    assert project.read("ran") == ["created", "started"]
    again = project.start()
    assert isinstance(again, Started)
    assert again.action == "kept"
    assert project.read("ran") == ["created", "started"]
    project.describe(State={"Running": True, "StartedAt": "later"})
    project.start()
    assert project.read("ran") == ["created", "started", "started"]


def test_a_command_that_failed_runs_again_with_the_next_start(project):
    (project.folder / "fails").touch()
    failed = project.start()
    assert isinstance(failed, Failure)
    assert failed.title == "postCreateCommand: test '!' -e fails failed with status 1; the container is running"
    assert project.read("ran") == ["created"]
    (project.folder / "fails").unlink()
    assert isinstance(project.start(), Started)
    assert project.read("ran") == ["created", "created", "started"]


def test_a_build_that_fails_says_where_with_its_own_error(project):
    (project.folder / "build").write_text("#7 [2/2] RUN false\n#7 0.1 no such thing\n#7 ERROR: process failed\n")
    failed = project.start()
    assert isinstance(failed, Failure)
    assert (failed.title, failed.excerpt) == ("the build failed at 2/2 RUN false", ("no such thing",))
    assert not [call for call in project.read("calls") if " up " in call]


@pytest.mark.parametrize(
    ("changes", "rebuilds", "is_left"),
    [
        pytest.param({}, False, False, id="idle"),
        pytest.param({"ExecIDs": ["a"]}, False, True, id="while a command runs in it"),
        pytest.param({"Config": {"Labels": {"devcontainer.local_folder": "/x"}}}, False, True, id="of an editor"),
        pytest.param({"ExecIDs": ["a"]}, True, False, id="to be made again in any case"),
    ],
)
def test_a_container_in_use_is_left_as_it_is(project, changes, rebuilds, is_left):
    (project.folder / "id").write_text("0123")
    project.describe(**changes)
    project.start(rebuilds=rebuilds)
    calls = [call for call in project.read("calls") if " up " in call]
    assert (calls == []) is is_left
    assert any("stays unchanged" in line for line in project.said) is is_left
    assert any("--force-recreate" in call for call in calls) is rebuilds


def test_a_dev_container_of_others_is_the_clis(project):
    (project.folder / "project/.devcontainer/devcontainer.json").write_text('{"image": "debian"}')
    started = project.start(rebuilds=True)
    assert isinstance(started, Started)
    assert (started.action, started.entry.user, started.entry.workspace) == ("created", "vscode", "/workspaces/a")
    up = next(call for call in project.read("calls") if call.startswith("up "))
    assert "--remove-existing-container" in up
    words = started.entry.build_command(["train"], {"A": "1"})
    assert (words[0], words[1], words[-2:]) == ("devcontainer", "exec", ["--remote-env=A=1", "train"])


@pytest.mark.parametrize(
    ("labels", "removes", "expected"),
    [
        pytest.param({"com.docker.compose.project": "a"}, False, ["stop"], id="stop services"),
        pytest.param({"com.docker.compose.project": "a"}, True, ["down --volumes"], id="remove services"),
        pytest.param({}, False, ["stop 0123"], id="stop a container"),
        pytest.param({}, True, ["rm --force --volumes 0123", "volume rm --force cache"], id="remove a container"),
    ],
)
def test_volumes_stay_unless_they_are_to_be_removed(project, labels, removes, expected):
    (project.folder / "id").write_text("0123")
    project.describe(Config={"Labels": labels}, Mounts=[{"Type": "volume", "Name": "cache"}, {"Type": "bind"}])
    client = project.client()
    assert stop_dev_container(client, client.find(), removes=removes) is None
    calls = [call for call in project.read("calls") if not call.startswith(("ps ", "container "))]
    assert len(calls) == len(expected)
    assert all(words in call for words, call in zip(expected, calls, strict=True))


CLI_LOG = """[2026-11-30T08:33:48.718Z] Failed to fetch control manifest: EAI_AGAIN
[2026-11-30T08:33:56.083Z] Start: Run: docker run base
[2026-11-30T08:33:56.120Z] docker: no such device
Error: Command failed: docker run base --env SECRET
"""


def test_of_a_failed_cli_only_the_last_step_is_shown(project):
    (project.folder / "project/.devcontainer/devcontainer.json").write_text('{"image": "debian"}')
    (project.folder / "log").write_text(CLI_LOG)
    (project.folder / "devcontainer").write_text(f"#!/bin/sh\ncat {project.folder}/log >&2; exit 1\n")
    failed = project.start()
    assert isinstance(failed, Failure)
    assert failed.excerpt == ("docker: no such device",)


@pytest.mark.parametrize(
    ("exit_code", "action", "title"), [(0, "ended", ""), (1, "", "the container web exited with status 1")]
)
def test_a_compose_project_without_a_dev_container_is_started_by_compose(
    project, monkeypatch, exit_code, action, title
):
    monkeypatch.setattr("devkit.devcontainer.starting._SETTLING_S", 0)
    folder = project.folder / "plain"
    folder.mkdir()
    (folder / "compose.yaml").write_text("services:\n  db: {image: x}\n  web: {image: y, gpus: all}\n")
    ended = {"Running": False, "StartedAt": "now", "ExitCode": exit_code}
    project.describe(Name="/web", State=ended)
    container = find_dev_container(folder, env={}, takes_compose=True)
    assert container.labels["com.docker.compose.service"] == "web"
    started = start_dev_container(EngineClient(LocalHost(), "docker", container), project.said.append)
    assert (started.action if isinstance(started, Started) else started.title) == (action or title)
    assert "compose up --detach --wait --no-build" in project.read("calls")
