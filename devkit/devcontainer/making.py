"""What every way to make a dev container shares: the labels, the files that it is made of, its GPU, and its build."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from devkit.devcontainer.configuration import METADATA_LABEL, DevContainer, MergedSettings
from devkit.devcontainer.containers import INPUTS_LABEL, ContainerState, ImageState
from devkit.devcontainer.remote import RemoteFolder
from devkit.facts.model import Engine, EngineKind
from devkit.facts.values import Unknown
from devkit.verify.process import CompletedCommand, run_streaming

# The steps of an image build, read from the plain progress of BuildKit, or of a builder before it.

_BUILDKIT = re.compile(r"#(\d+) (.*)")
_STEP = re.compile(r"\[(?:[\w./-]+ )*(\d+)/(\d+)\] (.+)")
_END = re.compile(r"(?:DONE (\d+\.\d+)s|CACHED|CANCELED|ERROR:? .*)$")
_CLASSIC = re.compile(r"(?:\[\d+/\d+\] )?(?:Step|STEP) (\d+)/(\d+) ?: (.+)")
_OPTIONS = re.compile(r"^(\d+/\d+ [A-Z]+ )(?:--\S+ )+")
"""Mounts and modes of an instruction, which would push its command off the line."""
_OUTPUT = re.compile(r"\d+\.\d+ (.*)")


class StepEnd(StrEnum):
    """The ways in which a build step ends."""

    DONE = "done"
    CACHED = "cached"
    FAILED = "failed"


@dataclass
class BuildStep:
    """One instruction of a Dockerfile, such as "3/9 RUN pip install torch". `end` is None while it runs."""

    name: str
    end: StepEnd | None = None
    seconds: float = 0.0
    output: list[str] = field(default_factory=list)


class BuildLog:
    """Takes the lines of a build and reports each step when it begins and when it ends."""

    def __init__(self, report: Callable[[BuildStep], None]) -> None:
        self.lines: list[str] = []
        self._report = report
        self._steps: dict[str, BuildStep] = {}
        self._classic: BuildStep | None = None

    @property
    def steps(self) -> tuple[BuildStep, ...]:
        """The instructions that were begun, in their order."""
        return tuple(self._steps.values())

    @property
    def failed(self) -> BuildStep | None:
        """The step at which the build failed."""
        return next((step for step in self.steps if step.end is StepEnd.FAILED), None)

    def take(self, line: str) -> None:
        """Take one line of the build's output."""
        self.lines.append(line)
        if found := _BUILDKIT.fullmatch(line):
            self._take_buildkit(found[1], found[2])
        elif found := _CLASSIC.fullmatch(line.rstrip()):
            self._end_classic(StepEnd.DONE)
            self._classic = self._begin(f"classic {len(self._steps)}", f"{found[1]}/{found[2]} {found[3]}")
        elif self._classic is not None:
            if line.strip(" ->") == "Using cache" or line.startswith("--> Using cache"):
                self._end_classic(StepEnd.CACHED)
            else:
                self._classic.output.append(line)

    def close(self, *, is_failed: bool) -> None:
        """End the steps that no line has ended."""
        if is_failed and self._classic is not None:
            self._end_classic(StepEnd.FAILED)
        self._end_classic(StepEnd.DONE)

    def _take_buildkit(self, number: str, text: str) -> None:
        step = self._steps.get(number)
        if step is None:
            if found := _STEP.fullmatch(text):
                self._begin(number, f"{found[1]}/{found[2]} {found[3]}")
            return
        if found := _END.fullmatch(text):
            ended = {"C": StepEnd.CACHED, "E": StepEnd.FAILED}.get(text[0], StepEnd.DONE)
            # A step that waits for a base image says DONE for each part; the last one counts.
            is_new = step.end is None or ended is StepEnd.FAILED
            step.end, step.seconds = (step.end if text == "CANCELED" else ended), float(found[1] or 0)
            if is_new:
                self._report(step)
        elif found := _OUTPUT.fullmatch(text):
            step.output.append(found[1])

    def _begin(self, key: str, name: str) -> BuildStep:
        step = self._steps[key] = BuildStep(_OPTIONS.sub(r"\1", " ".join(name.split())))
        self._report(step)
        return step

    def _end_classic(self, end: StepEnd) -> None:
        if self._classic is not None:
            self._classic.end = end
            self._report(self._classic)
            self._classic = None


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

    remote: RemoteFolder | None
    """The copy of the project's folder on a remote engine's machine; None where the folder itself is mounted."""

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
