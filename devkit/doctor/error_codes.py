"""Meanings of CUDA error codes and texts, and of the NVIDIA driver's Xid numbers."""

from collections.abc import Mapping
from enum import StrEnum

from devkit.doctor.model import Confidence
from devkit.facts.values import record


@record
class CudaErrorMeaning:
    """The cause of a CUDA error, and what to do. `in_container` replaces `advice` inside a container."""

    why: str
    advice: str
    commands: tuple[str, ...] = ()
    in_container: str = ""
    confidence: Confidence = Confidence.LIKELY
    needs_root: bool = False


CUDA_SYSTEM_NOT_READY = 802

CUDA_ERRORS: Mapping[int, CudaErrorMeaning] = {
    34: CudaErrorMeaning(
        "the libcuda that was loaded is a stub to link against",
        "Take folders named stubs out of LD_LIBRARY_PATH, and remove links from libcuda.so.1 to them.",
        confidence=Confidence.CERTAIN,
    ),
    35: CudaErrorMeaning("the driver is older than libcuda needs", "Update the driver, or use an older CUDA."),
    46: CudaErrorMeaning(
        "every GPU is taken: exclusive mode lets one process in, and MPS wants its daemon",
        "Stop the other process, or set the compute mode back to default.",
        ("nvidia-smi --query-gpu=compute_mode --format=csv", "sudo nvidia-smi -c DEFAULT"),
        needs_root=True,
    ),
    100: CudaErrorMeaning(
        "CUDA sees no GPU: CUDA_VISIBLE_DEVICES hides them, MIG has no instances, or a device node is missing",
        "Unset CUDA_VISIBLE_DEVICES and try again; then look at `nvidia-smi -L` and /dev/nvidia*.",
        ("env -u CUDA_VISIBLE_DEVICES devkit doctor --deep",),
        in_container="Unset CUDA_VISIBLE_DEVICES and try again; then recreate the container with its GPU.",
        confidence=Confidence.POSSIBLE,
    ),
    101: CudaErrorMeaning(
        "CUDA_VISIBLE_DEVICES names a GPU that is not there",
        "Unset it, or list GPUs that `nvidia-smi -L` shows.",
        ("unset CUDA_VISIBLE_DEVICES",),
    ),
    304: CudaErrorMeaning(
        "a call to the operating system failed: a device node, or what the container runtime passed of it",
        "Open /dev/nvidia-uvm and /dev/nvidiactl as this user, and update the NVIDIA Container Toolkit.",
        in_container="Recreate the container with a current NVIDIA Container Toolkit; compare with CUDA on the host.",
        confidence=Confidence.POSSIBLE,
    ),
    CUDA_SYSTEM_NOT_READY: CudaErrorMeaning(
        "the GPUs wait for something: with NVSwitch, for the Fabric Manager of the driver's very version",
        "Start nvidia-fabricmanager; without an NVSwitch, update the driver.",
        ("sudo systemctl enable --now nvidia-fabricmanager",),
        in_container="On the host, start nvidia-fabricmanager; without an NVSwitch, update the driver.",
        needs_root=True,
    ),
    803: CudaErrorMeaning(
        "libcuda is of another version than the kernel module",
        "Reboot after a driver update; otherwise remove every libcuda that is not the driver's.",
        ("ldconfig -p | grep libcuda",),
        in_container="Recreate the container, so that it gets the driver's present libraries; if that changes nothing,"
        " remove libcuda and cuda-compat from the image.",
        confidence=Confidence.CERTAIN,
    ),
    804: CudaErrorMeaning(
        "a forward-compatibility libcuda was loaded on a GPU that it does not serve",
        "Take /usr/local/cuda/compat out of LD_LIBRARY_PATH and the loader's configuration, or update the driver.",
        confidence=Confidence.CERTAIN,
    ),
    999: CudaErrorMeaning(
        "the module nvidia_uvm is missing, was broken by a suspend, or /dev/nvidia-uvm cannot be opened",
        "Stop what uses CUDA, and reload nvidia_uvm.",
        ("sudo modprobe -r nvidia_uvm && sudo modprobe nvidia_uvm",),
        in_container="Try CUDA on the host: if it fails there too, reload nvidia_uvm; if not, recreate the container"
        " and compare toolkit versions, mode=legacy among them.",
        confidence=Confidence.POSSIBLE,
        needs_root=True,
    ),
}
"""Source: NVIDIA, CUDA Driver API, CUresult; the reports that each check of these causes names."""

CUDA_ERROR_TEXTS: Mapping[str, CudaErrorMeaning] = {
    "no kernel image is available": CudaErrorMeaning(
        "this torch has no code for the GPU", "Install a torch that has it.", confidence=Confidence.CERTAIN
    ),
    "unsupported toolchain": CudaErrorMeaning(
        "the driver cannot compile the PTX of a newer CUDA",
        "Update the driver, or install packages built with its CUDA.",
        confidence=Confidence.CERTAIN,
    ),
    "driver on your system is too old": CudaErrorMeaning(
        "the driver is too old for torch's CUDA", "Update the driver, or install a torch for an older CUDA."
    ),
    "driver version is insufficient": CudaErrorMeaning(
        "the driver is too old for torch's CUDA", "Update the driver, or install a torch for an older CUDA."
    ),
    "out of memory": CudaErrorMeaning(
        "another process holds the GPU's memory", "Look who uses it, and stop that.", ("nvidia-smi",)
    ),
    "undefined symbol": CudaErrorMeaning(
        "a library of another release was loaded",
        "Unset LD_LIBRARY_PATH, and reinstall the package for the installed torch.",
        ("unset LD_LIBRARY_PATH",),
    ),
    "GLIBC": CudaErrorMeaning("the C or C++ library is older than the wheel", "Use an image with a newer one."),
    "Failed to find C compiler": CudaErrorMeaning(
        "there is no C compiler", "Add gcc to the image.", confidence=Confidence.CERTAIN
    ),
    "Python.h": CudaErrorMeaning(
        "the Python headers are missing", "Add them to the image.", confidence=Confidence.CERTAIN
    ),
    "libcuda.so cannot found": CudaErrorMeaning(
        "the loader's cache does not know libcuda", "Run ldconfig at the container's start."
    ),
    "cannot find -lcuda": CudaErrorMeaning(
        "there is no libcuda.so to link against, only libcuda.so.1", "Run ldconfig at the container's start."
    ),
    "AT LEAST ONE GPU IS NECESSARY": CudaErrorMeaning("no GPU is visible", "Give one to this process."),
    "system not yet initialized": CUDA_ERRORS[CUDA_SYSTEM_NOT_READY],
    "unsupported display driver / cuda driver combination": CUDA_ERRORS[803],
    "forward compatibility was attempted": CUDA_ERRORS[804],
    "No CUDA GPUs are available": CUDA_ERRORS[100],
    "invalid device ordinal": CUDA_ERRORS[101],
    "CUDA unknown error": CUDA_ERRORS[999],
}
"""By a part of the error text, the most specific first."""


def find_cuda_error(text: str) -> CudaErrorMeaning | None:
    """Find the meaning of an error's text; None when no known text is in it."""
    return next((meaning for words, meaning in CUDA_ERROR_TEXTS.items() if words.lower() in text.lower()), None)


class XidRemedy(StrEnum):
    """The first thing to do about an Xid, as NVIDIA's catalog puts it."""

    RESTART_PROGRAM = "restart the program"
    RESET_GPU = "reset the GPU"
    RESTART_MACHINE = "restart the machine"
    CHECK_POWER = "check the power cables"
    CHECK_LINK = "check the NVLink connection"
    NOTHING = "nothing"


@record
class XidMeaning:
    """The meaning of one Xid number, and the first remedy."""

    summary: str
    remedy: XidRemedy


XID_CATALOG_URL = "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"
"""Read in the catalog of 2025-10 for Ampere and newer; older GPUs share the numbers below."""

XID_FALLEN_OFF_THE_BUS = 79
XID_CLEANUP = 45
"""Reported for every program on a GPU after another fault; says nothing of its own beside one."""
XID_RECOVERY_CHANGED = 154
XID_ROW_REMAP_FAILED = 64

_XIDS_OF_PROGRAM: Mapping[int, str] = {
    8: "the GPU stopped processing",
    11: "invalid command stream",
    13: "exception in a kernel, such as an access out of bounds",
    25: "invalid command stream",
    31: "access to GPU memory that is not mapped",
    32: "invalid command stream",
    39: "exception in a copy engine",
    40: "exception in a copy engine",
    41: "exception in a copy engine",
    43: "the GPU stopped processing after a fault of the program",
    45: "a program's work was removed",
    68: "exception in the video decoder",
    69: "wrong use of the graphics engine",
    80: "corrupted command stream",
    94: "memory error, contained to one program",
}

_XIDS_RESET: Mapping[int, str] = {
    46: "the GPU stopped processing",
    48: "uncorrectable memory error",
    62: "the power controller halted",
    64: "a bad row of memory could not be replaced",
    95: "memory error, not contained to one program",
    109: "a context switch timed out",
    110: "security fault",
    119: "the GPU's system processor (GSP) does not answer",
    120: "error in the GPU's system processor (GSP)",
    136: "an NVLink could not be trained",
    140: "unrecovered memory error",
    143: "the GPU could not be initialized",
    155: "NVLink error",
    156: "a bad part of the GPU is to be retired",
    158: "fatal timeout",
}

_XIDS_LINK: Mapping[int, str] = {
    74: "NVLink error",
    **dict.fromkeys(range(144, 151), "NVLink error"),
}

_XIDS_HANDLED: Mapping[int, str] = {
    37: "firmware error, dealt with",
    44: "fault during a context switch, dealt with",
    63: "a bad row or page of memory is to be replaced",
    92: "many corrected memory errors",
    93: "the infoROM is nearly worn out",
    121: "corrected error of the link to the processor",
    137: "NVLink access error, dealt with",
    141: "fault in a CUDA fast path, dealt with",
}

XID_MEANINGS: Mapping[int, XidMeaning] = {
    **{number: XidMeaning(summary, XidRemedy.RESTART_PROGRAM) for number, summary in _XIDS_OF_PROGRAM.items()},
    **{number: XidMeaning(summary, XidRemedy.RESET_GPU) for number, summary in _XIDS_RESET.items()},
    **{number: XidMeaning(summary, XidRemedy.CHECK_LINK) for number, summary in _XIDS_LINK.items()},
    **{number: XidMeaning(summary, XidRemedy.NOTHING) for number, summary in _XIDS_HANDLED.items()},
    54: XidMeaning("the auxiliary power cable is not connected", XidRemedy.CHECK_POWER),
    XID_FALLEN_OFF_THE_BUS: XidMeaning("the GPU has fallen off the bus", XidRemedy.RESTART_MACHINE),
    151: XidMeaning("key rotation failed", XidRemedy.RESTART_MACHINE),
}
"""By number. Source: XID_CATALOG_URL; numbers that the catalog calls unused, or leaves to support, are not listed."""
