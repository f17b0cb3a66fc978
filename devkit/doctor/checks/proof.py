"""Judges the report of `devkit verify`: what stands behind each stage that failed."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from devkit.doctor.applies import known
from devkit.doctor.install import workload_side
from devkit.doctor.model import Confidence, Finding, Fix, Severity, check
from devkit.facts.model import Facts, ProofStage, Verification

if TYPE_CHECKING:
    from devkit.doctor.proof_codes import Behind

_LONGEST = 300


@check(
    "PYT021",
    "The proof of fine-tuning passes",
    symptoms=("devkit verify: not proved", "devkit verify ends with 1"),
)
def proof_passes(facts: Facts) -> Iterator[Finding]:
    """Every stage of a report of `devkit verify` passed, or had nothing to prove on its machine.

    Why it matters: the proof shows that something is broken, and each stage only what it needed. The check behind it
    says what to do.
    How it is seen: only with --verification REPORT. The reason of each failed stage is looked up among known errors,
    then the stage in a table of what is likely behind it; where neither knows, that is said.
    Source: devkit, docs/guides/verifying.md.
    """
    proof = known(facts.verification)
    for stage in proof.stages:
        if stage.status == "failed":
            yield _finding(facts, stage, proof)
        elif stage.wrong:
            yield _slow(facts, stage, proof)


def _finding(facts: Facts, stage: ProofStage, proof: Verification) -> Finding:
    # The table of known errors is large, and needed on the bad day only.
    from devkit.doctor.proof_codes import behind

    cause = behind(stage, proof)
    pointer = f" (see {cause.code})" if cause.code else ""
    return Finding(
        Severity.ERROR,
        f"stage {stage.name} of devkit verify failed: {cause.says.rstrip('.')}{pointer}",
        _fix(facts, cause),
        subject=stage.name,
        evidence=(
            *(f"{each.name}: {each.measured}, expected {each.expected}" for each in stage.wrong),
            stage.reason[:_LONGEST] or "no reason was given",
            f"proved on {proof.device}, {proof.where}{f', {proof.taken_at}' if proof.taken_at else ''}",
        ),
        confidence=cause.confidence,
    )


def _slow(facts: Facts, stage: ProofStage, proof: Verification) -> Finding:
    """A rate outside of what an inferred row of the table says: that may warn, and never refuse."""
    from devkit.doctor.proof_codes import behind

    worst = stage.wrong[0]
    said = ProofStage(stage.name, stage.status, f"{worst.name} is {worst.measured}", stage.wrong)
    cause = behind(said, proof)
    return Finding(
        Severity.WARNING,
        f"{stage.name} of devkit verify is not what this GPU's data sheet says, as far as that is known"
        f" (see {cause.code})",
        _fix(facts, cause),
        subject=stage.name,
        evidence=tuple(f"{each.name}: {each.measured}, expected {each.expected}" for each in stage.wrong),
        confidence=Confidence.POSSIBLE,
    )


def _fix(facts: Facts, cause: "Behind") -> Fix:
    if not cause.code:
        return Fix(
            "Give the whole output to devkit explain; if that does not know it either, please report it.",
            ("devkit verify --here 2>&1 | devkit explain -",),
            where=workload_side(facts),
        )
    return Fix(
        f"Where the proof ran, let {cause.code} look for it, and do what it says.",
        (f"devkit explain {cause.code}", f"devkit doctor --deep --only {cause.code}"),
        where=workload_side(facts),
    )
