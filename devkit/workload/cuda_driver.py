"""What the CUDA driver library says for itself, without torch: is there a GPU that torch ought to see?"""

import ctypes
import re
from dataclasses import dataclass
from pathlib import Path

LIBRARIES = ("libcuda.so.1", "nvcuda.dll")
KERNEL_MODULE = Path("/proc/driver/nvidia/version")
DEVICE_FOLDER = Path("/dev")


@dataclass(frozen=True)
class CudaDriver:
    """libcuda's answers. `init_code` is the CUresult of cuInit, 0 for success and 100 for "no device".

    `cuda` is the newest CUDA version that the driver runs, such as "13.0"; `driver` the kernel module's version.
    Both are "" when they cannot be read.
    """

    init_code: int
    gpus: int
    cuda: str
    driver: str


def read_cuda_driver() -> CudaDriver | None:
    """Ask libcuda; None when no such library can be loaded. May block or crash: only the proof's child calls it.

    Source: CUDA Driver API, cuInit, cuDeviceGetCount, cuDriverGetVersion (version = 1000 * major + 10 * minor).
    """
    library = _load()
    if library is None:
        return None
    init_code = int(library.cuInit(0))
    count, version = ctypes.c_int(0), ctypes.c_int(0)
    if init_code == 0:
        library.cuDeviceGetCount(ctypes.byref(count))
    library.cuDriverGetVersion(ctypes.byref(version))
    cuda = f"{version.value // 1000}.{version.value % 1000 // 10}" if version.value else ""
    return CudaDriver(init_code, count.value, cuda, _kernel_module_version())


def has_gpu_node(folder: Path = DEVICE_FOLDER) -> bool:
    """Whether an NVIDIA GPU's device node, or that of WSL 2, is in `folder`, by default /dev."""
    return (folder / "dxg").exists() or any(re.fullmatch(r"nvidia\d+", node.name) for node in folder.glob("nvidia*"))


def _load() -> ctypes.CDLL | None:
    for name in LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def _kernel_module_version() -> str:
    try:
        text = KERNEL_MODULE.read_text()
    except OSError:
        return ""
    found = re.search(r"\d{3,}\.\d+(?:\.\d+)?", text)
    return found[0] if found else ""
