"""AMD's GPUs, as far as the kernel and ROCm show them."""

from devkit.facts.record import record
from devkit.facts.values import Release, Unknown


@record
class AmdGpu:
    """One GPU that computes. `node` is its number in the kernel's topology.

    `target` is its LLVM target, such as gfx942; `name` is "" where nothing tells it; `device_id` is that of PCI.
    `render_node` is its device in /dev/dri, "" for none.
    """

    node: int
    target: str
    name: str
    device_id: str
    memory_bytes: int | Unknown
    render_node: str


@record
class Amd:
    """The GPUs in the kernel's topology, in its order, and what stands between them and a program.

    `kfd` is how opening /dev/kfd ends: "open", or the errno name such as "ENOENT" or "EACCES".
    `rocm` is the release of ROCm on this side, None where there is none: torch's wheels bring their own.
    """

    gpus: tuple[AmdGpu, ...]
    kfd: str
    rocm: Release | None
