"""The commands with which a user talks to container engines."""

from devkit.facts.record import record
from devkit.facts.values import NOT_READ, Release, Unknown


@record
class Client:
    """One command on PATH: docker, podman, docker-compose, nerdctl, devcontainer.

    `path` is the first that PATH finds, `real_path` what links lead to.
    """

    name: str
    path: str
    version: Release | Unknown
    real_path: str | Unknown = NOT_READ
    is_podman: bool | Unknown = NOT_READ
    """Whether a command of another name hands over to Podman, as the package podman-docker makes it."""


@record
class CredentialHelper:
    """A program that the docker command asks for registry logins: "desktop.exe" for docker-credential-desktop.exe."""

    name: str
    path: str
    """"" when it is not on PATH."""
    registry: str
    """The registry that it serves, "" for all."""


@record
class DockerSettings:
    """The docker command's own config.json, without its logins."""

    path: str
    error: str
    """"" when the file parses or does not exist; otherwise where and why it does not."""
    credential_helpers: tuple[CredentialHelper, ...]
    gives_proxy: bool
    """Whether containers and builds get proxy variables from it."""


@record
class Clients:
    """Every command for containers that this side has.."""

    found: tuple[Client, ...]
    engine_programs: tuple[str, ...] | Unknown = NOT_READ
    """Paths of the Docker daemons installed on this side: /usr/bin/dockerd, /snap/bin/docker."""
    settings: DockerSettings | Unknown = NOT_READ

    def named(self, name: str) -> Client | None:
        """The command of this name, None when PATH has none."""
        return next((client for client in self.found if client.name == name), None)
