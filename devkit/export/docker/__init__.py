"""One machine over a Docker context: a Compose file, and a script with docker run that goes on after 75."""

import re
from dataclasses import dataclass
from typing import Annotated

from devkit.errors import DevkitError
from devkit.export.docker.files import render_compose_files, render_run_script
from devkit.export.quoting import quote_shell
from devkit.export.targets import ExportContext, ExportTarget, TargetFiles, find_path_to_project
from devkit.export.task import Task
from devkit.facts.settings import SettingInfo
from devkit.text import format_bytes

_CONTEXT = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.+-]+")
"""Source: restrictedNamePattern in https://github.com/docker/cli/blob/master/cli/context/store/store.go"""
_USER = re.compile(r"[a-z_0-9][a-z0-9_-]*(?::[a-z_0-9][a-z0-9_-]*)?")


@dataclass(frozen=True, kw_only=True)
class DockerContextSettings:
    """What only this target knows."""

    context: Annotated[str, SettingInfo("Docker context of the machine, as docker context ls shows it.")] = ""
    user: Annotated[str, SettingInfo("User inside, where it is not the image's own.", example="1000:1000")] = ""


def render_docker(task: Task, settings: DockerContextSettings, context: ExportContext) -> TargetFiles:
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
        render_run_script(
            task, context=settings.context, user=settings.user, project=find_path_to_project(context.folder)
        ),
        *render_compose_files(task, context=settings.context, user=settings.user),
    )
    return TargetFiles(artifacts, (f"sh {quote_shell([f'{context.folder}/run.sh'])}",), _notes(task))


def _notes(task: Task) -> tuple[str, ...]:
    size, cores = format_bytes(task.memory_bytes), task.cpus
    notes = [f"no limit is set there: the machine should have {size} of memory and {cores} cores for this job"]
    if task.is_spot:
        notes.append("nothing brings the job back when the machine is taken away: start run.sh again on the next one")
    return tuple(notes)


TARGET = ExportTarget("docker", "One machine over a Docker context.", DockerContextSettings, render_docker)
