"""Memory estimates: terms with formula and source, peaks with bounds, overhead up to the device, and the GPUs that hold it."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from devkit.compat.gpus import find_closest_gpus, find_datasheet, find_gpu
from devkit.compat.version_tables import GpuModel, load_tables
from devkit.errors import DevkitError
from devkit.facts.gpu import Gpu
from devkit.facts.values import Unknown
from devkit.text import suggest


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


GIB = 1 << 30
_MIG = re.compile(r"^(?P<whole>.+?) MIG (?P<slices>\d)g\.(?P<gigabytes>\d+)gb$", re.IGNORECASE)
_SHARE = re.compile(r"^(?P<whole>.+?) ?/ ?(?P<programs>[1-9]\d?)$")
_SIZED = re.compile(r"\b(?P<size>\d+) ?gi?b\b", re.IGNORECASE)

DRIVER_SHARE = 0.99
"""Of the memory on the data sheet: the rest is the driver's own. nvidia-smi shows 24,564 of 24,576 MiB on an RTX 4090,
143,771 of 144,384 on an H200."""
ECC_SHARE = 15 / 16
"""Error correction takes a sixteenth of GDDR memory and nothing of HBM.
Source: https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/, "Theoretical Bandwidth Calculation"."""
_HBM_GB_PER_S = 1200
_HBM_CAPABILITIES = frozenset({(6, 0), (7, 0)})
"""GDDR stays below that bandwidth on data center GPUs; the P100 and V100 have HBM and do, too."""


OLDEST_MAJOR = 7
"""Compute capability from which today's torch has kernels: https://pytorch.org/get-started/previous-versions/."""


FIRST_BF16_MAJOR = 8
"""Source: https://docs.nvidia.com/cuda/cuda-c-programming-guide/, "Arithmetic Instructions"."""


class Fit(StrEnum):
    """The verdict on a GPU: the upper bound of the estimate fits, only the expected value does, or not even that."""

    FITS = "fits"
    TIGHT = "tight"
    DOES_NOT_FIT = "does-not-fit"


@dataclass(frozen=True, kw_only=True)
class GpuSpec:
    """A GPU, or several that are alike. `memory_bytes` is what programs may take."""

    name: str
    memory_bytes: int
    count: int = 1
    lacks_bf16: bool = False
    """Whether it computes bf16 in software, as GPUs before compute capability 8.0 do."""
    is_measured: bool = False
    """Whether the memory was read from the GPU, and not from its data sheet."""

    def verdict(self, estimate: MemoryEstimate) -> Fit:
        """Return whether the estimate fits on one of them."""
        peak = estimate.device_peak_bytes
        if peak.upper <= self.memory_bytes:
            return Fit.FITS
        return Fit.TIGHT if peak.point <= self.memory_bytes else Fit.DOES_NOT_FIT


def find_gpu_spec(text: str) -> GpuSpec:
    """Find a GPU by name, such as "RTX 4090", "A100 80GB" or "H100 MIG 3g.40gb"; "L4/4" is the share of one program of four.

    Programs that share a GPU by time-slicing or MPS have its memory among them.
    Raises DevkitError for an unknown name, and for a MIG device that the GPU does not offer.
    """
    share = _SHARE.match(text.strip())
    if share:
        whole, programs = find_gpu_spec(share["whole"]), int(share["programs"])
        return replace(
            whole,
            name=f"{whole.name}/{programs}",
            memory_bytes=whole.memory_bytes // programs,
        )
    mig = _MIG.match(text.strip())
    if mig:
        whole = find_gpu_spec(mig["whole"])
        profile = f"{int(mig['slices'])}g.{int(mig['gigabytes'])}gb"
        name, memory = f"{whole.name} MIG {profile}", round(int(mig["gigabytes"]) * GIB * DRIVER_SHARE)
        if memory > whole.memory_bytes or find_datasheet(name) is None:
            raise DevkitError(f"{whole.name} has no MIG slice {profile}", "List them: nvidia-smi mig -lgip")
        return GpuSpec(name=name, memory_bytes=memory)
    # "V100 32GB" names a family and a size: the size says which model of the family.
    family, sized = _SIZED.sub("", text), _SIZED.search(text)
    size = int(sized["size"]) if sized else 0
    named = find_gpu(text) or find_gpu(family)
    if named is None or named.model is None:
        # Of a size alone, the newest GPUs that have it, boards with memory that they share aside.
        models = [row for row in reversed(load_tables().gpus.models) if not family and row.kind != "jetson"]
        near = [row.name for row in models if size in row.memory_gib][:3] or find_closest_gpus(text)
        hint = suggest(near, "Use nvidia-smi's name, such as RTX 4090.")
        raise DevkitError(f"the GPU {text!r} is not in the tables", hint)
    model, family = named.model, family.strip(" -_").lower()
    if size and size not in model.memory_gib and family:
        # "A100-40GB" is not the one with 80.
        alike = (row for row in load_tables().gpus.models if family in row.name.lower() and size in row.memory_gib)
        model = next(alike, model)
    # A laptop's GPU has less than the desktop's of the same number.
    is_other = "laptop" in family and "laptop" not in model.name.lower()
    if not size and (is_other or not model.memory_gib):
        raise DevkitError(
            f"the memory of the {model.name}{' for laptops' * is_other} is not in the tables",
            f'Add it to the name: "{text.strip()} 8GB".',
        )
    # Without a size, the smallest: what fits there fits on the larger ones, too.
    gib = size or min(model.memory_gib)
    return GpuSpec(
        name=_format_name(model, gib),
        lacks_bf16=model.capability.major < FIRST_BF16_MAJOR,
        memory_bytes=round(gib * GIB * _find_usable_share(model)),
    )


def find_smallest_gpu(estimate: MemoryEstimate) -> GpuSpec | None:
    """Find the NVIDIA GPU with the least memory on which the estimate is sure to fit; None where it fits on none."""
    rows = (row for row in load_tables().gpus.models if row.kind != "jetson" and row.capability.major >= OLDEST_MAJOR)
    sized = ((round(gib * GIB * _find_usable_share(row)), row, gib) for row in rows for gib in row.memory_gib)
    fitting = [each for each in sized if estimate.device_peak_bytes.upper <= each[0]]
    if not fitting:
        return None
    memory, row, gib = min(fitting, key=lambda each: (each[0], each[1].name))
    return GpuSpec(name=_format_name(row, gib), memory_bytes=memory)


def group_gpus(gpus: tuple[Gpu, ...]) -> tuple[GpuSpec, ...]:
    """Group the GPUs of a machine by name, with the least memory that one of a group has."""
    found: dict[str, GpuSpec] = {}
    for gpu in gpus:
        if isinstance(gpu.memory_bytes, Unknown):
            continue
        known = found.get(gpu.name)
        found[gpu.name] = GpuSpec(
            name=gpu.name,
            memory_bytes=min(gpu.memory_bytes, known.memory_bytes) if known else gpu.memory_bytes,
            count=known.count + 1 if known else 1,
            lacks_bf16=not isinstance(gpu.capability, Unknown) and gpu.capability.major < FIRST_BF16_MAJOR,
            is_measured=True,
        )
    return tuple(found.values())


def _format_name(model: GpuModel, gib: int) -> str:
    """Format a model's name, with its size where it is sold in several."""
    return model.name if len(model.memory_gib) == 1 or _SIZED.search(model.name) else f"{model.name} {gib}GB"


def _find_usable_share(model: GpuModel) -> float:
    if model.kind != "datacenter":
        return DRIVER_SHARE
    rates = load_tables().gpus.rates.get(model.id)
    capability = (model.capability.major, model.capability.minor)
    is_hbm = capability in _HBM_CAPABILITIES or (rates is not None and rates.bandwidth_gb_per_s > _HBM_GB_PER_S)
    return DRIVER_SHARE if is_hbm else ECC_SHARE
