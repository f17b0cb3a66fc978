"""What a return value of cuInit, or the words of a CUDA error, say about its cause."""

from collections.abc import Mapping

from devkit.doctor.model import Confidence
from devkit.facts.record import record


@record
class Meaning:
    """Why a call ended so, what to do, and how sure that is. `in_container` replaces `advice` inside a container."""

    why: str
    advice: str
    commands: tuple[str, ...] = ()
    in_container: str = ""
    confidence: Confidence = Confidence.LIKELY
    needs_root: bool = False


NOT_READY = 802

CODES: Mapping[int, Meaning] = {
    34: Meaning(
        "the libcuda that was loaded is a stub to link against",
        "Take folders named stubs out of LD_LIBRARY_PATH, and remove links from libcuda.so.1 to them.",
        confidence=Confidence.CERTAIN,
    ),
    35: Meaning("the driver is older than libcuda needs", "Update the driver, or use an older CUDA."),
    46: Meaning(
        "every GPU is taken: exclusive mode lets one process in, and MPS wants its daemon",
        "Stop the other process, or set the compute mode back to default.",
        ("nvidia-smi --query-gpu=compute_mode --format=csv", "sudo nvidia-smi -c DEFAULT"),
        needs_root=True,
    ),
    100: Meaning(
        "CUDA sees no GPU: CUDA_VISIBLE_DEVICES hides them, MIG has no instances, or a device node is missing",
        "Unset CUDA_VISIBLE_DEVICES and try again; then look at `nvidia-smi -L` and /dev/nvidia*.",
        ("env -u CUDA_VISIBLE_DEVICES devkit doctor --deep",),
        in_container="Unset CUDA_VISIBLE_DEVICES and try again; then recreate the container with its GPU.",
        confidence=Confidence.POSSIBLE,
    ),
    101: Meaning(
        "CUDA_VISIBLE_DEVICES names a GPU that is not there",
        "Unset it, or list GPUs that `nvidia-smi -L` shows.",
        ("unset CUDA_VISIBLE_DEVICES",),
    ),
    304: Meaning(
        "a call to the operating system failed: a device node, or what the container runtime passed of it",
        "Open /dev/nvidia-uvm and /dev/nvidiactl as this user, and update the NVIDIA Container Toolkit.",
        in_container="Recreate the container with a current NVIDIA Container Toolkit; compare with CUDA on the host.",
        confidence=Confidence.POSSIBLE,
    ),
    NOT_READY: Meaning(
        "the GPUs wait for something: with NVSwitch, for the Fabric Manager of the driver's very version",
        "Start nvidia-fabricmanager; without an NVSwitch, update the driver.",
        ("sudo systemctl enable --now nvidia-fabricmanager",),
        in_container="On the host, start nvidia-fabricmanager; without an NVSwitch, update the driver.",
        needs_root=True,
    ),
    803: Meaning(
        "libcuda is of another version than the kernel module",
        "Reboot after a driver update; otherwise remove every libcuda that is not the driver's.",
        ("ldconfig -p | grep libcuda",),
        in_container="Recreate the container, so that it gets the driver's present libraries; if that changes nothing,"
        " remove libcuda and cuda-compat from the image.",
        confidence=Confidence.CERTAIN,
    ),
    804: Meaning(
        "a forward-compatibility libcuda was loaded on a GPU that it does not serve",
        "Take /usr/local/cuda/compat out of LD_LIBRARY_PATH and the loader's configuration, or update the driver.",
        confidence=Confidence.CERTAIN,
    ),
    999: Meaning(
        "the module nvidia_uvm is missing, was broken by a suspend, or /dev/nvidia-uvm cannot be opened",
        "Stop what uses CUDA, and load nvidia_uvm anew.",
        ("sudo modprobe -r nvidia_uvm && sudo modprobe nvidia_uvm",),
        in_container="Try CUDA on the host: if it fails there too, load nvidia_uvm anew; if not, recreate the container"
        " and compare toolkit versions, mode=legacy among them.",
        confidence=Confidence.POSSIBLE,
        needs_root=True,
    ),
}
"""Source: NVIDIA, CUDA Driver API, CUresult; the reports that each check of these causes names."""

WORDS: Mapping[str, Meaning] = {
    "no kernel image is available": Meaning(
        "this torch has no code for the GPU", "Install a torch that has it.", confidence=Confidence.CERTAIN
    ),
    "unsupported toolchain": Meaning(
        "the driver cannot compile the PTX of a newer CUDA",
        "Update the driver, or install packages built with its CUDA.",
        confidence=Confidence.CERTAIN,
    ),
    "driver on your system is too old": Meaning(
        "the driver is too old for torch's CUDA", "Update the driver, or install a torch for an older CUDA."
    ),
    "driver version is insufficient": Meaning(
        "the driver is too old for torch's CUDA", "Update the driver, or install a torch for an older CUDA."
    ),
    "out of memory": Meaning(
        "another process holds the GPU's memory", "Look who uses it, and stop that.", ("nvidia-smi",)
    ),
    "undefined symbol": Meaning(
        "a library of another release was loaded",
        "Unset LD_LIBRARY_PATH, and reinstall the package for the installed torch.",
        ("unset LD_LIBRARY_PATH",),
    ),
    "GLIBC": Meaning("the C or C++ library is older than the wheel", "Use an image with a newer one."),
    "Failed to find C compiler": Meaning(
        "there is no C compiler", "Add gcc to the image.", confidence=Confidence.CERTAIN
    ),
    "Python.h": Meaning("the Python headers are missing", "Add them to the image.", confidence=Confidence.CERTAIN),
    "libcuda.so cannot found": Meaning(
        "the loader's cache does not know libcuda", "Run ldconfig at the container's start."
    ),
    "cannot find -lcuda": Meaning(
        "there is no libcuda.so to link against, only libcuda.so.1", "Run ldconfig at the container's start."
    ),
    "AT LEAST ONE GPU IS NECESSARY": Meaning("no GPU is visible", "Give one to this process."),
    "system not yet initialized": CODES[NOT_READY],
    "unsupported display driver / cuda driver combination": CODES[803],
    "forward compatibility was attempted": CODES[804],
    "No CUDA GPUs are available": CODES[100],
    "invalid device ordinal": CODES[101],
    "CUDA unknown error": CODES[999],
}
"""Words of an error, most telling first."""


def meaning_of(text: str) -> Meaning | None:
    """What the words of an error say of its cause; None when nothing does."""
    return next((meaning for words, meaning in WORDS.items() if words.lower() in text.lower()), None)
