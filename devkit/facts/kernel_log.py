"""What the kernel has said about the GPUs since it started."""

from devkit.facts.record import record
from devkit.facts.values import NOT_READ, Unknown


@record
class Xid:
    """One kind of error report of the NVIDIA driver on one GPU: its number, the PCI address, the newest line.

    A GPU that the driver calls fallen off the bus without a number counts as Xid 79, which says the same.
    """

    number: int
    address: str
    line: str
    count: int | Unknown = NOT_READ
    """How often this number was reported for this GPU since the machine started."""
    at: str | Unknown = NOT_READ
    """When it was reported last: a date, or seconds since the machine started."""


@record
class KernelLog:
    """The kernel's messages of this boot, as far as they concern GPUs. Unknown where this user may not read them."""

    xids: tuple[Xid, ...]
    driver_lines: tuple[str, ...]
    """Other telling lines of the driver: failed starts, refused modules, firmware."""
    source: str | Unknown = NOT_READ
    """"journalctl" or "dmesg"."""
    is_whole: bool | Unknown = NOT_READ
    """Whether the messages go back to the start of the kernel: a full buffer loses its oldest."""
    resumed_at: str | Unknown | None = NOT_READ
    """When the machine last woke from suspend; None when it did not sleep since it started."""
