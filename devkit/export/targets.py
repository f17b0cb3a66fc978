"""Every target: an engine that exists, the settings that are its alone, and who writes its files."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from devkit.errors import DevkitError
from devkit.export.task import Task
from devkit.render.artifact import Artifact
from devkit.render.settings import Settings
from devkit.solver.model import Plan


@dataclass(frozen=True)
class Rendered:
    """A target's files, relative to their folder, and what to type next, one command each."""

    artifacts: tuple[Artifact, ...]
    next_steps: tuple[str, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Context:
    """What a target may need besides the task: the plan and the settings that the dev container is made from.

    `folder` is where the files go, as it is typed in the project's folder: the commands that come next are, too.
    """

    plan: Plan
    project: Settings
    folder: str = "."


@dataclass(frozen=True)
class Target:
    """An engine. `settings` is a class as `devkit.facts.said` describes; `render` writes the task down for it.

    `render` raises DevkitError for a task that the engine cannot run. `table` is its table under [job] in devkit.toml.
    `needs_image` says, by the target's settings, whether the job runs in the published image: it is refused without
    one then, so that `render` never sees an empty name.
    """

    name: str
    summary: str
    settings: type
    render: Callable[[Task, Any, Context], Rendered]
    needs_image: Callable[[Any], bool] = lambda _settings: True

    @property
    def table(self) -> str:
        """The table's name: the target's own."""
        return self.name


_PLACES = {
    "kubernetes": "Kubernetes: Job, Kubeflow TrainJob or PyTorchJob, JobSet; with Kueue, storage, checks, monitoring.",
    "slurm": "Slurm: batch scripts for one node or several, in a container or not, requeued when preempted.",
    "skypilot": "SkyPilot: a task for clouds and clusters, spot included.",
    "dstack": "dstack: a task and a development environment.",
    "daytona": "Daytona: a snapshot of the same image, and a sandbox from it.",
    "docker": "One machine over a Docker context: Compose file and docker run script.",
}
"""Name -> summary, in the order of the help. Each is `TARGET` of the module or package of its name."""

NAMES = tuple(_PLACES)


def summary_of(name: str) -> str:
    """The line of help."""
    return _PLACES[name]


def target_named(name: str) -> Target:
    """The target; its module is loaded now. Raises DevkitError for a name that none has."""
    if name not in _PLACES:
        raise DevkitError(f"there is no target {name!r}", f"Choose among {', '.join(NAMES)}.")
    found: Target = import_module(f"devkit.export.{name}").TARGET
    return found
