"""The dev container itself as a workspace on a cluster: a task that waits for its users, and ends when it is idle."""

from dataclasses import replace
from enum import StrEnum

from devkit.errors import DevkitError
from devkit.export.launch import LAUNCHER
from devkit.export.task import COMPILE_CACHE, REQUESTED, MountRole, Task, Volume, VolumeRole
from devkit.export.values import parse_duration, parse_size

HOME_FOLDER = "/home/dev"
SUFFIX = "-dev"
_OF_JOBS = ("PET_", "DEVKIT_OUTPUT")


class WorkspaceRole(StrEnum):
    """The use of a volume that no job has."""

    HOME = "home"
    COMPILED = "compiled"


def build_workspace(task: Task, *, idle: str) -> Task:
    """Build the workspace of a job: one node with its image, GPUs, storage and variables. Raises DevkitError."""
    if task.is_foreign_image:
        raise DevkitError(
            "a workspace is the project's dev container, and the image is a foreign one",
            "Leave out --foreign-image, or --workspace.",
        )
    return replace(
        task,
        name=task.name + SUFFIX,
        command=(*LAUNCHER, "--idle", str(parse_duration(idle, "--idle"))),
        environment=tuple(each for each in task.environment if not each[0].startswith(_OF_JOBS)),
        nodes=1,
        min_nodes=0,
        workdir="",
        node_processes=1,
        is_own_command=True,
        is_spot=False,
    )


def plan_home(task: Task, *, size: str) -> tuple[Volume, ...]:
    """Plan the storage of a workspace: home, project and caches in one new volume, but for what the settings name."""
    size_bytes, new = parse_size(size, "--workspace-size"), f"{task.name}-home"
    paths = {
        WorkspaceRole.HOME: HOME_FOLDER,
        VolumeRole.MODELS: task.volume(VolumeRole.MODELS).path,
        WorkspaceRole.COMPILED: COMPILE_CACHE,
        VolumeRole.DATA: task.workspace,
    }
    named = {str(each.role): each.source for each in task.volumes}
    return (
        *(
            Volume(role=role, path=path, source=named.get(role) or new, size_bytes=size_bytes, because=REQUESTED)
            for role, path in paths.items()
        ),
        *(each for each in task.volumes if each.role is MountRole.OWN),
    )
