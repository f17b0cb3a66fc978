"""Memory estimates: terms with formula and source, peaks with bounds, and overhead from tensors to the device."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum


class MemoryPhase(StrEnum):
    """The phase in which memory is fullest."""

    LOAD = "load"
    LOSS = "loss"
    BACKWARD = "backward"
    STEP = "step"
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True)
class Interval:
    """The value to expect, and one that it will not pass."""

    point: int
    upper: int


@dataclass(frozen=True)
class Term:
    """A part of the peak. `formula` shows its numbers, `source` is where the formula was read."""

    name: str
    bytes: int
    formula: str
    source: str


@dataclass(frozen=True, kw_only=True)
class MemoryEstimate:
    """Peak memory of one process on one GPU, in bytes.

    Allocated: tensors, as torch.cuda.max_memory_allocated counts them. Reserved: what torch's allocator holds for
    them, max_memory_reserved. Device: memory used on the GPU, with the CUDA context and communication buffers.
    """

    phase: MemoryPhase
    """The fullest phase; its terms are `terms` and add up to `allocated_peak_bytes`."""
    terms: tuple[Term, ...]
    overheads: tuple[Term, ...]
    """The difference between tensors and device: allocator slack, CUDA context, communication buffers."""
    phases: tuple[tuple[MemoryPhase, int], ...]
    """Bytes of tensors in every phase."""
    allocated_peak_bytes: int
    reserved_peak_bytes: Interval
    device_peak_bytes: Interval
    warnings: tuple[str, ...] = ()
    method: str = "closed form"
    """The method: "closed form", or "traced" with the versions of what was traced."""


_TRANSFORMERS = "https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers"
_TORCH = "https://github.com/pytorch/pytorch/blob/v2.13.0"

LLAMA_SOURCE = f"{_TRANSFORMERS}/models/llama/modeling_llama.py"
LOSS_SOURCE = f"{_TRANSFORMERS}/loss/loss_utils.py"
SDPA_SOURCE = f"{_TRANSFORMERS}/integrations/sdpa_attention.py"
AUTOCAST_SOURCE = f"{_TORCH}/aten/src/ATen/autocast_mode.cpp"
CHECKPOINT_SOURCE = f"{_TORCH}/torch/utils/checkpoint.py"
ADAMW_SOURCE = f"{_TORCH}/torch/optim/adamw.py"
DDP_SOURCE = f"{_TORCH}/torch/nn/parallel/distributed.py"
FSDP_SOURCE = "https://arxiv.org/abs/2304.11277"
DPO_SOURCE = "https://github.com/huggingface/trl/blob/v1.16.0/trl/trainer/dpo_trainer.py"
ZERO_SOURCE = "https://arxiv.org/abs/1910.02054"
QLORA_SOURCE = "https://arxiv.org/abs/2305.14314"
BITSANDBYTES_SOURCE = "https://github.com/bitsandbytes-foundation/bitsandbytes/blob/0.50.2/bitsandbytes"
INT8_SOURCE = f"{BITSANDBYTES_SOURCE}/autograd/_functions.py"
OPTIMIZER_8BIT_SOURCE = f"{BITSANDBYTES_SOURCE}/optim/optimizer.py"
PEFT_SOURCE = "https://github.com/huggingface/peft/blob/v0.21.2/src/peft"
LORA_SOURCE = f"{PEFT_SOURCE}/tuners/lora/layer.py"
KBIT_SOURCE = f"{PEFT_SOURCE}/utils/other.py"
DORA_SOURCE = f"{PEFT_SOURCE}/tuners/lora/dora.py"
LIGER_SOURCE = "https://github.com/linkedin/Liger-Kernel/blob/main/src/liger_kernel/ops/fused_linear_cross_entropy.py"
CUBLAS_SOURCE = "https://docs.nvidia.com/cuda/cublas/#cublassetworkspace"
CACHE_SOURCE = f"{_TRANSFORMERS}/cache_utils.py"
PAGED_ATTENTION_SOURCE = "https://arxiv.org/abs/2309.06180"
MEGATRON_SOURCE = "https://arxiv.org/abs/1909.08053"


def sum_bytes(terms: Iterable[Term]) -> int:
    """Sum the bytes of terms."""
    return sum(term.bytes for term in terms)


def format_millions(count: int) -> str:
    """Format a number of parameters in a formula: 8,030.3 M."""
    return f"{count / 1e6:,.1f} M"


MIB = 1 << 20

CUBLAS_BYTES = 2 * (4 << 20) + 8 * (16 << 10)
"""PyTorch's default workspace for one handle: CUBLAS_WORKSPACE_CONFIG :4096:2:16:8."""

CUBLAS_WORKSPACE = Term("cuBLAS workspace", CUBLAS_BYTES, "2 x 4 MiB + 8 x 16 KiB", CUBLAS_SOURCE)

ALLOCATOR_SOURCE = "https://pytorch.org/docs/stable/notes/cuda.html#cuda-memory-management"
CONTEXT_SOURCE = "https://pypi.org/project/fitcheck-llm/0.3.1/"
NCCL_SOURCE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-buffsize"

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


def build_memory_estimate(
    phases: Mapping[MemoryPhase, tuple[Term, ...]],
    *,
    largest_bytes: int,
    pageable_bytes: int = 0,
    world: int = 1,
    warnings: tuple[str, ...] = (),
) -> MemoryEstimate:
    """Build the estimate of these phases, with the overhead of allocator, CUDA context and communication.

    Args:
        phases: the terms in memory in every phase.
        largest_bytes: the largest tensor that comes and goes; a tensor that finds no block of its size gets a new one,
            so one of the largest may be lost to gaps.
        pageable_bytes: paged optimizer state, which is on the GPU only while it fits.
        world: the number of ranks.
        warnings: limits of the estimate.
    """
    phase = max(phases, key=lambda each: sum_bytes(phases[each]))
    allocated = sum_bytes(phases[phase])
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
        Term("allocator slack", reserved.point - allocated, slack, ALLOCATOR_SOURCE),
        Term("CUDA context", context.point, "torch's context and kernels", CONTEXT_SOURCE),
        Term("NCCL buffers", nccl.point, "communicators of all GPUs", NCCL_SOURCE),
    )
    return MemoryEstimate(
        phase=phase,
        terms=tuple(sorted((term for term in phases[phase] if term.bytes), key=lambda term: -term.bytes)),
        overheads=tuple(term for term in overheads if term.bytes),
        phases=tuple((each, sum_bytes(terms)) for each, terms in phases.items()),
        allocated_peak_bytes=allocated,
        reserved_peak_bytes=reserved,
        device_peak_bytes=device,
        warnings=warnings,
    )


def drop_gpu_overhead(estimate: MemoryEstimate) -> MemoryEstimate:
    """Return the estimate for a CPU: without cuBLAS's workspace, the CUDA context and NCCL's buffers."""
    less = sum(term.bytes for term in estimate.terms if term == CUBLAS_WORKSPACE)
    peak = estimate.reserved_peak_bytes
    reserved = Interval(point=peak.point - less, upper=peak.upper - less)
    return replace(
        estimate,
        terms=tuple(term for term in estimate.terms if term != CUBLAS_WORKSPACE),
        overheads=tuple(term for term in estimate.overheads if term.source == ALLOCATOR_SOURCE),
        phases=tuple((phase, size - less) for phase, size in estimate.phases),
        allocated_peak_bytes=estimate.allocated_peak_bytes - less,
        reserved_peak_bytes=reserved,
        device_peak_bytes=reserved,
    )
