"""Which machines are of one make: only those have anything in common that one of them could lack."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from devkit.doctor.comparing.kinds import Kind
from devkit.facts.record import record
from devkit.text import listed

SMALLEST_SHARE = 10
"""A make that fewer than one in ten nodes are of is no make of its own, but a few nodes that lost something."""
MUCH_LARGER = 3


@record
class Make:
    """The GPUs of a node by model, with how many of each, and where it was looked at from."""

    models: tuple[tuple[str, int], ...]
    side: str = ""

    @property
    def label(self) -> str:
        """In words: 8 x NVIDIA H100 80GB HBM3, in docker."""
        if self == EVERY:
            return ""
        gpus = listed(f"{count} x {name}" for name, count in self.models) or "no GPU"
        return f"{gpus}, {self.side}" if self.side else gpus

    def resembles(self, other: "Make") -> bool:
        """A model in common, looked at from the same side, whatever the number."""
        return self.side == other.side and bool(dict(self.models).keys() & dict(other.models).keys())


EVERY = Make((("any machine", 0),))
"""The make of reports that do not say what machine they are of."""


def make_of(document: Mapping[str, Any], kind: Kind) -> Make:
    """The make of the machine that a document is of. Its form may be anything; facts are checked after this."""
    match kind:
        case Kind.FACTS:
            return Make(_models(document), _side(document))
        case Kind.VERIFY:
            return Make(_device(document["device"]), str(document.get("where", "")))
        case Kind.DOCTOR | Kind.VERIFY_CHECK:
            return EVERY


def _models(document: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    nvml, driver, amd = (_object(document.get(name)) for name in ("nvml", "driver", "amd"))
    found = Counter(str(gpu.get("name", "GPU that does not answer")) for gpu in _objects(nvml.get("gpus")))
    if not found:
        found.update(f"GPU {gpu.get('device_id', '')} without NVML" for gpu in _objects(driver.get("pci_gpus")))
    found.update(str(gpu.get("name") or gpu.get("target")) for gpu in _objects(amd.get("gpus")))
    return tuple(sorted(found.items(), key=lambda pair: (-pair[1], pair[0])))


def _side(document: Mapping[str, Any]) -> str:
    container = _object(document.get("container"))
    platform = _object(document.get("system")).get("platform")
    where = [str(platform)] * (platform not in (None, "linux"))
    return " ".join([*where, *([f"in {container.get('kind', 'a container')}"] if container else [])])


def _device(device: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    name, count = str(device.get("name", device.get("kind", "unknown"))), device.get("count")
    return ((name, count if isinstance(count, int) and count > 0 else 1),)


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _objects(value: object) -> list[dict[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def settled(sizes: Mapping[Make, int]) -> dict[Make, Make]:
    """For each make the one whose group its nodes are compared in: itself, or where they are few, the nearest."""
    total = sum(sizes.values())
    own = [make for make in sizes if _stands_alone(make, sizes, total)]
    own = own or [max(sizes, key=lambda make: sizes[make])]
    return {make: make if make in own else _nearest(make, own, sizes) for make in sizes}


def _stands_alone(make: Make, sizes: Mapping[Make, int], total: int) -> bool:
    size = sizes[make]
    if size < 2 or size * SMALLEST_SHARE < total:
        return False
    return not any(sizes[other] >= MUCH_LARGER * size and make.resembles(other) for other in sizes if other != make)


def _nearest(make: Make, own: list[Make], sizes: Mapping[Make, int]) -> Make:
    return max(own, key=lambda other: (make.resembles(other), make.side == other.side, sizes[other]))
