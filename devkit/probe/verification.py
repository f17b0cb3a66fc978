"""A report of `devkit verify` as facts."""

import re
from collections.abc import Mapping
from typing import Any

from devkit.facts.model import ProofReading, ProofStage, Verification

LOG_LINES = 40

_NOT_JUDGED = re.compile(r"(\S+) to (\S+); data sheet \S+, not judged: .*")


def verification_of(document: Mapping[str, Any]) -> Verification:
    """The facts in a devkit.verify/1 document, which was read as one before."""
    return Verification(
        verdict=str(document["verdict"]),
        where=str(document["where"]),
        device=str(document["device"].get("name") or document["device"].get("kind", "unknown")),
        taken_at=str(document.get("taken_at", "")),
        stages=tuple(_stage(stage) for stage in document["stages"]),
        log=tuple(str(line) for line in document.get("log", ()))[-LOG_LINES:],
    )


def _stage(stage: Mapping[str, Any]) -> ProofStage:
    """With the readings that the reason names, as "NAME is VALUE", and those that were off and not judged."""
    reason = str(stage["reason"])
    readings = (
        ProofReading(name, str(stage["measured"].get(name, "")), str(expected))
        for name, expected in stage["expected"].items()
    )
    wrong = tuple(each for each in readings if f"{each.name} is " in reason or _is_off(each))
    return ProofStage(str(stage["name"]), str(stage["status"]), reason, wrong)


def _is_off(reading: ProofReading) -> bool:
    """Whether a rate is outside of a range that the proof showed and did not judge."""
    found = _NOT_JUDGED.fullmatch(reading.expected)
    try:
        return found is not None and not float(found[1]) <= float(reading.measured) <= float(found[2])
    except ValueError:
        return False
