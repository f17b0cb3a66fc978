"""The storage of a job on one machine: volumes of its engine, or folders of that machine."""

import re
from dataclasses import dataclass

from devkit.errors import DevkitError
from devkit.export.task import TOKEN_FOLDER, Role, Task, Volume

_VOLUME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]+")
"""Source: RestrictedNamePattern in https://github.com/moby/moby/blob/master/daemon/names/names.go"""


@dataclass(frozen=True)
class Mount:
    """What stands at `path` inside. `source` is a volume's name, or a folder when it starts with a slash."""

    source: str
    path: str
    is_new: bool = False

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder of the machine."""
        return self.source.startswith("/")

    @property
    def option(self) -> str:
        """The value of --mount: fields of CSV.

        Source: https://docs.docker.com/engine/storage/volumes/#syntax
        """
        kind = "bind" if self.is_folder else "volume"
        return ",".join(_field(each) for each in (f"type={kind}", f"source={self.source}", f"target={self.path}"))


def mounts_of(task: Task) -> dict[Role, Mount]:
    """The storage by its role. Raises DevkitError for a source that is neither a folder nor a volume's name."""
    return {each.role: _mount(task, each) for each in task.volumes}


def token_mount(task: Task) -> Mount:
    """The volume that the hub token lies in."""
    return Mount(f"{task.name}-token", TOKEN_FOLDER, is_new=True)


def _mount(task: Task, volume: Volume) -> Mount:
    if not volume.source:
        # The models are the project's, and all else the job's own.
        name = task.project if volume.role is Role.MODELS else task.name
        return Mount(f"{name}-{volume.role}", volume.path, is_new=True)
    if not volume.source.startswith("/") and not _VOLUME.fullmatch(volume.source):
        raise DevkitError(
            f"--{volume.role} {volume.source!r} is neither a volume nor a folder of that machine",
            "Write it as docker volume ls shows it, or as a path that begins with a slash.",
        )
    return Mount(volume.source, volume.path)


def _field(text: str) -> str:
    if not any(char in text for char in ',"\n\r'):
        return text
    doubled = text.replace('"', '""')
    return f'"{doubled}"'
