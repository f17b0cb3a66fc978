"""GPUs: AMD's and NVIDIA's, their driver with and without NVML, their health, and the kernel's messages about them."""

from dataclasses import dataclass
from enum import StrEnum

from devkit.facts.runs import ProgramFailure
from devkit.facts.values import NOT_READ, ComputeCapability, Release, Unknown


@dataclass(frozen=True)
class AmdGpu:
    """One GPU that computes. `node` is its number in the kernel's topology.

    `target` is its LLVM target, such as gfx942; `name` is "" where nothing tells it; `device_id` is that of PCI.
    """

    node: int
    target: str
    name: str
    device_id: str
    memory_bytes: int | Unknown


@dataclass(frozen=True)
class Amd:
    """The GPUs in the kernel's topology, in its order, and what a program needs to use them.

    `kfd` is how opening /dev/kfd ends: "open", or the errno name such as "ENOENT" or "EACCES".
    `rocm` is the release of ROCm on this side, None where there is none: torch's wheels bring their own.
    """

    gpus: tuple[AmdGpu, ...]
    kfd: str
    rocm: Release | None


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds memory of a GPU. `name` is the kernel's short one, "" where it is hidden."""

    pid: int
    name: str
    memory_bytes: int | Unknown


@dataclass(frozen=True)
class GpuHealth:
    """The state of one GPU by NVML. Much of it is "not supported" on GeForce, WSL and vGPU.

    Temperatures in degrees Celsius, power in milliwatts, clocks in MHz.
    """

    pci_address: str | Unknown
    """As sysfs writes it: 0000:01:00.0."""
    persistence: bool | Unknown
    compute_mode: str | Unknown
    """"default", "exclusive-thread", "prohibited" or "exclusive-process"."""
    display_active: bool | Unknown
    ecc_enabled: bool | Unknown
    ecc_uncorrected: int | Unknown
    """Uncorrectable memory errors since the driver was loaded or the GPU reset."""
    remap_pending: bool | Unknown
    remap_failed: bool | Unknown
    retirement_pending: bool | Unknown
    """Page retirement is what Volta and older do in place of row remapping."""
    clock_reasons: tuple[str, ...] | Unknown
    """Why the clocks are not at their highest: "gpu-idle", "sw-power-cap", "hw-thermal-slowdown" …"""
    temperature_c: int | Unknown
    slowdown_c: int | Unknown
    """The temperature at which the hardware slows itself down."""
    power_mw: int | Unknown
    power_limit_mw: int | Unknown
    default_power_limit_mw: int | Unknown
    utilization_percent: int | Unknown
    """Share of the last second or so in which a kernel ran."""
    pcie_width: int | Unknown
    pcie_max_width: int | Unknown
    pcie_generation: int | Unknown
    pcie_max_generation: int | Unknown
    sm_clock_mhz: int | Unknown
    sm_max_clock_mhz: int | Unknown
    application_clock_mhz: int | Unknown
    default_application_clock_mhz: int | Unknown
    processes: tuple[GpuProcess, ...] | Unknown
    virtualization: str | Unknown
    """"none", "passthrough", "vgpu" in a guest, "host-vgpu" and "host-vsga" on a hypervisor."""
    license: str | Unknown
    """Of a vGPU: "licensed", "unlicensed", "unlicensed-restricted" …; unknown anywhere else."""
    fabric_state: str | Unknown
    """"not-supported", "not-started", "in-progress" or "completed"."""
    fabric_status: int | Unknown
    """NVML's return value for joining the fabric; counts once the state is "completed"."""
    inforom_ok: bool | Unknown
    brand: str | Unknown
    """"geforce", "nvidia", "tesla", "quadro" … as NVML numbers them."""
    recovery_action: str | Unknown
    """What the driver itself asks for: "none", "gpu-reset", "node-reboot", "drain-p2p", "drain-and-reset" …"""
    fabric_faults: tuple[str, ...] | Unknown = NOT_READ
    """What the NVLink fabric reports of this GPU, as FABRIC_FAULTS of the probe names it: "degraded-bandwidth" …"""
    nvlink_count: int | Unknown = NOT_READ
    """NVLinks that the GPU has; 0 without any."""
    nvlink_active: int | Unknown = NOT_READ
    """NVLinks that are up."""
    nvlink_errors: int | Unknown = NOT_READ
    """CRC errors, replays and recoveries of all links since they came up."""
    nvlink_errors_per_s: float | Unknown = NOT_READ
    """The rate of those errors during the examination; only read where there were any."""
    sram_threshold_exceeded: bool | Unknown = NOT_READ
    """Whether the uncorrectable errors of its SRAM have passed the number from which NVIDIA replaces a GPU."""
    vbios: str | Unknown = NOT_READ
    """Version of the GPU's firmware: "96.00.74.00.0D"."""


@dataclass(frozen=True)
class PciGpu:
    """An NVIDIA display or 3D function on the PCI bus, and the kernel driver that owns it ("" for none)."""

    address: str
    device_id: str
    kernel_driver: str
    max_link_width: int | Unknown = NOT_READ
    bar1_bytes: int | Unknown = NOT_READ
    """Size of the window through which the processor sees GPU memory; 0 when the firmware assigned none."""
    numa_node: int | Unknown = NOT_READ
    """The NUMA node whose CPUs and memory are next to the GPU; unknown where there is only one."""
    bridges: tuple[str, ...] | Unknown = NOT_READ
    """What connects the GPU, from the host bridge on: ("pci0000:00", "0000:00:01.0")."""
    name: str | Unknown = NOT_READ
    """By the driver, or by the list of PCI devices that distributions ship."""
    is_excluded: bool | Unknown = NOT_READ
    """Whether a setting of the driver (NVreg_ExcludedGpus) keeps it from being used."""


@dataclass(frozen=True)
class DriverPackage:
    """A package of the driver that the distribution's records hold. `state` is "installed", or what else dpkg says."""

    name: str
    version: str
    state: str


@dataclass(frozen=True)
class AptSource:
    """A file that names a package repository of the Container Toolkit, and the key it trusts, "" for none."""

    path: str
    url: str
    signed_by: str


@dataclass(frozen=True)
class Driver:
    """The NVIDIA kernel driver on this side, read without NVML."""

    loaded: Release | Unknown | None
    """Version of the loaded module; None when it is not loaded."""
    is_open: bool | Unknown
    """Whether the loaded module is the open flavor."""
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
    """`systemctl is-active nvidia-fabricmanager`: "active", "inactive", "failed" …; read where there is an NVSwitch,
    and where the service is installed."""
    headers_present: bool | Unknown
    """Whether /lib/modules/<kernel>/build exists."""
    secure_boot: bool | Unknown
    upgraded_packages: tuple[str, ...]
    """The last log lines that touched NVIDIA driver packages, newest last."""
    module_signer: str | Unknown = NOT_READ
    """The signer of the module on disk, "" for none; only read where Secure Boot may have refused it."""
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
    withheld_nodes: tuple[str, ...] | Unknown = NOT_READ
    """Nodes of GPUs that the control group keeps this process from, though their modes let it in."""
    stale_nodes: tuple[str, ...] | Unknown = NOT_READ
    """NVIDIA device nodes whose number is not that of the loaded driver: "/dev/nvidia-uvm: 240, expected 236"."""
    booted_at: str | Unknown = NOT_READ
    """When the machine started, ISO 8601, UTC."""
    modules: tuple[str, ...] | Unknown = NOT_READ
    """Loaded kernel modules that matter to GPUs: nvidia, nvidia_uvm, nvidia_peermem, nouveau, ib_core …"""
    has_infiniband: bool | Unknown = NOT_READ
    fabric_manager_version: Release | Unknown | None = NOT_READ
    """None when the Fabric Manager is not installed; only read on machines with an NVSwitch."""


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
    health: GpuHealth | Unknown = NOT_READ


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
    """The end of an NVML session that gave no answer."""

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
    said: ProgramFailure | Unknown | None = NOT_READ
    """The same with the variables of the environment that cause it; None where none does."""


@dataclass(frozen=True)
class Xid:
    """One kind of error report of the NVIDIA driver on one GPU: its number, the PCI address, the newest line.

    A GPU that the driver calls fallen off the bus without a number counts as Xid 79, which says the same.
    """

    number: int
    address: str
    line: str
    count: int | Unknown = NOT_READ
    """How often this number was reported for this GPU since the machine started."""
    at: str | Unknown = NOT_READ
    """When it was reported last: a date, or seconds since the machine started."""


@dataclass(frozen=True)
class KernelLog:
    """The kernel's messages of this boot, as far as they concern GPUs. Unknown where this user may not read them."""

    xids: tuple[Xid, ...]
    driver_lines: tuple[str, ...]
    """Other telling lines of the driver: failed starts, refused modules, firmware."""
    source: str | Unknown = NOT_READ
    """"journalctl" or "dmesg"."""
    is_whole: bool | Unknown = NOT_READ
    """Whether the messages go back to the start of the kernel: a full buffer loses its oldest."""
    resumed_at: str | Unknown | None = NOT_READ
    """When the machine last woke from suspend; None when it did not sleep since it started."""
    switch_errors: tuple[Xid, ...] | Unknown = NOT_READ
    """Fatal error reports of NVSwitches (SXid), each as an `Xid` with the address of the switch."""
