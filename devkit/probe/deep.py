"""What only shows when it is tried, each in a process of its own."""

from devkit.facts.model import Deep
from devkit.facts.values import Unknown
from devkit.probe.host import Host


def read_deep(host: Host, *, deadline_s: float) -> Deep | Unknown:
    """What only shows when it is tried, each in a process of its own."""
    return Unknown("this release does not read it yet")
