"""Checks of what makes a working GPU slow: heat, power, PCIe link, clocks, and idle time in a training run."""

from collections.abc import Iterator

from devkit.doctor.fixes import find_driver_side
from devkit.doctor.gpus import (
    find_pci_gpus,
    format_gpu,
    is_gpu_busy,
    is_virtual_gpu,
    require_gpu_health,
    require_gpu_health_field,
)
from devkit.doctor.model import Confidence, Finding, Fix, NotApplicable, Severity, check
from devkit.doctor.preconditions import is_in_wsl, require, require_gpu_run, require_host, require_system
from devkit.doctor.thresholds import (
    BUSY_WHILE_TRAINING_PERCENT,
    FAST_ENOUGH_SHARE,
    FEWEST_SAMPLES,
    FULL_LANES_SHARE,
    HELD_BACK_PERCENT,
    USUAL_CLOCK_SHARE,
    USUAL_POWER_SHARE,
)
from devkit.doctor.wheels import find_workload_side
from devkit.facts.model import Facts, Gpu, GpuHealth, Platform, WatchedGpu
from devkit.text import join_words

_HELD_BACK = ("sw-power-cap", "hw-slowdown", "sw-thermal-slowdown", "hw-thermal-slowdown", "hw-power-brake")

_HEAT = ("hw-thermal-slowdown", "sw-thermal-slowdown")


def _find_clock_reasons(health: GpuHealth) -> tuple[str, ...]:
    return health.clock_reasons if isinstance(health.clock_reasons, tuple) else ()


def _format_load(health: GpuHealth) -> str:
    return f"{health.utilization_percent} % busy" if isinstance(health.utilization_percent, int) else "load unknown"


def _is_above_slowdown(health: GpuHealth) -> bool:
    if not isinstance(health.temperature_c, int) or not isinstance(health.slowdown_c, int):
        return False
    return 0 < health.slowdown_c <= health.temperature_c


@check("GPU013")
def no_thermal_slowdown(facts: Facts) -> Iterator[Finding]:
    for gpu, health in require_gpu_health_field(facts, "clock_reasons"):
        reasons = _find_clock_reasons(health)
        is_hot = _is_above_slowdown(health)
        if "hw-thermal-slowdown" in reasons or is_hot or ("sw-thermal-slowdown" in reasons and is_gpu_busy(health)):
            bound = f" of {health.slowdown_c}" if isinstance(health.slowdown_c, int) else ""
            temperature = f" ({health.temperature_c}{bound} °C)" if isinstance(health.temperature_c, int) else ""
            yield Finding(
                Severity.WARNING,
                f"{format_gpu(gpu)} slows down for heat{temperature}: work on it takes longer",
                Fix(
                    "Improve the airflow, check that all fans turn, and lower the power limit until it stays cool:"
                    " the last tenth of the power costs little speed.",
                    (f"nvidia-smi -q -d TEMPERATURE,PERFORMANCE -i {gpu.index}",),
                    where=find_driver_side(facts),
                ),
                subject=format_gpu(gpu),
                evidence=(f"{format_gpu(gpu)}: clock reasons {', '.join(reasons) or 'none'}", _format_load(health)),
            )


def _format_power(health: GpuHealth) -> str:
    if not isinstance(health.power_mw, int) or not isinstance(health.power_limit_mw, int):
        return ""
    return f" at {health.power_mw // 1000} of {health.power_limit_mw // 1000} W"


@check("GPU014")
def no_power_brake_slowdown(facts: Facts) -> Iterator[Finding]:
    for gpu, health in require_gpu_health_field(facts, "clock_reasons"):
        reasons = _find_clock_reasons(health)
        is_braked = "hw-power-brake" in reasons
        is_unexplained = "hw-slowdown" in reasons and not any(reason in reasons for reason in _HEAT)
        if is_braked or (is_unexplained and "gpu-idle" not in reasons and not _is_above_slowdown(health)):
            yield Finding(
                Severity.WARNING,
                f"{format_gpu(gpu)} is slowed down by the {'power brake' if is_braked else 'hardware'}{_format_power(health)}:"
                " the power supply, its cables or the server's management controller hold it back",
                Fix(
                    "Check both ends of the power cables, the supply's rating and redundancy, and the power and fan"
                    " settings of the server's management controller.",
                    (f"nvidia-smi -q -d POWER,PERFORMANCE -i {gpu.index}",),
                    where=find_driver_side(facts),
                ),
                subject=format_gpu(gpu),
                evidence=(f"{format_gpu(gpu)}: clock reasons {', '.join(reasons)}", _format_load(health)),
                confidence=Confidence.CERTAIN if is_braked else Confidence.LIKELY,
            )


@check("GPU015")
def pcie_link_has_all_lanes(facts: Facts) -> Iterator[Finding]:
    states = [state for state in require_gpu_health_field(facts, "pcie_width") if not is_virtual_gpu(state[1])]
    if not states:
        raise NotApplicable("a virtual machine does not see the real link")
    for gpu, health in states:
        lanes, most = health.pcie_width, health.pcie_max_width
        if isinstance(lanes, int) and isinstance(most, int) and 0 < lanes < most:
            is_felt = is_gpu_busy(health) or lanes <= most * FULL_LANES_SHARE.value
            severity = Severity.WARNING if is_felt else Severity.NOTE
            yield _slow_link_finding(facts, gpu, health, f"{lanes} of {most} PCIe lanes", severity)
        now, best = health.pcie_generation, health.pcie_max_generation
        if is_gpu_busy(health) and isinstance(now, int) and isinstance(best, int) and 0 < now < best:
            message = f"PCIe {now} under load, where PCIe {best} is possible"
            yield _slow_link_finding(facts, gpu, health, message, Severity.WARNING)


def _slow_link_finding(facts: Facts, gpu: Gpu, health: GpuHealth, message: str, severity: Severity) -> Finding:
    return Finding(
        severity,
        f"{format_gpu(gpu)} runs on {message}: loading and offloading take longer",
        Fix(
            "Reseat the GPU; check riser, slot (another card may share its lanes) and the firmware's settings for the"
            " slot. Measure again while a program runs.",
            (f"nvidia-smi --query-gpu=pcie.link.width.current,pcie.link.gen.current --format=csv -i {gpu.index} -l 1",),
            where=find_driver_side(facts),
        ),
        subject=format_gpu(gpu),
        evidence=(
            f"lanes {health.pcie_width} of {health.pcie_max_width},"
            f" generation {health.pcie_generation} of {health.pcie_max_generation}",
            _format_load(health),
        ),
        confidence=Confidence.LIKELY if is_gpu_busy(health) else Confidence.POSSIBLE,
    )


@check("GPU016")
def clocks_are_not_locked(facts: Facts) -> Iterator[Finding]:
    for gpu, health in require_gpu_health(facts):
        set_low = _is_below(health.application_clock_mhz, health.default_application_clock_mhz, USUAL_CLOCK_SHARE.value)
        is_free = not any(reason in _find_clock_reasons(health) for reason in (*_HELD_BACK, "gpu-idle"))
        is_known = isinstance(health.clock_reasons, tuple)
        slow = _is_below(health.sm_clock_mhz, health.sm_max_clock_mhz, FAST_ENOUGH_SHARE.value)
        stuck = is_known and is_free and slow and is_gpu_busy(health)
        if set_low or stuck:
            mhz = health.application_clock_mhz if set_low else health.sm_clock_mhz
            best = health.default_application_clock_mhz if set_low else health.sm_max_clock_mhz
            yield Finding(
                Severity.WARNING,
                f"{format_gpu(gpu)} stays at {mhz} of {best} MHz, without heat or power as a reason",
                Fix(
                    "Reset the clocks, unless they were locked on purpose.",
                    (f"sudo nvidia-smi -i {gpu.index} -rgc", f"sudo nvidia-smi -i {gpu.index} -rac"),
                    where=find_driver_side(facts),
                    root=True,
                ),
                subject=format_gpu(gpu),
                evidence=(
                    f"SM clock {health.sm_clock_mhz} of {health.sm_max_clock_mhz} MHz, application clock"
                    f" {health.application_clock_mhz} of {health.default_application_clock_mhz} MHz",
                    _format_load(health),
                ),
                confidence=Confidence.LIKELY if set_low else Confidence.POSSIBLE,
            )
        if _is_below(health.power_limit_mw, health.default_power_limit_mw, USUAL_POWER_SHARE.value):
            yield Finding(
                Severity.NOTE,
                f"{format_gpu(gpu)} has a power limit far below its default{_format_power(health)}",
                Fix(
                    "Nothing, if that is meant. The default comes back with a reboot, or by nvidia-smi -pl.",
                    (f"nvidia-smi -q -d POWER -i {gpu.index}",),
                    where=find_driver_side(facts),
                ),
                subject=format_gpu(gpu),
                evidence=(f"limit {health.power_limit_mw} mW, default {health.default_power_limit_mw} mW",),
            )


def _is_below(value: object, usual: object, share: float) -> bool:
    return isinstance(value, int) and isinstance(usual, int) and 0 < value < usual * share


@check("GPU017")
def persistence_mode_is_on(facts: Facts) -> Iterator[Finding]:
    require_host(facts)
    if is_in_wsl(facts) or require_system(facts).platform is not Platform.LINUX:
        raise NotApplicable("only Linux unloads the driver from an idle GPU")
    off = [
        gpu
        for gpu, health in require_gpu_health_field(facts, "persistence")
        if (health.persistence is False and health.display_active is False)
    ]
    if off:
        yield Finding(
            Severity.NOTE,
            f"persistence mode is off on {', '.join(map(format_gpu, off))}: the first CUDA call after a pause waits for"
            " the driver to start again",
            Fix(
                "Let the persistence daemon keep the driver awake.",
                ("sudo systemctl enable --now nvidia-persistenced",),
                root=True,
                docs="https://docs.nvidia.com/deploy/driver-persistence/",
            ),
            evidence=tuple(f"{format_gpu(gpu)}: persistence mode off, no display" for gpu in off),
        )


def _require_samples(facts: Facts) -> tuple[WatchedGpu, ...]:
    """The GPUs that were sampled often enough to judge."""
    gpus = [gpu for gpu in require(require_gpu_run(facts).gpus) if gpu.samples >= FEWEST_SAMPLES.value]
    if not gpus:
        raise NotApplicable(f"the run was too short: fewer than {FEWEST_SAMPLES.value} samples of its GPUs")
    return tuple(gpus)


@check("GPU028", causes=("GPU029",))
def clocks_hold_while_training(facts: Facts) -> Iterator[Finding]:
    for gpu in _require_samples(facts):
        for share, what, remedy in (
            (gpu.hot_percent, "heat", "Improve the airflow, check the fans, and lower the power limit a little."),
            (gpu.braked_percent, "the power supply", "Check the power cables, the supply and its redundancy."),
        ):
            if isinstance(share, int) and share >= HELD_BACK_PERCENT.value:
                yield Finding(
                    Severity.WARNING,
                    f"{what} held the clocks of {gpu.name} down in {share} % of the run",
                    Fix(remedy, ("nvidia-smi -q -d TEMPERATURE,POWER,PERFORMANCE",), where=find_driver_side(facts)),
                    subject=gpu.name,
                    evidence=(f"{gpu.samples} samples, {share} % with the clocks held down by {what}",),
                )


@check("GPU029")
def gpu_is_busy_while_training(facts: Facts) -> Iterator[Finding]:
    for gpu in _require_samples(facts):
        if require(gpu.utilization_percent) < BUSY_WHILE_TRAINING_PERCENT.value:
            yield Finding(
                Severity.NOTE,
                f"{gpu.name} was busy in {gpu.utilization_percent} % of the run",
                Fix(
                    "Give each step more work: a larger micro-batch, packing, longer sequences, or torch.compile.",
                    ("devkit finetune … --micro-batch 8 --packing --set compile=true",),
                    where=find_workload_side(facts),
                ),
                subject=gpu.name,
                evidence=(f"{gpu.samples} samples, utilization {gpu.utilization_percent} % on average",),
                confidence=Confidence.POSSIBLE,
            )


@check("GPU034")
def cpus_are_next_to_gpus(facts: Facts) -> Iterator[Finding]:
    allowed = require(require(facts.limits).numa_nodes)
    nodes = {gpu.address: gpu.numa_node for gpu in find_pci_gpus(facts) if isinstance(gpu.numa_node, int)}
    placed = [
        (gpu, nodes[str(health.pci_address)])
        for gpu, health in require_gpu_health(facts)
        if str(health.pci_address) in nodes
    ]
    if not placed:
        raise NotApplicable("the firmware does not say which NUMA node a GPU is on")
    apart = [(gpu, node) for gpu, node in placed if node not in allowed]
    if not apart or not allowed:
        return
    names = join_words(format_gpu(gpu) for gpu, _ in apart)
    here, there = (join_words(map(str, sorted(set(group)))) for group in (allowed, [node for _, node in apart]))
    yield Finding(
        Severity.WARNING,
        f"{names} {'is' if len(apart) == 1 else 'are'} on NUMA node {there}, and this process may only use CPUs of NUMA node"
        f" {here}: all data crosses between the nodes",
        Fix(
            "Give the job CPUs of the GPU's node, or the GPUs next to its CPUs: cpuset in Docker and Compose, --gpu-bind and"
            " --cpus-per-gpu in Slurm, the topology manager in Kubernetes.",
            ("nvidia-smi topo -m",),
            where=find_driver_side(facts),
        ),
        subject=names,
        evidence=(
            f"CPUs allowed on NUMA node {here}",
            *(f"{format_gpu(gpu)}: NUMA node {node}" for gpu, node in apart),
        ),
        confidence=Confidence.LIKELY,
    )
