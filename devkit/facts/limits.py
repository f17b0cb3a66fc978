"""What the system allows a training process: locked memory, control group, interfaces, paths between GPUs."""

from devkit.facts.record import record
from devkit.facts.values import NOT_READ, Unknown


@record
class Limits:
    """Limits of this process and its control group. Sizes in bytes, None for unlimited."""

    locked_memory_bytes: int | Unknown | None
    group_memory_bytes: int | Unknown | None
    out_of_memory_kills: int | Unknown
    """Processes that the kernel has killed in this control group since it was made."""
    group_version: str | Unknown = NOT_READ
    """"2", "1", or "hybrid" for version 1 with the unified tree beside it."""
    open_files: int | Unknown | None = NOT_READ
    stack_bytes: int | Unknown | None = NOT_READ
    cpu_count: float | Unknown | None = NOT_READ
    """CPUs that the control group allows at a time, None for no limit."""
    swap_bytes: int | Unknown = NOT_READ
    available_bytes: int | Unknown = NOT_READ
    """Memory of the machine that a new process could use without swapping."""
    interfaces: tuple[str, ...] | Unknown = NOT_READ
    """Network interfaces besides the loopback."""
    default_interface: str | Unknown = NOT_READ
    """The interface of the default route, "" for none."""
    has_infiniband: bool | Unknown = NOT_READ
    nccl: tuple[str, ...] | Unknown = NOT_READ
    """NCCL_* and what launchers set for several nodes, as NAME=value."""
    iommu_domains: tuple[str, ...] | Unknown = NOT_READ
    """Kind of the IOMMU domain of each NVIDIA GPU: "identity" passes through, "DMA" and "DMA-FQ" translate."""
    selinux: str | Unknown = NOT_READ
    """"enforcing", "permissive", or "" where SELinux is off."""
    selinux_allows_devices: bool | Unknown = NOT_READ
    """The policy's switch container_use_devices."""
