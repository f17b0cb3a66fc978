"""Every different Compose project of the matrix, as Compose itself reads it with each overlay and every profile."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from devkit.render.splice import jsonc
from tests.render.matrix import Combination, distinct_compose
from tests.render.test_repositories import FOLDER, GPU, WITH_OVERLAY, devkit

from . import binaries
from .commands import environment, run
from .conftest import programs

PROFILES = ("--profile", "jupyter", "--profile", "monitoring")


def overlays(combination: Combination) -> Iterator[str]:
    """The middle of each overlay's name."""
    for path in combination.files:
        if found := re.fullmatch(r"gpu\.(\w+)\.yml", path):
            yield found[1]


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
        for overlay in overlays(combination):
            compose = [found.plugins / "docker-compose", "--file", folder / "docker-compose.yml", *PROFILES]
            argv = [*compose, "config", "--format", "json"]
            services = json.loads(run(argv, env=environment(DEVKIT_GPU=overlay)).stdout)["services"]
            with_gpu = {name for name, service in services.items() if gpus_asked_for(service)}
            may_have = {"dev", "jupyter", "gpu-metrics"} & set(services)
            assert with_gpu == (set() if overlay == "cpu" else may_have), (combination.options, overlay)
            read += 1
    assert read >= 100


@pytest.mark.parametrize("suite", binaries.SUITES)
@pytest.mark.parametrize("name", WITH_OVERLAY)
def test_compose_reads_a_repository_of_somebody_else_with_every_overlay(suite: str, name: str, tmp_path: Path):
    root = tmp_path / name
    shutil.copytree(FOLDER / name, root)
    assert devkit("init", root, *GPU).return_value == 0
    dev = jsonc.load_jsonc((root / ".devcontainer/devcontainer.json").read_text())
    named = [word for path in dev["dockerComposeFile"] for word in ("--file", root / ".devcontainer" / path)]
    compose = [programs(suite).plugins / "docker-compose", *named, "config", "--format", "json"]
    for path in (root / ".devcontainer/devkit").glob("gpu.*.yml"):
        mode = path.name.split(".")[1]
        service = json.loads(run(compose, env=environment(DEVKIT_GPU=mode)).stdout)["services"][dev["service"]]
        assert gpus_asked_for(service) is (mode != "cpu"), mode
        assert service["environment"]["DEVKIT_GPU"] == mode
