"""Limits of processes, control group and interfaces."""

from devkit.facts.model import Limits
from devkit.facts.values import Unknown
from devkit.probe.host import Host


def read_limits(host: Host) -> Limits | Unknown:
    """Limits of processes, control group and interfaces."""
    return Unknown("this release does not read it yet")
