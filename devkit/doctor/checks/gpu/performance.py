"""Checks of what makes a working GPU slow: heat, power, PCIe link and clocks."""

from collections.abc import Iterator

from devkit.doctor.gpus import (
    find_pci_gpus,
    format_gpu,
    is_gpu_busy,
    require_gpu_health,
    require_gpu_health_field,
)
from devkit.doctor.model import Confidence, NotApplicable, Severity, check
from devkit.doctor.preconditions import is_in_wsl, require, require_host, skip_if
from devkit.doctor.problems import Problem, problem
from devkit.doctor.thresholds import (
    FAST_ENOUGH_SHARE,
    FULL_LANES_SHARE,
    USUAL_CLOCK_SHARE,
    USUAL_POWER_SHARE,
)
from devkit.facts.gpu import GpuHealth
from devkit.facts.machine import Platform
from devkit.facts.model import Facts
from devkit.text import join_words

_HELD_BACK = ("sw-power-cap", "hw-slowdown", "sw-thermal-slowdown", "hw-thermal-slowdown", "hw-power-brake")
_HEAT = ("hw-thermal-slowdown", "sw-thermal-slowdown")


def _find_clock_reasons(health: GpuHealth) -> tuple[str, ...]:
    return health.clock_reasons if isinstance(health.clock_reasons, tuple) else ()


def _format_load(health: GpuHealth) -> str:
    return f"{health.utilization_percent}% busy" if isinstance(health.utilization_percent, int) else "load unknown"


def _is_above_slowdown(health: GpuHealth) -> bool:
    if not isinstance(health.temperature_c, int) or not isinstance(health.slowdown_c, int):
        return False
    return 0 < health.slowdown_c <= health.temperature_c


@check("GPU013")
def no_thermal_slowdown(facts: Facts) -> Iterator[Problem]:
    for gpu, health in require_gpu_health_field(facts, "clock_reasons"):
        reasons = _find_clock_reasons(health)
        is_hot = _is_above_slowdown(health)
        if "hw-thermal-slowdown" in reasons or is_hot or ("sw-thermal-slowdown" in reasons and is_gpu_busy(health)):
            bound = f" of {health.slowdown_c}" if isinstance(health.slowdown_c, int) else ""
            yield problem(
                "hot" if isinstance(health.temperature_c, int) else "hot-unmeasured",
                index=gpu.index,
                temperature=f"{health.temperature_c}{bound}",
                evidence=(f"{format_gpu(gpu)}: clock reasons {', '.join(reasons) or 'none'}", _format_load(health)),
            )


def _format_power(health: GpuHealth) -> str:
    if not isinstance(health.power_mw, int) or not isinstance(health.power_limit_mw, int):
        return ""
    return f"{health.power_mw // 1000} of {health.power_limit_mw // 1000} W"


@check("GPU014")
def no_power_brake_slowdown(facts: Facts) -> Iterator[Problem]:
    for gpu, health in require_gpu_health_field(facts, "clock_reasons"):
        reasons = _find_clock_reasons(health)
        power = _format_power(health)
        is_unexplained = "hw-slowdown" in reasons and not any(reason in reasons for reason in _HEAT)
        if "hw-power-brake" in reasons:
            name = "power-brake" if power else "power-brake-unmeasured"
        elif is_unexplained and "gpu-idle" not in reasons and not _is_above_slowdown(health):
            name = "slowdown" if power else "slowdown-unmeasured"
        else:
            continue
        yield problem(
            name,
            index=gpu.index,
            power=power,
            evidence=(f"{format_gpu(gpu)}: clock reasons {', '.join(reasons)}", _format_load(health)),
        )


@check("GPU015")
def pcie_link_has_all_lanes(facts: Facts) -> Iterator[Problem]:
    states = require_gpu_health_field(facts, "pcie_width")
    # The link of a GPU that a hypervisor passes on is not the hardware's.
    states = tuple(state for state in states if state[1].virtualization not in ("passthrough", "vgpu"))
    skip_if(not states, "a virtual machine does not see the real link")
    for gpu, health in states:
        lanes, most = health.pcie_width, health.pcie_max_width
        now, best = health.pcie_generation, health.pcie_max_generation
        is_busy = is_gpu_busy(health)
        evidence = (f"lanes {lanes} of {most}, generation {now} of {best}", _format_load(health))
        if isinstance(lanes, int) and isinstance(most, int) and 0 < lanes < most:
            yield problem(
                "fewer-lanes",
                index=gpu.index,
                lanes=lanes,
                most=most,
                evidence=evidence,
                severity=None if is_busy or lanes <= most * FULL_LANES_SHARE else Severity.NOTE,
                confidence=Confidence.LIKELY if is_busy else Confidence.POSSIBLE,
            )
        if is_busy and isinstance(now, int) and isinstance(best, int) and 0 < now < best:
            yield problem("lower-generation", index=gpu.index, now=now, best=best, evidence=evidence)


@check("GPU016")
def clocks_are_not_locked(facts: Facts) -> Iterator[Problem]:
    for gpu, health in require_gpu_health(facts):
        set_low = _is_below(health.application_clock_mhz, health.default_application_clock_mhz, USUAL_CLOCK_SHARE)
        is_free = not any(reason in _find_clock_reasons(health) for reason in (*_HELD_BACK, "gpu-idle"))
        is_known = isinstance(health.clock_reasons, tuple)
        slow = _is_below(health.sm_clock_mhz, health.sm_max_clock_mhz, FAST_ENOUGH_SHARE)
        stuck = is_known and is_free and slow and is_gpu_busy(health)
        if set_low or stuck:
            yield problem(
                "low-clock",
                index=gpu.index,
                mhz=health.application_clock_mhz if set_low else health.sm_clock_mhz,
                best=health.default_application_clock_mhz if set_low else health.sm_max_clock_mhz,
                evidence=(
                    f"SM clock {health.sm_clock_mhz} of {health.sm_max_clock_mhz} MHz, application clock"
                    f" {health.application_clock_mhz} of {health.default_application_clock_mhz} MHz",
                    _format_load(health),
                ),
                confidence=Confidence.LIKELY if set_low else None,
            )
        if _is_below(health.power_limit_mw, health.default_power_limit_mw, USUAL_POWER_SHARE):
            power = _format_power(health)
            yield problem(
                "low-power-limit" if power else "low-power-limit-unmeasured",
                index=gpu.index,
                power=power,
                evidence=(f"limit {health.power_limit_mw} mW, default {health.default_power_limit_mw} mW",),
            )


def _is_below(value: object, usual: object, share: float) -> bool:
    return isinstance(value, int) and isinstance(usual, int) and 0 < value < usual * share


@check("GPU017", require_host)
def persistence_mode_is_on(facts: Facts) -> Iterator[Problem]:
    if is_in_wsl(facts) or require(facts.system).platform is not Platform.LINUX:
        raise NotApplicable("only Linux unloads the driver from an idle GPU")
    off = [
        gpu
        for gpu, health in require_gpu_health_field(facts, "persistence")
        if (health.persistence is False and health.display_active is False)
    ]
    if off:
        yield problem(
            "off",
            gpus=", ".join(map(format_gpu, off)),
            evidence=(f"{format_gpu(gpu)}: persistence mode off, no display" for gpu in off),
        )


@check("GPU034")
def cpus_are_next_to_gpus(facts: Facts) -> Iterator[Problem]:
    allowed = require(require(facts.limits).numa_nodes)
    nodes = {gpu.address: gpu.numa_node for gpu in find_pci_gpus(facts) if isinstance(gpu.numa_node, int)}
    placed = [
        (gpu, nodes[str(health.pci_address)])
        for gpu, health in require_gpu_health(facts)
        if str(health.pci_address) in nodes
    ]
    skip_if(not placed, "the firmware does not show which NUMA node a GPU is on")
    apart = [(gpu, node) for gpu, node in placed if node not in allowed]
    if not apart or not allowed:
        return
    names = join_words(format_gpu(gpu) for gpu, _ in apart)
    here, there = (join_words(map(str, sorted(set(group)))) for group in (allowed, [node for _, node in apart]))
    yield problem(
        "other-node",
        gpus=names,
        are="is" if len(apart) == 1 else "are",
        node=there,
        allowed=here,
        subject=names,
        evidence=(
            f"CPUs allowed on NUMA node {here}",
            *(f"{format_gpu(gpu)}: NUMA node {node}" for gpu, node in apart),
        ),
    )
