"""Whether this is a Jetson, whose GPU and driver are part of the board."""

import re

from devkit.facts.model import Tegra
from devkit.facts.values import Release
from devkit.probe.host import Host

MODEL = "/proc/device-tree/model"
"""Shows through into containers."""
RELEASE = "/etc/nv_tegra_release"

_BOARD = re.compile(r"jetson|tegra|nvidia .*(?:orin|xavier|thor)", re.IGNORECASE)


def read_tegra(host: Host) -> Tegra | None:
    """The board and its L4T release; None on any other machine."""
    model = (host.read(MODEL) or "").strip("\0\n ")
    text = host.read(RELEASE) or ""
    # "# R36 (release), REVISION: 4.7, GCID: …"
    said = re.search(r"R(\d+)\s*\(release\),\s*REVISION:\s*([\d.]+)", text)
    if said is None and not _BOARD.search(model):
        return None
    return Tegra(model, Release.read(f"{said[1]}.{said[2]}") if said else None)
