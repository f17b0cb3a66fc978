"""The commands with which a user talks to container engines."""

from dataclasses import dataclass

from devkit.facts.values import Release, Unknown


@dataclass(frozen=True)
class Client:
    """One command on PATH: docker, podman, docker-compose, devcontainer."""

    name: str
    path: str
    version: Release | Unknown


@dataclass(frozen=True)
class Clients:
    """Every command for containers that this side has."""

    found: tuple[Client, ...]
