"""The kernel's messages about GPUs, where this user may read them."""

from devkit.facts.model import KernelLog
from devkit.facts.values import Unknown
from devkit.probe.host import Host


def read_kernel_log(host: Host) -> KernelLog | Unknown:
    """The kernel's messages about GPUs, where this user may read them."""
    return Unknown("this release does not read it yet")
