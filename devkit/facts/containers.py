"""Running containers and local images, as their engine describes them."""

from dataclasses import dataclass

from devkit.facts.values import NOT_READ, Unknown


@dataclass(frozen=True)
class RunningContainer:
    """One running container: what it asked for at its start. `id` is the first twelve digits."""

    id: str
    name: str
    image: str
    folder: str
    """The project's folder on the host by the dev container labels, "" when it is no dev container."""
    gpu_request: str
    """How a GPU was asked for: "driver", "runtime", "cdi", "devices" or "" for not at all."""


@dataclass(frozen=True)
class LocalImage:
    """An image that the engine already has."""

    name: str
    machine: str
    require_cuda: str | Unknown | None = NOT_READ
    """NVIDIA_REQUIRE_CUDA of its environment; None when it asks for nothing."""
