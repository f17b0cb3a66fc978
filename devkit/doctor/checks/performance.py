"""Checks of what makes a working GPU slow: heat, power, link, clocks, and waking up."""

from collections.abc import Iterator

from devkit.doctor.applies import is_in_wsl, outside_of_containers, system_of
from devkit.doctor.gpus import is_busy, is_virtual, name_of, read_states, states_of
from devkit.doctor.limits import FAST_ENOUGH_SHARE, FULL_LANES_SHARE, USUAL_CLOCK_SHARE, USUAL_POWER_SHARE
from devkit.doctor.machine import driver_side
from devkit.doctor.model import Confidence, Finding, Fix, NotApplicable, Severity, check
from devkit.facts.model import Facts, Gpu, GpuHealth, Platform

_HELD_BACK = ("sw-power-cap", "hw-slowdown", "sw-thermal-slowdown", "hw-thermal-slowdown", "hw-power-brake")
_HEAT = ("hw-thermal-slowdown", "sw-thermal-slowdown")


def _reasons(health: GpuHealth) -> tuple[str, ...]:
    return health.clock_reasons if isinstance(health.clock_reasons, tuple) else ()


def _load(health: GpuHealth) -> str:
    return f"{health.utilisation_percent} % busy" if isinstance(health.utilisation_percent, int) else "load unknown"


@check(
    "GPU013",
    "No GPU slows down for heat",
    covers=("B09",),
    symptoms=("training is slow", "thermal throttling", "HW Thermal Slowdown: Active", "SW Thermal Slowdown: Active"),
)
def no_gpu_is_too_hot(facts: Facts) -> Iterator[Finding]:
    """No GPU lowers its clocks because of its temperature.

    Why it matters: a hot GPU computes at a fraction of its speed, without any error.
    How it is seen: NVML's reasons for the present clocks: the hardware's thermal slowdown at any time, the driver's
    under load only; and the temperature against the one at which the hardware slows down.
    Source: NVIDIA, NVML API reference, nvmlClocksEventReasons; NVIDIA/NVSentinel issue 890.
    """
    for gpu, health in read_states(facts, "clock_reasons"):
        reasons = _reasons(health)
        is_hot = _is_above_slowdown(health)
        if "hw-thermal-slowdown" in reasons or is_hot or ("sw-thermal-slowdown" in reasons and is_busy(health)):
            yield Finding(
                Severity.WARNING,
                f"{name_of(gpu)} slows down for heat{_degrees(health)}: work on it takes longer",
                Fix(
                    "Clear the way of the air, check that all fans turn, and lower the power limit until it stays cool:"
                    " the last tenth of the power costs little speed.",
                    (f"nvidia-smi -q -d TEMPERATURE,PERFORMANCE -i {gpu.index}",),
                    where=driver_side(facts),
                ),
                subject=name_of(gpu),
                evidence=(f"{name_of(gpu)}: clock reasons {', '.join(reasons) or 'none'}", _load(health)),
            )


def _is_above_slowdown(health: GpuHealth) -> bool:
    if not isinstance(health.temperature_c, int) or not isinstance(health.slowdown_c, int):
        return False
    return 0 < health.slowdown_c <= health.temperature_c


def _degrees(health: GpuHealth) -> str:
    if not isinstance(health.temperature_c, int):
        return ""
    bound = f" of {health.slowdown_c}" if isinstance(health.slowdown_c, int) else ""
    return f" ({health.temperature_c}{bound} °C)"


@check(
    "GPU014",
    "No GPU is braked by its power supply",
    covers=("B10",),
    symptoms=("HW Power Brake Slowdown: Active", "HW Slowdown: Active"),
)
def power_supply_suffices(facts: Facts) -> Iterator[Finding]:
    """No power supply or management controller tells a GPU to slow down.

    Why it matters: with the brake on a GPU runs at a few hundred MHz, far below what its power limit would allow.
    How it is seen: NVML's reasons for the present clocks: power brake, or a hardware slowdown that heat does not
    explain, while the GPU is not idle. The driver's own power cap is normal under load and is never reported.
    Source: NVIDIA, NVML API reference, nvmlClocksEventReasons; NVIDIA/NVSentinel issue 890.
    """
    for gpu, health in read_states(facts, "clock_reasons"):
        reasons = _reasons(health)
        is_braked = "hw-power-brake" in reasons
        is_unexplained = "hw-slowdown" in reasons and not any(reason in reasons for reason in _HEAT)
        if is_braked or (is_unexplained and "gpu-idle" not in reasons and not _is_above_slowdown(health)):
            yield Finding(
                Severity.WARNING,
                f"{name_of(gpu)} is slowed down by the {'power brake' if is_braked else 'hardware'}{_watts(health)}:"
                " the power supply, its cables or the server's management controller hold it back",
                Fix(
                    "Check both ends of the power cables, the supply's rating and redundancy, and the power and fan"
                    " settings of the server's management controller.",
                    (f"nvidia-smi -q -d POWER,PERFORMANCE -i {gpu.index}",),
                    where=driver_side(facts),
                ),
                subject=name_of(gpu),
                evidence=(f"{name_of(gpu)}: clock reasons {', '.join(reasons)}", _load(health)),
                confidence=Confidence.CERTAIN if is_braked else Confidence.LIKELY,
            )


def _watts(health: GpuHealth) -> str:
    if not isinstance(health.power_mw, int) or not isinstance(health.power_limit_mw, int):
        return ""
    return f" at {health.power_mw // 1000} of {health.power_limit_mw // 1000} W"


@check(
    "GPU015",
    "GPUs use all lanes of their PCIe slot",
    covers=("B11",),
    symptoms=("PCIe x4 instead of x16", "slow model loading", "downgraded PCIe link"),
)
def link_is_wide(facts: Facts) -> Iterator[Finding]:
    """Each GPU is connected by as many PCIe lanes as card and slot allow, and under load at full speed.

    Why it matters: loading a model, offloading and GPUs without NVLink take as much longer as lanes are missing.
    How it is seen: lanes in use against the most that NVML knows for this GPU in this slot. The generation is judged
    under load alone: at rest every GPU lowers it to save power. A virtual machine's view of the link is not judged.
    Source: NVIDIA, NVML API reference, nvmlDeviceGetMaxPcieLinkWidth; NVIDIA/NVSentinel issue 890; Syllo/nvtop issue 6.
    """
    states = [state for state in read_states(facts, "pcie_width") if not is_virtual(state[1])]
    if not states:
        raise NotApplicable("a virtual machine does not see the real link")
    for gpu, health in states:
        lanes, most = health.pcie_width, health.pcie_max_width
        if isinstance(lanes, int) and isinstance(most, int) and 0 < lanes < most:
            yield _narrow(facts, gpu, health, lanes=lanes, most=most)
        now, best = health.pcie_generation, health.pcie_max_generation
        if is_busy(health) and isinstance(now, int) and isinstance(best, int) and 0 < now < best:
            message = f"PCIe {now} under load, where PCIe {best} is possible"
            yield _slow_link(facts, gpu, health, message, Severity.WARNING)


def _narrow(facts: Facts, gpu: Gpu, health: GpuHealth, *, lanes: int, most: int) -> Finding:
    is_felt = is_busy(health) or lanes <= most * FULL_LANES_SHARE.value
    message = f"{lanes} of {most} PCIe lanes"
    return _slow_link(facts, gpu, health, message, Severity.WARNING if is_felt else Severity.NOTE)


def _slow_link(facts: Facts, gpu: Gpu, health: GpuHealth, message: str, severity: Severity) -> Finding:
    return Finding(
        severity,
        f"{name_of(gpu)} runs on {message}: loading and offloading take longer",
        Fix(
            "Reseat the card; check riser, slot (another card may share its lanes) and the firmware's settings for the"
            " slot. Measure again while a program runs.",
            (f"nvidia-smi --query-gpu=pcie.link.width.current,pcie.link.gen.current --format=csv -i {gpu.index} -l 1",),
            where=driver_side(facts),
        ),
        subject=name_of(gpu),
        evidence=(
            f"lanes {health.pcie_width} of {health.pcie_max_width},"
            f" generation {health.pcie_generation} of {health.pcie_max_generation}",
            _load(health),
        ),
        confidence=Confidence.LIKELY if is_busy(health) else Confidence.POSSIBLE,
    )


@check(
    "GPU016",
    "Clocks and power limits are not held down",
    covers=("B12",),
    symptoms=("SM clock stuck", "Applications Clocks", "nvidia-smi -lgc", "GPU clock does not rise"),
)
def clocks_are_free(facts: Facts) -> Iterator[Finding]:
    """Nobody has set a GPU's clocks or power limit far below what it does by default.

    Why it matters: such a setting stays until a reboot, and everybody after wonders why the GPU is slow.
    How it is seen: application clocks and power limit against the defaults; and under load, a clock below half of the
    highest one though neither heat nor power holds it back, which is what locked clocks look like: NVML does not tell.
    Source: nvidia-smi(1), --applications-clocks, --lock-gpu-clocks and --power-limit.
    """
    for gpu, health in states_of(facts):
        set_low = _below(health.application_clock_mhz, health.default_application_clock_mhz, USUAL_CLOCK_SHARE.value)
        stuck = _is_stuck(health)
        if set_low or stuck:
            mhz = health.application_clock_mhz if set_low else health.sm_clock_mhz
            best = health.default_application_clock_mhz if set_low else health.sm_max_clock_mhz
            yield Finding(
                Severity.WARNING,
                f"{name_of(gpu)} is held at {mhz} of {best} MHz, without heat or power as a reason",
                Fix(
                    "Give the clocks free again, unless somebody locked them on purpose.",
                    (f"sudo nvidia-smi -i {gpu.index} -rgc", f"sudo nvidia-smi -i {gpu.index} -rac"),
                    where=driver_side(facts),
                    root=True,
                ),
                subject=name_of(gpu),
                evidence=(
                    f"SM clock {health.sm_clock_mhz} of {health.sm_max_clock_mhz} MHz, application clock"
                    f" {health.application_clock_mhz} of {health.default_application_clock_mhz} MHz",
                    _load(health),
                ),
                confidence=Confidence.LIKELY if set_low else Confidence.POSSIBLE,
            )
        if _below(health.power_limit_mw, health.default_power_limit_mw, USUAL_POWER_SHARE.value):
            yield _capped(facts, gpu, health)


def _below(value: object, usual: object, share: float) -> bool:
    return isinstance(value, int) and isinstance(usual, int) and 0 < value < usual * share


def _is_stuck(health: GpuHealth) -> bool:
    is_free = not any(reason in _reasons(health) for reason in (*_HELD_BACK, "gpu-idle"))
    is_known = isinstance(health.clock_reasons, tuple)
    slow = _below(health.sm_clock_mhz, health.sm_max_clock_mhz, FAST_ENOUGH_SHARE.value)
    return is_known and is_free and slow and is_busy(health)


def _capped(facts: Facts, gpu: Gpu, health: GpuHealth) -> Finding:
    return Finding(
        Severity.NOTE,
        f"{name_of(gpu)} has a power limit far below its default{_watts(health)}",
        Fix(
            "Nothing, if that is meant. The default comes back with a reboot, or by nvidia-smi -pl.",
            (f"nvidia-smi -q -d POWER -i {gpu.index}",),
            where=driver_side(facts),
        ),
        subject=name_of(gpu),
        evidence=(f"limit {health.power_limit_mw} mW, default {health.default_power_limit_mw} mW",),
    )


@check(
    "GPU017",
    "The driver stays awake between programs",
    covers=("A17",),
    symptoms=("first CUDA call takes long", "nvidia-smi is slow to start", "Persistence-M: Off"),
)
def persistence_is_on(facts: Facts) -> Iterator[Finding]:
    """Persistence mode is on where no display keeps the driver awake. This is a note: programs run either way.

    Why it matters: without it the driver lets go of an idle GPU. The next program waits for seconds, on servers with
    many GPUs for half a minute, and clock and power settings are lost each time.
    How it is seen: NVML's persistence mode and display state, on Linux hosts.
    Source: NVIDIA, Driver Persistence; NVIDIA, driver README, nvidia-persistenced.
    """
    outside_of_containers(facts)
    if is_in_wsl(facts) or system_of(facts).platform is not Platform.LINUX:
        raise NotApplicable("only Linux lets go of an idle GPU")
    off = [gpu for gpu, health in read_states(facts, "persistence") if _falls_asleep(health)]
    if off:
        yield Finding(
            Severity.NOTE,
            f"persistence mode is off on {', '.join(map(name_of, off))}: the first CUDA call after a pause waits for"
            " the driver to start anew",
            Fix(
                "Let the persistence daemon keep the driver awake.",
                ("sudo systemctl enable --now nvidia-persistenced",),
                root=True,
                docs="https://docs.nvidia.com/deploy/driver-persistence/",
            ),
            evidence=tuple(f"{name_of(gpu)}: persistence mode off, no display" for gpu in off),
        )


def _falls_asleep(health: GpuHealth) -> bool:
    return health.persistence is False and health.display_active is False
