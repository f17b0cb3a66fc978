"""The decisions of a run: settings, hardware, model and data in; decisions with reasons out. Importable without torch.

First what the device computes with (precision, attention, loss, compilation), then what fits into its memory
(micro-batch, gradient accumulation, gradient checkpointing, optimizer), by the estimate against free memory.

Sources: torch's varlen kernels, https://docs.pytorch.org/docs/2.12/nn.attention.varlen.html; FlashAttention's GPUs and
head sizes, https://github.com/Dao-AILab/flash-attention#installation-and-features; packed rows in transformers,
https://huggingface.co/docs/transformers/main/en/attention_interface.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any, TypeVar

from devkit.compat.version_tables import load_tables
from devkit.errors import DevkitError
from devkit.estimate.memory import Interval, MemoryEstimate, drop_gpu_overhead
from devkit.estimate.settings import (
    Attention,
    Loss,
    Method,
    Objective,
    Optimizer,
    Precision,
    Sharding,
    TrainingSettings,
)
from devkit.facts.values import ComputeCapability
from devkit.text import format_bytes, format_count
from devkit.workload.finetune.settings import FinetuneSettings

T = TypeVar("T")

USER_CHOICE = "set by the user"

MemoryEstimator = Callable[[TrainingSettings], MemoryEstimate]
"""From settings to the memory that they take at the peak."""

FLASH_MIN_CAPABILITY = ComputeCapability(8, 0)
FLASH_MAX_HEAD_SIZE = 256
"""The largest head of FlashAttention's kernels; its size must be a multiple of 8 as well."""

BITSANDBYTES_FEATURES = {Method.QLORA: "nf4", Method.INT8_LORA: "llm-int8"}
"""Method -> bitsandbytes' feature in the compatibility tables."""

PAGED_OPTIMIZERS = (Optimizer.PAGED_ADAMW, Optimizer.PAGED_ADAMW_8BIT)

BITSANDBYTES_OPTIMIZERS = (Optimizer.ADAMW_8BIT, *PAGED_OPTIMIZERS)
"""Optimizers that bitsandbytes has and torch has not."""

MIN_PACKED_STEPS = 50
"""Optimizer steps below which packing is not worth having fewer of them: a schedule needs steps to rise and fall."""

MIN_STEPS_PER_EPOCH = 4
"""Steps in an epoch below which data is not packed if the user set the number of steps: with fewer, every step would
train on much of the data, and on little else than the step before."""

ADAPTER_LEARNING_RATE = 2e-4
FULL_LEARNING_RATE = 2e-5
"""QLoRA's adapters up to 13B are trained with 2e-4 (https://arxiv.org/abs/2305.14314, appendix B), whole models with a
tenth of it, as in the Alpaca recipe (https://github.com/tatsu-lab/stanford_alpaca)."""

OBJECTIVE_LEARNING_RATES = {Objective.DPO: (1e-5, 1e-6), Objective.REWARD: (1e-3, 1e-4), Objective.GRPO: (1e-5, 1e-6)}
"""Of adapters, and of whole models, which are TRL's defaults. Adapters take ten times as much
(https://huggingface.co/docs/trl/v1.16.0/en/lora_without_regret)."""

MIN_EFFICIENT_TOKENS = 1024
"""Tokens in one pass from which matrix products are compute-bound: an H200 does 989e12 operations in the time in which
it reads 4.8e12 bytes, about 206 for each byte of a 16-bit weight; five times that leaves a margin for the rest."""

MAX_TOKENS_PER_PASS = 16384
"""Tokens in one pass beyond which a pass only takes longer."""

MAX_TOKENS_PER_PASS_ON_CPU = 4096


class DeviceKind(StrEnum):
    """The kind of device that computes."""

    CUDA = "cuda"
    ROCM = "rocm"
    MPS = "mps"
    CPU = "cpu"


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """One rank's device. `free_bytes` is what a run may take: free GPU memory, or this rank's share of RAM.

    `packages` are the optional libraries that are installed: bitsandbytes, flash_attn. `can_compile` is
    True if torch.compile has the compilers it needs, `has_varlen` if torch has the kernel for packed rows. `has_bf16`
    counts if there is no compute capability.
    """

    kind: DeviceKind
    name: str
    free_bytes: int
    capability: ComputeCapability | None = None
    has_bf16: bool = False
    can_compile: bool = False
    has_varlen: bool = False
    packages: frozenset[str] = frozenset()
    world_size: int = 1

    @property
    def is_gpu(self) -> bool:
        """True if kernels are launched on a device."""
        return self.kind is not DeviceKind.CPU

    @property
    def computes_bf16(self) -> bool:
        """True if the device computes in bf16 instead of emulating it."""
        if self.kind is DeviceKind.CUDA and self.capability is not None:
            return self.capability >= load_tables().stack.features["bf16"].capability
        return self.kind is DeviceKind.ROCM or self.has_bf16


@dataclass(frozen=True)
class RowLengths:
    """The lengths in tokens of the rows that a run trains on, longest first; `is_padded` to the longest of a pass."""

    longest_first: Sequence[int]
    is_padded: bool

    @classmethod
    def from_texts(cls, lengths: Sequence[int], *, sequence: int, packing: bool, attention: Attention) -> "RowLengths":
        """Return the rows of texts of these lengths: packed ones are taken as full."""
        if packing:
            length = min(sequence, sum(lengths))
            return cls([length] * -(-sum(lengths) // length), is_padded=False)
        return cls(sorted(lengths, reverse=True), is_padded=attention is not Attention.VARLEN)

    @property
    def mean(self) -> int:
        """The mean length."""
        return -(-sum(self.longest_first) // len(self.longest_first))

    def largest_pass(self, rows: int) -> int:
        """Return the tokens of the largest pass of so many rows, padding included."""
        longest = self.longest_first[:rows]
        return longest[0] * len(longest) if self.is_padded else sum(longest)


@dataclass(frozen=True)
class Decision:
    """One decision with its reason; `because` is USER_CHOICE if the user made it."""

    name: str
    value: str
    because: str


@dataclass(frozen=True, kw_only=True)
class Decisions:
    """Everything that a run needs to know beside its settings, with reasons.

    `estimate` is the memory of these decisions; None if the model's shape is not known.
    """

    precision: Precision
    adapter_precision: Precision
    attention: Attention
    packing: bool
    checkpointing: bool
    micro_batch: int
    accumulation: int
    optimizer: Optimizer
    compile: bool
    sharding: Sharding
    learning_rate: float
    estimate: MemoryEstimate | None
    reasons: tuple[Decision, ...]
    warnings: tuple[str, ...] = ()

    @property
    def is_sharded(self) -> bool:
        """True if ranks hold shards of the model, so that none of them can compute alone."""
        return self.sharding in (Sharding.ZERO2, Sharding.ZERO3)

    def to_training_settings(
        self, settings: FinetuneSettings, *, world: int, tokens_per_pass: int | None = None
    ) -> TrainingSettings:
        """Return the same run as the estimate's settings, which name a layer by the last part of its name.

        `tokens_per_pass` are those of the largest pass, which rarely has only rows of the longest sequence.
        """
        targets = tuple(dict.fromkeys(each.rpartition(".")[2] for each in settings.targets))
        rows = self.micro_batch * (2 if settings.objective.is_paired else 1)
        return TrainingSettings(
            method=settings.method,
            objective=settings.objective,
            completions=self.micro_batch * self.accumulation,
            # TRL pads rows, and passes a mask.
            masked=settings.objective is not Objective.SFT,
            sequence=-(-tokens_per_pass // rows) if tokens_per_pass else settings.sequence,
            micro_batch=self.micro_batch,
            accumulation=self.accumulation,
            precision=self.precision,
            rank=settings.rank,
            targets=targets,
            dora=settings.dora,
            adapter_precision=self.adapter_precision,
            optimizer=self.optimizer,
            loss=Loss.CHUNKED,
            attention=self.attention,
            checkpointing=self.checkpointing,
            lean=not self.compile and not settings.dropout,
            world=world,
            sharding=self.sharding,
        )


@dataclass(frozen=True, kw_only=True)
class AttentionTraits:
    """The traits of a model that decide who can compute its attention.

    `head` and `value_head` are sizes. `passes_borders` is True if its attention gets the positions and borders that the
    caller passes. `chunked` layers attend within chunks of a text, `recurrent` ones carry a state.
    """

    name: str
    sdpa: bool = True
    flash: bool = True
    passes_borders: bool = True
    recurrent: bool = False
    softcap: bool = False
    chunked: bool = False
    router_loss: bool = False
    dropout: float = 0.0
    head: int = 64
    value_head: int = 64


def choose_attention(traits: AttentionTraits, hardware: Hardware, precision: Precision) -> tuple[Attention, str]:
    """Return the best attention for this model on this machine, and the reason, a clause without a capital letter."""
    refusal = find_attention_refusal(Attention.VARLEN, traits, hardware, precision)
    if refusal is None and not hardware.is_gpu:
        return Attention.VARLEN, "each text is computed separately, so padding does not waste compute"
    if refusal is None:
        return Attention.VARLEN, "torch's flash kernel takes packed rows without padding or a mask"
    if find_attention_refusal(Attention.FLASH, traits, hardware, precision) is None:
        return Attention.FLASH, f"the package flash-attn is installed, but varlen is not possible: {refusal}"
    if find_attention_refusal(Attention.SDPA, traits, hardware, precision) is None:
        return Attention.SDPA, f"varlen is not possible: {refusal}"
    return Attention.EAGER, f"no kernel here computes the attention of {traits.name}: {_own_attention(traits)}"


def find_attention_refusal(
    attention: Attention, traits: AttentionTraits, hardware: Hardware, precision: Precision
) -> str | None:
    """Return why this attention cannot compute this model here; None if it can."""
    match attention:
        case Attention.VARLEN:
            return find_packing_refusal(traits) or _varlen_refusal(traits, hardware, precision)
        case Attention.FLASH:
            if not traits.flash:
                return f"{traits.name} does not support flash-attn"
            if hardware.kind not in (DeviceKind.CUDA, DeviceKind.ROCM):
                return f"flash-attn is for GPUs, but this is {hardware.kind}"
            if "flash_attn" not in hardware.packages:
                return "flash-attn is not installed"
            return _flash_kernel_refusal(traits, hardware, precision)
        case Attention.SDPA:
            return _own_attention(traits)
        case Attention.EAGER:
            return None


def find_packing_refusal(traits: AttentionTraits) -> str | None:
    """Return why texts must not share a row of this model; None if they may."""
    if traits.recurrent:
        return f"{traits.name} has recurrent layers, which carry their state from one text of a row into the next"
    if not traits.passes_borders:
        return f"{traits.name} does not pass the text boundaries of a row to its attention"
    return None


def _own_attention(traits: AttentionTraits) -> str | None:
    if traits.softcap:
        return "its attention scores are capped"
    return None if traits.sdpa else "its attention is custom code"


def _varlen_refusal(traits: AttentionTraits, hardware: Hardware, precision: Precision) -> str | None:
    own = _own_attention(traits)
    if own is not None:
        return own
    if traits.chunked:
        return "some of its layers attend within chunks of a text"
    if traits.router_loss:
        return "its router's loss needs a mask for padded rows"
    if not hardware.is_gpu:
        return None
    if hardware.kind is not DeviceKind.CUDA:
        shown = "ROCm" if hardware.kind is DeviceKind.ROCM else hardware.kind
        return f"torch's varlen kernel is for NVIDIA GPUs, but this is {shown}"
    if not hardware.has_varlen:
        return "this torch has no varlen kernel with windows and grouped heads (torch 2.12 has)"
    if traits.dropout:
        return f"the kernel has no dropout, but the model has {traits.dropout:g}"
    return _flash_kernel_refusal(traits, hardware, precision)


def _flash_kernel_refusal(traits: AttentionTraits, hardware: Hardware, precision: Precision) -> str | None:
    if hardware.capability is not None and hardware.capability < FLASH_MIN_CAPABILITY:
        return f"flash kernels need compute capability {FLASH_MIN_CAPABILITY}, but this GPU has {hardware.capability}"
    if precision is Precision.FP32:
        return "flash kernels compute in 16 bits, but this run is in fp32"
    if traits.head != traits.value_head:
        return f"its value heads ({traits.value_head}) are not as large as its key heads ({traits.head})"
    if traits.head > FLASH_MAX_HEAD_SIZE or traits.head % 8:
        return (
            f"flash kernels take heads of up to {FLASH_MAX_HEAD_SIZE} in steps of 8, but its heads have {traits.head}"
        )
    return None


def decide(
    settings: FinetuneSettings,
    hardware: Hardware,
    *,
    traits: AttentionTraits,
    lengths: Sequence[int],
    estimator: MemoryEstimator | None,
) -> Decisions:
    """Decide what `settings` leave open, by the lengths of the texts in tokens.

    `estimator` is None if the model's shape is not known.

    Raises DevkitError for settings that cannot work.
    """
    compute = _ComputeDecisions(settings, hardware, traits, lengths)
    if settings.batch < hardware.world_size:
        raise DevkitError(
            f"--batch {settings.batch} cannot be divided among {hardware.world_size} processes",
            f"Give --batch {hardware.world_size} or more.",
        )
    if settings.objective is not Objective.SFT and hardware.world_size > 1:
        raise DevkitError(
            f"--objective {settings.objective} trains in one process, but there are {hardware.world_size}",
            "Start it without torchrun; only sft trains in several.",
        )
    rows = -(-settings.batch // hardware.world_size)
    row_lengths = RowLengths.from_texts(
        lengths, sequence=settings.sequence, packing=compute.packing, attention=compute.attention
    )
    # With fewer rows than a step takes, every step has all of them.
    rows = min(rows, -(-len(row_lengths.longest_first) // hardware.world_size))
    if settings.objective is not Objective.SFT and rows % (settings.micro_batch or 1):
        raise DevkitError(
            f"--micro-batch {settings.micro_batch} does not divide the {rows} rows of a step",
            "TRL averages over micro-batches, which must be equally large.",
        )

    def build(fit: _Fit) -> Decisions:
        return Decisions(
            **compute.chosen,
            **vars(fit),
            accumulation=-(-rows // fit.micro_batch),
            reasons=(*compute.reasons, *_memory_reasons(settings, hardware, fit, rows)),
            warnings=(*compute.warnings, *_memory_warnings(fit, hardware, settings)),
        )

    for fit in _candidates(settings, hardware, rows, row_lengths):
        if estimator is not None:
            tokens = row_lengths.largest_pass(fit.micro_batch)
            training = build(fit).to_training_settings(settings, world=hardware.world_size, tokens_per_pass=tokens)
            if hardware.kind in (DeviceKind.CPU, DeviceKind.MPS) and training.attention is Attention.SDPA:
                # Fused kernels there compute grouped heads in fp32, which those of CUDA do not.
                training = replace(training, attention=Attention.FLASH)
            estimate = estimator(training)
            fit = replace(fit, estimate=estimate if hardware.is_gpu else drop_gpu_overhead(estimate))
        if _fits(fit, hardware):
            break
    return build(fit)


def build_memory_estimator(config: Mapping[str, Any]) -> MemoryEstimator | None:
    """Return the estimator for the model of this configuration; None for an architecture that it does not know."""
    from devkit.estimate.config import build_model_shape
    from devkit.estimate.training import estimate_training

    try:
        shape = build_model_shape(config)
    except DevkitError:
        return None
    return partial(estimate_training, shape)


class _ComputeDecisions:
    """The decisions that do not depend on how much memory is free, `chosen` by name.

    The constructor raises DevkitError for settings that cannot work.
    """

    def __init__(
        self, settings: FinetuneSettings, hardware: Hardware, traits: AttentionTraits, lengths: Sequence[int]
    ) -> None:
        self._settings = settings
        self._hardware = hardware
        self._by_trl = {} if settings.objective is Objective.SFT else _list_choices_of_trl(settings, traits)
        self.chosen: dict[str, Any] = {"sharding": Sharding.DDP}
        self.reasons: list[Decision] = []
        self.warnings: list[str] = []
        _require_bitsandbytes(settings, hardware)
        choice = choose_precision(settings.method, hardware)
        if settings.objective is not Objective.SFT and choice[0] is Precision.FP16:
            choice = (Precision.FP32, "TRL does not scale the loss for fp16 without autocast")
        self.precision = self._record("precision", settings.precision, *choice)
        if settings.method is Method.FULL and self.precision is Precision.FP16:
            raise DevkitError(
                "--dtype fp16 cannot train a whole model: updates to its weights would round to nothing",
                "Use --dtype bf16 if the GPU supports it, or otherwise fp32 or --method lora.",
            )
        precision, optimizer = settings.precision, settings.optimizer
        if precision is Precision.BF16 and not hardware.computes_bf16:
            self.warnings.append(
                f"{hardware.name} only emulates bf16 (--dtype bf16): expect a fraction of fp16's speed"
            )
        if precision is Precision.FP16 and hardware.kind is DeviceKind.CPU:
            self.warnings.append("few CPUs compute in fp16 (--dtype fp16), so expect it to be slow")
        if optimizer in PAGED_OPTIMIZERS and hardware.kind is not DeviceKind.CUDA:
            self.warnings.append(f"--optimizer {optimizer} works only on NVIDIA GPUs")
        self._choose_adapter_precision()
        self.attention = self._choose_attention(traits)
        self.packing = self._choose_packing(traits, lengths)
        self._choose_compile()
        self._choose_sharding()
        rate = (ADAPTER_LEARNING_RATE, "usual for adapters: ten times the rate for whole models")
        if settings.method is Method.FULL:
            rate = (FULL_LEARNING_RATE, "usual for whole models")
        if settings.objective in OBJECTIVE_LEARNING_RATES:
            adapter, whole = OBJECTIVE_LEARNING_RATES[settings.objective]
            is_whole = settings.method is Method.FULL
            rate = (whole, "TRL's default") if is_whole else (adapter, "ten times TRL's default for whole models")
        self._record("learning_rate", settings.learning_rate, *rate)

    def _record(self, name: str, setting: T | None, chosen: T, because: str) -> T:
        """Return the setting if the user made one, else what was chosen; either way record it with its reason."""
        chosen, because = self._by_trl.get(name, (chosen, because))
        self.chosen[name] = value = chosen if setting is None else setting
        shown = ("yes" if value else "no") if isinstance(value, bool) else f"{value}"
        self.reasons.append(Decision(name, shown, because if setting is None else USER_CHOICE))
        return value

    def _choose_adapter_precision(self) -> None:
        if self._settings.method is Method.FULL:
            self.chosen["adapter_precision"] = self.precision
            return
        chosen, because = self.precision, "that of the computation"
        if self.precision is Precision.FP16:
            chosen = Precision.FP32
            because = "gradients in fp16 cannot be unscaled and checked; the adapter is small"
        elif self.precision is not Precision.FP32:
            because += ": fp32 would keep a second copy of each layer's input"
        self._record("adapter_precision", self._settings.adapter_precision, chosen, because)

    def _choose_attention(self, traits: AttentionTraits) -> Attention:
        hardware, precision, setting = self._hardware, self.precision, self._settings.attention
        best, because = choose_attention(traits, hardware, precision)
        refusal = find_attention_refusal(setting, traits, hardware, precision) if setting is not None else None
        if refusal is not None:
            raise DevkitError(
                f"--attention {setting} is not possible: {refusal}", f"Use --attention {best}: {because}."
            )
        return self._record("attention", setting, best, because)

    def _choose_packing(self, traits: AttentionTraits, lengths: Sequence[int]) -> bool:
        refusal = find_packing_refusal(traits)
        if refusal is None and self.attention not in (Attention.VARLEN, Attention.FLASH):
            refusal = f"{self.attention} attention would compute the whole row for every short text in it"
        if self._settings.packing and refusal is not None:
            raise DevkitError(f"--packing is not possible: {refusal}", "Leave out --packing.")
        choice = (False, refusal) if refusal else _choose_packing(self._settings, lengths)
        return self._record("packing", self._settings.packing, *choice)

    def _choose_compile(self) -> None:
        hardware = self._hardware
        choice = (True, "packed passes have nearly the same length, and fused kernels read memory less often")
        if hardware.kind is DeviceKind.CPU:
            choice = (False, "on a CPU, it costs more time than it saves")
        elif not hardware.can_compile:
            choice = (False, "needs Triton and a C compiler, which are not installed")
        elif self._settings.method in BITSANDBYTES_FEATURES:
            choice = (False, "bitsandbytes' kernels cut the graph into pieces that are too small to benefit")
        elif not self.packing:
            choice = (False, "passes of many lengths would be compiled many times")
        compiles = self._record("compile", self._settings.compile, *choice)
        if compiles and not hardware.can_compile:
            raise DevkitError(
                "compile = true requires Triton and a C compiler, which are not installed",
                "Install gcc, or remove the setting.",
            )

    def _choose_sharding(self) -> None:
        setting = self._settings.sharding
        if self._hardware.world_size == 1:
            if setting not in (None, Sharding.DDP):
                raise DevkitError(
                    f"--sharding {setting} has nothing to shard, because this is a single process",
                    "Start several: torchrun --nproc-per-node N --no-python devkit finetune ...",
                )
            return
        because = "every rank holds the whole model, with the least communication"
        self._record("sharding", setting, Sharding.DDP, because)


def _list_choices_of_trl(settings: FinetuneSettings, traits: AttentionTraits) -> dict[str, tuple[Any, str]]:
    """List what does not depend on data and device where TRL trains, with the reasons."""
    own = _own_attention(traits)
    is_quantized = settings.method in BITSANDBYTES_FEATURES
    return {
        **({"precision": (Precision.BF16, "TRL's choice for quantized bases")} if is_quantized else {}),
        "attention": (Attention.EAGER, own) if own else (Attention.SDPA, "TRL pads rows, so attention gets a mask"),
        "packing": (False, "TRL keeps each row of a pair or a group apart"),
        "compile": (False, "padded passes of many lengths would be compiled many times"),
    }


def _require_bitsandbytes(settings: FinetuneSettings, hardware: Hardware) -> None:
    feature = BITSANDBYTES_FEATURES.get(settings.method)
    if feature is None and settings.optimizer not in BITSANDBYTES_OPTIMIZERS:
        return
    flag = f"--method {settings.method}" if feature else f"--optimizer {settings.optimizer}"
    if "bitsandbytes" not in hardware.packages:
        raise DevkitError(
            f"{flag} needs bitsandbytes, which is not installed",
            "pip install bitsandbytes, or --method lora --optimizer adamw",
        )
    if feature is None or hardware.capability is None:
        return

    row = load_tables().stack.features[feature]
    if hardware.capability < row.capability and not row.is_inferred:
        raise DevkitError(
            f"{flag} needs compute capability {row.capability}; {hardware.name} has {hardware.capability}",
            "Use --method qlora, which runs from 6.0, or --method lora."
            if settings.method is Method.INT8_LORA
            else "Use --method lora.",
        )


def choose_precision(method: Method, hardware: Hardware) -> tuple[Precision, str]:
    """Return the precision to compute in, and the reason."""
    if hardware.kind is DeviceKind.CPU:
        if hardware.has_bf16 and method is Method.LORA:
            return (
                Precision.BF16,
                "this CPU multiplies bf16 twice as fast as fp32; the adapter has master weights in fp32",
            )
        return Precision.FP32, "CPUs compute fp32 exactly and fast"
    if hardware.computes_bf16:
        device = f"compute capability {hardware.capability}" if hardware.capability else hardware.name
        return Precision.BF16, f"{device} computes in bf16, which has fp32's range"
    if hardware.kind is DeviceKind.MPS:
        return Precision.FP32, "this macOS does not support bf16 on Apple's GPU; macOS 14 does"
    reason = f"compute capability {hardware.capability} is below 8.0, the first with bf16"
    if method is Method.FULL:
        return Precision.FP32, f"{reason}, and fp16 weights would lose small updates"
    return Precision.FP16, f"{reason}; the loss is scaled"


def _choose_packing(settings: FinetuneSettings, lengths: Sequence[int]) -> tuple[bool, str]:
    steps_per_epoch = sum(lengths) / settings.sequence / settings.batch
    steps = settings.steps or round(settings.epochs * steps_per_epoch)
    # A number of steps that the user set stays; packing is worth it there unless every step sees the same rows.
    if steps < MIN_PACKED_STEPS and (settings.steps is None or steps_per_epoch < MIN_STEPS_PER_EPOCH):
        epoch = format_count(max(1, round(steps_per_epoch)), "step")
        because = f"if packed, an epoch would have only {epoch}, fewer than {MIN_STEPS_PER_EPOCH}"
        if settings.steps is None:
            because = f"if packed, the run would have only {format_count(max(1, steps), 'step')}"
        return False, f"{because}; this attention does not pad"
    length = sum(lengths) // max(1, len(lengths))
    return (
        True,
        f"texts of {length} tokens on average fill rows of {settings.sequence}, without attention across sequences",
    )


@dataclass(frozen=True)
class _Fit:
    """One way to divide the work, and its memory; None if there is no estimate."""

    micro_batch: int
    checkpointing: bool
    optimizer: Optimizer
    estimate: MemoryEstimate | None = None

    @property
    def peak(self) -> Interval | None:
        """The peak of what torch's allocator reserves, in bytes."""
        return self.estimate.reserved_peak_bytes if self.estimate is not None else None


def _candidates(settings: FinetuneSettings, hardware: Hardware, rows: int, lengths: RowLengths) -> Iterator[_Fit]:
    """Yield every way that the settings leave open, the fastest first.

    Recomputing costs a third of the time, so it comes after every pass that is large enough without it; states in
    8 bits come last, because they change what is learned.
    """
    # Micro-batches that divide the rows evenly, largest first, or the one that the user set.
    longest = MAX_TOKENS_PER_PASS if hardware.is_gpu else MAX_TOKENS_PER_PASS_ON_CPU
    sizes = [size for size in range(rows, 0, -1) if rows % size == 0]
    sizes = [size for size in sizes if size * lengths.mean <= longest] or [1]
    if settings.micro_batch is not None:
        sizes = [min(settings.micro_batch, rows)]
    large = [size for size in sizes if size * lengths.mean >= MIN_EFFICIENT_TOKENS] or sizes[:1]
    small = [size for size in sizes if size not in large]
    optimizers = [settings.optimizer or Optimizer.ADAMW]
    has_8_bit = hardware.kind is DeviceKind.CUDA and "bitsandbytes" in hardware.packages
    if (
        settings.optimizer is None
        and settings.method is Method.FULL
        and settings.sharding in (None, Sharding.DDP)
        and has_8_bit
    ):
        optimizers += [Optimizer.ADAMW_8BIT, Optimizer.PAGED_ADAMW_8BIT]
    for optimizer in optimizers:
        for checkpointing, some in ((False, large), (True, sizes), (False, small)):
            if settings.checkpointing in (None, checkpointing):
                yield from (_Fit(size, checkpointing, optimizer) for size in some)
    # Nothing fits: try what takes the least memory.
    yield _Fit(sizes[-1], settings.checkpointing is not False, optimizers[-1])


def _fits(fit: _Fit, hardware: Hardware) -> bool:
    """Return True if it fits. Without an estimate only the last candidate is sure to take the least."""
    return fit.peak.upper <= hardware.free_bytes if fit.peak is not None else not hardware.is_gpu


def _memory_reasons(settings: FinetuneSettings, hardware: Hardware, fit: _Fit, rows: int) -> Iterator[Decision]:
    memory = _format_memory(fit, hardware)
    because = "computed in fp32 so that small steps are not rounded to zero"
    if settings.optimizer is not None:
        because = USER_CHOICE
    elif fit.optimizer in BITSANDBYTES_OPTIMIZERS:
        because = "its states in fp32 or bf16 would not fit"
    elif settings.method is Method.FULL:
        because = "fused: one pass over memory and no copy of the weights"
    yield Decision("optimizer", fit.optimizer, because)
    because = f"everything fits without recomputing; {memory}"
    if settings.checkpointing is not None:
        because = USER_CHOICE
    elif fit.checkpointing:
        because = f"without it, memory is too small; {memory}"
    yield Decision("checkpointing", "yes" if fit.checkpointing else "no", because)
    fits = "the largest useful size that fits" if _fits(fit, hardware) else "the smallest possible"
    because = USER_CHOICE if settings.micro_batch is not None else f"{fits}; {memory}"
    yield Decision("micro_batch", f"{fit.micro_batch}", because)
    ranks = f" on each of {hardware.world_size} ranks" if hardware.world_size > 1 else ""
    yield Decision(
        "accumulation",
        f"{-(-rows // fit.micro_batch)}",
        f"a step has {rows} rows{ranks}, {fit.micro_batch} of them in one pass",
    )


def _format_memory(fit: _Fit, hardware: Hardware) -> str:
    free = format_bytes(hardware.free_bytes)
    if fit.peak is None:
        return f"{free} is free, but this model has no estimate"
    return f"about {format_bytes(fit.peak.point)}, at most {format_bytes(fit.peak.upper)}, of {free} free"


def _memory_warnings(fit: _Fit, hardware: Hardware, settings: FinetuneSettings) -> Iterator[str]:
    if fit.peak is None or fit.peak.upper <= hardware.free_bytes:
        return
    likelihood = "may not" if fit.peak.point <= hardware.free_bytes else "will probably not"
    smaller = "--method qlora" if settings.method in (Method.LORA, Method.FULL) else "a smaller model"
    yield f"this {likelihood} fit: {_format_memory(fit, hardware)}. Shorten --max-length, or use {smaller}"
