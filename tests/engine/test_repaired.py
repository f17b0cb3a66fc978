"""Dev containers of somebody else after `devkit init`: their Dockerfiles build, and their service starts without a GPU.

No registry and no index of PyTorch's can be asked here. The base image is the tests' own under the name that the
repaired file has, apt-get is a stand-in that installs nothing, and the packages are empty wheels of the planned
versions.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from devkit.formats import jsonc
from tests.render.test_new_container import COMPOSE as NEW_COMPOSE
from tests.render.test_repositories import GPU, devkit
from tests.repositories import write_repository
from tests.wheels import make_wheel

from . import image
from .commands import run
from .conftest import one_engine
from .daemon import Engine
from .package_index import HOST, serving, write_index

LOOSE = ("torch", "torchvision", "torchaudio", "datasets", "torchmetrics", "tqdm", "accelerate", "peft")
"""Packages that no file pins: the newest is taken."""
PIN = re.compile(r"([A-Za-z][\w-]*)==([\w.+]+)")


@dataclass(frozen=True)
class Repaired:
    """A repository after init, on a machine with `engine`."""

    folder: Path
    engine: Engine

    def build(self, dockerfile: str, context: str = ".") -> str:
        """Build the image as the editor would. Returns its name."""
        name = f"devkit-repaired-{self.folder.name}"
        self.engine.docker("build", "--tag", name, "--file", self.folder / dockerfile, self.folder / context)
        return name


@pytest.fixture
def repaired(request: pytest.FixtureRequest, engine: Engine, tmp_path: Path) -> Iterator[Repaired]:
    """The repository of that name, repaired, with an index of the packages that its files pin."""
    root = tmp_path / request.param
    write_repository(request.param, root)
    assert devkit("init", root, *GPU).return_value == 0
    served = tmp_path / "served"
    wheels = served / "wheels"
    wheels.mkdir(parents=True)
    texts = [path.read_text() for path in root.rglob("*") if "Dockerfile" in path.name or path.suffix == ".txt"]
    pins = {pair for text in texts for pair in PIN.findall(text)}
    for name, version in (*pins, *((name, "1.0") for name in LOOSE), ("transformers", "4.57.6")):
        make_wheel(wheels, name, version)
    write_index(served, "simple", sorted(wheels.iterdir()))
    bases = [image.base_image_of(path) for path in root.rglob("*") if "Dockerfile" in path.name]
    with serving(served) as address:
        for base in bases:
            provide(engine, base, address)
        yield Repaired(root, engine)
    engine.clear()
    # Other tests build on an image of that name as well.
    for base in bases:
        engine.docker("tag", "devkit-test-base:latest", base)
    engine.docker("image", "prune", "--force", "--filter", "label=devkit.test.base=repaired")


def provide(engine: Engine, reference: str, index: str) -> None:
    """The tests' base image under that name, without apt and with this index."""
    image.provide(engine, "devkit-test-base:latest")
    stand_in = "printf '#!/bin/sh\\nexit 0\\n' > /usr/bin/apt-get"
    engine.docker("run", "--name", "devkit-repaired-base", "devkit-test-base:latest", "sh", "-c", stand_in)
    values = {"PIP_INDEX_URL": f"{index}/simple", "PIP_TRUSTED_HOST": HOST, "PIP_RETRIES": "0", "PIP_TIMEOUT": "1"}
    changes = [word for pair in values.items() for word in ("--change", f"ENV {'='.join(pair)}")]
    changes += ["--change", 'CMD ["python3"]', "--change", "LABEL devkit.test.base=repaired"]
    engine.docker("commit", *changes, "devkit-repaired-base", reference)
    engine.docker("rm", "devkit-repaired-base")


@one_engine
@pytest.mark.parametrize(
    ("repaired", "dockerfile"),
    [("seed", ".devcontainer/Dockerfile"), ("from-windows", ".devcontainer/Dockerfile")],
    indirect=["repaired"],
    ids=["the named baseline", "carriage returns"],
)
def test_a_repaired_dockerfile_builds_with_the_planned_torch(repaired: Repaired, dockerfile: str):
    name = repaired.build(dockerfile)
    torch = dict(PIN.findall((repaired.folder / dockerfile).read_text()))["torch"]
    code = "import importlib.metadata as m; print(m.version('torch'))"
    run_in = ("run", "--rm", "--entrypoint", "python3", name)
    assert repaired.engine.docker(*run_in, "-c", code).strip() == torch


@pytest.mark.nightly
@one_engine
@pytest.mark.parametrize("repaired", ["compose-with-anchors"], indirect=True, ids=["a stack of a lab"])
def test_a_service_that_insisted_on_a_gpu_starts_without_one(repaired: Repaired):
    """Without a GPU the project's own files alone fail to start, and the dev container starts."""
    root, engine = repaired.folder, repaired.engine
    # Not every place that tests run in may raise this limit.
    (root / "base.yaml").write_text((root / "base.yaml").read_text().replace("ulimits: {memlock: -1}", ""))
    # The author's own mistake is left to the author: without it the files start by themselves.
    (root / "compose.yaml").write_text((root / "compose.yaml").read_text().replace("count: 1 # either this", ""))
    dev = jsonc.load_jsonc((root / ".devcontainer/devcontainer.json").read_text())
    files = [word for path in dev["dockerComposeFile"] for word in ("--file", root / ".devcontainer" / path)]
    own = ["docker", "compose", "--project-name", "lab", *files[:4]]
    run([*own, "build", "train"], env=engine.env)
    refused = run([*own, "up", "--detach", "train"], env=engine.env, expect=None)
    assert refused.returncode != 0 and "nvidia" in refused.stderr
    said = run(engine.on_host("sh", "-c", dev["initializeCommand"]), env=engine.env, cwd=root).stdout
    assert "DEVKIT_GPU=cpu" in said
    compose = ["docker", "compose", "--project-name", "lab", *files]
    run([*compose, "up", "--detach", "train"], env=engine.env)
    shown = run([*compose, "exec", "-T", "train", "printenv", "DEVKIT_GPU"], env=engine.env).stdout
    assert shown.strip() == "cpu"


@one_engine
def test_a_service_of_the_project_s_own_compose_file_is_opened(engine: Engine, tmp_path: Path):
    """Compose merges the files as the editor hands them over: no GPU here, the memory, and the author's program."""
    root = tmp_path / "chat"
    (root / "docker").mkdir(parents=True)
    (root / "docker/docker-compose.yml").write_text(NEW_COMPOSE)
    assert devkit("init", root, *GPU, "--compose", "docker/docker-compose.yml").return_value == 0
    dev = jsonc.load_jsonc((root / ".devcontainer/devcontainer.json").read_text())
    files = [word for name in dev["dockerComposeFile"] for word in ("--file", name)]
    command = ["docker", "compose", *files, "config", "--format", "json"]
    shown = run(command, env=engine.env, cwd=root / ".devcontainer").stdout
    worker = json.loads(shown)["services"]["worker"]
    assert "devices" not in worker["deploy"]["resources"]["reservations"]
    assert worker["shm_size"] == str(8 << 30)
    assert worker["entrypoint"] == ["python3", "-m", "serve"]
