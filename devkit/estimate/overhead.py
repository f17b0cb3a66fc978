"""From tensors to what is taken of the GPU: allocator, CUDA context, communication."""

from collections.abc import Mapping
from dataclasses import replace

from devkit.estimate.model import Interval, MemoryEstimate, Phase, Term
from devkit.estimate.terms import CUBLAS, total

MIB = 1 << 20

CUBLAS_BYTES = 2 * (4 << 20) + 8 * (16 << 10)
"""PyTorch's default workspace for one handle: CUBLAS_WORKSPACE_CONFIG :4096:2:16:8."""

WORKSPACE = Term("cuBLAS workspace", CUBLAS_BYTES, "2 x 4 MiB + 8 x 16 KiB", CUBLAS)

ALLOCATOR = "https://pytorch.org/docs/stable/notes/cuda.html#cuda-memory-management"
CONTEXT = "https://pypi.org/project/fitcheck-llm/0.3.1/"
NCCL = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-buffsize"

SLACK_SHARE, SLACK_OF_LARGEST, SLACK_BYTES = 0.03, 0.3, 170 * MIB
"""Memory that torch's allocator holds beyond the tensors: a share of them all, one of the largest that comes and goes,
and some: blocks come in steps of 2 and 20 MiB, and freed ones do not always fit the next tensor. Fitted to 99 traces
(eight models of 0.6 to 8 billion parameters, eight ways to train) replayed through the allocator's rules, and to no run
that was measured: those stay for scoring."""
SLACK_UPPER, SLACK_OF_LARGEST_UPPER = 0.2, 1.0
"""None of these traces passes it; one of the largest tensors may be lost to gaps as a whole."""
CONTEXT_POINT = 300 * MIB
CONTEXT_UPPER = 600 * MIB
"""A CUDA context with the kernels of torch; 141 MiB were measured on a T4, newer GPUs take more."""
NCCL_POINT = 400 * MIB
NCCL_UPPER = 1024 * MIB
"""Communicators with their channels and buffers."""


def finished(
    phase: Phase,
    phases: Mapping[Phase, tuple[Term, ...]],
    *,
    largest_bytes: int,
    pageable_bytes: int = 0,
    world: int = 1,
    warnings: tuple[str, ...] = (),
) -> MemoryEstimate:
    """The estimate of which these are the phases. `largest_bytes` is the largest tensor that comes and goes.

    A tensor that finds no block of its size is given a new one, so one of the largest may be lost to gaps.
    `pageable_bytes` may be on the GPU or not, as there is room.
    """
    allocated = total(phases[phase])
    expected = round(allocated * SLACK_SHARE + largest_bytes * SLACK_OF_LARGEST) + SLACK_BYTES
    most = round(allocated * SLACK_UPPER + largest_bytes * SLACK_OF_LARGEST_UPPER) + SLACK_BYTES
    reserved = Interval(point=allocated + expected, upper=allocated + most)
    context = Interval(CONTEXT_POINT, CONTEXT_UPPER)
    nccl = Interval(NCCL_POINT, NCCL_UPPER) if world > 1 else Interval(0, 0)
    device = Interval(
        point=reserved.point + context.point + nccl.point,
        upper=reserved.upper + context.upper + nccl.upper + pageable_bytes,
    )
    slack = f"{SLACK_SHARE:.0%} of all tensors, {SLACK_OF_LARGEST:.0%} of the largest, {SLACK_BYTES // MIB} MiB"
    overheads = (
        Term("allocator slack", reserved.point - allocated, slack, ALLOCATOR),
        Term("CUDA context", context.point, "context and kernels of torch", CONTEXT),
        Term("NCCL buffers", nccl.point, "communicators of all GPUs", NCCL),
    )
    return MemoryEstimate(
        phase=phase,
        terms=tuple(sorted(phases[phase], key=lambda term: -term.bytes)),
        overheads=tuple(term for term in overheads if term.bytes),
        phases=tuple((each, total(terms)) for each, terms in phases.items()),
        allocated_peak_bytes=allocated,
        reserved_peak_bytes=reserved,
        device_peak_bytes=device,
        warnings=warnings,
    )


def on_cpu(estimate: MemoryEstimate) -> MemoryEstimate:
    """The same training step without what only a GPU has: cuBLAS's workspace, the CUDA context and NCCL's buffers."""
    less = sum(term.bytes for term in estimate.terms if term == WORKSPACE)
    peak = estimate.reserved_peak_bytes
    reserved = Interval(point=peak.point - less, upper=peak.upper - less)
    return replace(
        estimate,
        terms=tuple(term for term in estimate.terms if term != WORKSPACE),
        overheads=tuple(term for term in estimate.overheads if term.source == ALLOCATOR),
        phases=tuple((phase, size - less) for phase, size in estimate.phases),
        allocated_peak_bytes=estimate.allocated_peak_bytes - less,
        reserved_peak_bytes=reserved,
        device_peak_bytes=reserved,
    )
