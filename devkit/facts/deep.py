"""What only shows when it is really tried: CUDA, torch, the hub. Read with `devkit doctor --deep`."""

from enum import StrEnum

from devkit.facts.hub import HubCall
from devkit.facts.record import record
from devkit.facts.values import NOT_READ, ComputeCapability, Release, Unknown


class StepEnd(StrEnum):
    """How something that was tried in a child process ended."""

    WORKED = "worked"
    FAILED = "failed"
    """It returned with an error of its own."""
    TIMED_OUT = "timed-out"
    CRASHED = "crashed"
    """A signal ended the whole process."""
    SKIPPED = "skipped"
    """Not tried, because it is not installed or nothing is there to try it on."""


@record
class Step:
    """One thing that was tried: "import torch", "multiply on GPU 0".

    `detail` is the error's last words, the signal's name, or why it was not tried; "" where it worked.
    """

    name: str
    end: StepEnd
    detail: str


@record
class CudaCall:
    """How cuInit returned in a process of its own. `code` is its return value, 0 for success."""

    code: int
    libcuda: str
    """The library that was loaded, by the process's own map; "" where the map cannot be read."""
    cuda: Release | Unknown = NOT_READ
    """The newest CUDA that this libcuda runs, by cuDriverGetVersion."""
    device_count: int | Unknown = NOT_READ
    name: str | Unknown = NOT_READ
    """The code's name as libcuda spells it, such as CUDA_ERROR_NO_DEVICE."""


@record
class CudaStop:
    """CUDA gave no return value: libcuda could not be loaded, or a call hung or crashed."""

    end: StepEnd
    call: str
    """What was running: "dlopen libcuda.so.1", "cuInit" …"""
    message: str
    libcuda: str


@record
class TorchDevice:
    """One GPU as torch sees it."""

    index: int
    name: str
    capability: ComputeCapability | Unknown
    has_bf16: bool | Unknown


@record
class TorchCall:
    """What torch and the packages built on it did when they were tried in the workload's own Python."""

    version: str
    """"" when even the import failed."""
    cuda: Release | Unknown | None
    """None for a CPU build."""
    architectures: tuple[str, ...]
    """torch.cuda.get_arch_list(): ("sm_80", "compute_90")."""
    cxx11_abi: bool | Unknown
    is_available: bool | Unknown
    devices: tuple[TorchDevice, ...]
    bitsandbytes_library: str | Unknown
    """The type name of bitsandbytes' native library; one with "Mock" in it only pretends. "" when not installed."""
    steps: tuple[Step, ...]


@record
class Deep:
    """The readings of the deep tier."""

    cuda: CudaCall | CudaStop | Unknown
    torch: TorchCall | Unknown | None = NOT_READ
    """None when torch is not installed."""
    hub: HubCall | Unknown = NOT_READ
