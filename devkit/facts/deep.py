"""What only shows when it is really tried: CUDA, torch, the hub. Read with `devkit doctor --deep`."""

from dataclasses import dataclass

from devkit.facts.values import Unknown


@dataclass(frozen=True)
class CudaCall:
    """How cuInit ended in a process of its own. `code` is its return value, 0 for success."""

    code: int
    libcuda: str
    """The library that was loaded, by the process's own map."""


@dataclass(frozen=True)
class Deep:
    """The readings of the deep tier."""

    cuda: CudaCall | Unknown
