"""Checks of what connects GPUs: NVSwitch and its Fabric Manager, and GPUDirect RDMA."""

from collections.abc import Iterator

from devkit.doctor.checks.cascades import DEEP_CODES
from devkit.doctor.error_codes import CUDA_SYSTEM_NOT_READY
from devkit.doctor.fixes import DistroFamily, find_distro_family, list_commands
from devkit.doctor.gpus import format_gpu, require_gpu_health, require_gpu_health_field
from devkit.doctor.model import Confidence, Finding, Fix, NotApplicable, Severity, check
from devkit.doctor.preconditions import (
    is_in_container,
    require,
    require_driver,
    require_host,
    require_loaded_driver,
    require_nvml,
)
from devkit.doctor.thresholds import NVLINK_ERRORS_PER_S
from devkit.facts.model import CudaCall, Deep, Driver, Facts, Gpu, GpuHealth
from devkit.facts.values import Unknown
from devkit.text import format_count, join_words

_FABRIC_GUIDE = "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/"

_ON_THE_WAY = ("not-started", "in-progress")

_FABRIC_FAULTS = {
    "degraded-bandwidth": "some of its NVLinks are down, so that collectives are slower",
    "route-recovery": "its routes are being recovered",
    "route-unhealthy": "its routes are unhealthy, so that peers do not reach it",
    "access-timeout-recovery": "accesses over the fabric have timed out",
    "incorrect-system-guid": "its system GUID is not that of the fabric",
    "incorrect-chassis-serial": "its chassis serial number is not that of the fabric",
    "no-partition": "it belongs to no partition of the fabric",
    "insufficient-nvlinks": "it has too few NVLinks for its partition",
    "incompatible-firmware": "its firmware does not fit the fabric",
    "invalid-location": "its location in the fabric is invalid",
    "invalid-gpu-state": "its state does not let it join the fabric",
}

_FABRIC_SLOWS = ("degraded-bandwidth", "route-recovery", "access-timeout-recovery")

_HAS_FABRIC = (*_ON_THE_WAY, "completed")

_PEER_MEMORY = ("nvidia_peermem", "nv_peer_mem")


@check("GPU022", causes=("GPU004",))
def fabric_manager_matches_driver(facts: Facts) -> Iterator[Finding]:
    require_host(facts)
    installed = require(require_driver(facts).fabric_manager_version)
    release = require_loaded_driver(facts)
    if installed is None:
        raise NotApplicable("the Fabric Manager is not installed")
    if installed == release:
        return
    is_apt = find_distro_family(facts) in (DistroFamily.UBUNTU, DistroFamily.DEBIAN)
    yield Finding(
        Severity.ERROR,
        f"the Fabric Manager is {installed}, but the driver is {release}: without it CUDA ends with error 802",
        Fix(
            f"Install the Fabric Manager of exactly {release}, and keep both from being upgraded apart.",
            (
                *list_commands(facts, "install_fabric_manager", branch=release.major, release=release),
                *(("sudo apt-mark hold 'nvidia-fabricmanager*' 'nvidia-driver-*'",) if is_apt else ()),
            ),
            root=True,
            docs=_FABRIC_GUIDE,
        ),
        evidence=(f"nv-fabricmanager --version: {installed}", f"/sys/module/nvidia/version: {release}"),
    )


@check("GPU004", causes=("DRV010", "PYT006", *DEEP_CODES))
def fabric_manager_runs(facts: Facts) -> Iterator[Finding]:
    waiting = _find_gpus_outside_fabric(facts)
    driver = facts.driver
    is_host = isinstance(driver, Driver) and not is_in_container(facts)
    if is_host and isinstance(driver, Driver) and driver.nvswitch_present is True and driver.fabric_manager != "active":
        state = require(driver.fabric_manager)
        release = require_loaded_driver(facts)
        yield Finding(
            Severity.ERROR,
            f"this machine has an NVSwitch, but nvidia-fabricmanager is {state}: CUDA ends with error 802",
            Fix(
                f"Install the Fabric Manager of exactly the driver's version, {release}, and start it. Systems with NVLink"
                " 5 (B200, GB200) need the package nvlsm beside it.",
                list_commands(facts, "install_fabric_manager", branch=release.major, release=release),
                root=True,
                docs=_FABRIC_GUIDE,
            ),
            evidence=(
                f"systemctl is-active nvidia-fabricmanager: {state}",
                f"driver {release}",
                *_list_fabric_states(waiting),
                *_list_cu_init_evidence(facts),
            ),
        )
        return
    if waiting:
        yield Finding(
            Severity.ERROR,
            f"{join_words(format_gpu(gpu) for gpu, _ in waiting)} of {len(require_nvml(facts).gpus)} did not join the NVLink"
            " fabric: CUDA ends with error 802",
            Fix(
                "Right after a start, wait a minute. Otherwise look at the Fabric Manager of the machine that has the"
                " NVSwitches: in a virtual machine or a container that is the host, and it must fit the driver here.",
                ("systemctl status nvidia-fabricmanager", "journalctl -u nvidia-fabricmanager -b"),
                docs=_FABRIC_GUIDE,
            ),
            evidence=(*_list_fabric_states(waiting), *_list_cu_init_evidence(facts)),
            confidence=Confidence.LIKELY,
        )
        return
    require_host(facts)
    if not require(require_driver(facts).nvswitch_present):
        raise NotApplicable("this machine has no NVSwitch")


def _find_gpus_outside_fabric(facts: Facts) -> tuple[tuple[Gpu, GpuHealth], ...]:
    """GPUs that have not joined the fabric, or joined with an error."""
    try:
        states = require_gpu_health(facts)
    except NotApplicable:
        return ()
    return tuple(
        (gpu, health)
        for gpu, health in states
        if health.fabric_state in _ON_THE_WAY
        or (health.fabric_state == "completed" and isinstance(health.fabric_status, int) and health.fabric_status != 0)
    )


def _list_fabric_states(waiting: tuple[tuple[Gpu, GpuHealth], ...]) -> tuple[str, ...]:
    return tuple(
        f"GPU {gpu.index}: fabric {health.fabric_state}, status {health.fabric_status}" for gpu, health in waiting
    )


def _list_cu_init_evidence(facts: Facts) -> tuple[str, ...]:
    cuda = facts.deep.cuda if isinstance(facts.deep, Deep) else None
    return (
        (f"cuInit returned {cuda.code}",) if isinstance(cuda, CudaCall) and cuda.code == CUDA_SYSTEM_NOT_READY else ()
    )


@check("GPU023")
def fabric_manager_is_not_expected(facts: Facts) -> Iterator[Finding]:
    require_host(facts)
    driver = require_driver(facts)
    if require(driver.nvswitch_present) or require(driver.fabric_manager) != "failed":
        return
    if any(isinstance(gpu.health, GpuHealth) and gpu.health.fabric_state in _HAS_FABRIC for gpu in facts.gpus):
        raise NotApplicable("the GPUs have a fabric, whose switches do not show on the PCI bus")
    yield Finding(
        Severity.NOTE,
        "nvidia-fabricmanager failed, as it must on a machine without an NVSwitch; nothing needs it here",
        Fix("Turn the service off.", ("sudo systemctl disable --now nvidia-fabricmanager",), root=True),
        evidence=("systemctl is-active nvidia-fabricmanager: failed", "no PCI function of class 0x0680"),
    )


@check("GPU024")
def gpudirect_rdma_is_available(facts: Facts) -> Iterator[Finding]:
    require_host(facts)
    driver = require_driver(facts)
    if not require(driver.has_infiniband):
        raise NotApplicable("this machine has no InfiniBand")
    modules = require(driver.modules)
    require_loaded_driver(facts)
    if any(name in modules for name in _PEER_MEMORY):
        return
    yield Finding(
        Severity.NOTE,
        "this machine has InfiniBand, but nvidia_peermem is not loaded: NCCL may copy through the processor's memory",
        Fix(
            "Load the module, now and at every start, if NCCL's log says that GPU Direct RDMA is disabled.",
            ("sudo modprobe nvidia_peermem", "echo nvidia_peermem | sudo tee /etc/modules-load.d/nvidia-peermem.conf"),
            root=True,
        ),
        evidence=(f"loaded: {', '.join(modules)}",),
        confidence=Confidence.POSSIBLE,
    )


def has_no_nvswitch(facts: Facts) -> bool | Unknown:
    """Say if this machine surely has no NVSwitch."""
    driver = require_driver(facts)
    if isinstance(driver.nvswitch_present, Unknown):
        return driver.nvswitch_present
    return not driver.nvswitch_present and not _find_gpus_outside_fabric(facts)


@check("GPU030", causes=("NET001", *DEEP_CODES))
def fabric_is_healthy(facts: Facts) -> Iterator[Finding]:
    groups: dict[tuple[str, ...], list[Gpu]] = {}
    for gpu, health in require_gpu_health_field(facts, "fabric_faults"):
        if health.fabric_faults and not isinstance(health.fabric_faults, Unknown):
            groups.setdefault(health.fabric_faults, []).append(gpu)
    for faults, gpus in groups.items():
        names = join_words(map(format_gpu, gpus))
        says = join_words(_FABRIC_FAULTS.get(fault, fault) for fault in faults)
        yield Finding(
            Severity.WARNING if set(faults) <= set(_FABRIC_SLOWS) else Severity.ERROR,
            f"the NVLink fabric reports {names} unhealthy: {says}",
            Fix(
                "Read the Fabric Manager's log on the machine with the NVSwitches, and reset the GPUs or reboot. A link that"
                " stays down after that is a fault of the hardware.",
                (
                    "nvidia-smi -q | grep -A8 Fabric",
                    "journalctl -u nvidia-fabricmanager -b",
                    "nvidia-smi nvlink --status",
                ),
                docs=_FABRIC_GUIDE,
            ),
            subject=names,
            evidence=tuple(f"{format_gpu(gpu)} {gpu.name}: fabric health {', '.join(faults)}" for gpu in gpus),
        )


@check("GPU031", causes=("NET001",))
def nvlinks_are_sound(facts: Facts) -> Iterator[Finding]:
    states = require_gpu_health_field(facts, "nvlink_active")
    if not any(health.nvlink_count for _, health in states):
        raise NotApplicable("no GPU has an NVLink")
    # Switches of NVLink 5 do not show on the PCI bus; the fabric that they make does.
    has_switch = any(health.fabric_state in _HAS_FABRIC for _, health in states) or (
        isinstance(facts.driver, Driver) and facts.driver.nvswitch_present is True
    )
    most: dict[str, int] = {}
    for gpu, health in states:
        active = health.nvlink_active if isinstance(health.nvlink_active, int) else 0
        most[gpu.name] = max(most.get(gpu.name, 0), active)
    down = [
        (gpu, health)
        for gpu, health in states
        if isinstance(health.nvlink_active, int)
        and health.nvlink_active < most[gpu.name]
        and (health.nvlink_active or has_switch)
    ]
    noisy = [
        (gpu, health)
        for gpu, health in states
        if isinstance(health.nvlink_errors_per_s, float) and health.nvlink_errors_per_s >= NVLINK_ERRORS_PER_S.value
    ]
    if down:
        yield _nvlink_finding(down, f"{_has(down)} fewer NVLinks up than the others of the model")
    if noisy:
        yield _nvlink_finding(
            noisy, f"{_has(noisy)} errors on NVLinks, more than {NVLINK_ERRORS_PER_S.value:.0f} a second"
        )


def _has(states: list[tuple[Gpu, GpuHealth]]) -> str:
    return f"{join_words(format_gpu(gpu) for gpu, _ in states)} {'has' if len(states) == 1 else 'have'}"


def _nvlink_finding(states: list[tuple[Gpu, GpuHealth]], says: str) -> Finding:
    return Finding(
        Severity.WARNING,
        f"{says}: what GPUs exchange is slow, or ends with an NCCL error",
        Fix(
            "See which link it is; check that bridges and modules are seated, and reset the GPUs. If it comes back, the"
            " link's hardware is at fault.",
            ("nvidia-smi nvlink --status", "nvidia-smi nvlink -e"),
            docs=_FABRIC_GUIDE,
        ),
        subject=join_words(format_gpu(gpu) for gpu, _ in states),
        evidence=tuple(
            f"{format_gpu(gpu)} {gpu.name}: {health.nvlink_active} of {format_count(int(str(health.nvlink_count)), 'NVLink')} up,"
            f" {_format_errors(health)}"
            for gpu, health in states
        ),
        confidence=Confidence.LIKELY,
    )


def _format_errors(health: GpuHealth) -> str:
    if not isinstance(health.nvlink_errors, int):
        return "errors not counted"
    rate = f", {health.nvlink_errors_per_s:g} a second" if isinstance(health.nvlink_errors_per_s, float) else ""
    return f"{format_count(health.nvlink_errors, 'error')}{rate}"
