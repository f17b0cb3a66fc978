"""How a GPU is doing: its settings, its memory's errors, its clocks and heat, and who uses it."""

from devkit.facts.record import record
from devkit.facts.values import Unknown


@record
class GpuProcess:
    """A process that holds memory of a GPU. `name` is the kernel's short one, "" where it is hidden."""

    pid: int
    name: str
    memory_bytes: int | Unknown


@record
class GpuHealth:
    """What NVML says of one GPU beside its name. Much of it is "not supported" on GeForce, WSL and vGPU.

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
    utilisation_percent: int | Unknown
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
    virtualisation: str | Unknown
    """"none", "passthrough", "vgpu" in a guest, "host-vgpu" and "host-vsga" on a hypervisor."""
    licence: str | Unknown
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
