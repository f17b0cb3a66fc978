"""A memory estimate from a trace."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version

from devkit.estimate import overhead
from devkit.estimate.model import Interval, MemoryEstimate, Term
from devkit.estimate.model import Phase as Told
from devkit.estimate.settings import Attention, InferenceSettings, Stack, TrainingSettings
from devkit.workload.tracing import inference, training
from devkit.workload.tracing.allocator import Allocator, replay
from devkit.workload.tracing.peak import Moment, fullest
from devkit.workload.tracing.program import Document
from devkit.workload.tracing.request import Request, Settings
from devkit.workload.tracing.stream import Phase, Stream
from devkit.workload.tracing.unroll import TRACED, is_periodic, unrolled

SOURCE = "https://github.com/huggingface/transformers"
ALLOCATOR = "https://github.com/pytorch/pytorch/blob/main/c10/cuda/CUDACachingAllocator.cpp"
WORKSPACE = "matrix product workspace"

TOLD = {
    Phase.FORWARD: Told.BACKWARD,
    Phase.LOSS: Told.LOSS,
    Phase.BACKWARD: Told.BACKWARD,
    Phase.OPTIMIZER: Told.STEP,
    Phase.PREFILL: Told.PREFILL,
    Phase.DECODE: Told.DECODE,
}
"""The words of the closed form, which counts a forward pass with the backward pass that it fills memory for."""


@dataclass(frozen=True)
class Peaks:
    """What the allocator's counters would show after loading and two steps, in bytes."""

    allocated_bytes: int
    reserved_bytes: int
    loaded_bytes: int


def exact(request: Request) -> MemoryEstimate:
    """The peak memory of one process, from the stream of allocations that the real program asks for.

    Raises DevkitError for what cannot be traced.
    """
    stream = stream_of(request)
    resident, step = split(stream)
    is_expandable = request.expandable or _expands(request.settings)
    peaks = replayed(resident, step, steps=1 if request.emptied else 2, is_expandable=is_expandable)
    moments = fullest(resident, step)
    phase = max(moments, key=lambda each: moments[each].bytes)
    return _estimate(request, peaks, phase, moments)


def stream_of(request: Request) -> Stream:
    """The stream of the whole model; from five layers where these are alike."""
    depth = _depth(request.document)
    if not request.whole and depth > TRACED:
        stream = traced(request.document, request.settings, depth=TRACED, lingering=request.lingering)
        if is_periodic(stream):
            return unrolled(stream, depth)
    return traced(request.document, request.settings, depth=None, lingering=request.lingering)


def traced(document: Document, settings: Settings, *, depth: int | None, lingering: bool = False) -> Stream:
    """The stream of a model cut to `depth` layers (None: all), for training or inference as the settings say."""
    if isinstance(settings, InferenceSettings):
        return inference.trace(document, settings, depth=depth)
    return training.trace(document, settings, depth=depth, lingering=lingering)


def split(stream: Stream) -> tuple[Stream, Stream]:
    """What loading does, and the step after it."""
    loading = [event for event in stream if event.section.phase is Phase.LOAD]
    return loading, [event for event in stream if event.section.phase is not Phase.LOAD]


def replayed(resident: Stream, step: Stream, *, steps: int = 2, is_expandable: bool = False) -> Peaks:
    """The allocator's peaks over `steps` steps; the second finds blocks that the first left, in other sizes than it."""
    allocator = Allocator(expandable_segments=is_expandable)
    replay(allocator, resident)
    loaded = allocator.allocated_peak_bytes
    allocator.allocate(WORKSPACE, overhead.CUBLAS_BYTES)
    allocator.reset_peaks()
    for _ in range(steps):
        replay(allocator, step)
    return Peaks(allocator.allocated_peak_bytes, allocator.reserved_peak_bytes, loaded)


def _expands(settings: Settings) -> bool:
    """Whether the program asks for segments that grow by itself, as devkit's own training does."""
    return isinstance(settings, TrainingSettings) and settings.stack is Stack.DEVKIT


def _depth(document: Document) -> int:
    text = document.get("text_config") or document
    return int(text.get("num_hidden_layers") or text.get("n_layer") or 0)


def _estimate(request: Request, peaks: Peaks, phase: Phase, moments: Mapping[Phase, Moment]) -> MemoryEstimate:
    moment = moments[phase]
    reserved = Interval(peaks.reserved_bytes, _upper(peaks, moment))
    context = Interval(overhead.CONTEXT_POINT, overhead.CONTEXT_UPPER)
    overheads = (
        Term("allocator slack", reserved.point - peaks.allocated_bytes, "replayed block by block", ALLOCATOR),
        Term("CUDA context", context.point, "context and kernels of torch", overhead.CONTEXT),
    )
    told: dict[Told, int] = {Told.LOAD: peaks.loaded_bytes}
    for each, at in moments.items():
        told[TOLD[each]] = max(told.get(TOLD[each], 0), at.bytes)
    return MemoryEstimate(
        phase=TOLD[phase],
        terms=_terms(peaks, moment),
        overheads=overheads,
        phases=tuple(told.items()),
        allocated_peak_bytes=peaks.allocated_bytes,
        reserved_peak_bytes=reserved,
        device_peak_bytes=Interval(reserved.point + context.point, reserved.upper + context.upper),
        warnings=_warnings(request),
        method=_method(),
    )


def _upper(peaks: Peaks, moment: Moment) -> int:
    """The closed form's margin on what was traced: other versions ask for the same in another order."""
    largest = moment.parts.get("logits and loss", 0) // 3
    return max(peaks.reserved_bytes, round(peaks.allocated_bytes * (1 + overhead.SLACK_UPPER)) + largest)


def _terms(peaks: Peaks, moment: Moment) -> tuple[Term, ...]:
    parts = moment.parts | {WORKSPACE: overhead.CUBLAS_BYTES}
    terms = [Term(name, size, "traced", SOURCE) for name, size in sorted(parts.items(), key=lambda each: -each[1])]
    rest = peaks.allocated_bytes - sum(parts.values())
    return (*terms, Term("rounding to blocks", rest, "blocks that are larger than what they hold", ALLOCATOR))


def _warnings(request: Request) -> tuple[str, ...]:
    said = []
    if request.settings.attention in {Attention.FLASH, Attention.VARLEN}:
        said.append(f"{request.settings.attention} attention is traced as sdpa, which keeps the same tensors")
    return tuple(said)


def _method() -> str:
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "peft"))
    return f"traced with {packages}"
