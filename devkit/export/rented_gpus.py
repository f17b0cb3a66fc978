"""What launchers call the GPUs that they rent: each has its own spelling, and tells sizes apart in its own way."""

import re
from dataclasses import dataclass

from devkit.compat.amd import find_amd_gpu
from devkit.compat.gpus import find_gpu
from devkit.errors import DevkitError
from devkit.estimate.cards import card_named
from devkit.estimate.settings import Precision

_SIZE = re.compile(r"\b(\d+) ?gi?b\b", re.IGNORECASE)


@dataclass(frozen=True)
class Rented:
    """One GPU in each launcher's words; () and "" where it has no word.

    `skypilot` are all names under which a cloud offers it. `gib` goes with `dstack`, which knows one name for GPUs
    of several sizes; 0 where the name says enough.
    """

    skypilot: tuple[str, ...] = ()
    dstack: str = ""
    daytona: str = ""
    gib: int = 0


def rented(name: str) -> Rented:
    """The GPU of that name, as people or estimates write it; nothing but () and "" for one that nobody rents."""
    amd = find_amd_gpu(name)
    if amd is not None:
        return _AMD.get(amd.name, Rented())
    try:
        card = card_named(name, Precision.BF16)
    except DevkitError:
        return Rented()
    found, size = find_gpu(card.name), _SIZE.search(card.name)
    if found is None or found.model is None or is_slice(card.name):
        return Rented()
    key = found.model.id
    return _SIZED.get((key, int(size[1]) if size else 0)) or _ROWS.get(key, Rented())


def is_slice(name: str) -> bool:
    """Whether the name is that of a part of a GPU, which MIG divides: nobody rents those out."""
    return " mig " in f" {name.lower()} "


_A100 = Rented(("A100",), "A100", gib=40)
_A100_80 = Rented(("A100-80GB", "A100-80GB-SXM"), "A100", gib=80)
_H100 = Rented(("H100", "H100-SXM"), "H100", "H100")
_V100 = Rented(("V100",), "V100", gib=16)
_V100_32 = Rented(("V100-32GB",), "V100", gib=32)
_PRO_6000 = Rented(("RTXPRO6000", "RTXPRO6000WS", "RTXPRO6000-WK"), "RTXPRO6000", "RTX-PRO-6000")

_ROWS = {
    "b300": Rented(("B300",), "B300", "B300"),
    "gb300": Rented(("GB300",), "GB300"),
    "b200": Rented(("B200",), "B200", "B200"),
    "gb200": Rented(("GB200",), "GB200"),
    "h200": Rented(("H200", "H200-SXM"), "H200", "H200"),
    "h200-nvl": Rented(("NVIDIA-H200-NVL",), "H200NVL"),
    "gh200": Rented(("GH200",), "GH200"),
    "h100-sxm": _H100,
    "h100-pcie": Rented(("H100",), "H100", "H100"),
    "h100-nvl": Rented(("H100-NVL",), "H100NVL"),
    "l40s": Rented(("L40S",), "L40S"),
    "l40": Rented(("L40",), "L40"),
    "l4": Rented(("L4",), "L4"),
    "a100-sxm4-80gb": _A100_80,
    "a100-pcie-80gb": _A100_80,
    "a100-sxm4-40gb": _A100,
    "a100-pcie-40gb": _A100,
    "a800": Rented(("A800",)),
    "a40": Rented(("A40",), "A40"),
    "a30": Rented(("A30",)),
    "a16": Rented(("A16",), "A16"),
    "a10": Rented(("A10",), "A10"),
    "a10g": Rented(("A10G",), "A10G"),
    "t4": Rented(("T4",), "T4"),
    "v100-sxm2": _V100,
    "v100-pcie": _V100,
    "v100s-pcie": _V100_32,
    "rtx-pro-6000-blackwell-server": _PRO_6000,
    "rtx-pro-6000-blackwell-ws": _PRO_6000,
    "rtx-pro-4500-blackwell": Rented((), "RTXPRO4500"),
    "rtx-6000-ada": Rented(("RTX6000-Ada", "RTX6000Ada"), "RTX6000Ada"),
    "rtx-4000-ada": Rented(("RTX4000-Ada",), "RTX4000Ada"),
    "rtx-2000-ada": Rented(("RTX2000-Ada",), "RTX2000Ada"),
    "rtx-a6000": Rented(("A6000", "RTXA6000"), "A6000"),
    "rtx-a5000": Rented(("A5000", "RTXA5000"), "A5000"),
    "rtx-a4500": Rented(("RTXA4500",), "A4500"),
    "rtx-a4000": Rented(("A4000", "RTXA4000"), "A4000"),
    "rtx-5090": Rented(("RTX5090",), "RTX5090", "RTX-5090"),
    "rtx-5080": Rented((), "RTX5080"),
    "rtx-5070": Rented(("RTX5070",), "RTX5070"),
    "rtx-4090": Rented(("RTX4090",), "RTX4090", "RTX-4090"),
    "rtx-4080": Rented((), "RTX4080"),
    "rtx-4070": Rented(("RTX4070",), "RTX4070"),
    "rtx-4060": Rented(("RTX4060",), "RTX4060"),
    "rtx-3090": Rented(("RTX3090",), "RTX3090"),
    "rtx-3090-ti": Rented((), "RTX3090Ti"),
    "rtx-3080": Rented((), "RTX3080"),
    "rtx-3060": Rented(("RTX3060",), "RTX3060"),
}
"""By the id of the GPU's row. Sources: https://github.com/skypilot-org/skypilot-catalog (v8/common/accelerators.csv,
and sky/utils/gpu_names.py of SkyPilot 0.14 for GPUs of one's own cluster), gpuhunt 0.1 of dstack 0.22
(KNOWN_NVIDIA_GPUS, KNOWN_AMD_GPUS), GpuType of Daytona's SDK 0.226."""

_SIZED = {
    ("v100-sxm2", 32): _V100_32,
    ("v100-pcie", 32): _V100_32,
}
"""Rows of several sizes, where the name asks for another than the smallest."""

_AMD = {
    "AMD Instinct MI355X": Rented((), "MI355X", "MI355X"),
    "AMD Instinct MI350X": Rented((), "MI350X"),
    "AMD Instinct MI325X": Rented((), "MI325X"),
    "AMD Instinct MI300X": Rented(("MI300X",), "MI300X"),
    "AMD Instinct MI300A": Rented((), "MI300A"),
    "AMD Instinct MI250X": Rented((), "MI250X"),
    "AMD Instinct MI250": Rented((), "MI250"),
    "AMD Instinct MI210": Rented((), "MI210"),
    "AMD Instinct MI100": Rented((), "MI100"),
}
