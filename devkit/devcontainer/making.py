"""What every way to make a dev container shares: the labels, the files that it is made of, its GPU, and its build."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from devkit.devcontainer.build_log import BuildLog
from devkit.devcontainer.configuration import METADATA_LABEL, DevContainer, MergedSettings
from devkit.devcontainer.containers import INPUTS_LABEL, ContainerState, ImageState
from devkit.facts.model import Engine, EngineKind
from devkit.facts.values import Unknown
from devkit.verify.process import CompletedCommand, run_streaming

KEEP_RUNNING = 'trap "exit 0" TERM\n{entrypoints}\nexec "$@"\nwhile :; do sleep 3600 & wait $!; done'
"""The first process of a container that runs no program of its own; `exec` without words does nothing."""
PLAIN_PROGRESS = {"BUILDKIT_PROGRESS": "plain", "COMPOSE_PROGRESS": "plain", "NO_COLOR": "1"}
_NO_INPUTS = (".gitignore", ".gitattributes", ".md")


@dataclass(frozen=True)
class StartOptions:
    """Options of a start: `rebuilds` makes the container anew in any case, `no_cache` its image, too."""

    rebuilds: bool = False
    no_cache: bool = False


@dataclass(frozen=True)
class Recipe:
    """The parts of a container: its merged settings, its image, and its files by their hashes."""

    settings: MergedSettings
    image: ImageState | None
    inputs: Mapping[str, str]


class Maker(Protocol):
    """Makes the container of one configuration: a service of Compose files, or a single container."""

    def list_inputs(self) -> list[Path]:
        """List the files that the container is made of."""

    def find(self) -> ContainerState | None:
        """Return the container, running or not; None where none was made."""

    def build(self, options: StartOptions, log: BuildLog) -> CompletedCommand | None:
        """Build or pull the image; None where nothing is to be done."""

    def find_image(self) -> ImageState | None:
        """Return the image; None where only the start will fetch it."""

    def start(self, before: ContainerState | None, action: str, recipe: Recipe) -> CompletedCommand:
        """Make the container, make it anew, or start the one that there is: "created", "recreated" or "started"."""


def build_labels(container: DevContainer, recipe: Recipe) -> dict[str, str]:
    """Build the labels by which editors, the dev container CLI and devkit know the container."""
    metadata = [*(recipe.image.metadata if recipe.image else []), container.metadata]
    return {
        **container.labels,
        METADATA_LABEL: json.dumps(metadata, separators=(",", ":")),
        INPUTS_LABEL: json.dumps(dict(recipe.inputs), separators=(",", ":")),
    }


def list_own_files(container: DevContainer) -> list[Path]:
    """List devcontainer.json, and the files beside it that a container can be made of."""
    if container.file.parent == container.folder:
        return [container.file]
    try:
        return sorted(
            path for path in container.file.parent.iterdir() if path.is_file() and not path.name.endswith(_NO_INPUTS)
        )
    except OSError:
        return []


def has_gpu_request(container: DevContainer) -> bool:
    """Say if devcontainer.json asks for a GPU, optional or not, that the engine is to give if it can."""
    requirements = container.properties.get("hostRequirements")
    return bool(isinstance(requirements, dict) and requirements.get("gpu"))


def find_gpu_form(engine: Engine) -> str:
    """Return how this engine gives GPUs: "driver", "cdi" or "" for not at all."""
    if any("nvidia" in runtime.name for runtime in engine.runtimes) and engine.kind is not EngineKind.PODMAN:
        return "driver"
    devices = engine.cdi_devices
    return "cdi" if not isinstance(devices, Unknown) and "nvidia.com/gpu=all" in devices else ""


def ignore(line: str) -> None:
    """Take a line and do nothing: the whole output is kept for a failure."""


def run_build(argv: Sequence[str], log: BuildLog, container: DevContainer) -> CompletedCommand:
    """Run a build, and let `log` take its lines."""
    return run_streaming(
        argv, progress=log.take, folder=container.folder, environment=PLAIN_PROGRESS, shows_output=True
    )
