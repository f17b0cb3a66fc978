"""Checks of what ran: the smoke tests of `devkit doctor --deep`, and the report of `devkit verify`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from devkit.doctor.error_codes import CudaErrorMeaning, find_cuda_error
from devkit.doctor.model import Confidence, Finding, Fix, NotApplicable, Severity, Side, check
from devkit.doctor.preconditions import require, require_python, require_visible_gpu
from devkit.doctor.wheels import find_workload_side, format_install_command, format_upgrade_command
from devkit.facts.model import Facts, ProofStage, Step, StepEnd, TorchCall
from devkit.facts.values import Unknown

if TYPE_CHECKING:
    from devkit.doctor.verify_stages import StageCause


_BROKEN = (StepEnd.FAILED, StepEnd.TIMED_OUT, StepEnd.CRASHED)

_UNCLEAR = CudaErrorMeaning(
    "see its own words", "Reinstall it for the installed torch.", confidence=Confidence.POSSIBLE
)

_PRETENDS = "Mock"

_MAX_REASON_CHARACTERS = 300


def _require_torch_call(facts: Facts) -> TorchCall:
    require_visible_gpu(facts)
    call = require(require(facts.deep).torch)
    if call is None:
        raise NotApplicable("torch is not installed in this Python")
    return call


def _require_steps(facts: Facts, *beginnings: str) -> tuple[Step, ...]:
    """Steps by how their names begin; the check does not apply where none was tried."""
    steps = tuple(step for step in _require_torch_call(facts).steps if step.name.startswith(beginnings))
    if all(step.end is StepEnd.SKIPPED for step in steps):
        raise NotApplicable(
            steps[0].detail if steps else "it was not tried: it is not installed, or torch failed before"
        )
    return steps


def _step_finding(facts: Facts, step: Step, command: str, *, severity: Severity = Severity.ERROR) -> Finding:
    meaning = find_cuda_error(step.detail) or _UNCLEAR
    ended = {StepEnd.TIMED_OUT: "hangs", StepEnd.CRASHED: f"crashes ({step.detail})"}.get(step.end, "fails")
    why = f": {meaning.why}" if step.end is StepEnd.FAILED else ""
    return Finding(
        severity,
        f"“{step.name}” {ended}{why}",
        Fix(meaning.advice, meaning.commands or ((command,) if command else ()), where=find_workload_side(facts)),
        subject=step.name,
        evidence=(f"{step.name}: {step.end}", *((step.detail,) if step.detail else ())),
        confidence=meaning.confidence,
    )


@check("PYT017", causes=("PYT018", "PYT019", "PYT020"))
def torch_works(facts: Facts) -> Iterator[Finding]:
    steps = _require_steps(
        facts, "import torch", "torch.cuda", "start CUDA", "count GPUs", "look at GPU", "multiply on GPU"
    )
    broken = [step for step in steps if step.end in _BROKEN]
    # What follows the first broken step of the start is its consequence; GPUs fail one by one.
    for step in broken if all("GPU " in step.name for step in broken) else broken[:1]:
        yield _step_finding(facts, step, "")


@check("PYT018")
def bitsandbytes_works(facts: Facts) -> Iterator[Finding]:
    library = _require_torch_call(facts).bitsandbytes_library
    steps = _require_steps(facts, "import bitsandbytes", "quantize")
    command = format_upgrade_command(facts, "bitsandbytes")
    broken = next((step for step in steps if step.end in _BROKEN), None)
    if isinstance(library, str) and _PRETENDS in library:
        cuda = require(require_python(facts).torch)
        yield Finding(
            Severity.ERROR,
            "bitsandbytes imports, but its native library did not load: every 4-bit and 8-bit call will fail",
            Fix("Update bitsandbytes, and unset BNB_CUDA_VERSION.", (command,), where=find_workload_side(facts)),
            evidence=(
                f"native library: {library}",
                *((broken.detail,) if broken and broken.detail else ()),
                f"torch {cuda.version if cuda else 'not read'}",
            ),
        )
    elif broken is not None:
        yield _step_finding(facts, broken, command)


@check("PYT019")
def triton_works(facts: Facts) -> Iterator[Finding]:
    for step in _require_steps(facts, "import triton", "compile a Triton kernel"):
        if step.end in _BROKEN:
            yield _step_finding(facts, step, "", severity=Severity.WARNING)


@check("PYT020")
def flash_attention_works(facts: Facts) -> Iterator[Finding]:
    command = format_install_command(
        facts, "flash-attn", replace=True, more="--no-deps --no-build-isolation --no-cache-dir"
    )
    abi = _require_torch_call(facts).cxx11_abi
    for step in _require_steps(facts, "import flash_attn"):
        if step.end in _BROKEN:
            finding = _step_finding(facts, step, command)
            said = () if isinstance(abi, Unknown) else (f"torch has cxx11abi{str(abi).upper()}",)
            yield Finding(
                finding.severity,
                finding.message,
                Fix(
                    'Install a wheel of it for this torch, or do without: attn_implementation="sdpa".',
                    (command,),
                    where=find_workload_side(facts),
                ),
                subject="flash-attn",
                evidence=(*finding.evidence, *said),
                confidence=Confidence.LIKELY,
            )


@check("PYT021")
def verification_passes(facts: Facts) -> Iterator[Finding]:
    proof = require(facts.verification)
    for stage in proof.stages:
        if stage.status != "failed" and not stage.wrong:
            continue
        from devkit.doctor.verify_stages import find_check_for_stage

        if stage.status == "failed":
            cause = find_check_for_stage(stage, proof)
            pointer = f" (see {cause.code})" if cause.code else ""
            yield Finding(
                Severity.ERROR,
                f"stage {stage.name} of devkit verify failed: {cause.summary.rstrip('.')}{pointer}",
                _stage_fix(facts, cause),
                subject=stage.name,
                evidence=(
                    *(f"{each.name}: {each.measured}, expected {each.expected}" for each in stage.wrong),
                    stage.reason[:_MAX_REASON_CHARACTERS] or "no reason was given",
                    f"proved on {proof.device}, {proof.where}{f', {proof.taken_at}' if proof.taken_at else ''}",
                ),
                confidence=cause.confidence,
            )
        else:
            # A rate outside of what an inferred row of the table says: that may warn, and never refuse.
            worst = stage.wrong[0]
            said = ProofStage(stage.name, stage.status, f"{worst.name} is {worst.measured}", stage.wrong)
            cause = find_check_for_stage(said, proof)
            yield Finding(
                Severity.WARNING,
                f"{stage.name} of devkit verify is not what this GPU's data sheet says, as far as that is known"
                f" (see {cause.code})",
                _stage_fix(facts, cause),
                subject=stage.name,
                evidence=tuple(f"{each.name}: {each.measured}, expected {each.expected}" for each in stage.wrong),
                confidence=Confidence.POSSIBLE,
            )


def _stage_fix(facts: Facts, cause: "StageCause") -> Fix:
    if not cause.code:
        return Fix(
            "Give the whole output to devkit explain; if that does not know it either, please report it.",
            ("devkit verify --here 2>&1 | devkit explain -",),
            where=find_workload_side(facts),
        )
    return Fix(
        f"Where the proof ran, let {cause.code} look for it, and do what it says.",
        (f"devkit explain {cause.code}", f"devkit doctor --deep --only {cause.code}"),
        where=find_workload_side(facts),
    )


@check("PYT023")
def training_run_did_not_fail(facts: Facts) -> Iterator[Finding]:
    run = require(facts.training)
    status = require(run.status)
    reached = f"it reached step {run.steps}" if run.steps else "it reached no step"
    if status == "lost":
        yield Finding(
            Severity.WARNING,
            f"the training run was killed, or its machine was lost: {reached}, and run.json still says running",
            Fix(
                "See who ended it: out of memory, a time limit, or a lost node. The same command resumes from its last"
                " checkpoint.",
                ("journalctl -k --no-pager | grep -iE 'out of memory|killed process' | tail -3",),
                root=True,
            ),
            evidence=('run.json: "status": "running"', "no process of this machine holds the folder"),
            confidence=Confidence.LIKELY,
        )
    elif status in ("failed", "not-finite", "out-of-memory"):
        error = run.error if isinstance(run.error, str) else ""
        yield Finding(
            Severity.WARNING,
            f"the training run ended with {status}: {error or reached}",
            Fix("Mend what the error names; the same command resumes from the last checkpoint.", where=Side.PROJECT),
            evidence=(f'run.json: "status": "{status}"', reached),
        )
