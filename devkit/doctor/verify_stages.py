"""The check that explains a failed stage of `devkit verify`, by a table of stages, reasons and codes.

Known error texts, as `devkit explain` has them, come before what is only likely at a stage.
"""

import re
from dataclasses import dataclass
from functools import cache

from devkit.doctor.model import Confidence
from devkit.facts.decode import decode_fields
from devkit.facts.model import ProofStage, Verification
from devkit.formats.shipped import load


@dataclass(frozen=True)
class StageCause:
    """The likely cause of a failed stage. `code` is "" where devkit does not know it."""

    code: str
    summary: str
    confidence: Confidence


@dataclass(frozen=True)
class StageRow:
    """One row: a reason that matches `words` (a regular expression) at `stage` leads to `code`.

    Without a stage it is for every stage; without words it counts where nothing else is known.
    """

    code: str
    summary: str
    stage: str = ""
    words: str = ""


@cache
def load_stage_rows() -> tuple[StageRow, ...]:
    """Return the rows of verify_stages.toml."""
    rows = load("devkit.doctor", "verify_stages")["failures"]
    return tuple(StageRow(**decode_fields(row, StageRow)) for row in rows)


def find_check_for_stage(stage: ProofStage, proof: Verification) -> StageCause:
    """Find the check that explains a failed stage: by its reason first, then by the stage alone."""
    for row in load_stage_rows():
        if row.words and row.stage in ("", stage.name) and re.search(row.words, stage.reason, re.IGNORECASE):
            return StageCause(row.code, row.summary, Confidence.LIKELY)
    from devkit.doctor.known_errors import find_known_errors  # the checks import this module, and it knows them all

    for text in (stage.reason, "\n".join(proof.log)):
        if found := find_known_errors(text, is_ours=True):
            return StageCause(found[0].code, found[0].cause, found[0].confidence)
    for row in load_stage_rows():
        if not row.words and row.stage == stage.name:
            return StageCause(row.code, row.summary, Confidence.POSSIBLE)
    return StageCause("", "devkit does not know why this stage failed", Confidence.POSSIBLE)
