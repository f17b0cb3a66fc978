"""Checks of what the smoke tests of `devkit doctor --deep` found."""

from collections.abc import Iterator

from devkit.doctor.error_codes import find_cuda_error
from devkit.doctor.model import Confidence, NotApplicable, check
from devkit.doctor.preconditions import require, require_some, require_visible_gpu
from devkit.doctor.problems import Problem, problem
from devkit.facts.model import Facts
from devkit.facts.runs import Step, StepEnd, TorchCall
from devkit.facts.values import Unknown

_BROKEN = (StepEnd.FAILED, StepEnd.TIMED_OUT, StepEnd.CRASHED)
_PRETENDS = "Mock"


def _require_torch_call(facts: Facts) -> TorchCall:
    require_visible_gpu(facts)
    return require_some(require(facts.deep).torch, "torch is not installed in this Python")


def _require_steps(facts: Facts, *beginnings: str) -> tuple[Step, ...]:
    """Steps by how their names begin; the check does not apply where none was tried."""
    steps = tuple(step for step in _require_torch_call(facts).steps if step.name.startswith(beginnings))
    if all(step.end is StepEnd.SKIPPED for step in steps):
        raise NotApplicable(
            steps[0].detail if steps else "it was not tried: it is not installed, or torch failed earlier"
        )
    return steps


def _describe_step(
    step: Step, *, subject: str = "", more: tuple[str, ...] = (), confidence: Confidence | None = None
) -> Problem:
    meaning = find_cuda_error(step.detail)
    if step.end is StepEnd.FAILED:
        name = "fails" if meaning else "fails-unexplained"
    else:
        name = "hangs" if step.end is StepEnd.TIMED_OUT else "crashes"
    return problem(
        name,
        step=step.name,
        detail=step.detail,
        why=meaning.why if meaning else "",
        advice=meaning.advice if meaning else "",
        commands=meaning.commands if meaning else (),
        has_commands="yes" if meaning and meaning.commands else "no",
        subject=subject or step.name,
        evidence=(f"{step.name}: {step.end}", *((step.detail,) if step.detail else ()), *more),
        confidence=confidence or (meaning.confidence if meaning else Confidence.POSSIBLE),
    )


@check("PYT017", causes=("PYT018", "PYT019", "PYT020"))
def torch_works(facts: Facts) -> Iterator[Problem]:
    steps = _require_steps(
        facts, "import torch", "torch.cuda", "start CUDA", "count GPUs", "look at GPU", "multiply on GPU"
    )
    broken = [step for step in steps if step.end in _BROKEN]
    # What follows the first broken step of the start is its consequence; GPUs fail one by one.
    for step in broken if all("GPU " in step.name for step in broken) else broken[:1]:
        yield _describe_step(step)


@check("PYT018")
def bitsandbytes_works(facts: Facts) -> Iterator[Problem]:
    library = _require_torch_call(facts).bitsandbytes_library
    steps = _require_steps(facts, "import bitsandbytes", "quantize")
    broken = next((step for step in steps if step.end in _BROKEN), None)
    if isinstance(library, str) and _PRETENDS in library:
        cuda = require(require(facts.python).torch)
        yield problem(
            "no-native-library",
            evidence=(
                f"native library: {library}",
                *((broken.detail,) if broken and broken.detail else ()),
                f"torch {cuda.version if cuda else 'not read'}",
            ),
        )
    elif broken is not None:
        yield _describe_step(broken)


@check("PYT019")
def triton_works(facts: Facts) -> Iterator[Problem]:
    for step in _require_steps(facts, "import triton", "compile a Triton kernel"):
        if step.end in _BROKEN:
            yield _describe_step(step)


@check("PYT020")
def flash_attention_works(facts: Facts) -> Iterator[Problem]:
    abi = _require_torch_call(facts).cxx11_abi
    said = () if isinstance(abi, Unknown) else (f"torch has cxx11abi{str(abi).upper()}",)
    for step in _require_steps(facts, "import flash_attn"):
        if step.end in _BROKEN:
            yield _describe_step(step, subject="flash-attn", more=said, confidence=Confidence.LIKELY)
