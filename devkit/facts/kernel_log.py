"""What the kernel has said about the GPUs since it started."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Xid:
    """One error report of the NVIDIA driver: its number, the GPU's PCI address, and the line as read."""

    number: int
    address: str
    line: str


@dataclass(frozen=True)
class KernelLog:
    """The kernel's messages of this boot, as far as they concern GPUs. Unknown where this user may not read them."""

    xids: tuple[Xid, ...]
    driver_lines: tuple[str, ...]
    """Other telling lines of the driver: failed starts, refused modules, firmware."""
