"""The NVIDIA driver and the GPUs, seen without NVML and through it."""

from dataclasses import dataclass
from enum import StrEnum

from devkit.facts.values import ComputeCapability, Release, Unknown


@dataclass(frozen=True)
class PciGpu:
    """An NVIDIA display or 3D function on the PCI bus, and the kernel driver that owns it ("" for none)."""

    address: str
    device_id: str
    kernel_driver: str


@dataclass(frozen=True)
class Driver:
    """The NVIDIA kernel driver on this side, read without NVML."""

    loaded: Release | Unknown | None
    """Version of the loaded module; None when it is not loaded."""
    is_open: bool | Unknown
    """Whether the loaded module is the open flavour."""
    on_disk: Release | Unknown | None
    """Version of the module installed for the running kernel; None when there is none."""
    dkms_state: str | Unknown
    """What `dkms status` says for the running kernel: "installed", "built", "added", "" for nothing."""
    libnvidia_ml: Release | Unknown | None
    """Version in the real file name of libnvidia-ml.so.1; None when the library is absent."""
    libcuda: Release | Unknown | None
    libcuda_paths: tuple[str, ...] | Unknown
    """Every libcuda.so.1 the loader can find, first wins."""
    device_nodes: tuple[str, ...]
    """NVIDIA nodes under /dev that exist: /dev/nvidia0, /dev/nvidiactl, /dev/nvidia-uvm …"""
    nvidiactl: str
    """How opening /dev/nvidiactl ended: "open", "absent", "EPERM", "EACCES" or another errno name."""
    pci_gpus: tuple[PciGpu, ...] | Unknown
    nvswitch_present: bool | Unknown
    fabric_manager: str | Unknown
    """`systemctl is-active nvidia-fabricmanager`: "active", "inactive", "failed" …"""
    headers_present: bool | Unknown
    """Whether /lib/modules/<kernel>/build exists."""
    secure_boot: bool | Unknown
    upgraded_packages: tuple[str, ...]
    """The last log lines that touched NVIDIA driver packages, newest last."""


@dataclass(frozen=True)
class Gpu:
    """One GPU that NVML can talk to. Memory in bytes."""

    index: int
    uuid: str | Unknown
    name: str
    capability: ComputeCapability | Unknown
    memory_bytes: int | Unknown
    free_bytes: int | Unknown
    mig_enabled: bool | Unknown
    mig_instances: tuple[str, ...]
    """UUIDs of the MIG devices, when MIG is on."""


@dataclass(frozen=True)
class FailedGpu:
    """One GPU that NVML counts but cannot talk to. `code` is the NVML return value, 15 for a lost GPU."""

    index: int
    code: int
    message: str


@dataclass(frozen=True)
class NvmlAnswer:
    """NVML started: the driver version, the newest CUDA it runs, and every GPU."""

    driver: Release | Unknown
    cuda: Release | Unknown
    gpus: tuple[Gpu | FailedGpu, ...]


class NvmlEnd(StrEnum):
    """How an NVML session ended when it gave no answer."""

    LIBRARY_NOT_FOUND = "library-not-found"
    ERROR = "error"
    TIMED_OUT = "timed-out"
    CRASHED = "crashed"


@dataclass(frozen=True)
class NvmlFailure:
    """NVML gave no answer. `code` is its return value, the signal number for a crash, 0 for a time-out."""

    end: NvmlEnd
    code: int
    message: str
    call: str
    """The NVML function that was running."""
