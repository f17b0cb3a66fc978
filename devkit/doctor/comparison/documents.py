"""Documents that can be compared: their kind, their form, and the hardware that they are of."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from devkit.facts.store import FACTS_SCHEMA
from devkit.text import join_words

MAX_SCHEMA_LENGTH = 80
"""Characters of an unknown schema's name that a message repeats."""
MIN_SHARE = 10
"""Hardware of fewer than one in ten nodes is no group of its own, but a few nodes that lost something."""
MUCH_LARGER = 3


class ReportKind(StrEnum):
    """A kind of document, by its schema; only documents of one kind are compared. A newer schema is unknown here."""

    FACTS = FACTS_SCHEMA
    DOCTOR = "devkit.doctor/1"
    VERIFY = "devkit.verify/1"

    @property
    def plural(self) -> str:
        """The name of several documents of the kind."""
        return _PLURALS[self]


_PLURALS = {
    ReportKind.FACTS: "saved facts",
    ReportKind.DOCTOR: "reports of devkit doctor",
    ReportKind.VERIFY: "reports of devkit verify",
}


class InvalidReport(ValueError):  # noqa: N818 - named for the document, as a user would say it
    """A document that cannot be compared; the text says why."""


def parse_report_kind(document: object) -> ReportKind:
    """Return the kind of a document.

    Raises:
        InvalidReport: It names no schema, or one that cannot be compared.
    """
    if not isinstance(document, dict):
        raise InvalidReport("not a JSON object")
    schema = document.get("schema")
    if schema in tuple(ReportKind):
        return ReportKind(schema)
    if not isinstance(schema, str):
        raise InvalidReport("it names no schema, so it is no document of devkit")
    shown = schema if len(schema) <= MAX_SCHEMA_LENGTH else f"{schema[: MAX_SCHEMA_LENGTH - 1]}…"
    raise InvalidReport(f"its schema is {shown!r}; this devkit compares {', '.join(ReportKind)}")


_ROWS: dict[ReportKind, tuple[str, str, str, type | None]] = {
    ReportKind.DOCTOR: ("outcomes", "code", "findings", list),
    ReportKind.VERIFY: ("stages", "name", "measured", dict),
}
"""By kind: the list of rows in a report, the name of a row, and a field of a row with its type."""


def validate_form(document: Mapping[str, Any], kind: ReportKind) -> None:
    """Check that a report has the fields that the comparison reads.

    Facts are not checked here: `devkit.facts.store` reads them completely.

    Raises:
        InvalidReport: A field is missing or has another type.
    """
    if kind is ReportKind.FACTS:
        return
    field, name, inner, inner_type = _ROWS[kind]
    rows = document.get(field)
    if not isinstance(rows, list):
        raise InvalidReport(f"{field}: expected a list")
    for place, row in enumerate(rows):
        if not isinstance(row, dict) or not isinstance(row.get(name), str) or not isinstance(row.get("status"), str):
            raise InvalidReport(f"{field}[{place}]: expected an object with {name} and status")
    if kind is ReportKind.VERIFY:
        for part in ("device", "environment"):
            if not isinstance(document.get(part), dict):
                raise InvalidReport(f"{part}: expected an object")
    if inner_type is None:
        return
    for row in rows:
        if not isinstance(row.get(inner), inner_type):
            raise InvalidReport(f"{row.get('code') or row.get('name')}: {inner} is missing")
        if inner_type is list and not all(isinstance(each, dict) for each in row[inner]):
            raise InvalidReport(f"{row.get('code')}: {inner} holds something other than a finding")


@dataclass(frozen=True)
class HardwareClass:
    """The GPUs of a node by model, with the number of each, and the side that it was examined from."""

    models: tuple[tuple[str, int], ...]
    side: str = ""

    @property
    def label(self) -> str:
        """A phrase such as 8 x NVIDIA H100 80GB HBM3, in docker."""
        if self == ANY_HARDWARE:
            return ""
        gpus = join_words(f"{count} x {name}" for name, count in self.models) or "no GPU"
        return f"{gpus}, {self.side}" if self.side else gpus

    def resembles(self, other: "HardwareClass") -> bool:
        """Return True for a model in common, examined from the same side, whatever the number."""
        return self.side == other.side and bool(dict(self.models).keys() & dict(other.models).keys())


ANY_HARDWARE = HardwareClass((("any machine", 0),))
"""The hardware of reports that do not say what machine they are of."""


def find_hardware_class(document: Mapping[str, Any], kind: ReportKind) -> HardwareClass:
    """Return the hardware that a document is of. Its form may be anything; facts are validated after this."""
    match kind:
        case ReportKind.FACTS:
            container = _get_object(document, "container")
            platform = _get_object(document, "system").get("platform")
            where = [str(platform)] * (platform not in (None, "linux"))
            where += [f"in {container.get('kind', 'a container')}"] * bool(container)
            nvml, driver, amd = (_get_object(document, name) for name in ("nvml", "driver", "amd"))
            found = Counter(str(gpu.get("name", "GPU that does not answer")) for gpu in _get_objects(nvml, "gpus"))
            if not found:
                found.update(f"GPU {gpu.get('device_id', '')} without NVML" for gpu in _get_objects(driver, "pci_gpus"))
            found.update(str(gpu.get("name") or gpu.get("target")) for gpu in _get_objects(amd, "gpus"))
            models = sorted(found.items(), key=lambda pair: (-pair[1], pair[0]))
            return HardwareClass(tuple(models), " ".join(where))
        case ReportKind.VERIFY:
            device = document["device"]
            name, count = str(device.get("name", device.get("kind", "unknown"))), device.get("count")
            model = (name, count if isinstance(count, int) and count > 0 else 1)
            return HardwareClass((model,), str(document.get("where", "")))
        case ReportKind.DOCTOR:
            return ANY_HARDWARE


def _get_object(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = document.get(name)
    return value if isinstance(value, dict) else {}


def _get_objects(document: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    value = document.get(name)
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def assign_groups(sizes: Mapping[HardwareClass, int]) -> dict[HardwareClass, HardwareClass]:
    """Assign each hardware class to the group that its nodes are compared in.

    Args:
        sizes: The number of nodes of each class.

    Returns:
        By class, the class itself, or the nearest one where its nodes are too few for a group.
    """
    total = sum(sizes.values())

    def is_group(hardware: HardwareClass) -> bool:
        size = sizes[hardware]
        if size < 2 or size * MIN_SHARE < total:
            return False
        others = (other for other in sizes if other != hardware and hardware.resembles(other))
        return not any(sizes[other] >= MUCH_LARGER * size for other in others)

    groups = [hardware for hardware in sizes if is_group(hardware)] or [max(sizes, key=lambda each: sizes[each])]

    def find_nearest(hardware: HardwareClass) -> HardwareClass:
        return max(groups, key=lambda other: (hardware.resembles(other), hardware.side == other.side, sizes[other]))

    return {hardware: hardware if hardware in groups else find_nearest(hardware) for hardware in sizes}
