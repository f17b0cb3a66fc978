"""One machine over a Docker context: a Compose file and a script with docker run."""

from dataclasses import dataclass
from typing import Annotated

from devkit.export.targets import Context, Rendered, Target
from devkit.export.task import Task
from devkit.facts.said import Said
from devkit.render.artifact import Artifact


@dataclass(frozen=True, kw_only=True)
class DockerSettings:
    """What only this target knows."""

    context: Annotated[str, Said("Docker context of the machine, as docker context ls shows it.")] = ""


def render(task: Task, settings: DockerSettings, _context: Context) -> Rendered:
    """The files. Raises DevkitError for a task of several nodes."""
    return Rendered((Artifact.text("run.sh", f"# {task.name} {settings.context}\n"),), ("sh deploy/docker/run.sh",))


TARGET = Target("docker", "One machine over a Docker context.", DockerSettings, render)
