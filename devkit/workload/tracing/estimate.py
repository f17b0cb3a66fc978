"""The memory estimate from a trace: its events are replayed through the allocator, and its peak becomes terms."""

from dataclasses import dataclass
from importlib.metadata import version

from devkit.estimate import memory
from devkit.estimate.memory import Interval, MemoryEstimate, MemoryPhase, Term
from devkit.estimate.settings import Attention, InferenceSettings, Stack, TrainingSettings
from devkit.workload.tracing.allocator import CachingAllocator, replay_stream
from devkit.workload.tracing.inference import trace_inference
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
from devkit.workload.tracing.training import trace_training

SOURCE = "https://github.com/huggingface/transformers"
ALLOCATOR = "https://github.com/pytorch/pytorch/blob/main/c10/cuda/CUDACachingAllocator.cpp"
WORKSPACE = "matrix product workspace"

ESTIMATE_PHASES = {
    StepPhase.FORWARD: MemoryPhase.BACKWARD,
    StepPhase.LOSS: MemoryPhase.LOSS,
    StepPhase.BACKWARD: MemoryPhase.BACKWARD,
    StepPhase.OPTIMIZER: MemoryPhase.STEP,
    StepPhase.PREFILL: MemoryPhase.PREFILL,
    StepPhase.DECODE: MemoryPhase.DECODE,
}
"""The phases of the closed form, which counts a forward pass with the backward pass that needs its activations."""


@dataclass(frozen=True)
class AllocatorPeaks:
    """The allocator's counters after loading and the steps, in bytes."""

    allocated_bytes: int
    reserved_bytes: int
    loaded_bytes: int


def estimate_from_trace(request: TraceRequest) -> MemoryEstimate:
    """Estimate the peak memory of one process from the allocations of the real program.

    Raises DevkitError for what cannot be traced.
    """
    settings = request.settings
    resident, step = split_loading(trace_stream(request))
    # devkit's own training sets expandable segments.
    is_devkit = isinstance(settings, TrainingSettings) and settings.stack is Stack.DEVKIT
    is_expandable = request.expandable_segments or is_devkit
    peaks = replay_steps(resident, step, steps=1 if request.empty_cache else 2, is_expandable=is_expandable)
    moments = peak_by_phase(resident, step)
    phase = max(moments, key=lambda each: moments[each].bytes)
    # The closed form's margin on the trace: other versions allocate the same in another order.
    margin_bytes = moments[phase].parts.get("logits and loss", 0) // 3
    upper_bytes = round(peaks.allocated_bytes * (1 + memory.SLACK_UPPER)) + margin_bytes
    reserved = Interval(peaks.reserved_bytes, max(peaks.reserved_bytes, upper_bytes))
    context = Interval(memory.CONTEXT_POINT, memory.CONTEXT_UPPER)
    overheads = (
        Term("allocator slack", reserved.point - peaks.allocated_bytes, "replayed block by block", ALLOCATOR),
        Term("CUDA context", context.point, "context and kernels of torch", memory.CONTEXT_SOURCE),
    )
    by_phase = {MemoryPhase.LOAD: peaks.loaded_bytes}
    for each, moment in moments.items():
        by_phase[ESTIMATE_PHASES[each]] = max(by_phase.get(ESTIMATE_PHASES[each], 0), moment.bytes)
    warnings = []
    if settings.attention in {Attention.FLASH, Attention.VARLEN}:
        warnings.append(f"{settings.attention} attention is traced as sdpa, which keeps the same tensors")
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "peft"))
    return MemoryEstimate(
        phase=ESTIMATE_PHASES[phase],
        terms=_list_terms(peaks, moments[phase]),
        overheads=overheads,
        phases=tuple(by_phase.items()),
        allocated_peak_bytes=peaks.allocated_bytes,
        reserved_peak_bytes=reserved,
        device_peak_bytes=Interval(reserved.point + context.point, reserved.upper + context.upper),
        warnings=tuple(warnings),
        method=f"traced with {versions}",
    )


def _list_terms(peaks: AllocatorPeaks, moment: PeakMoment) -> tuple[Term, ...]:
    parts = moment.parts | {WORKSPACE: memory.CUBLAS_BYTES}
    terms = [Term(name, size, "traced", SOURCE) for name, size in sorted(parts.items(), key=lambda each: -each[1])]
    rest = peaks.allocated_bytes - sum(parts.values())
    return (*terms, Term("rounding to blocks", rest, "blocks that are larger than what they hold", ALLOCATOR))


def trace_stream(request: TraceRequest) -> EventStream:
    """Trace the whole model; or five of its layers, unrolled, where the layers are alike."""
    text_config = request.document.get("text_config") or request.document
    depth = int(text_config.get("num_hidden_layers") or text_config.get("n_layer") or 0)
    document, settings, keep_outputs = request.document, request.settings, request.keep_outputs
    if not request.trace_every_layer and depth > TRACED_LAYERS:
        stream = trace_model(document, settings, depth=TRACED_LAYERS, keep_outputs=keep_outputs)
        if is_periodic(stream):
            return unroll_layers(stream, depth)
    return trace_model(document, settings, depth=None, keep_outputs=keep_outputs)


def trace_model(
    document: ConfigDocument, settings: TracedSettings, *, depth: int | None, keep_outputs: bool = False
) -> EventStream:
    """Trace a model cut to `depth` layers (None: all), for training or inference as the settings say."""
    if isinstance(settings, InferenceSettings):
        return trace_inference(document, settings, depth=depth)
    return trace_training(document, settings, depth=depth, keep_outputs=keep_outputs)


def split_loading(stream: EventStream) -> tuple[EventStream, EventStream]:
    """Split the stream into loading and the step after it."""
    loading = [event for event in stream if event.section.phase is StepPhase.LOAD]
    return loading, [event for event in stream if event.section.phase is not StepPhase.LOAD]


def replay_steps(
    resident: EventStream, step: EventStream, *, steps: int = 2, is_expandable: bool = False
) -> AllocatorPeaks:
    """Replay `steps` steps; the second finds the free blocks of the first, in other sizes than the first found."""
    allocator = CachingAllocator(expandable_segments=is_expandable)
    replay_stream(allocator, resident)
    loaded_bytes = allocator.allocated_peak_bytes
    allocator.allocate(WORKSPACE, memory.CUBLAS_BYTES)
    allocator.reset_peaks()
    for _ in range(steps):
        replay_stream(allocator, step)
    return AllocatorPeaks(allocator.allocated_peak_bytes, allocator.reserved_peak_bytes, loaded_bytes)
