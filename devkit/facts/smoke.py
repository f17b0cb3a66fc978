"""A container that was really started with a GPU. Run with `devkit doctor --smoke`."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Smoke:
    """How starting a container with a GPU ended: `request` is how it was asked for, `code` its exit status."""

    image: str
    request: str
    code: int
    out: str
    err: str
