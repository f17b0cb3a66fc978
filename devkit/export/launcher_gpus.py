"""The launchers' names of GPUs that they rent: each has its own spelling and its own way to name memory sizes."""

import re
from dataclasses import dataclass

from devkit.compat.gpus import find_amd_gpu, find_gpu
from devkit.errors import DevkitError
from devkit.estimate.gpus import find_gpu_spec
from devkit.estimate.settings import Precision

_SIZE = re.compile(r"\b(\d+) ?gi?b\b", re.IGNORECASE)


@dataclass(frozen=True)
class LauncherGpu:
    """The names of one GPU at each launcher; () and "" where it has none.

    `skypilot` are all names under which clouds offer it. `gib` is for dstack, which has one name for GPUs of several
    memory sizes; 0 where the name is unambiguous.
    """

    skypilot: tuple[str, ...] = ()
    dstack: str = ""
    daytona: str = ""
    gib: int = 0


def find_launcher_gpu(name: str) -> LauncherGpu:
    """Find the launchers' names of a GPU, as people or estimates name it; only () and "" for one that is not rented."""
    amd = find_amd_gpu(name)
    if amd is not None:
        return _AMD.get(amd.name, LauncherGpu())
    try:
        gpu = find_gpu_spec(name, Precision.BF16)
    except DevkitError:
        return LauncherGpu()
    found, size = find_gpu(gpu.name), _SIZE.search(gpu.name)
    if found is None or found.model is None or is_mig_slice(gpu.name):
        return LauncherGpu()
    key = found.model.id
    return _SIZED.get((key, int(size[1]) if size else 0)) or _ROWS.get(key, LauncherGpu())


def is_mig_slice(name: str) -> bool:
    """True for the name of a MIG slice, which no launcher rents."""
    return " mig " in f" {name.lower()} "


_A100 = LauncherGpu(("A100",), "A100", gib=40)
_A100_80 = LauncherGpu(("A100-80GB", "A100-80GB-SXM"), "A100", gib=80)
_H100 = LauncherGpu(("H100", "H100-SXM"), "H100", "H100")
_V100 = LauncherGpu(("V100",), "V100", gib=16)
_V100_32 = LauncherGpu(("V100-32GB",), "V100", gib=32)
_PRO_6000 = LauncherGpu(("RTXPRO6000", "RTXPRO6000WS", "RTXPRO6000-WK"), "RTXPRO6000", "RTX-PRO-6000")

_ROWS = {
    "b300": LauncherGpu(("B300",), "B300", "B300"),
    "gb300": LauncherGpu(("GB300",), "GB300"),
    "b200": LauncherGpu(("B200",), "B200", "B200"),
    "gb200": LauncherGpu(("GB200",), "GB200"),
    "h200": LauncherGpu(("H200", "H200-SXM"), "H200", "H200"),
    "h200-nvl": LauncherGpu(("NVIDIA-H200-NVL",), "H200NVL"),
    "gh200": LauncherGpu(("GH200",), "GH200"),
    "h100-sxm": _H100,
    "h100-pcie": LauncherGpu(("H100",), "H100", "H100"),
    "h100-nvl": LauncherGpu(("H100-NVL",), "H100NVL"),
    "l40s": LauncherGpu(("L40S",), "L40S"),
    "l40": LauncherGpu(("L40",), "L40"),
    "l4": LauncherGpu(("L4",), "L4"),
    "a100-sxm4-80gb": _A100_80,
    "a100-pcie-80gb": _A100_80,
    "a100-sxm4-40gb": _A100,
    "a100-pcie-40gb": _A100,
    "a800": LauncherGpu(("A800",)),
    "a40": LauncherGpu(("A40",), "A40"),
    "a30": LauncherGpu(("A30",)),
    "a16": LauncherGpu(("A16",), "A16"),
    "a10": LauncherGpu(("A10",), "A10"),
    "a10g": LauncherGpu(("A10G",), "A10G"),
    "t4": LauncherGpu(("T4",), "T4"),
    "v100-sxm2": _V100,
    "v100-pcie": _V100,
    "v100s-pcie": _V100_32,
    "rtx-pro-6000-blackwell-server": _PRO_6000,
    "rtx-pro-6000-blackwell-ws": _PRO_6000,
    "rtx-pro-4500-blackwell": LauncherGpu((), "RTXPRO4500"),
    "rtx-6000-ada": LauncherGpu(("RTX6000-Ada", "RTX6000Ada"), "RTX6000Ada"),
    "rtx-4000-ada": LauncherGpu(("RTX4000-Ada",), "RTX4000Ada"),
    "rtx-2000-ada": LauncherGpu(("RTX2000-Ada",), "RTX2000Ada"),
    "rtx-a6000": LauncherGpu(("A6000", "RTXA6000"), "A6000"),
    "rtx-a5000": LauncherGpu(("A5000", "RTXA5000"), "A5000"),
    "rtx-a4500": LauncherGpu(("RTXA4500",), "A4500"),
    "rtx-a4000": LauncherGpu(("A4000", "RTXA4000"), "A4000"),
    "rtx-5090": LauncherGpu(("RTX5090",), "RTX5090", "RTX-5090"),
    "rtx-5080": LauncherGpu((), "RTX5080"),
    "rtx-5070": LauncherGpu(("RTX5070",), "RTX5070"),
    "rtx-4090": LauncherGpu(("RTX4090",), "RTX4090", "RTX-4090"),
    "rtx-4080": LauncherGpu((), "RTX4080"),
    "rtx-4070": LauncherGpu(("RTX4070",), "RTX4070"),
    "rtx-4060": LauncherGpu(("RTX4060",), "RTX4060"),
    "rtx-3090": LauncherGpu(("RTX3090",), "RTX3090"),
    "rtx-3090-ti": LauncherGpu((), "RTX3090Ti"),
    "rtx-3080": LauncherGpu((), "RTX3080"),
    "rtx-3060": LauncherGpu(("RTX3060",), "RTX3060"),
}
"""By the id of the GPU's row. Sources: https://github.com/skypilot-org/skypilot-catalog (v8/common/accelerators.csv,
and sky/utils/gpu_names.py of SkyPilot 0.14 for GPUs of one's own cluster), gpuhunt 0.1 of dstack 0.22
(KNOWN_NVIDIA_GPUS, KNOWN_AMD_GPUS), GpuType of Daytona's SDK 0.226."""

_SIZED = {
    ("v100-sxm2", 32): _V100_32,
    ("v100-pcie", 32): _V100_32,
}
"""Rows of several memory sizes, where the name says another than the smallest."""

_AMD = {
    "AMD Instinct MI355X": LauncherGpu((), "MI355X", "MI355X"),
    "AMD Instinct MI350X": LauncherGpu((), "MI350X"),
    "AMD Instinct MI325X": LauncherGpu((), "MI325X"),
    "AMD Instinct MI300X": LauncherGpu(("MI300X",), "MI300X"),
    "AMD Instinct MI300A": LauncherGpu((), "MI300A"),
    "AMD Instinct MI250X": LauncherGpu((), "MI250X"),
    "AMD Instinct MI250": LauncherGpu((), "MI250"),
    "AMD Instinct MI210": LauncherGpu((), "MI210"),
    "AMD Instinct MI100": LauncherGpu((), "MI100"),
}
