"""Why a stage of `devkit verify` failed: by what the stage measured, then by known error texts."""

import re
from dataclasses import dataclass
from functools import cache

from devkit.facts.decode import decode_fields
from devkit.formats.shipped import load
from devkit.workload.proof.stages import StageResult


@dataclass(frozen=True)
class StageCause:
    """The likely cause of a failed stage, and what to do about it: a sentence or "", and commands."""

    summary: str
    advice: str
    commands: tuple[str, ...]


@dataclass(frozen=True)
class StageRow:
    """One row: a reason that matches `words` (a regular expression) at `stage`, any of them for "", leads to a check."""

    code: str
    summary: str
    words: str
    stage: str = ""


@cache
def load_rows() -> tuple[StageRow, ...]:
    """Return the rows of stage_causes.toml."""
    return tuple(StageRow(**decode_fields(row, StageRow)) for row in load("devkit.verify", "stage_causes")["causes"])


def find_cause(stage: StageResult, log: tuple[str, ...]) -> StageCause | None:
    """Find the cause of a failed stage by its reason, then by `log`, the last output of the proof; None if unknown."""
    from devkit.doctor.known_errors import find_known_errors  # it knows all checks

    for row in load_rows():
        if row.stage in ("", stage.name) and re.search(row.words, stage.reason, re.IGNORECASE):
            return StageCause(row.summary, "", (f"devkit explain {row.code}",))
    known = (match for text in (stage.reason, "\n".join(log)) for match in find_known_errors(text, is_ours=True))
    return next((StageCause(each.cause.rstrip("."), each.fix.summary, each.fix.commands) for each in known), None)
