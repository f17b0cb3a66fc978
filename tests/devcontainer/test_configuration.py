"""devcontainer.json as devkit reads it, who starts its container, and the steps of a build."""

import json

import pytest

from devkit.devcontainer.build_log import BuildLog
from devkit.devcontainer.configuration import find_dev_container
from devkit.devcontainer.engine import EngineClient, enter, require_cli
from devkit.errors import DevkitError
from devkit.probe.host import LocalHost
from devkit.verify.dev_container import list_commands
from tests.cases import cases

GENERATED = {"dockerComposeFile": "docker-compose.yml", "service": "dev", "updateRemoteUserUID": False}


def write(folder, document, location=".devcontainer/devcontainer.json"):
    file = folder / location
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(document if isinstance(document, str) else json.dumps(document))
    return file


def test_it_is_found_from_a_folder_below(tmp_path):
    file = write(tmp_path, {"image": "debian"})
    (tmp_path / "src/deep").mkdir(parents=True)
    found = find_dev_container(tmp_path / "src/deep", env={})
    assert (found.folder, found.file) == (tmp_path, file)
    assert found.labels == {"devcontainer.local_folder": str(tmp_path), "devcontainer.config_file": str(file)}


@cases(
    "changes, mark, is_generated",
    {
        "as devkit wrote it": ({}, "# Written by devkit 0.2.0\n", True),
        "with settings of an editor": (
            {"customizations": {"vscode": {"x": "${containerWorkspaceFolder}"}}},
            "# Written by devkit 0.2.0\n",
            True,
        ),
        "a Compose file of others": ({}, "", False),
        "with a Feature": ({"features": {"x": {}}}, "# Written by devkit 0.2.0\n", False),
        "with a mount of its own": ({"mounts": ["x"]}, "# Written by devkit 0.2.0\n", False),
        "with another user's id": ({"updateRemoteUserUID": True}, "# Written by devkit 0.2.0\n", False),
        "with variables of the container": (
            {"remoteEnv": {"PATH": "${containerEnv:PATH}:/x"}},
            "# Written by devkit 0.2.0\n",
            False,
        ),
        "an image": ({"dockerComposeFile": None, "image": "x"}, "# Written by devkit\n", False),
    },
)
def test_compose_starts_what_devkit_wrote_and_the_dev_container_cli_the_rest(
    tmp_path, monkeypatch, changes, mark, is_generated
):
    write(tmp_path, GENERATED | changes)
    write(tmp_path, mark, ".devcontainer/docker-compose.yml")
    container = find_dev_container(tmp_path, env={})
    assert container.is_generated is is_generated
    monkeypatch.setenv("PATH", str(tmp_path))
    if is_generated:
        require_cli(container)
    else:
        with pytest.raises(DevkitError) as refused:
            require_cli(container)
        assert "npm install -g @devcontainers/cli" in refused.value.hint


def test_variables_of_the_host_are_put_in_and_reach_the_command(tmp_path):
    remote = {"A": 'x"${localEnv:TAG:12}', "B": "${localEnv:KEY}", "C": None, "D": "${localWorkspaceFolderBasename}"}
    write(tmp_path, GENERATED | {"remoteEnv": remote, "remoteUser": "dev", "workspaceFolder": "/w"})
    write(tmp_path, "# Written by devkit", ".devcontainer/docker-compose.yml")
    (tmp_path / "src").mkdir()
    container = find_dev_container(tmp_path, env={"KEY": 'a"b\n${localEnv:TAG}'})
    client = EngineClient(LocalHost(), "docker", container)
    entry = enter(client, state_of(tmp_path), tmp_path / "src")
    words = entry.build_command(["pwd"], {"A": "own"})
    assert words[:6] == ["docker", "exec", "--user", "dev", "--workdir", "/w/src"]
    values = [word for word in words if word.startswith("--env=")]
    assert values == ["--env=A=own", '--env=B=a"b\n${localEnv:TAG}', f"--env=D={tmp_path.name}"]
    assert words[-2:] == ["0123", "pwd"]


def state_of(tmp_path, text='[{"Id": "0123", "State": {"Running": true}}]'):
    """What is read of an engine that says this of its one container."""
    (tmp_path / "state.json").write_text(text)
    program = tmp_path / "engine"
    program.write_text(f'#!/bin/sh\ncase $1 in ps) echo 0123 ;; *) cat "{tmp_path}/state.json" ;; esac\n')
    program.chmod(0o755)
    return EngineClient(LocalHost(), str(program), find_dev_container(tmp_path, env={})).find()


@cases("answer", {"escapes": "\x1b[2J", "number": "[5]", "empty": "[{}]", "deep": "[" * 100_000})
def test_an_engine_that_answers_nonsense_is_no_bug(tmp_path, answer):
    write(tmp_path, {"image": "debian"})
    with pytest.raises(DevkitError, match="printed no container description"):
        state_of(tmp_path, answer)


@cases(
    "document, message",
    {
        "there is none": (None, "has no dev container"),
        "no JSON": ("{", "cannot be read"),
        "a list": ("[]", "is not a JSON object"),
    },
)
def test_what_cannot_be_read_is_one_line_and_a_hint(tmp_path, document, message):
    if document is not None:
        write(tmp_path, document)
    with pytest.raises(DevkitError, match=message) as error:
        find_dev_container(tmp_path, env={})
    assert error.value.hint


def test_of_several_one_must_be_named(tmp_path):
    for name in ("cpu", "gpu"):
        write(tmp_path, {"image": name}, f".devcontainer/{name}/devcontainer.json")
    with pytest.raises(DevkitError, match="has 2 dev containers") as error:
        find_dev_container(tmp_path, env={})
    assert ".devcontainer/gpu/devcontainer.json" in error.value.hint
    chosen = find_dev_container(tmp_path, tmp_path / ".devcontainer/gpu/devcontainer.json", env={})
    assert chosen.properties["image"] == "gpu"


@cases(
    "command, expected",
    {
        "a text is for the shell": ("a && b", [["sh", "-c", "a && b"]]),
        "a list is not": (["a", "b c"], [["a", "b c"]]),
        "an object holds both": ({"x": "a", "y": ["b"]}, [["sh", "-c", "a"], ["b"]]),
        "nothing": (None, []),
    },
)
def test_lifecycle_commands_have_three_forms(command, expected):
    assert list_commands(command) == expected


BUILDKIT = """\
#0 building with "default" instance using docker driver
#1 [dev internal] load build definition from Dockerfile
#1 transferring dockerfile: 5.1kB done
#1 DONE 0.0s
#5 [dev 1/3] FROM docker.io/library/python:3.12-slim
#5 DONE 0.0s
#6 [dev 2/3] RUN groupadd --system venv     && python3 -m venv /opt/venv
#6 CACHED
#7 [dev prepared 3/3] RUN --mount=type=cache,target=/root/.cache pip install torch==9.9.9
#7 0.345 Collecting torch
#7 1.250 ERROR: No matching distribution found for torch==9.9.9
#7 ERROR: process "/bin/sh -c pip install torch==9.9.9" did not complete successfully: exit code: 1
------
 > [dev prepared 3/3] RUN pip install torch==9.9.9:
1.250 ERROR: No matching distribution found for torch==9.9.9
------
failed to solve: process "/bin/sh -c pip install torch==9.9.9" did not complete successfully: exit code: 1
"""


def read(text):
    seen: list[str] = []
    log = BuildLog(seen.append)
    for line in text.splitlines():
        log.take(line)
    return log, seen


def test_each_instruction_that_works_is_reported_and_the_failed_one_has_its_output():
    log, seen = read(BUILDKIT)
    name = "3/3 RUN pip install torch==9.9.9"
    assert seen == [f"build {name} …", f"build {name} failed"]
    assert log.failed is not None
    assert log.excerpt == ("Collecting torch", "ERROR: No matching distribution found for torch==9.9.9")
    assert log.lines == BUILDKIT.splitlines()
    assert log.built == ()


@cases(
    "text, seen, built",
    {
        "BuildKit": (
            "#7 [2/3] RUN --mount=type=cache,target=/x a\n#7 DONE 1.5s",
            ["build 2/3 RUN a  1.5 s"],
            ("2/3 RUN a",),
        ),
        "a base image in parts": ("#5 [1/2] FROM a\n#5 DONE 0.1s\n#5 ERROR: gone", ["build 1/2 FROM a failed"], ()),
        "the cache": ("#7 [2/3] RUN a\n#7 CACHED", [], ()),
        "the legacy builder": ("Step 2/2 : RUN a\n ---> Using cache", ["build 2/2 RUN a …"], ()),
        "Podman": ("[1/1] STEP 2/2: RUN a\nError", ["build 2/2 RUN a …"], ()),
        "a build that was cut off": ("#5 [2/3] RUN sleep 100", [], ()),
    },
)
def test_steps_are_shown_as_the_builder_says(text, seen, built):
    log, said = read(text)
    assert (said, log.built) == (seen, built)
