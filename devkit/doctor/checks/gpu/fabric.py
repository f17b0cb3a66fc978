"""Checks of what connects GPUs: NVSwitch and its Fabric Manager, and GPUDirect RDMA."""

from collections.abc import Iterator

from devkit.doctor.checks.cascades import DEEP_CODES
from devkit.doctor.error_codes import CUDA_SYSTEM_NOT_READY, explain_fabric_fault
from devkit.doctor.gpus import GpuWithHealth, format_gpu, require_gpu_health, require_gpu_health_field
from devkit.doctor.model import NotApplicable, Severity, check
from devkit.doctor.preconditions import (
    find_cu_init_code,
    is_in_container,
    require,
    require_driver,
    require_host,
    require_loaded_driver,
    require_nvml,
    skip_if,
)
from devkit.doctor.problems import Problem, problem
from devkit.doctor.thresholds import NVLINK_ERRORS_PER_S
from devkit.facts.gpu import Driver, Gpu, GpuHealth
from devkit.facts.model import Facts
from devkit.facts.values import Unknown
from devkit.text import format_count, join_words

_ON_THE_WAY = ("not-started", "in-progress")
_FABRIC_SLOWS = ("degraded-bandwidth", "route-recovery", "access-timeout-recovery")
_HAS_FABRIC = (*_ON_THE_WAY, "completed")
_PEER_MEMORY = ("nvidia_peermem", "nv_peer_mem")


@check("GPU022", require_host, causes=("GPU004",))
def fabric_manager_matches_driver(facts: Facts) -> Iterator[Problem]:
    installed = require(require_driver(facts).fabric_manager_version)
    release = require_loaded_driver(facts)
    if installed is None:
        raise NotApplicable("the Fabric Manager is not installed")
    if installed != release:
        yield problem(
            "other-version",
            installed=installed,
            release=release,
            branch=release.major,
            evidence=(f"nv-fabricmanager --version: {installed}", f"/sys/module/nvidia/version: {release}"),
        )


@check("GPU004", causes=("DRV010", "PYT006", *DEEP_CODES))
def fabric_manager_runs(facts: Facts) -> Iterator[Problem]:
    waiting = _find_gpus_outside_fabric(facts)
    driver = facts.driver
    is_not_ready = find_cu_init_code(facts) == CUDA_SYSTEM_NOT_READY
    states = [f"GPU {gpu.index}: fabric {each.fabric_state}, status {each.fabric_status}" for gpu, each in waiting]
    states += [f"cuInit returned {CUDA_SYSTEM_NOT_READY}"] * is_not_ready
    is_host = not is_in_container(facts)
    if is_host and isinstance(driver, Driver) and driver.nvswitch_present is True and driver.fabric_manager != "active":
        state = require(driver.fabric_manager)
        release = require_loaded_driver(facts)
        yield problem(
            "not-running",
            state=state,
            release=release,
            branch=release.major,
            evidence=(f"systemctl is-active nvidia-fabricmanager: {state}", f"driver {release}", *states),
        )
    elif waiting:
        gpus = join_words(format_gpu(gpu) for gpu, _ in waiting)
        yield problem("not-joined", gpus=gpus, count=len(require_nvml(facts).gpus), evidence=states)
    else:
        require_host(facts)
        skip_if(not require(require_driver(facts).nvswitch_present), "this machine has no NVSwitch")


def _find_gpus_outside_fabric(facts: Facts) -> tuple[GpuWithHealth, ...]:
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


@check("GPU023", require_host)
def fabric_manager_is_not_expected(facts: Facts) -> Iterator[Problem]:
    driver = require_driver(facts)
    if require(driver.nvswitch_present) or require(driver.fabric_manager) != "failed":
        return
    if any(isinstance(gpu.health, GpuHealth) and gpu.health.fabric_state in _HAS_FABRIC for gpu in facts.gpus):
        raise NotApplicable("the GPUs have a fabric, but its switches are not visible on the PCI bus")
    yield problem(
        "failed", evidence=("systemctl is-active nvidia-fabricmanager: failed", "no PCI function of class 0x0680")
    )


@check("GPU024", require_host)
def gpudirect_rdma_is_available(facts: Facts) -> Iterator[Problem]:
    driver = require_driver(facts)
    skip_if(not require(driver.has_infiniband), "this machine has no InfiniBand")
    modules = require(driver.modules)
    require_loaded_driver(facts)
    if not any(name in modules for name in _PEER_MEMORY):
        yield problem("no-peer-memory", evidence=(f"loaded: {', '.join(modules)}",))


def has_no_nvswitch(facts: Facts) -> bool | Unknown:
    """Say if this machine surely has no NVSwitch."""
    driver = require_driver(facts)
    if isinstance(driver.nvswitch_present, Unknown):
        return driver.nvswitch_present
    return not driver.nvswitch_present and not _find_gpus_outside_fabric(facts)


@check("GPU030", causes=("NET001", *DEEP_CODES))
def fabric_is_healthy(facts: Facts) -> Iterator[Problem]:
    groups: dict[tuple[str, ...], list[Gpu]] = {}
    for gpu, health in require_gpu_health_field(facts, "fabric_faults"):
        if health.fabric_faults and not isinstance(health.fabric_faults, Unknown):
            groups.setdefault(health.fabric_faults, []).append(gpu)
    for faults, gpus in groups.items():
        names = join_words(map(format_gpu, gpus))
        yield problem(
            "unhealthy",
            gpus=names,
            faults=join_words(map(explain_fabric_fault, faults)),
            subject=names,
            evidence=(f"{format_gpu(gpu)} {gpu.name}: fabric health {', '.join(faults)}" for gpu in gpus),
            severity=Severity.WARNING if set(faults) <= set(_FABRIC_SLOWS) else None,
        )


@check("GPU031", causes=("NET001",))
def nvlinks_are_sound(facts: Facts) -> Iterator[Problem]:
    states = require_gpu_health_field(facts, "nvlink_active")
    # An unreadable count is not a reason to pass over links that were read.
    skip_if(all(health.nvlink_count == 0 for _, health in states), "no GPU has an NVLink")
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
        if isinstance(health.nvlink_errors_per_s, float) and health.nvlink_errors_per_s >= NVLINK_ERRORS_PER_S
    ]
    if down:
        yield _tell_links("links-down", down)
    if noisy:
        yield _tell_links("link-errors", noisy)


def _tell_links(name: str, states: list[GpuWithHealth]) -> Problem:
    gpus, evidence = join_words(format_gpu(gpu) for gpu, _ in states), []
    for gpu, health in states:
        count, errors, rate = health.nvlink_count, health.nvlink_errors, health.nvlink_errors_per_s
        links = f"of {format_count(count, 'NVLink')}" if isinstance(count, int) else "NVLinks"
        counted = format_count(errors, "error") if isinstance(errors, int) else "errors not counted"
        counted += f", {rate:g} a second" if isinstance(errors, int) and isinstance(rate, float) else ""
        evidence.append(f"{format_gpu(gpu)} {gpu.name}: {health.nvlink_active} {links} up, {counted}")
    return problem(
        name,
        gpus=gpus,
        have="has" if len(states) == 1 else "have",
        limit=round(NVLINK_ERRORS_PER_S),
        subject=gpus,
        evidence=evidence,
    )
