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


@check("PYT017", "torch multiplies on every GPU", causes=("PYT018", "PYT019", "PYT020"))
def torch_works(facts: Facts) -> Iterator[Finding]:
    """torch imports, starts CUDA, and multiplies two small matrices on each GPU with the right result.

    Why it matters: torch.cuda.is_available() is true of a GPU that it has no code for. Only a kernel proves it.
    How it is seen: with --deep, in a child process of the workload's own Python, each step announced before it runs.
    Source: pytorch/pytorch issues 167244 and 115340.
    """
    steps = _require_steps(
        facts, "import torch", "torch.cuda", "start CUDA", "count GPUs", "look at GPU", "multiply on GPU"
    )
    broken = [step for step in steps if step.end in _BROKEN]
    # What follows the first broken step of the start is its consequence; GPUs fail one by one.
    for step in broken if all("GPU " in step.name for step in broken) else broken[:1]:
        yield _step_finding(facts, step, "")


@check("PYT018", "bitsandbytes quantizes on the GPU")
def bitsandbytes_works(facts: Facts) -> Iterator[Finding]:
    """bitsandbytes imports with its real native library, and quantizes a tensor to 4 bits and back.

    Why it matters: without a library that loads it imports all the same, with one that only pretends, and fails at the
    first 4-bit layer: after the model was downloaded.
    How it is seen: with --deep, the type of the loaded library and a round trip through NF4 on the first GPU.
    Source: bitsandbytes, `cextension.py`; bitsandbytes-foundation/bitsandbytes issue 1559.
    """
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


@check("PYT019", "Triton compiles a kernel")
def triton_works(facts: Facts) -> Iterator[Finding]:
    """Triton imports, compiles a kernel of three lines and runs it.

    Why it matters: torch.compile and many quantized layers rely on it. It needs a C compiler, the Python headers and
    a libcuda to link against, each of which slim images leave out.
    How it is seen: with --deep, a kernel compiled into a cache of its own, which is removed afterwards.
    Source: triton-lang/triton, runtime build step; vllm-project/vllm issue 14075.
    """
    for step in _require_steps(facts, "import triton", "compile a Triton kernel"):
        if step.end in _BROKEN:
            yield _step_finding(facts, step, "", severity=Severity.WARNING)


@check("PYT020", "flash-attn loads its compiled part")
def flash_attention_works(facts: Facts) -> Iterator[Finding]:
    """The compiled module of flash-attn imports beside the installed torch.

    Why it matters: it is bound to one torch release and one C++ ABI, which a version cannot always tell. transformers
    fails with it as soon as a model asks for flash attention.
    How it is seen: with --deep, the import of flash_attn_2_cuda, and torch's own word on the C++11 ABI.
    Source: Dao-AILab/flash-attention issues 919 and 1644.
    """
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


@check("PYT021", "The proof of fine-tuning passes")
def verification_passes(facts: Facts) -> Iterator[Finding]:
    """Every stage of a report of `devkit verify` passed, or had nothing to prove on its machine.

    Why it matters: the proof shows that something is broken, and each stage only what it needed. The check behind it
    says what to do.
    How it is seen: only with --verification REPORT. The reason of each failed stage is looked up among known errors,
    then the stage in a table of what is likely behind it; where neither knows, that is said.
    Source: devkit, docs/guides/verifying.md.
    """
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


@check("PYT023", "The training run ended as it was meant to")
def training_run_did_not_fail(facts: Facts) -> Iterator[Finding]:
    """The run ended as its record says, and not in an error, or killed before it could record one.

    Why it matters: a killed process leaves a record that says running for ever, which waits for nothing.
    How it is seen: with --run DIR, the status in run.json, and whether a process of this machine holds the folder.
    Source: devkit finetune, run.json.
    """
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
