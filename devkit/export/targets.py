"""Every target: an engine that exists, the settings that are its alone, and who writes its files."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import PurePosixPath
from typing import Any

from devkit.errors import DevkitError
from devkit.export.task import Task
from devkit.render.container.settings import ContainerSettings
from devkit.render.files import Artifact
from devkit.solver.plan import Plan


@dataclass(frozen=True)
class TargetFiles:
    """A target's files, relative to their folder, and what to type next, one command each."""

    artifacts: tuple[Artifact, ...]
    next_steps: tuple[str, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ExportContext:
    """What a target may need besides the task: the plan and the settings that the dev container is made from.

    `folder` is where the files go, as it is typed in the project's folder: the commands that come next are, too.
    """

    plan: Plan
    project: ContainerSettings
    folder: str = "."


@dataclass(frozen=True)
class ExportTarget:
    """An engine. `settings` is a class as `devkit.facts.settings` describes; `render` writes the task down for it.

    `render` raises DevkitError for a task that the engine cannot run. `table` is its table under [job] in devkit.toml.
    `needs_image` says, by the target's settings, whether the job runs in the published image: it is refused without
    one then, so that `render` never sees an empty name.
    """

    name: str
    summary: str
    settings: type
    render: Callable[[Task, Any, ExportContext], TargetFiles]
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

TARGET_NAMES = tuple(_PLACES)


def find_target_summary(name: str) -> str:
    """The line of help."""
    return _PLACES[name]


def load_target(name: str) -> ExportTarget:
    """The target; its module is loaded now. Raises DevkitError for a name that none has."""
    if name not in _PLACES:
        raise DevkitError(f"there is no target {name!r}", f"Choose among {', '.join(TARGET_NAMES)}.")
    found: ExportTarget = import_module(f"devkit.export.{name}").TARGET
    return found


# Where an exported file lies, seen from the project, and the project seen from there.


def find_path_to_project(folder: str) -> str:
    """The project's folder from that of the files, which is Context.folder; "" when they lie outside of the project."""
    path = PurePosixPath(folder)
    if path.is_absolute() or ".." in path.parts:
        return ""
    return "/".join([".."] * len(path.parts)) or "."


def split_export_folder(folder: str, target: str) -> tuple[str, str]:
    """The project's folder as it is typed, "" for this one, and where the target's files are from there.

    `folder` is Context.folder. Files that do not lie where devkit puts them say nothing of the project.
    """
    path, own = PurePosixPath(folder), PurePosixPath("deploy", target)
    if path.parts[-2:] != own.parts:
        return "", folder
    above = str(path.parent.parent)
    return ("" if above == "." else above), str(own)
