"""A memory estimate from a trace."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version

from devkit.estimate import memory
from devkit.estimate.memory import Interval, MemoryEstimate, Term
from devkit.estimate.memory import MemoryPhase as Told
from devkit.estimate.settings import Attention, InferenceSettings, Stack, TrainingSettings
from devkit.workload.tracing import inference, training
from devkit.workload.tracing.allocator import CachingAllocator, replay_stream
from devkit.workload.tracing.model import ConfigDocument
from devkit.workload.tracing.request import TracedSettings, TraceRequest
from devkit.workload.tracing.stream import (
    TRACED_LAYERS,
    EventStream,
    PeakMoment,
    StepPhase,
    is_periodic,
    peak_by_phase,
    unroll_layers,
)

SOURCE = "https://github.com/huggingface/transformers"
ALLOCATOR = "https://github.com/pytorch/pytorch/blob/main/c10/cuda/CUDACachingAllocator.cpp"
WORKSPACE = "matrix product workspace"

ESTIMATE_PHASES = {
    StepPhase.FORWARD: Told.BACKWARD,
    StepPhase.LOSS: Told.LOSS,
    StepPhase.BACKWARD: Told.BACKWARD,
    StepPhase.OPTIMIZER: Told.STEP,
    StepPhase.PREFILL: Told.PREFILL,
    StepPhase.DECODE: Told.DECODE,
}
"""The words of the closed form, which counts a forward pass with the backward pass that it fills memory for."""


@dataclass(frozen=True)
class AllocatorPeaks:
    """What the allocator's counters would show after loading and two steps, in bytes."""

    allocated_bytes: int
    reserved_bytes: int
    loaded_bytes: int


def estimate_from_trace(request: TraceRequest) -> MemoryEstimate:
    """The peak memory of one process, from the stream of allocations that the real program asks for.

    Raises DevkitError for what cannot be traced.
    """
    stream = trace_stream(request)
    resident, step = split_loading(stream)
    is_expandable = request.expandable_segments or _expands(request.settings)
    peaks = replay_steps(resident, step, steps=1 if request.empty_cache else 2, is_expandable=is_expandable)
    moments = peak_by_phase(resident, step)
    phase = max(moments, key=lambda each: moments[each].bytes)
    return _estimate(request, peaks, phase, moments)


def trace_stream(request: TraceRequest) -> EventStream:
    """The stream of the whole model; from five layers where these are alike."""
    depth = _depth(request.document)
    if not request.trace_every_layer and depth > TRACED_LAYERS:
        stream = trace_model(request.document, request.settings, depth=TRACED_LAYERS, lingering=request.keep_outputs)
        if is_periodic(stream):
            return unroll_layers(stream, depth)
    return trace_model(request.document, request.settings, depth=None, lingering=request.keep_outputs)


def trace_model(
    document: ConfigDocument, settings: TracedSettings, *, depth: int | None, lingering: bool = False
) -> EventStream:
    """The stream of a model cut to `depth` layers (None: all), for training or inference as the settings say."""
    if isinstance(settings, InferenceSettings):
        return inference.trace_inference(document, settings, depth=depth)
    return training.trace_training(document, settings, depth=depth, lingering=lingering)


def split_loading(stream: EventStream) -> tuple[EventStream, EventStream]:
    """What loading does, and the step after it."""
    loading = [event for event in stream if event.section.phase is StepPhase.LOAD]
    return loading, [event for event in stream if event.section.phase is not StepPhase.LOAD]


def replay_steps(
    resident: EventStream, step: EventStream, *, steps: int = 2, is_expandable: bool = False
) -> AllocatorPeaks:
    """The allocator's peaks over `steps` steps; the second finds blocks that the first left, in other sizes than it."""
    allocator = CachingAllocator(expandable_segments=is_expandable)
    replay_stream(allocator, resident)
    loaded = allocator.allocated_peak_bytes
    allocator.allocate(WORKSPACE, memory.CUBLAS_BYTES)
    allocator.reset_peaks()
    for _ in range(steps):
        replay_stream(allocator, step)
    return AllocatorPeaks(allocator.allocated_peak_bytes, allocator.reserved_peak_bytes, loaded)


def _expands(settings: TracedSettings) -> bool:
    """Whether the program asks for segments that grow by itself, as devkit's own training does."""
    return isinstance(settings, TrainingSettings) and settings.stack is Stack.DEVKIT


def _depth(document: ConfigDocument) -> int:
    text = document.get("text_config") or document
    return int(text.get("num_hidden_layers") or text.get("n_layer") or 0)


def _estimate(
    request: TraceRequest, peaks: AllocatorPeaks, phase: StepPhase, moments: Mapping[StepPhase, PeakMoment]
) -> MemoryEstimate:
    moment = moments[phase]
    reserved = Interval(peaks.reserved_bytes, _upper(peaks, moment))
    context = Interval(memory.CONTEXT_POINT, memory.CONTEXT_UPPER)
    overheads = (
        Term("allocator slack", reserved.point - peaks.allocated_bytes, "replayed block by block", ALLOCATOR),
        Term("CUDA context", context.point, "context and kernels of torch", memory.CONTEXT_SOURCE),
    )
    told: dict[Told, int] = {Told.LOAD: peaks.loaded_bytes}
    for each, at in moments.items():
        told[ESTIMATE_PHASES[each]] = max(told.get(ESTIMATE_PHASES[each], 0), at.bytes)
    return MemoryEstimate(
        phase=ESTIMATE_PHASES[phase],
        terms=_terms(peaks, moment),
        overheads=overheads,
        phases=tuple(told.items()),
        allocated_peak_bytes=peaks.allocated_bytes,
        reserved_peak_bytes=reserved,
        device_peak_bytes=Interval(reserved.point + context.point, reserved.upper + context.upper),
        warnings=_warnings(request),
        method=_method(),
    )


def _upper(peaks: AllocatorPeaks, moment: PeakMoment) -> int:
    """The closed form's margin on what was traced: other versions ask for the same in another order."""
    largest = moment.parts.get("logits and loss", 0) // 3
    return max(peaks.reserved_bytes, round(peaks.allocated_bytes * (1 + memory.SLACK_UPPER)) + largest)


def _terms(peaks: AllocatorPeaks, moment: PeakMoment) -> tuple[Term, ...]:
    parts = moment.parts | {WORKSPACE: memory.CUBLAS_BYTES}
    terms = [Term(name, size, "traced", SOURCE) for name, size in sorted(parts.items(), key=lambda each: -each[1])]
    rest = peaks.allocated_bytes - sum(parts.values())
    return (*terms, Term("rounding to blocks", rest, "blocks that are larger than what they hold", ALLOCATOR))


def _warnings(request: TraceRequest) -> tuple[str, ...]:
    said = []
    if request.settings.attention in {Attention.FLASH, Attention.VARLEN}:
        said.append(f"{request.settings.attention} attention is traced as sdpa, which keeps the same tensors")
    return tuple(said)


def _method() -> str:
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "peft"))
    return f"traced with {packages}"
