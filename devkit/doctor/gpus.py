"""Readings of GPUs that several checks share: health, PCI address and kernel log."""

from devkit.doctor.model import NotApplicable
from devkit.doctor.preconditions import NVML_DRIVER_NOT_LOADED, require, require_nvml
from devkit.doctor.thresholds import BUSY_PERCENT
from devkit.facts.gpu import Driver, FailedGpu, Gpu, GpuHealth, NvmlAnswer, NvmlEnd, NvmlFailure, PciGpu
from devkit.facts.model import Facts
from devkit.facts.values import Unknown

MAX_LOG_LINES = 3
"""Lines of the kernel log that a finding shows."""

GpuWithHealth = tuple[Gpu, GpuHealth]


def require_gpu_health(facts: Facts) -> tuple[GpuWithHealth, ...]:
    """Return every GPU that answers, with its health, or end the check."""
    gpus = [gpu for gpu in require_nvml(facts).gpus if isinstance(gpu, Gpu)]
    found = tuple((gpu, gpu.health) for gpu in gpus if isinstance(gpu.health, GpuHealth))
    if found:
        return found
    raise NotApplicable(next((gpu.health.reason for gpu in gpus if isinstance(gpu.health, Unknown)), "no GPU answers"))


def require_gpu_health_field(facts: Facts, field: str) -> tuple[GpuWithHealth, ...]:
    """Return the GPUs whose health has `field`, or end the check where none has it, as is normal on GeForce."""
    states = require_gpu_health(facts)
    found = tuple(state for state in states if not isinstance(getattr(state[1], field), Unknown))
    if not found:
        require(getattr(states[0][1], field))
    return found


def format_gpu(gpu: Gpu) -> str:
    """Format a GPU as messages name it: GPU 3."""
    return f"GPU {gpu.index}"


def is_gpu_busy(health: GpuHealth) -> bool:
    """Say if a kernel ran most of the time. Clocks, heat and link speed say nothing about an idle GPU."""
    return isinstance(health.utilization_percent, int) and health.utilization_percent >= BUSY_PERCENT


def find_driver_lines(facts: Facts, *texts: str) -> tuple[str, ...]:
    """Return the driver's kernel log lines that contain one of `texts`; none where the log may not be read."""
    if isinstance(facts.kernel_log, Unknown):
        return ()
    return tuple(line for line in facts.kernel_log.driver_lines if any(text in line for text in texts))


def find_pci_gpus(facts: Facts) -> tuple[PciGpu, ...]:
    """Return the GPUs on the PCI bus; none where it is hidden."""
    driver = facts.driver
    if not isinstance(driver, Driver) or isinstance(driver.pci_gpus, Unknown):
        return ()
    return driver.pci_gpus


def find_connection(one: PciGpu, other: PciGpu) -> str | Unknown:
    """Find what data between two GPUs crosses on PCIe, in the words of `nvidia-smi topo`.

    PIX: one switch; PXB: several; PHB: the host bridge; NODE: several host bridges of a NUMA node; SYS: NUMA nodes.
    """
    if isinstance(one.bridges, Unknown):
        return one.bridges
    if isinstance(other.bridges, Unknown):
        return other.bridges
    shared = next(
        (depth for depth, pair in enumerate(zip(one.bridges, other.bridges, strict=False)) if pair[0] != pair[1]),
        min(len(one.bridges), len(other.bridges)),
    )
    if not shared:
        nodes = (one.numa_node, other.numa_node)
        return "SYS" if all(isinstance(node, int) for node in nodes) and nodes[0] != nodes[1] else "NODE"
    if shared == 1:
        return "PHB"
    # Each GPU of a switch has its own downstream port.
    return "PIX" if max(len(one.bridges), len(other.bridges)) - shared <= 1 else "PXB"


def find_driver_gpus(facts: Facts) -> tuple[PciGpu, ...]:
    """Return the GPUs on the PCI bus that belong to the NVIDIA driver, or to none yet."""
    return tuple(gpu for gpu in find_pci_gpus(facts) if gpu.kernel_driver in ("nvidia", ""))


def find_gpu_at(facts: Facts, address: str) -> Gpu | FailedGpu | None:
    """Find NVML's GPU at a PCI address; without addresses, NVML lists GPUs in the order of the bus."""
    if not isinstance(facts.nvml, NvmlAnswer):
        return None
    for gpu in facts.nvml.gpus:
        if isinstance(gpu, Gpu) and isinstance(gpu.health, GpuHealth) and gpu.health.pci_address == address:
            return gpu
    owned = sorted(gpu.address for gpu in find_driver_gpus(facts))
    if address in owned and len(owned) == len(facts.nvml.gpus):
        return facts.nvml.gpus[owned.index(address)]
    return None


def is_gpu_failing(facts: Facts, address: str) -> bool | Unknown:
    """Say if NVML cannot use the GPU at `address` at this moment."""
    if isinstance(facts.nvml, Unknown):
        return facts.nvml
    if isinstance(facts.nvml, NvmlFailure):
        says_nothing = facts.nvml.end is NvmlEnd.LIBRARY_NOT_FOUND or facts.nvml.code == NVML_DRIVER_NOT_LOADED
        return Unknown("NVML does not respond") if says_nothing else True
    gpu = find_gpu_at(facts, address)
    if gpu is None:
        return Unknown("NVML does not report which GPU this is") if not has_missing_gpus(facts) else True
    return isinstance(gpu, FailedGpu) or find_recovery_action(gpu) != "none"


def find_recovery_action(gpu: Gpu) -> str:
    """Return the recovery that the driver requests for a GPU; "none" where it does not say."""
    if not isinstance(gpu.health, GpuHealth) or isinstance(gpu.health.recovery_action, Unknown):
        return "none"
    return gpu.health.recovery_action


def has_missing_gpus(facts: Facts) -> bool:
    """Say if NVML counts fewer GPUs than the driver owns on the bus."""
    owned = [gpu for gpu in find_pci_gpus(facts) if gpu.kernel_driver == "nvidia"]
    return isinstance(facts.nvml, NvmlAnswer) and len(facts.nvml.gpus) < len(owned)


def has_fewer_gpus_than_bus(facts: Facts) -> bool:
    """Say if a GPU on the bus is missing from NVML's list, or NVML gives no list at all."""
    return has_missing_gpus(facts) or not isinstance(facts.nvml, NvmlAnswer | Unknown)


DAY_S = 86_400
