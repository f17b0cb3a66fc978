"""The project's own files: dev container, Compose, Dockerfile, as far as they decide about GPUs."""

from enum import StrEnum

from devkit.facts.dockerfile import Dockerfile, Install
from devkit.facts.policy import Policy
from devkit.facts.project_parts import (
    Build,
    Command,
    GpuRequest,
    HostRequirement,
    Key,
    Mount,
    RunArgument,
    Setting,
    Variable,
)
from devkit.facts.record import record
from devkit.facts.values import NOT_READ, Unknown

__all__ = ["DevContainer", "EnvFile", "FileState", "Project", "ProjectFile", "Service"]


class FileState(StrEnum):
    """What became of a file that the project has or names."""

    READ = "read"
    BROKEN = "broken"
    MISSING = "missing"
    OUTSIDE = "outside"
    """It lies outside of the project, or is a link that leads there; not read."""
    TOO_LARGE = "too-large"
    UNREADABLE = "unreadable"


@record
class ProjectFile:
    """One file. `named_by` is the file that names it, "" where tools look for it by themselves.

    `problem` says why it is broken, in one line, and `line` where; for a missing file the line of `named_by`.
    """

    path: str
    kind: str
    state: FileState
    problem: str
    line: int
    named_by: str


@record
class DevContainer:
    """One devcontainer.json. `service` and `compose_files` are set when it is a Compose project."""

    path: str
    image: Setting | None
    build: Build | None
    compose_files: tuple[str, ...]
    service: str
    run_args: tuple[RunArgument, ...]
    run_args_line: int
    """0 when there are no runArgs."""
    host_requirements: tuple[HostRequirement, ...]
    requests: tuple[GpuRequest, ...]
    mounts: tuple[Mount, ...]
    variables: tuple[Variable, ...]
    """Of containerEnv and remoteEnv."""
    keys: tuple[Key, ...]
    """Every key of the top level."""
    settings: tuple[Setting, ...]
    """Keys with plain values that matter here: users, and under Compose's names what runArgs sets likewise."""
    commands: tuple[Command, ...]
    """Lifecycle commands."""
    features: tuple[Setting, ...]
    """Features by name, with the CUDA version that they install, "" for none."""
    installs: tuple[Install, ...]
    """Of its lifecycle commands."""
    build_args_not_text: tuple[Key, ...]


@record
class Service:
    """One service of a Compose project, merged over its files as Compose merges them.

    `files` are those of the project, in their order.
    """

    name: str
    files: tuple[str, ...]
    path: str
    """The file where it is defined last, and the line there."""
    line: int
    image: Setting | None
    build: Build | None
    requests: tuple[GpuRequest, ...]
    mounts: tuple[Mount, ...]
    variables: tuple[Variable, ...]
    settings: tuple[Setting, ...]
    """Plain keys: ipc, shm_size, privileged, user, pid, network, userns, security options, profiles."""
    misplaced_devices: Setting | None
    """A device list under deploy.resources.limits, where Compose knows none."""


@record
class EnvFile:
    """A .env file: the names in it, never the values. `ignored_by_git` is None without a .gitignore to ask."""

    path: str
    names: tuple[str, ...]
    ignored_by_git: bool | None


@record
class Project:
    """The workspace's files that ask for a container and a GPU. Paths are relative to `folder`, with slashes."""

    folder: str
    files: tuple[ProjectFile, ...]
    dev_containers: tuple[DevContainer, ...]
    services: tuple[Service, ...]
    dockerfiles: tuple[Dockerfile, ...]
    installs: tuple[Install, ...]
    """Packages for GPUs that requirement files and pyproject.toml name."""
    locks: tuple[str, ...]
    env_files: tuple[EnvFile, ...]
    policy: Policy | Unknown | None = NOT_READ
    """The rules in its devkit.toml."""
