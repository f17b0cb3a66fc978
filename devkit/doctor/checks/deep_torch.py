"""Checks of what torch and the packages built on it did, where `devkit doctor --deep` tried them."""

from collections.abc import Iterator

from devkit.doctor.applies import a_gpu_in_this_container, known, python_of
from devkit.doctor.cuda_codes import Meaning, meaning_of
from devkit.doctor.install import install, upgrade, workload_side
from devkit.doctor.model import Confidence, Finding, Fix, NotApplicable, Severity, check
from devkit.facts.model import Facts, Step, StepEnd, TorchCall
from devkit.facts.values import Unknown

_BROKEN = (StepEnd.FAILED, StepEnd.TIMED_OUT, StepEnd.CRASHED)
_UNCLEAR = Meaning("see its own words", "Reinstall it for the installed torch.", confidence=Confidence.POSSIBLE)
_PRETENDS = "Mock"


def _call(facts: Facts) -> TorchCall:
    a_gpu_in_this_container(facts)
    call = known(known(facts.deep).torch)
    if call is None:
        raise NotApplicable("torch is not installed in this Python")
    return call


def _steps(facts: Facts, *beginnings: str) -> tuple[Step, ...]:
    """Steps by how their names begin; the check does not apply where none was tried."""
    steps = tuple(step for step in _call(facts).steps if step.name.startswith(beginnings))
    if all(step.end is StepEnd.SKIPPED for step in steps):
        raise NotApplicable(
            steps[0].detail if steps else "it was not tried: it is not installed, or torch failed before"
        )
    return steps


def _finding(facts: Facts, step: Step, command: str, *, severity: Severity = Severity.ERROR) -> Finding:
    meaning = meaning_of(step.detail) or _UNCLEAR
    ended = {StepEnd.TIMED_OUT: "hangs", StepEnd.CRASHED: f"crashes ({step.detail})"}.get(step.end, "fails")
    why = f": {meaning.why}" if step.end is StepEnd.FAILED else ""
    return Finding(
        severity,
        f"“{step.name}” {ended}{why}",
        Fix(meaning.advice, meaning.commands or ((command,) if command else ()), where=workload_side(facts)),
        subject=step.name,
        evidence=(f"{step.name}: {step.end}", *((step.detail,) if step.detail else ())),
        confidence=meaning.confidence,
    )


@check(
    "PYT017",
    "torch multiplies on every GPU",
    covers=("G05", "G07"),
    symptoms=("CUDA error: no kernel image is available", "torch.cuda.is_available() is False", "CUDA unknown error"),
    causes=("PYT018", "PYT019", "PYT020"),
)
def torch_works(facts: Facts) -> Iterator[Finding]:
    """torch imports, starts CUDA, and multiplies two small matrices on each GPU with the right result.

    Why it matters: torch.cuda.is_available() is true of a GPU that it has no code for. Only a kernel proves it.
    How it is seen: with --deep, in a child process of the workload's own Python, each step announced before it runs.
    Source: pytorch/pytorch issues 167244 and 115340.
    """
    steps = _steps(facts, "import torch", "torch.cuda", "start CUDA", "count GPUs", "look at GPU", "multiply on GPU")
    broken = [step for step in steps if step.end in _BROKEN]
    # What follows the first broken step of the start is its consequence; GPUs fail one by one.
    for step in broken if all("GPU " in step.name for step in broken) else broken[:1]:
        yield _finding(facts, step, "")


@check(
    "PYT018",
    "bitsandbytes quantises on the GPU",
    covers=("H03",),
    symptoms=("ErrorHandlerMockBNBNativeLibrary", "Attempted to use bitsandbytes native library functionality"),
)
def bitsandbytes_works(facts: Facts) -> Iterator[Finding]:
    """bitsandbytes imports with its real native library, and quantises a tensor to 4 bits and back.

    Why it matters: without a library that loads it imports all the same, with one that only pretends, and fails at the
    first 4-bit layer: after the model was downloaded.
    How it is seen: with --deep, the type of the loaded library and a round trip through NF4 on the first GPU.
    Source: bitsandbytes, `cextension.py`; bitsandbytes-foundation/bitsandbytes issue 1559.
    """
    library = _call(facts).bitsandbytes_library
    steps = _steps(facts, "import bitsandbytes", "quantise")
    command = upgrade(facts, "bitsandbytes")
    broken = next((step for step in steps if step.end in _BROKEN), None)
    if isinstance(library, str) and _PRETENDS in library:
        cuda = known(python_of(facts).torch)
        yield Finding(
            Severity.ERROR,
            "bitsandbytes imports, but its native library did not load: every 4-bit and 8-bit call will fail",
            Fix("Update bitsandbytes, and unset BNB_CUDA_VERSION.", (command,), where=workload_side(facts)),
            evidence=(
                f"native library: {library}",
                *((broken.detail,) if broken and broken.detail else ()),
                f"torch {cuda.version if cuda else 'not read'}",
            ),
        )
    elif broken is not None:
        yield _finding(facts, broken, command)


@check(
    "PYT019",
    "Triton compiles a kernel",
    covers=("H05", "H06", "H07"),
    symptoms=(
        "Failed to find C compiler",
        "Python.h: No such file",
        "libcuda.so cannot found!",
        "BackendCompilerFailed",
    ),
)
def triton_works(facts: Facts) -> Iterator[Finding]:
    """Triton imports, compiles a kernel of three lines and runs it.

    Why it matters: torch.compile and many quantised layers rely on it. It needs a C compiler, the Python headers and
    a libcuda to link against, each of which slim images leave out.
    How it is seen: with --deep, a kernel compiled into a cache of its own, which is removed afterwards.
    Source: triton-lang/triton, runtime build step; vllm-project/vllm issue 14075.
    """
    for step in _steps(facts, "import triton", "compile a Triton kernel"):
        if step.end in _BROKEN:
            yield _finding(facts, step, "", severity=Severity.WARNING)


@check(
    "PYT020",
    "flash-attn loads its compiled part",
    covers=("H11",),
    symptoms=("flash_attn_2_cuda.cpython-312-x86_64-linux-gnu.so: undefined symbol", "ImportError: flash_attn_2_cuda"),
)
def flash_attention_works(facts: Facts) -> Iterator[Finding]:
    """The compiled module of flash-attn imports beside the installed torch.

    Why it matters: it is bound to one torch release and one C++ ABI, which a version cannot always tell. transformers
    fails with it as soon as a model asks for flash attention.
    How it is seen: with --deep, the import of flash_attn_2_cuda, and torch's own word on the C++11 ABI.
    Source: Dao-AILab/flash-attention issues 919 and 1644.
    """
    command = install(facts, "flash-attn", replace=True, more="--no-deps --no-build-isolation")
    abi = _call(facts).cxx11_abi
    for step in _steps(facts, "import flash_attn"):
        if step.end in _BROKEN:
            finding = _finding(facts, step, command)
            said = () if isinstance(abi, Unknown) else (f"torch has cxx11abi{str(abi).upper()}",)
            yield Finding(
                finding.severity,
                finding.message,
                Fix(
                    'Install a wheel of it for this torch, or do without: attn_implementation="sdpa".',
                    (command,),
                    where=workload_side(facts),
                ),
                subject="flash-attn",
                evidence=(*finding.evidence, *said),
                confidence=Confidence.LIKELY,
            )
