"""Every different Compose project of the matrix, as Compose itself reads it with each overlay."""

import json
import re
from pathlib import Path

import pytest

from devkit.formats import jsonc
from tests.render.matrix import distinct_compose
from tests.render.test_repositories import GPU, WITH_OVERLAY, devkit
from tests.repositories import write_repository

from . import binaries
from .commands import environment, run
from .conftest import programs

pytestmark = pytest.mark.nightly


def modes(script: Path) -> list[str]:
    """The ways to pass on GPUs that a script of a project knows."""
    (named,) = re.findall(r"^# .* DEVKIT_GPU=(\S+)$", script.read_text(), re.MULTILINE)
    return named.split("|")


def gpus_asked_for(service: dict[str, object]) -> bool:
    """Whether the service asks for a GPU in any form."""
    reserved = service.get("deploy", {}).get("resources", {}).get("reservations", {}).get("devices")
    return bool(reserved or service.get("devices") or service.get("runtime"))


@pytest.mark.parametrize("suite", binaries.SUITES)
def test_compose_accepts_every_project_with_every_overlay(suite: str, tmp_path: Path):
    found = programs(suite)
    read = 0
    for number, combination in enumerate(distinct_compose()):
        folder = tmp_path / str(number) / ".devcontainer"
        for path, text in combination.files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        for mode in modes(folder / "gpu.sh"):
            run(["sh", folder / "gpu.sh"], env=environment(DEVKIT_GPU=mode))
            compose = [found.plugins / "docker-compose", "--file", folder / "docker-compose.yml"]
            services = json.loads(run([*compose, "config", "--format", "json"], env=environment()).stdout)["services"]
            with_gpu = {name for name, service in services.items() if gpus_asked_for(service)}
            assert with_gpu == (set() if mode == "cpu" else {"dev"}), (combination.options, mode)
            assert services["dev"].get("image") != "scratch"
            without_container = {name for name, each in services.items() if each.get("deploy", {}).get("replicas") == 0}
            assert without_container <= {"gpu"}
            read += 1
    assert read >= 60


@pytest.mark.parametrize("suite", binaries.SUITES)
@pytest.mark.parametrize("name", WITH_OVERLAY)
def test_compose_reads_a_repository_of_somebody_else_with_every_overlay(suite: str, name: str, tmp_path: Path):
    root = tmp_path / name
    write_repository(name, root)
    assert devkit("init", root, *GPU).return_value == 0
    dev = jsonc.load_jsonc((root / ".devcontainer/devcontainer.json").read_text())
    named = [word for path in dev["dockerComposeFile"] for word in ("--file", root / ".devcontainer" / path)]
    compose = [programs(suite).plugins / "docker-compose", *named, "config", "--format", "json"]
    script = root / ".devcontainer/devkit/gpu.sh"
    (folder,) = re.findall(r"gpu\.sh ?([\w./]*) \|\| echo", json.dumps(dev["initializeCommand"]))
    for mode in modes(script):
        run(["sh", script, folder or "."], env=environment(DEVKIT_GPU=mode))
        service = json.loads(run(compose, env=environment()).stdout)["services"][dev["service"]]
        assert gpus_asked_for(service) is (mode != "cpu"), mode
        assert service["environment"]["DEVKIT_GPU"] == mode
