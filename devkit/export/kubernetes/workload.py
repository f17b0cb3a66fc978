"""What a kind of job gives to whoever lays out the files: its objects, and where they can be patched."""

from dataclasses import dataclass

from devkit.export.kubernetes.manifest import Manifest

RETRIES = 3
"""Failures that another attempt may mend: a GPU that fell off, a node that died, a network that broke."""
KEPT_SECONDS = 7 * 86400
"""How long a finished job stays, with its pods' logs."""
TRY_AGAIN = 75
"""The exit code of a run that was told to end and has saved (docs/guides/long-runs.md)."""


@dataclass(frozen=True)
class Place:
    """Something within an object that kustomize may patch: the object's kind and name, and a JSON pointer."""

    kind: str
    name: str
    pointer: str


@dataclass(frozen=True, kw_only=True)
class Workload:
    """`files` are the objects by file name. `owner` is the object that a queue admits, `suspend` its switch.

    `pods` are the places of the pod templates: their metadata and spec.
    """

    kind: str
    files: dict[str, list[Manifest]]
    owner: Place
    suspend: Place
    pods: tuple[Place, ...]
    notes: tuple[str, ...] = ()
