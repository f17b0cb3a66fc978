"""devcontainer.json as the specification and the dev container CLI read it, Features, and the steps of a build."""

import json
import os

import pytest

from devkit.devcontainer.configuration import (
    compute_devcontainer_id,
    find_dev_container,
    list_commands,
    merge_settings,
    replace_container_variables,
)
from devkit.devcontainer.containers import EngineClient, Failure
from devkit.devcontainer.making import BuildLog, StartOptions, StepEnd
from devkit.devcontainer.starting import start_with_features
from devkit.errors import DevkitError
from devkit.probe.host import LocalHost

# devcontainer.json as the specification and the dev container CLI read it.


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


def test_variables_of_the_host_are_put_in(tmp_path):
    document = {
        "image": "a:${localEnv:TAG:latest}",
        "mounts": ["source=${devcontainerId}-cache,target=/cache,type=volume"],
        "containerEnv": {"HERE": "${localWorkspaceFolderBasename}", "THERE": "${containerWorkspaceFolder}/x"},
        "remoteEnv": {"PATH": "${containerEnv:PATH}:/more"},
    }
    write(tmp_path, document)
    found = find_dev_container(tmp_path, env={"TAG": "12"}).properties
    assert found["image"] == "a:12"
    assert found["containerEnv"] == {"HERE": tmp_path.name, "THERE": f"/workspaces/{tmp_path.name}/x"}
    assert "${" not in found["mounts"][0]
    assert replace_container_variables(found["remoteEnv"], {"PATH": "/bin"}) == {"PATH": "/bin:/more"}


def test_the_id_is_the_one_that_the_dev_container_cli_computes():
    # Computed by @devcontainers/cli 0.89.0 for the same labels.
    labels = {"devcontainer.local_folder": "/a", "devcontainer.config_file": "/a/.devcontainer.json"}
    assert compute_devcontainer_id(labels) == "1s2ir76ql7ilu9vi2o6i1fuiqvq1o6o1bmkgaf6hkn5tgepfqjjk"


@pytest.mark.parametrize(
    ("document", "message"),
    [
        pytest.param(None, "has no dev container", id="there is none"),
        pytest.param("{", "cannot be read", id="no JSON"),
        pytest.param("[]", "holds no object", id="a list"),
    ],
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


def test_the_repository_is_mounted_and_work_starts_in_the_folder(tmp_path):
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/config").touch()
    write(tmp_path / "part", {"image": "debian"})
    found = find_dev_container(tmp_path / "part", env={})
    assert found.workspace_mount == f"type=bind,source={tmp_path},target=/workspaces/{tmp_path.name}"
    assert found.workspace_folder == f"/workspaces/{tmp_path.name}/part"


def test_the_images_metadata_is_merged_and_devcontainer_json_decides():
    image = {
        "remoteUser": "vscode",
        "postCreateCommand": "first",
        "capAdd": ["SYS_PTRACE"],
        "mounts": [{"type": "volume", "source": "a", "target": "/x"}],
        "remoteEnv": {"A": "1", "B": "1"},
    }
    own = {
        "postCreateCommand": ["second"],
        "capAdd": ["SYS_PTRACE", "NET_ADMIN"],
        "mounts": ["type=bind,src=/b,dst=/x"],
        "remoteEnv": {"B": None},
        "updateRemoteUserUID": False,
    }
    merged = merge_settings([image, own])
    assert (merged.remote_user, merged.updates_uid, merged.init) == ("vscode", False, False)
    assert merged.hooks["postCreateCommand"] == ("first", ["second"])
    assert merged.cap_add == ("SYS_PTRACE", "NET_ADMIN")
    assert merged.mounts == ({"type": "bind", "source": "/b", "target": "/x"},)
    assert merged.remote_env == {"A": "1", "B": None}
    assert replace_container_variables(merged.remote_env, {}) == {"A": "1"}


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        pytest.param("a && b", [("", ["/bin/sh", "-c", "a && b"])], id="a text is for the shell"),
        pytest.param(["a", "b c"], [("", ["a", "b c"])], id="a list is not"),
        pytest.param({"x": "a", "y": ["b"]}, [("x", ["/bin/sh", "-c", "a"]), ("y", ["b"])], id="an object holds both"),
        pytest.param(None, [], id="nothing"),
        pytest.param("  ", [], id="blank"),
    ],
)
def test_lifecycle_commands_have_three_forms(command, expected):
    assert list_commands(command) == expected


# A dev container with Features: handed to the dev container CLI where that is installed, explained where it is not.


ENGINE = """#!/bin/sh
case "$*" in
    ps*) cat {folder}/ids 2>/dev/null; exit 0 ;;
    "container inspect"*) cat {folder}/state.json ;;
esac
"""
CLI = """#!/bin/sh
echo "$*" >{folder}/asked
[ ! -e {folder}/fails ] || {{ echo "#7 [2/2] RUN false" >&2; echo "no such Feature" >&2; exit 1; }}
echo "#7 [2/2] RUN install a Feature" >&2
echo "#7 DONE 1.5s" >&2
echo 0123 >{folder}/ids
"""


class Silent:
    """Takes what is reported."""

    def begin(self, title):
        pass

    def end(self, title, result="", *, is_failed=False):
        pass

    drop = say = begin


@pytest.fixture
def container(tmp_path, monkeypatch):
    """A project with one Feature, beside programs that stand in for the engine's; the dev container CLI is not there."""
    programs, folder = tmp_path / "bin", tmp_path / "project/.devcontainer"
    programs.mkdir()
    folder.mkdir(parents=True)
    (folder / "devcontainer.json").write_text(json.dumps({"image": "debian", "features": {"./node": {}}}))
    (tmp_path / "state.json").write_text(
        json.dumps([{"Id": "0123", "State": {"Running": True}, "Config": {"Env": []}}])
    )
    write_executable(programs / "docker", ENGINE.format(folder=tmp_path))
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    return find_dev_container(tmp_path / "project", env=os.environ)


def write_executable(file, text):
    file.write_text(text)
    file.chmod(0o755)


def start(container, *, rebuilds=False, is_elsewhere=False):
    client = EngineClient(LocalHost(), "docker")
    return start_with_features(client, container, StartOptions(rebuilds), Silent(), is_elsewhere=is_elsewhere)


def test_without_the_cli_the_fix_is_to_install_it(container, tmp_path):
    with pytest.raises(DevkitError, match=r"Features \(\./node\), which the dev container CLI builds") as refused:
        start(container)
    assert refused.value.hint.endswith("npm install --global @devcontainers/cli")
    with pytest.raises(DevkitError) as refused:
        start(container, is_elsewhere=True)
    assert refused.value.hint == "Run devkit on the engine's machine."


def test_the_cli_builds_and_starts_it(container, tmp_path):
    write_executable(tmp_path / "bin/devcontainer", CLI.format(folder=tmp_path))
    started = start(container, rebuilds=True)
    assert not isinstance(started, Failure)
    assert (started.action, started.entry.state.id, started.built) == (
        "created",
        "0123",
        ("2/2 RUN install a Feature",),
    )
    asked = (tmp_path / "asked").read_text().split()
    assert asked[:3] == ["up", "--workspace-folder", str(container.folder)]
    assert "--remove-existing-container" in asked
    assert start(container).action == "kept"


def test_what_the_cli_said_is_in_the_failure(container, tmp_path):
    write_executable(tmp_path / "bin/devcontainer", CLI.format(folder=tmp_path))
    (tmp_path / "fails").touch()
    failed = start(container)
    assert isinstance(failed, Failure)
    assert failed.title == "devcontainer up ended with status 1"
    assert "no such Feature" in failed.lines


# Build steps, from what BuildKit, the legacy builder and Podman print.


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
LEGACY = """\
Step 1/2 : FROM debian
 ---> 0123456789ab
Step 2/2 : RUN echo built
 ---> Using cache
 ---> ba9876543210
"""
PODMAN = """\
STEP 1/2: FROM debian
STEP 2/2: RUN false
Error: building at STEP "RUN false": while running runtime: exit status 1
"""


def read(text, *, is_failed):
    seen = []
    log = BuildLog(lambda step: seen.append((step.name, step.end)))
    for line in text.splitlines():
        log.take(line)
    log.close(is_failed=is_failed)
    return log, seen


def test_each_instruction_is_reported_when_it_begins_and_when_it_ends():
    log, seen = read(BUILDKIT, is_failed=True)
    assert seen == [
        ("1/3 FROM docker.io/library/python:3.12-slim", None),
        ("1/3 FROM docker.io/library/python:3.12-slim", StepEnd.DONE),
        ("2/3 RUN groupadd --system venv && python3 -m venv /opt/venv", None),
        ("2/3 RUN groupadd --system venv && python3 -m venv /opt/venv", StepEnd.CACHED),
        ("3/3 RUN pip install torch==9.9.9", None),
        ("3/3 RUN pip install torch==9.9.9", StepEnd.FAILED),
    ]
    assert log.failed is not None
    assert log.failed.output == ["Collecting torch", "ERROR: No matching distribution found for torch==9.9.9"]
    assert log.lines == BUILDKIT.splitlines()


@pytest.mark.parametrize(
    ("text", "is_failed", "ends"),
    [
        pytest.param(LEGACY, False, [StepEnd.DONE, StepEnd.CACHED], id="the legacy builder"),
        pytest.param(PODMAN, True, [StepEnd.DONE, StepEnd.FAILED], id="Podman"),
    ],
)
def test_builders_without_numbers_end_a_step_with_the_next(text, is_failed, ends):
    log, seen = read(text, is_failed=is_failed)
    assert [step.end for step in log.steps] == ends
    assert len(seen) == 2 * len(ends)


def test_a_build_that_was_cut_off_leaves_its_step_open():
    log, _ = read("#5 [2/3] RUN sleep 100", is_failed=True)
    assert [step.end for step in log.steps] == [None]


@pytest.mark.parametrize(
    "answer", ["\x1b[2J", "[]", "{}", "[5]", "[" * 100_000], ids=["escapes", "empty", "object", "number", "deep"]
)
def test_an_engine_that_answers_nonsense_is_no_bug(container, tmp_path, answer):
    (tmp_path / "state.json").write_text(answer)
    with pytest.raises(DevkitError, match="`docker container inspect` printed no description"):
        EngineClient(LocalHost(), "docker").inspect("0123")
