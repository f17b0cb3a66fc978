"""The project's own files: dev container, Compose, Dockerfile, as far as they decide about GPUs."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Project:
    """The workspace's files that ask for a container and a GPU. Paths are relative to `folder`."""

    folder: str
    files: tuple[str, ...]
