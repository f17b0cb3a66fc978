"""The generated files on Podman: through its socket with Docker's Compose, and with podman-compose."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from devkit.render.compose import compose_artifacts
from devkit.render.settings import FromIndex, Settings
from tests.render.plans import GPU_PLAN

from . import podman
from .binaries import Binaries
from .commands import run
from .daemon import MIG_SLICES
from .podman import BASE, Podman

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
    settings = Settings("Demo", "demo", FromIndex("0.1.0"), engine=getattr(request, "param", ""))
    for artifact in compose_artifacts(replace(GPU_PLAN, base_image=BASE), settings):
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


def test_a_slice_by_its_numbers_is_refused_because_compose_parts_it_at_the_colon(running, folder):
    said = running.inside("sh", ".devcontainer/gpu.sh", cwd=folder, env={"DEVKIT_DEVICES": MIG_SLICES[0]})
    assert "by its MIG-... UUID" in said


@pytest.mark.parametrize("folder", ["podman"], indirect=True, ids=["for Podman alone"])
@every_choice
def test_podman_compose_passes_on_gpus(running, folder, devices):
    running.inside("sh", ".devcontainer/gpu.sh", cwd=folder, env={"DEVKIT_DEVICES": devices})
    running.inside("podman-compose", "up", "--build", "--detach", cwd=folder / ".devcontainer")
    assert given(running) == set(devices.split(",") if devices else ["all"])
