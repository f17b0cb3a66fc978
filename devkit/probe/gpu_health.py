"""A GPU's state in words, out of the numbers that NVML answers with."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from devkit.facts.model import GpuHealth, GpuProcess
from devkit.facts.values import Unknown

T = TypeVar("T")

CORRUPTED_INFOROM = 14
NOT_ASKED = Unknown("NVML was not asked")

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
    remap_pending, remap_failed = (_read(said, "remapped_rows", _flag_at(place)) for place in (2, 3))
    return GpuHealth(
        pci_address=_read(said, "pci", sysfs_address),
        persistence=_read(said, "persistence", bool),
        compute_mode=_read(said, "compute_mode", _named(COMPUTE_MODES)),
        display_active=_read(said, "display_active", bool),
        ecc_enabled=_read(said, "ecc", _flag_at(0)),
        ecc_uncorrected=_read(said, "ecc_uncorrected", int),
        remap_pending=remap_pending,
        remap_failed=remap_failed,
        retirement_pending=_read(said, "retirement_pending", bool),
        clock_reasons=_read(said, "clock_reasons", _clock_reasons),
        temperature_c=_read(said, "temperature", int),
        slowdown_c=_read(said, "slowdown", int),
        power_mw=_read(said, "power", int),
        power_limit_mw=_read(said, "power_limit", int),
        default_power_limit_mw=_read(said, "default_power_limit", int),
        utilisation_percent=_read(said, "utilisation", int),
        pcie_width=_read(said, "pcie_width", int),
        pcie_max_width=_read(said, "pcie_max_width", int),
        pcie_generation=_read(said, "pcie_generation", int),
        pcie_max_generation=_read(said, "pcie_max_generation", int),
        sm_clock_mhz=_read(said, "sm_clock", int),
        sm_max_clock_mhz=_read(said, "sm_max_clock", int),
        application_clock_mhz=_read(said, "application_clock", int),
        default_application_clock_mhz=_read(said, "default_application_clock", int),
        processes=_read(said, "processes", _processes),
        virtualisation=_read(said, "virtualisation", _named(VIRTUALISATION_MODES)),
        licence=_read(said, "licence", _named(LICENCE_STATES)),
        fabric_state=_read(said, "fabric", lambda pair: _named(FABRIC_STATES)(pair[0])),
        fabric_status=_read(said, "fabric", lambda pair: int(pair[1])),
        inforom_ok=_inforom_ok(said),
        brand=_read(said, "brand", _named(BRANDS)),
        recovery_action=_read(said, "recovery_action", _named(RECOVERY_ACTIONS)),
    )


def sysfs_address(bus_id: str) -> str:
    """00000000:01:00.0, as NVML writes it, as sysfs does: 0000:01:00.0."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{int(domain or '0', 16):04x}:{rest}"


def _read(said: Mapping[str, Any], name: str, meaning: Callable[[Any], T]) -> T | Unknown:
    """One reading, understood. What does not have the expected shape is unknown, not an error."""
    reading = said.get(name)
    if reading is None:
        return NOT_ASKED
    if "value" not in reading:
        return Unknown(str(reading.get("unknown", "NVML did not say")))
    try:
        return meaning(reading["value"])
    except (TypeError, ValueError, LookupError):
        return Unknown(f"NVML answered {reading['value']!r}")


def _named(names: tuple[str, ...]) -> Callable[[int], str]:
    return lambda number: names[number] if 0 <= number < len(names) else f"{number}"


def _flag_at(place: int) -> Callable[[Any], bool]:
    return lambda values: bool(values[place])


def _clock_reasons(bits: int) -> tuple[str, ...]:
    return tuple(name for bit, name in enumerate(CLOCK_REASONS) if bits >> bit & 1)


def _processes(entries: list[list[Any]]) -> tuple[GpuProcess, ...]:
    hidden = Unknown("the driver does not say")
    return tuple(GpuProcess(pid, name, hidden if held is None else held) for pid, name, held in entries)


def _inforom_ok(said: Mapping[str, Any]) -> bool | Unknown:
    """Corrupted when any call ends with that very error; good when the checksum can be read."""
    if any(isinstance(reading, Mapping) and reading.get("code") == CORRUPTED_INFOROM for reading in said.values()):
        return False
    return _read(said, "inforom", lambda checksum: True)
