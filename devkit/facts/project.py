"""The project's own files: dev container, Compose, Dockerfile, as far as they decide about GPUs."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from devkit.facts.dependencies import LocalBuild
from devkit.facts.values import NOT_READ, Unknown

_CLIMBS = re.compile(r"(?i)[/\\](?:\.|%2e){2}(?![^/\\?#])")


def is_below_index(url: str, indexes: Iterable[str]) -> bool:
    """Return whether an address is that of one of these indexes, or below it. One that climbs with `..` is below none."""
    address = f"{url.rstrip('/')}/"
    return not _CLIMBS.search(url) and any(address.startswith(f"{each.rstrip('/')}/") for each in indexes)


# Parts of a project's container files, each with its file and line.


class RequestForm(StrEnum):
    """The form in which a file requests a GPU."""

    GPUS_FLAG = "--gpus"
    RUNTIME = "runtime"
    CDI = "cdi"
    RESERVATION = "reservation"
    GPUS_KEY = "gpus"


@dataclass(frozen=True)
class GpuRequest:
    """One request for GPUs. `key` is the path of its value in the document, as a repair names it.

    `capabilities` is None where the form has none to give, () where they are missing.
    `condition` is the variable that decides whether this request is used, "" when it always is.
    """

    form: RequestForm
    path: str
    line: int
    key: tuple[str, ...]
    driver: str = ""
    count: str = ""
    device_ids: tuple[str, ...] = ()
    capabilities: tuple[str, ...] | None = None
    condition: str = ""


@dataclass(frozen=True)
class Key:
    """A key and its line."""

    name: str
    path: str
    line: int


@dataclass(frozen=True)
class Setting:
    """A key with its plain value."""

    name: str
    value: str
    path: str
    line: int


@dataclass(frozen=True)
class HostRequirement:
    """A key of hostRequirements; those of an object have names such as "gpu.memory".

    `kind` is how JSON types the value: text, number, bool, null, object, list. `value` is "" unless it is plain.
    """

    name: str
    kind: str
    value: str
    path: str
    line: int


@dataclass(frozen=True)
class RunArgument:
    """One item of runArgs. Values of environment variables in it are blanked."""

    text: str
    line: int


class Origin(StrEnum):
    """The origin of a variable's value."""

    LITERAL = "literal"
    VARIABLE = "variable"
    """Another variable, or the host's variable of the same name."""
    EMPTY = "empty"
    """Nothing, or a stand-in such as "changeme"."""


@dataclass(frozen=True)
class Variable:
    """An environment variable or build argument by name. `value` only for names that hold no secrets.

    `place` is what defines it: "ARG", "ENV", "environment", "containerEnv", "remoteEnv", "build argument".
    """

    name: str
    place: str
    path: str
    line: int
    origin: Origin
    value: str
    names_secret: bool
    holds_token: bool
    """Whether the value has the shape of an access token."""


@dataclass(frozen=True)
class Build:
    """The build of an image: paths relative to the project. `args` are its build arguments."""

    dockerfile: str
    context: str
    target: str
    args: tuple[Variable, ...]
    path: str
    line: int


@dataclass(frozen=True)
class Mount:
    """A volume or bind mount. `source` is "" for an anonymous volume; a variable in it stays as text.

    `exists` and `owner_uid` tell of the source of a bind mount on this side; None where they cannot be known.
    """

    kind: str
    source: str
    target: str
    path: str
    line: int
    exists: bool | None
    owner_uid: int | None
    is_read_only: bool = False


@dataclass(frozen=True)
class Command:
    """A lifecycle command: its stage, whether it runs nvidia-smi and would fail without."""

    stage: str
    path: str
    line: int
    needs_gpu: bool


@dataclass(frozen=True)
class Requirement:
    """A package for GPUs as a requirement file or a command names it, and the version that it asks for."""

    name: str
    specifier: str
    path: str
    line: int


# A Dockerfile, as far as it decides about GPUs, users and secrets.


@dataclass(frozen=True)
class Install:
    """One installation of packages for GPUs: `index` is the torch index ("cu128", "cpu", "rocm6.4", "" the default).

    `files` are the requirement files that it installs as well, relative to the project where they are known, and "."
    for the project itself, with its extras: ".[train]".
    `backend` is uv's --torch-backend. `indexes` are the URLs of package indexes that it names, without logins.
    """

    tool: str
    requirements: tuple[Requirement, ...]
    files: tuple[str, ...]
    index: str
    backend: str
    path: str
    line: int
    indexes: tuple[str, ...] = ()


@dataclass(frozen=True)
class MadeUser:
    """A user that the image makes; `uid` is "" for the next free one, and a variable stays as text."""

    name: str
    uid: str
    line: int


@dataclass(frozen=True)
class Stage:
    """One FROM and what follows. `image` is what it builds on, with the defaults of arguments filled in."""

    name: str
    image: str
    image_text: str
    line: int
    user: Setting | None
    """The last USER."""
    variables: tuple[Variable, ...]
    """ARG and ENV."""
    installs: tuple[Install, ...]
    compilers: tuple[str, ...]
    """Packages with a C compiler that it installs."""
    folders: tuple[str, ...]
    """Absolute folders that it makes or gives to a user."""
    users: tuple[MadeUser, ...]
    removes_users: bool
    gpu_uses: tuple[Setting, ...]
    """Commands of the build that need a GPU: what is used, and the line of text."""
    secret_files: tuple[Setting, ...]
    """Files with secrets that COPY or ADD takes in: named so, or .env files that name a token."""
    tokens_in_commands: tuple[Setting, ...]
    """RUN lines that hold a token or use a build argument named like one; the text never carries the value."""
    copied_from: tuple[str, ...] | Unknown = NOT_READ
    """Stages and images of COPY --from."""
    programs: tuple[str, ...] | Unknown = NOT_READ
    """The programs that its commands run, each once."""
    nvcc: tuple[str, ...] | Unknown = NOT_READ
    """Packages with nvcc that it installs."""
    drivers: tuple[Setting, ...] | Unknown = NOT_READ
    """Packages of the NVIDIA driver that it installs."""


@dataclass(frozen=True)
class Dockerfile:
    """One Dockerfile: the arguments before the first FROM, and its stages."""

    path: str
    arguments: tuple[Variable, ...]
    stages: tuple[Stage, ...]


class FileState(StrEnum):
    """The state of a file that the project has or names."""

    READ = "read"
    BROKEN = "broken"
    MISSING = "missing"
    OUTSIDE = "outside"
    """It is outside the project, or a link that leads there; not read."""
    TOO_LARGE = "too-large"
    UNREADABLE = "unreadable"


@dataclass(frozen=True)
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


@dataclass(frozen=True)
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
    programs: tuple[str, ...] | Unknown = NOT_READ
    """The programs that its lifecycle commands and their scripts run in the container, each once."""
    nvcc: tuple[str, ...] | Unknown = NOT_READ
    """Packages with nvcc that they install."""
    scripts: tuple[str, ...] | Unknown = NOT_READ
    """The project's scripts that they run by their path, without naming a shell."""


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class EnvFile:
    """A .env file: the names in it, never the values. `ignored_by_git` is None without a .gitignore to ask."""

    path: str
    names: tuple[str, ...]
    ignored_by_git: bool | None


@dataclass(frozen=True)
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
    main_list: str | Unknown = NOT_READ
    """The requirement file that holds what the project needs, "" for none."""
    builds: tuple[LocalBuild, ...] | Unknown = NOT_READ
    """How the project itself is built, and its git submodules that compile against torch."""
    other_services: tuple[Service, ...] | Unknown = NOT_READ
    """Services that ask for a GPU, in Compose files that neither a dev container nor the folder itself starts from."""
