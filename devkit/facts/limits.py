"""What the system allows a training process: locked memory, control group, interfaces."""

from dataclasses import dataclass

from devkit.facts.values import Unknown


@dataclass(frozen=True)
class Limits:
    """Limits of this process and its control group. Sizes in bytes, None for unlimited."""

    locked_memory_bytes: int | Unknown | None
    group_memory_bytes: int | Unknown | None
    out_of_memory_kills: int | Unknown
