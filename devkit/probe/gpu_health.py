"""A GPU's state in words, out of the numbers that NVML answers with."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from devkit.facts.model import GpuHealth, GpuProcess
from devkit.facts.values import Unknown

T = TypeVar("T")

CORRUPTED_INFOROM = 14
NOT_ASKED = Unknown("NVML was not asked")
DOES_NOT_APPLY = Unknown("not asked, because it does not apply to this GPU")

COMPUTE_MODES = ("default", "exclusive-thread", "prohibited", "exclusive-process")
VIRTUALISATION_MODES = ("none", "passthrough", "vgpu", "host-vgpu", "host-vsga")
LICENCE_STATES = (
    "unknown",
    "uninitialised",
    "unlicensed-unrestricted",
    "unlicensed-restricted",
    "unlicensed",
    "licensed",
)
FABRIC_STATES = ("not-supported", "not-started", "in-progress", "completed")
RECOVERY_ACTIONS = (
    "none",
    "gpu-reset",
    "node-reboot",
    "drain-p2p",
    "drain-and-reset",
    "recover-imex-domain",
    "bus-reset",
    "system-reboot",
)
BRANDS = (
    "unknown",
    "quadro",
    "tesla",
    "nvs",
    "grid",
    "geforce",
    "titan",
    "vapps",
    "vpc",
    "vcs",
    "vws",
    "cloud-gaming",
    "quadro-rtx",
    "nvidia-rtx",
    "nvidia",
    "geforce-rtx",
    "titan-rtx",
)
CLOCK_REASONS = (
    "gpu-idle",
    "application-clocks",
    "sw-power-cap",
    "hw-slowdown",
    "sync-boost",
    "sw-thermal-slowdown",
    "hw-thermal-slowdown",
    "hw-power-brake",
    "display-clock",
)
"""By bit, and the others by number, as nvml.h defines them."""


def health_of(said: Mapping[str, Any] | None) -> GpuHealth | Unknown:
    """The health in what the NVML child printed of one GPU; unknown where it printed none."""
    if not said:
        return NOT_ASKED
    remap_pending, remap_failed = (reading(said, "remapped_rows", _flag_at(place)) for place in (2, 3))
    return GpuHealth(
        pci_address=reading(said, "pci", sysfs_address),
        persistence=reading(said, "persistence", bool),
        compute_mode=reading(said, "compute_mode", _named(COMPUTE_MODES)),
        display_active=reading(said, "display_active", bool),
        ecc_enabled=reading(said, "ecc", _flag_at(0)),
        ecc_uncorrected=reading(said, "ecc_uncorrected", int),
        remap_pending=remap_pending,
        remap_failed=remap_failed,
        retirement_pending=reading(said, "retirement_pending", bool),
        clock_reasons=reading(said, "clock_reasons", _clock_reasons),
        temperature_c=reading(said, "temperature", int),
        slowdown_c=reading(said, "slowdown", int),
        power_mw=reading(said, "power", int),
        power_limit_mw=reading(said, "power_limit", int),
        default_power_limit_mw=reading(said, "default_power_limit", int),
        utilisation_percent=reading(said, "utilisation", int),
        pcie_width=reading(said, "pcie_width", int),
        pcie_max_width=reading(said, "pcie_max_width", int),
        pcie_generation=reading(said, "pcie_generation", int),
        pcie_max_generation=reading(said, "pcie_max_generation", int),
        sm_clock_mhz=reading(said, "sm_clock", int),
        sm_max_clock_mhz=reading(said, "sm_max_clock", int),
        application_clock_mhz=reading(said, "application_clock", int),
        default_application_clock_mhz=reading(said, "default_application_clock", int),
        processes=reading(said, "processes", _processes),
        virtualisation=reading(said, "virtualisation", _named(VIRTUALISATION_MODES)),
        licence=reading(said, "licence", _named(LICENCE_STATES)),
        fabric_state=reading(said, "fabric", lambda pair: _named(FABRIC_STATES)(pair[0])),
        fabric_status=reading(said, "fabric", lambda pair: int(pair[1])),
        inforom_ok=_inforom_ok(said),
        brand=reading(said, "brand", _named(BRANDS)),
        recovery_action=reading(said, "recovery_action", _named(RECOVERY_ACTIONS)),
    )


def sysfs_address(bus_id: str) -> str:
    """00000000:01:00.0, as NVML writes it, as sysfs does: 0000:01:00.0."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{int(domain or '0', 16):04x}:{rest}"


def reading(said: Mapping[str, Any], name: str, meaning: Callable[[Any], T]) -> T | Unknown:
    """One reading, understood. What does not have the expected shape is unknown, not an error."""
    answer = said.get(name)
    if not isinstance(answer, Mapping):
        return DOES_NOT_APPLY
    if "value" not in answer:
        return Unknown(str(answer.get("unknown") or "NVML did not say"))
    try:
        return meaning(answer["value"])
    except (TypeError, ValueError, LookupError, AttributeError, OverflowError):
        return Unknown(f"NVML answered {answer['value']!r}")


def _named(names: tuple[str, ...]) -> Callable[[int], str]:
    return lambda number: names[number] if 0 <= number < len(names) else f"{number}"


def _flag_at(place: int) -> Callable[[Any], bool]:
    return lambda values: bool(values[place])


def _clock_reasons(bits: int) -> tuple[str, ...]:
    return tuple(name for bit, name in enumerate(CLOCK_REASONS) if bits >> bit & 1)


def _processes(entries: list[list[Any]]) -> tuple[GpuProcess, ...]:
    hidden = Unknown("the driver does not say")
    return tuple(GpuProcess(int(pid), str(name), hidden if held is None else int(held)) for pid, name, held in entries)


def _inforom_ok(said: Mapping[str, Any]) -> bool | Unknown:
    """Corrupted when any call ends with that very error; good when the checksum can be read."""
    if any(isinstance(reading, Mapping) and reading.get("code") == CORRUPTED_INFOROM for reading in said.values()):
        return False
    return reading(said, "inforom", lambda checksum: True)
