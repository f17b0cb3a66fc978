"""Each way to a GPU on real engines: all GPUs, some of them, and slices of one; also with Docker 26 and its Compose."""

import json
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from devkit.render.container.compose import render_devcontainer_compose
from devkit.render.container.settings import ContainerSettings, FromIndex
from tests.render.plans import ROCM_PLAN

from . import binaries, image, project
from .commands import CommandError, run
from .conftest import every_flavor, every_flavor_of_the_older_engine, one_engine
from .daemon import MIG_SLICES, Engine, Flavor
from .project import Clone, Committed
from .test_dev_container import assert_gpu_as_offered, device_requests

ONLY_CDI = pytest.mark.parametrize("engine", [Flavor.CDI], indirect=True, ids=str)


@pytest.fixture
def light(committed: Committed, engine: Engine, tmp_path: Path) -> Iterator[Clone]:
    """A clone whose image takes seconds to build: what is installed in it does not matter here."""
    context = committed.folder / ".devcontainer"
    if engine.origin == binaries.OLDER:
        image.provide_prepared(engine, committed.base_image, context)
    else:
        image.provide(engine, committed.base_image)
        image.prepared(engine, context)
    clone = project.clone(committed, tmp_path / "quickstart", engine)
    clone.without_packages()
    yield clone
    engine.clear()


def start(clone: Clone, devices: str = "") -> str:
    """Start the clone the way the README says, for these GPUs of the host. Returns the container's id."""
    if devices:
        file = clone.folder / ".devcontainer/.env"
        file.write_text(f"{file.read_text()}DEVKIT_DEVICES={devices}\n")
    clone.look()
    clone.compose("up", "--build", "--detach")
    return clone.container()


def environment_of(engine: Engine, container: str) -> dict[str, str]:
    """What the container's first process was given, with what the engine's GPU support added."""
    text = engine.docker("exec", container, "cat", "/proc/1/environ")
    return dict(line.split("=", 1) for line in text.split("\0") if line)


@pytest.mark.nightly
@every_flavor_of_the_older_engine
def test_the_older_engine_passes_on_the_gpu_as_the_newest_does(light):
    assert_gpu_as_offered(light, start(light))


@every_flavor
@pytest.mark.parametrize("devices", ["0,3", ",".join(MIG_SLICES)])
def test_a_teammate_takes_some_of_the_gpus_without_a_change_to_the_project(light, devices):
    changed = light.changed()
    assert_is_given(light, start(light, devices), devices.split(","))
    assert light.changed() == changed


@ONLY_CDI
def test_a_gpu_that_the_host_does_not_have_is_named_by_the_engine(light):
    with pytest.raises(CommandError, match=r"nvidia\.com/gpu=9"):
        start(light, "9")


@every_flavor
def test_the_gpus_that_the_project_names_are_passed_on(light, tmp_path):
    project.pass_on_gpus(light.folder, tmp_path / "planned" / light.folder.name, "--device", "2", "--device", "5")
    assert_is_given(light, start(light), ["2", "5"])


def assert_is_given(clone: Clone, container: str, devices: list[str]) -> None:
    """The container got these GPUs and no others, in the form that this engine offers."""
    given = environment_of(clone.engine, container)
    asked = device_requests(clone.engine, container)
    match clone.engine.flavor:
        case Flavor.CPU:
            assert asked == []
        case Flavor.NVIDIA:
            assert [request["DeviceIDs"] for request in asked] == [devices]
            assert given["NVIDIA_VISIBLE_DEVICES"] == ",".join(devices)
        case Flavor.CDI:
            assert [request["DeviceIDs"] for request in asked] == [[f"nvidia.com/gpu={name}" for name in devices]]
            injected = {value for name, value in given.items() if name.startswith("DEVKIT_CDI_DEVICE_")}
            assert injected == set(devices)


@pytest.fixture
def for_amd(engine: Engine, tmp_path) -> Clone:
    """A small project with the files of a ROCm plan, on a machine that has no AMD GPU."""
    folder = tmp_path / "amd"
    (folder / ".devcontainer").mkdir(parents=True)
    plan = replace(ROCM_PLAN, base_image="devkit-test-base:latest")
    for artifact in render_devcontainer_compose(plan, ContainerSettings("Amd", "amd", FromIndex("0.1.0"))):
        (folder / artifact.path).write_bytes(artifact.content)
    (folder / ".devcontainer/Dockerfile").write_text(f"FROM {plan.base_image}\nENV HF_HUB_CACHE=/tmp\n")
    image.provide(engine, plan.base_image)
    return Clone(folder, engine)


@one_engine
def test_an_amd_gpu_is_passed_on_by_its_nodes_and_group(for_amd, tmp_path):
    """The nodes of a machine without one are made up: /dev/kfd is /dev/null by another name."""
    script = for_amd.folder / ".devcontainer/gpu.sh"
    text = script.read_text()
    assert "devices: [/dev/kfd, /dev/dri]" in text
    script.write_text(text.replace("[/dev/kfd, /dev/dri]", '["/dev/null:/dev/kfd", "/dev/null:/dev/dri"]'))
    (for_amd.folder / ".devcontainer/.env").write_text("DEVKIT_GPU=rocm\n")
    assert "DEVKIT_GPU=rocm: as set" in for_amd.look()
    settings = {"DEVKIT_GPU_GID": "4242", "ROCR_VISIBLE_DEVICES": "1"}
    for_amd.compose("up", "--build", "--detach", env=settings)
    container = for_amd.compose("ps", "--quiet", "dev", env=settings).strip()
    inside = for_amd.engine.docker("exec", "--user", "1000", container, "sh", "-c", "id -G; ls /dev/kfd; env")
    assert "4242" in inside.splitlines()[0].split()
    assert "/dev/kfd" in inside
    assert environment_of(for_amd.engine, container)["ROCR_VISIBLE_DEVICES"] == "1"
    host = for_amd.engine.inspect(container)["HostConfig"]
    assert isinstance(host, dict)
    assert host["Privileged"] is False
    assert not host["CapAdd"]
    for_amd.engine.clear()


@one_engine
def test_a_rocm_project_starts_on_a_machine_without_an_amd_gpu(for_amd):
    said = run(for_amd.engine.on_host("sh", ".devcontainer/gpu.sh"), env=for_amd.engine.env, cwd=for_amd.folder).stdout
    assert "no AMD GPU" in said
    for_amd.compose("up", "--build", "--detach")
    shape = json.loads(for_amd.compose("config", "--format", "json"))["services"]["dev"]
    assert not {"devices", "group_add"} & set(shape)
    for_amd.engine.clear()


@ONLY_CDI
def test_the_hosts_mps_daemon_is_reached_through_its_folder_and_namespace(light):
    pipes = light.engine.state / "mps"
    pipes.mkdir()
    with socket.socket(socket.AF_UNIX) as control:
        control.bind(str(pipes / "control"))
        env = {**light.engine.env, "CUDA_MPS_PIPE_DIRECTORY": str(pipes), "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25"}
        env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"  # a devkit on the host knows of the daemon
        run(light.engine.on_host("sh", ".devcontainer/gpu.sh"), env=env, cwd=light.folder)
        light.compose("up", "--build", "--detach", env=env)
        light.inside("test", "-S", f"{pipes}/control")
    host = light.engine.inspect(light.container())["HostConfig"]
    assert isinstance(host, dict)
    assert host["IpcMode"] == "host"
    assert light.inside("printenv", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE").strip() == "25"
