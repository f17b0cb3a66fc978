"""A report of `devkit verify` as facts."""

from collections.abc import Mapping
from typing import Any

from devkit.facts.model import ProofReading, ProofStage, Verification

LOG_LINES = 40


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
    """The readings that the reason names: the report says of each that is not as expected "NAME is VALUE"."""
    reason = str(stage["reason"])
    wrong = tuple(
        ProofReading(name, str(stage["measured"].get(name, "")), str(expected))
        for name, expected in stage["expected"].items()
        if f"{name} is " in reason
    )
    return ProofStage(str(stage["name"]), str(stage["status"]), reason, wrong)
