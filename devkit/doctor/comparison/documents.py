"""Which machines are of one make: only those have anything in common that one of them could lack."""

from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from devkit.facts.store import FACTS_SCHEMA as FACTS_SCHEMA
from devkit.facts.values import record
from devkit.text import join_words

# Which documents can be compared, and with which: only those of one kind.

LONGEST_SCHEMA = 80
"""Characters of an unknown schema's name that a message repeats."""


class ReportKind(StrEnum):
    """A kind of document, by its schema. A newer schema is another kind, and unknown here."""

    FACTS = FACTS_SCHEMA
    DOCTOR = "devkit.doctor/1"
    VERIFY = "devkit.verify/1"
    VERIFY_CHECK = "devkit.verify-check/1"

    @property
    def plural(self) -> str:
        """What several documents of the kind are called."""
        return _PLURALS[self]


_PLURALS = {
    ReportKind.FACTS: "saved facts",
    ReportKind.DOCTOR: "reports of devkit doctor",
    ReportKind.VERIFY: "reports of devkit verify",
    ReportKind.VERIFY_CHECK: "checks of reports of devkit verify",
}


class InvalidReport(ValueError):  # noqa: N818 - named for what was read, as a user would say it
    """A document that cannot be compared; the text says why."""


def parse_report_kind(document: object) -> ReportKind:
    """The kind of a document. Raises WrongReport."""
    if not isinstance(document, dict):
        raise InvalidReport("not a JSON object")
    schema = document.get("schema")
    if schema in tuple(ReportKind):
        return ReportKind(schema)
    if not isinstance(schema, str):
        raise InvalidReport("it names no schema, so it is no document of devkit")
    shown = schema if len(schema) <= LONGEST_SCHEMA else f"{schema[: LONGEST_SCHEMA - 1]}…"
    raise InvalidReport(f"its schema is {shown!r}; this devkit compares {', '.join(ReportKind)}")


def validate_form(document: Mapping[str, Any], kind: ReportKind) -> None:
    """Raises WrongReport where a report is not what its schema promises, as far as comparing reads it.

    Facts are not looked at: `devkit.facts.store` reads them whole.
    """
    if kind is ReportKind.FACTS:
        return
    lists = {
        ReportKind.DOCTOR: ("outcomes", "code"),
        ReportKind.VERIFY: ("stages", "name"),
        ReportKind.VERIFY_CHECK: ("points", "name"),
    }
    field, name = lists[kind]
    rows = document.get(field)
    if not isinstance(rows, list):
        raise InvalidReport(f"{field}: expected a list")
    for place, row in enumerate(rows):
        if not isinstance(row, dict) or not isinstance(row.get(name), str) or not isinstance(row.get("status"), str):
            raise InvalidReport(f"{field}[{place}]: expected an object with {name} and status")
    _check_parts(document, rows, kind)


def _check_parts(document: Mapping[str, Any], rows: list[dict[str, Any]], kind: ReportKind) -> None:
    if kind is ReportKind.VERIFY:
        for field in ("device", "environment"):
            if not isinstance(document.get(field), dict):
                raise InvalidReport(f"{field}: expected an object")
    inner = {ReportKind.DOCTOR: ("findings", list), ReportKind.VERIFY: ("measured", dict)}.get(kind)
    for row in rows if inner else ():
        name, wanted = inner  # type: ignore[misc]  # the loop is empty without
        if not isinstance(row.get(name), wanted):
            raise InvalidReport(f"{row.get('code') or row.get('name')}: {name} is missing")
        if wanted is list and not all(isinstance(each, dict) for each in row[name]):
            raise InvalidReport(f"{row.get('code')}: {name} holds what is no finding")


SMALLEST_SHARE = 10
"""A make that fewer than one in ten nodes are of is no make of its own, but a few nodes that lost something."""
MUCH_LARGER = 3


@record
class HardwareClass:
    """The GPUs of a node by model, with how many of each, and where it was looked at from."""

    models: tuple[tuple[str, int], ...]
    side: str = ""

    @property
    def label(self) -> str:
        """In words: 8 x NVIDIA H100 80GB HBM3, in docker."""
        if self == ANY_HARDWARE:
            return ""
        gpus = join_words(f"{count} x {name}" for name, count in self.models) or "no GPU"
        return f"{gpus}, {self.side}" if self.side else gpus

    def resembles(self, other: "HardwareClass") -> bool:
        """A model in common, looked at from the same side, whatever the number."""
        return self.side == other.side and bool(dict(self.models).keys() & dict(other.models).keys())


ANY_HARDWARE = HardwareClass((("any machine", 0),))
"""The make of reports that do not say what machine they are of."""


def find_hardware_class(document: Mapping[str, Any], kind: ReportKind) -> HardwareClass:
    """The make of the machine that a document is of. Its form may be anything; facts are checked after this."""
    match kind:
        case ReportKind.FACTS:
            return HardwareClass(_models(document), _side(document))
        case ReportKind.VERIFY:
            return HardwareClass(_device(document["device"]), str(document.get("where", "")))
        case ReportKind.DOCTOR | ReportKind.VERIFY_CHECK:
            return ANY_HARDWARE


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


def assign_groups(sizes: Mapping[HardwareClass, int]) -> dict[HardwareClass, HardwareClass]:
    """For each make the one whose group its nodes are compared in: itself, or where they are few, the nearest."""
    total = sum(sizes.values())
    own = [make for make in sizes if _stands_alone(make, sizes, total)]
    own = own or [max(sizes, key=lambda make: sizes[make])]
    return {make: make if make in own else _nearest(make, own, sizes) for make in sizes}


def _stands_alone(make: HardwareClass, sizes: Mapping[HardwareClass, int], total: int) -> bool:
    size = sizes[make]
    if size < 2 or size * SMALLEST_SHARE < total:
        return False
    return not any(sizes[other] >= MUCH_LARGER * size and make.resembles(other) for other in sizes if other != make)


def _nearest(make: HardwareClass, own: list[HardwareClass], sizes: Mapping[HardwareClass, int]) -> HardwareClass:
    return max(own, key=lambda other: (make.resembles(other), make.side == other.side, sizes[other]))
