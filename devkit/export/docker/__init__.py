"""One machine over a Docker context: a Compose file, and a script with docker run that goes on after 75."""

import re
from dataclasses import dataclass
from typing import Annotated

from devkit.errors import DevkitError
from devkit.export.docker.compose import compose_artifacts
from devkit.export.docker.script import script_artifact
from devkit.export.places import way_back
from devkit.export.quoting import shell_words
from devkit.export.targets import Context, Rendered, Target
from devkit.export.task import Task
from devkit.facts.said import Said
from devkit.text import human_bytes

_CONTEXT = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.+-]+")
"""Source: restrictedNamePattern in https://github.com/docker/cli/blob/master/cli/context/store/store.go"""
_USER = re.compile(r"[a-z_0-9][a-z0-9_-]*(?::[a-z_0-9][a-z0-9_-]*)?")


@dataclass(frozen=True, kw_only=True)
class DockerSettings:
    """What only this target knows."""

    context: Annotated[str, Said("Docker context of the machine, as docker context ls shows it.")] = ""
    user: Annotated[str, Said("User inside, where it is not the image's own.", example="1000:1000")] = ""


def render(task: Task, settings: DockerSettings, context: Context) -> Rendered:
    """The files. Raises DevkitError for a task of several nodes."""
    if task.nodes > 1:
        raise DevkitError(
            f"a Docker context is one machine, and the job wants {task.nodes}",
            "Use kubernetes, slurm, skypilot or dstack for several, or --nodes 1.",
        )
    if settings.context and not _CONTEXT.fullmatch(settings.context):
        raise DevkitError(f"--context {settings.context!r} is no name of one", "See docker context ls.")
    if settings.user and not _USER.fullmatch(settings.user):
        raise DevkitError(f"--user {settings.user!r} is no user", "Write it as UID:GID.")
    artifacts = (
        script_artifact(task, context=settings.context, user=settings.user, project=way_back(context.folder)),
        *compose_artifacts(task, context=settings.context, user=settings.user),
    )
    return Rendered(artifacts, (f"sh {shell_words([f'{context.folder}/run.sh'])}",), _notes(task))


def _notes(task: Task) -> tuple[str, ...]:
    size, cores = human_bytes(task.memory_bytes), task.cpus
    notes = [f"no limit is set there: the machine should have {size} of memory and {cores} cores for this job"]
    if task.is_spot:
        notes.append("nothing brings the job back when the machine is taken away: start run.sh again on the next one")
    return tuple(notes)


TARGET = Target("docker", "One machine over a Docker context.", DockerSettings, render)
