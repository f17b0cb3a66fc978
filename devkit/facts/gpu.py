"""The NVIDIA driver and the GPUs, seen without NVML and through it."""

from enum import StrEnum

from devkit.facts.health import GpuHealth
from devkit.facts.record import record
from devkit.facts.values import NOT_READ, ComputeCapability, Release, Unknown


@record
class PciGpu:
    """An NVIDIA display or 3D function on the PCI bus, and the kernel driver that owns it ("" for none)."""

    address: str
    device_id: str
    kernel_driver: str
    link_width: int | Unknown = NOT_READ
    """PCIe lanes in use; unknown while the GPU sleeps or has left the bus."""
    max_link_width: int | Unknown = NOT_READ
    bar1_bytes: int | Unknown = NOT_READ
    """Size of the window through which the processor sees GPU memory; 0 when the firmware assigned none."""


@record
class DriverPackage:
    """A package of the driver that the distribution's records hold. `state` is "installed", or what else dpkg says."""

    name: str
    version: str
    state: str


@record
class AptSource:
    """A file that names a package repository of the Container Toolkit, and the key it trusts, "" for none."""

    path: str
    url: str
    signed_by: str


@record
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
    """`systemctl is-active nvidia-fabricmanager`: "active", "inactive", "failed" …; asked where there is an NVSwitch,
    and where the service is installed."""
    headers_present: bool | Unknown
    """Whether /lib/modules/<kernel>/build exists."""
    secure_boot: bool | Unknown
    upgraded_packages: tuple[str, ...]
    """The last log lines that touched NVIDIA driver packages, newest last."""
    module_signer: str | Unknown = NOT_READ
    """Who signed the module on disk, "" for nobody; only read where Secure Boot may have refused it."""
    signer_is_enrolled: bool | Unknown = NOT_READ
    """Whether the signer is among the machine owner's keys; only read where Secure Boot may have refused the module."""
    build_error: str | Unknown = NOT_READ
    """The first error in DKMS's build log, "" for none; only read where the module was not built."""
    firmware_present: bool | Unknown = NOT_READ
    """Whether the GSP firmware of the loaded module's version is on disk."""
    parameters: tuple[str, ...] | Unknown = NOT_READ
    """The telling lines of /proc/driver/nvidia/params: "DeviceFileMode: 438"."""
    packages: tuple[DriverPackage, ...] | Unknown = NOT_READ
    apt_sources: tuple[AptSource, ...] | Unknown = NOT_READ
    """Where apt would take the Container Toolkit from."""
    closed_nodes: tuple[str, ...] | Unknown = NOT_READ
    """NVIDIA device nodes that this user may not open, each with its mode and owner."""
    booted_at: str | Unknown = NOT_READ
    """When the machine started, ISO 8601, UTC."""
    modules: tuple[str, ...] | Unknown = NOT_READ
    """Loaded kernel modules that matter to GPUs: nvidia, nvidia_uvm, nvidia_peermem, nouveau, ib_core …"""
    has_infiniband: bool | Unknown = NOT_READ
    fabric_manager_version: Release | Unknown | None = NOT_READ
    """None when the Fabric Manager is not installed; only asked on machines with an NVSwitch."""


@record
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
    health: GpuHealth | Unknown = NOT_READ


@record
class FailedGpu:
    """One GPU that NVML counts but cannot talk to. `code` is the NVML return value, 15 for a lost GPU."""

    index: int
    code: int
    message: str


@record
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


@record
class NvmlFailure:
    """NVML gave no answer. `code` is its return value, the signal number for a crash, 0 for a time-out."""

    end: NvmlEnd
    code: int
    message: str
    call: str
    """The NVML function that was running."""
