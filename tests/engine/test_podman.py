"""The generated files on Podman: through its socket with Docker's Compose, and with podman-compose."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from devkit.render.container.compose import render_devcontainer_compose
from devkit.render.container.settings import ContainerSettings, FromIndex
from tests.render.plans import GPU_PLAN
from tests.render.test_dependencies import LIST

from . import podman
from .binaries import Binaries
from .commands import run
from .daemon import MIG_SLICES
from .podman import BASE, Podman
from .project import DEVKIT

pytestmark = pytest.mark.nightly

# What the generated Dockerfile makes that the Compose file needs; this machine has no network to build the rest.
DOCKERFILE = f"""\
FROM {BASE}
ARG USER_UID
RUN useradd --uid 1000 --create-home dev && mkdir -p /opt/cache/huggingface /opt/cache/compile && chown dev /opt/cache/*
USER dev
"""


@pytest.fixture(scope="module")
def running(found: Binaries, bridge: str) -> Iterator[Podman]:
    """Podman; the bridge is not used, but held, because no other session shall run engines meanwhile."""
    with podman.podman(found) as started:
        yield started


@pytest.fixture
def folder(running: Podman, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A project for either engine, at the same path on this machine and on Podman's."""
    made = running.state / f"project-{abs(hash(request.node.name)) % 10000}"
    settings = ContainerSettings("Demo", "demo", FromIndex("0.1.0"), engine=getattr(request, "param", ""))
    for artifact in render_devcontainer_compose(replace(GPU_PLAN, base_image=BASE), settings):
        (made / artifact.path).parent.mkdir(parents=True, exist_ok=True)
        (made / artifact.path).write_bytes(artifact.content)
    (made / ".devcontainer/Dockerfile").write_text(DOCKERFILE)
    yield made
    running.clear()


def given(running: Podman) -> set[str]:
    """The CDI devices of the one container that runs."""
    (container,) = running.inside("podman", "ps", "--quiet").split()
    variables = running.inside("podman", "exec", container, "cat", "/proc/1/environ").split("\0")
    assert "DEVKIT_GPU=podman" in variables
    assert running.inside("podman", "exec", container, "id", "-un").strip() == "dev"
    return {line.partition("=")[2] for line in variables if line.startswith("DEVKIT_CDI_DEVICE_")}


every_choice = pytest.mark.parametrize(
    "devices", ["", "1", "0,3", MIG_SLICES[1]], ids=["every GPU", "one GPU", "two GPUs", "a MIG slice"]
)


@every_choice
def test_compose_passes_on_gpus_through_the_socket(running, folder, devices):
    said = running.inside("sh", ".devcontainer/gpu.sh", cwd=folder, env={"DEVKIT_DEVICES": devices})
    assert said.startswith("devkit: DEVKIT_GPU=podman: Podman, and a CDI specification of the NVIDIA GPUs")
    compose = ["docker", "compose", "--file", folder / ".devcontainer/docker-compose.yml"]
    run([*compose, "up", "--build", "--detach"], env=running.env, cwd=folder)
    assert given(running) == set(devices.split(",") if devices else ["all"])
    run([*compose, "down", "--timeout=1"], env=running.env, cwd=folder)


@pytest.mark.parametrize("folder", ["podman"], indirect=True, ids=["for Podman alone"])
@every_choice
def test_podman_compose_passes_on_gpus(running, folder, devices):
    running.inside("sh", ".devcontainer/gpu.sh", cwd=folder, env={"DEVKIT_DEVICES": devices})
    running.inside("podman-compose", "up", "--build", "--detach", cwd=folder / ".devcontainer")
    assert given(running) == set(devices.split(",") if devices else ["all"])


PODMAN_FROM_OUTSIDE = """#!/bin/sh
exec nsenter --target={process} --mount --net --pid --wdns="$PWD" env -i {settings} podman "$@"
"""
"""Podman's own program, for a devkit that runs on this machine: Podman's has no Python for it."""
DEV_CONTAINER = """{
    "dockerComposeFile": "docker-compose.yml", "service": "dev", "workspaceFolder": "/workspaces/demo",
    "remoteUser": "dev", "updateRemoteUserUID": false, "postCreateCommand": "echo made >> ~/made"
}"""


def reach(running: Podman, has_docker: bool) -> dict[str, str]:
    """Return the environment of a devkit that finds Podman by Docker's client, or by its own program alone."""
    # Podman sees nothing of this machine but its own folder.
    env = {**running.env, "XDG_DATA_HOME": str(running.state), "NO_COLOR": "1", "COLUMNS": "400"}
    if has_docker:
        return env
    programs = running.state / "from-outside"
    programs.mkdir(exist_ok=True)
    settings = f"HOME={running.state} PATH={podman.PATH} PODMAN_IGNORE_CGROUPSV1_WARNING=1"
    (programs / "podman").write_text(PODMAN_FROM_OUTSIDE.format(process=running.process, settings=settings))
    (programs / "podman").chmod(0o755)
    return env | {"PATH": f"{programs}:/usr/bin:/bin:/usr/sbin:/sbin", "DOCKER_CONFIG": str(programs)}


@pytest.mark.parametrize("has_docker", [True, False], ids=["docker compose", "podman-compose"])
def test_the_reason_of_an_end_is_found_by_trying(running, has_docker):
    made = running.state / f"ended-{has_docker}"
    (made / "data/own").mkdir(parents=True)
    (made / "own").mkdir()
    (made / "data/own/app.ini").touch()
    (made / "compose.yaml").write_text(
        f"services: {{a: {{image: {BASE}, command: [cat, /etc/own/app.ini], volumes: ['./own:/etc/own']}}}}"
    )
    env = reach(running, has_docker)
    done = run([*DEVKIT, "up"], env=env, cwd=made, expect=1)
    said = done.stdout + done.stderr
    assert "/own, which does not have the files of the folder data/own" in said
    assert "Fix in compose.yaml:1: write ./data/own in its place." in said
    running.clear()


@pytest.mark.parametrize(
    ("folder", "has_docker"),
    [pytest.param("", True, id="docker compose"), pytest.param("podman", False, id="podman-compose")],
    indirect=["folder"],
)
def test_devkit_starts_enters_and_stops_the_dev_container(running, folder, has_docker):
    (folder / ".devcontainer/devcontainer.json").write_text(DEV_CONTAINER)
    running.inside("sh", ".devcontainer/gpu.sh", cwd=folder)
    env = reach(running, has_docker)

    def devkit(*words, expect=0):
        return run([*DEVKIT, *words], env=env, cwd=folder, expect=expect).stdout

    first = json.loads(devkit("up", "--json"))
    assert json.loads(devkit("up", "--json"))["action"] == "kept"
    assert devkit("run", "--", "sh", "-c", "id -un; pwd; exit 3", expect=3) == "dev\n/workspaces/demo\n"
    devkit("down")
    again = json.loads(devkit("up", "--json"))
    assert (again["action"], again["container_id"]) == ("started", first["container_id"])
    assert devkit("run", "--", "sh", "-c", "cat ~/made") == "made\n"
    devkit("down", "--volumes")
    assert running.inside("podman", "ps", "--all", "--quiet") == ""


WITH_CONTEXTS = f"""\
{DOCKERFILE}
RUN --mount=type=bind,from=project,source=requirements.txt,target=/mnt/project/requirements.txt \\
    --mount=type=bind,from=wheelhouse,target=/mnt/wheelhouse \\
    cat /mnt/project/requirements.txt > /tmp/seen && ls /mnt/wheelhouse >> /tmp/seen
"""


@pytest.fixture
def with_contexts(running: Podman, folder: Path) -> Path:
    """A project whose build sees its own list of packages and a folder of wheels besides its own context."""
    settings = ContainerSettings(
        "Demo", "demo", FromIndex("0.1.0"), engine="podman", dependencies=LIST, uses_wheelhouse=True
    )
    for artifact in render_devcontainer_compose(replace(GPU_PLAN, base_image=BASE), settings):
        (folder / artifact.path).write_bytes(artifact.content)
    (folder / ".devcontainer/Dockerfile").write_text(WITH_CONTEXTS)
    (folder / "requirements.txt").write_text("rich\n")
    (folder / ".devcontainer/wheelhouse").mkdir()
    (folder / ".devcontainer/wheelhouse/one.whl").touch()
    return folder


def test_podman_compose_builds_with_the_project_and_a_folder_of_wheels(running, with_contexts):
    running.inside("sh", ".devcontainer/gpu.sh", cwd=with_contexts)
    running.inside("podman-compose", "up", "--build", "--detach", cwd=with_contexts / ".devcontainer")
    (container,) = running.inside("podman", "ps", "--quiet").split()
    assert running.inside("podman", "exec", container, "cat", "/tmp/seen").split() == ["rich", "one.whl"]
