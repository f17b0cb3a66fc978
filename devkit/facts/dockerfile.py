"""A Dockerfile, as far as it decides about GPUs, users and secrets."""

from devkit.facts.project_parts import Requirement, Setting, Variable
from devkit.facts.record import record
from devkit.facts.values import NOT_READ, Unknown


@record
class Install:
    """One installation of packages for GPUs: `index` is the torch index ("cu128", "cpu", "rocm6.4", "" the default).

    `files` are the requirement files that it installs as well, relative to the project where they are known.
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


@record
class MadeUser:
    """A user that the image makes; `uid` is "" for the next free one, and a variable stays as text."""

    name: str
    uid: str
    line: int


@record
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
    labels: tuple[Setting, ...] | Unknown = NOT_READ
    """Of LABEL, variables filled in."""


@record
class Dockerfile:
    """One Dockerfile: the arguments before the first FROM, and its stages."""

    path: str
    arguments: tuple[Variable, ...]
    stages: tuple[Stage, ...]
