"""The targets of `devkit export`: their settings, the function that renders their files, and the folder of those."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import PurePosixPath
from typing import Any

from devkit.errors import DevkitError
from devkit.export.task import Task
from devkit.export.values import validate_dns_label
from devkit.render.files import Artifact

TARGETS = {
    "kubernetes": "Kubernetes: Job, Kubeflow TrainJob or PyTorchJob, JobSet, RayJob; with Kueue and storage.",
    "slurm": "Slurm: batch scripts for one or more nodes, with or without a container, requeued when preempted.",
    "skypilot": "SkyPilot: a task for clouds and clusters, including spot instances.",
    "daytona": "Daytona: a snapshot of the same image, and a sandbox created from it.",
    "docker": "One machine over a Docker context: a script that runs and resumes the container.",
}
"""Name -> summary, in the order of the help. Each is `TARGET` of the module or package of its name."""
MAX_QUICK_RESTARTS = 5
"""After so many starts in a row that are stopped within a minute, the script of one machine gives up."""


@dataclass(frozen=True)
class TargetFiles:
    """A target's files, relative to their folder, the commands to run next, and notes."""

    artifacts: tuple[Artifact, ...]
    next_steps: tuple[str, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ExportTarget:
    """An engine. `settings` is a class as `devkit.facts.settings` describes; its table is [job.NAME] of devkit.toml.

    `render` gets the folder of the files, too, as seen from the project. It raises DevkitError for a task that the engine
    cannot run. `needs_image` tells by the target's settings
    if the job runs in the published image: without one it is refused, so `render` never sees an empty name.
    `validate_name` returns a job's name that the engine takes, given with its flag, or raises DevkitError. `validate` raises
    it for settings of the target that the engine does not take on that many nodes, before there is a task.
    """

    name: str
    settings: type
    render: Callable[[Task, Any, str], TargetFiles]
    needs_image: Callable[[Any], bool] = lambda _settings: True
    validate_name: Callable[[str, str], str] = validate_dns_label
    validate: Callable[[Any, int], object] = lambda _settings, _nodes: None


def require_one_machine(nodes: int, engine: str) -> None:
    """Raise DevkitError for a job of several nodes."""
    if nodes > 1:
        raise DevkitError(
            f"a {engine} is one machine, but the job needs {nodes}",
            "Use kubernetes, slurm or skypilot for several, or --nodes 1.",
        )


def load_target(name: str) -> ExportTarget:
    """Import the target's module. Raises DevkitError for a name that none has."""
    if name not in TARGETS:
        raise DevkitError(f"the target {name!r} does not exist", f"Choose among {', '.join(TARGETS)}.")
    target: ExportTarget = import_module(f"devkit.export.{name}").TARGET
    return target


def find_path_to_project(folder: str) -> str:
    """Return the path from the folder of the files to the project; "" where that folder is outside it."""
    path = PurePosixPath(folder)
    if path.is_absolute() or ".." in path.parts:
        return ""
    return "/".join([".."] * len(path.parts)) or "."
