"""Why a stage of `devkit verify` failed: by what the stage measured, then by known error texts."""

import re
from dataclasses import dataclass
from functools import cache

from devkit.facts.decode import decode_fields
from devkit.formats.shipped import load
from devkit.workload.proof.stages import StageResult


@dataclass(frozen=True)
class StageCause:
    """The likely cause of a failed stage, and the code of the check that explains it.

    A row of the table holds where `words`, a regular expression, match the reason of `stage`, or of any stage for "".
    """

    code: str
    summary: str
    stage: str = ""
    words: str = ""


@cache
def load_causes() -> tuple[StageCause, ...]:
    """Return the rows of stage_causes.toml."""
    rows = load("devkit.verify", "stage_causes")["causes"]
    return tuple(StageCause(**decode_fields(row, StageCause)) for row in rows)


def find_cause(stage: StageResult, log: tuple[str, ...]) -> StageCause | None:
    """Find the cause of a failed stage by its reason, then by `log`, the last output of the proof; None if unknown."""
    from devkit.doctor.known_errors import find_known_errors  # it knows all checks

    for row in load_causes():
        if row.stage in ("", stage.name) and re.search(row.words, stage.reason, re.IGNORECASE):
            return row
    known = (match for text in (stage.reason, "\n".join(log)) for match in find_known_errors(text, is_ours=True))
    return next((StageCause(match.code, match.cause.rstrip(".")) for match in known), None)
