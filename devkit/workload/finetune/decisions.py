"""What a run does with a machine, and why: settings and hardware in, decisions with reasons out. Without torch."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any, TypeVar

from devkit.compat.version_tables import load_tables
from devkit.errors import DevkitError
from devkit.estimate.memory import Interval, MemoryEstimate, drop_gpu_overhead
from devkit.estimate.settings import Attention, Loss, Method, Optimizer, Precision, Sharding, TrainingSettings
from devkit.facts.values import ComputeCapability
from devkit.text import format_bytes, format_count
from devkit.workload.finetune.settings import FinetuneSettings

# How rows become the tensors of a micro-batch. Importable without torch.


class BatchLayout(StrEnum):
    """How rows become the tensors of a micro-batch.

    FLAT lays all texts end to end in one row of any length, for attention that is told the borders: nothing is padded.
    BLOCKS keeps rows apart, for attention that finds the borders in the positions, and fills them to equal length.
    PADDED holds one text a row, filled to equal length.
    """

    FLAT = "flat"
    BLOCKS = "blocks"
    PADDED = "padded"


# Who computes attention, and whether texts may share a row. Importable without torch.
#
# Sources: torch's varlen kernels, https://docs.pytorch.org/docs/2.12/nn.attention.varlen.html; FlashAttention's GPUs and
# head sizes, https://github.com/Dao-AILab/flash-attention#installation-and-features; how transformers is told of packed
# rows, https://huggingface.co/docs/transformers/main/en/attention_interface.

FLASH_MIN_CAPABILITY = ComputeCapability(8, 0)
FLASH_MAX_HEAD_SIZE = 256
"""The largest head that the kernels of FlashAttention take; its size must be a multiple of 8 as well."""


@dataclass(frozen=True, kw_only=True)
class AttentionTraits:
    """What of a model decides who can compute its attention.

    `head` and `value_head` are in numbers per head. `hands_on` is whether its attention is handed the positions and
    borders that its caller gives. `chunked` layers attend within chunks of a text, `recurrent` ones carry a state.
    """

    name: str
    sdpa: bool = True
    flash: bool = True
    hands_on: bool = True
    recurrent: bool = False
    softcap: bool = False
    chunked: bool = False
    router_loss: bool = False
    dropout: float = 0.0
    head: int = 64
    value_head: int = 64


@dataclass(frozen=True, kw_only=True)
class AttentionKernels:
    """What this machine computes attention with. `varlen` is torch's own kernel, `flash` the package flash-attn."""

    device: str
    precision: Precision
    capability: ComputeCapability | None = None
    rocm: bool = False
    varlen: bool = False
    flash: bool = False


def choose_attention(traits: AttentionTraits, kernels: AttentionKernels) -> tuple[Attention, str]:
    """The best attention for this model on this machine, and why: a clause that follows "attention: varlen, ..."."""
    refusal = find_attention_refusal(Attention.VARLEN, traits, kernels)
    if refusal is None and kernels.device == "cpu":
        return Attention.VARLEN, "each text is computed by itself, so that short ones cost what short ones cost"
    if refusal is None:
        return Attention.VARLEN, "torch's flash kernel takes rows of several texts without padding or a mask"
    if find_attention_refusal(Attention.FLASH, traits, kernels) is None:
        return Attention.FLASH, f"the package flash-attn is installed, and varlen is out: {refusal}"
    if find_attention_refusal(Attention.SDPA, traits, kernels) is None:
        return Attention.SDPA, f"varlen is out: {refusal}"
    return Attention.EAGER, f"{traits.name} has attention that no kernel here computes: {_own_attention(traits)}"


def find_attention_refusal(attention: Attention, traits: AttentionTraits, kernels: AttentionKernels) -> str | None:
    """Why this attention cannot compute this model here; None where it can."""
    match attention:
        case Attention.VARLEN:
            return _packs_not(traits) or _varlen_model(traits) or _varlen_kernel(traits, kernels)
        case Attention.FLASH:
            return _flash_model(traits) or _flash_gpu(traits, kernels)
        case Attention.SDPA:
            return _own_attention(traits)
        case Attention.EAGER:
            return None


def find_packing_refusal(traits: AttentionTraits) -> str | None:
    """Why texts must not share a row of this model; None where they may."""
    return _packs_not(traits)


def choose_layout(attention: Attention, *, pack: bool) -> BatchLayout:
    """How rows are laid out for this attention."""
    if attention is Attention.VARLEN or (attention is Attention.FLASH and pack):
        return BatchLayout.FLAT
    return BatchLayout.BLOCKS if pack else BatchLayout.PADDED


def _packs_not(traits: AttentionTraits) -> str | None:
    if traits.recurrent:
        return f"{traits.name} has recurrent layers, which carry what they read from one text of a row into the next"
    if not traits.hands_on:
        return f"{traits.name} does not tell its attention where the texts of a row begin"
    return None


def _own_attention(traits: AttentionTraits) -> str | None:
    if traits.softcap:
        return "its attention scores are capped"
    return None if traits.sdpa else "its attention is written by hand"


def _varlen_model(traits: AttentionTraits) -> str | None:
    own = _own_attention(traits)
    if own is not None:
        return own
    if traits.chunked:
        return "some of its layers attend within chunks of a text"
    if traits.router_loss:
        return "its router's loss wants a mask of padded rows"
    return None


def _varlen_kernel(traits: AttentionTraits, kernels: AttentionKernels) -> str | None:
    if kernels.device == "cpu":
        return None
    if kernels.device != "cuda" or kernels.rocm:
        return f"torch's varlen kernel is for NVIDIA GPUs, and this is {'ROCm' if kernels.rocm else kernels.device}"
    if not kernels.varlen:
        return "this torch has no varlen kernel with windows and grouped heads (torch 2.12 has)"
    if traits.dropout:
        return f"the kernel has no dropout, and the model asks for {traits.dropout:g}"
    return _flash_gpu_limits(traits, kernels)


def _flash_model(traits: AttentionTraits) -> str | None:
    return None if traits.flash else f"{traits.name} is not written for flash-attn"


def _flash_gpu(traits: AttentionTraits, kernels: AttentionKernels) -> str | None:
    if kernels.device != "cuda":
        return f"flash-attn is for GPUs, and this is {kernels.device}"
    if not kernels.flash:
        return "the package flash-attn is not installed"
    return _flash_gpu_limits(traits, kernels)


def _flash_gpu_limits(traits: AttentionTraits, kernels: AttentionKernels) -> str | None:
    if kernels.capability is not None and not kernels.rocm and kernels.capability < FLASH_MIN_CAPABILITY:
        return f"flash kernels need compute capability {FLASH_MIN_CAPABILITY} and this GPU has {kernels.capability}"
    if kernels.precision is Precision.FP32:
        return "flash kernels compute in 16 bit and this run is in fp32"
    if traits.head != traits.value_head:
        return f"its value heads ({traits.value_head}) are not as large as its key heads ({traits.head})"
    if traits.head > FLASH_MAX_HEAD_SIZE or traits.head % 8:
        return f"flash kernels take heads of up to {FLASH_MAX_HEAD_SIZE} in steps of 8 and its heads have {traits.head}"
    return None


USER_CHOICE = "asked for"
MemoryEstimator = Callable[[TrainingSettings], MemoryEstimate]
"""How much memory settings take at their peak."""


class DeviceKind(StrEnum):
    """What computes."""

    CUDA = "cuda"
    ROCM = "rocm"
    MPS = "mps"
    CPU = "cpu"


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """One process's device. `free_bytes` is what a run may take: free GPU memory, or this process's share of RAM.

    `packages` are the optional libraries that are installed: bitsandbytes, liger_kernel, flash_attn. `can_compile` is
    whether torch.compile has the compilers it needs, `has_varlen` whether torch has the kernel for rows of several
    texts. `has_bf16` counts where there is no compute capability.
    """

    kind: DeviceKind
    name: str
    free_bytes: int
    capability: ComputeCapability | None = None
    has_bf16: bool = False
    can_compile: bool = False
    has_varlen: bool = False
    packages: frozenset[str] = frozenset()
    world: int = 1

    @property
    def is_gpu(self) -> bool:
        """Whether kernels are launched at a device."""
        return self.kind is not DeviceKind.CPU


@dataclass(frozen=True)
class CorpusSize:
    """What is learned from: how many texts, and of how many tokens in all."""

    texts: int
    tokens: int


@dataclass(frozen=True)
class Decision:
    """One choice with its reason; `because` is "asked for" where the user made it."""

    name: str
    value: str
    because: str


@dataclass(frozen=True, kw_only=True)
class Decisions:
    """Everything that a run needs to know beside its settings, and why it is so.

    `estimate` is what these choices take; None where the model's shape is not known.
    """

    precision: Precision
    adapter_precision: Precision
    attention: Attention
    packing: bool
    checkpointing: bool
    micro_batch: int
    accumulation: int
    optimizer: Optimizer
    loss: Loss
    compile: bool
    sharding: Sharding
    learning_rate: float
    estimate: MemoryEstimate | None
    reasons: tuple[Decision, ...]
    warnings: tuple[str, ...] = ()

    def training(self, settings: FinetuneSettings, *, world: int) -> TrainingSettings:
        """The same run in the estimate's words, which know a layer by the last part of its name."""
        targets = tuple(dict.fromkeys(each.rpartition(".")[2] for each in settings.targets))
        return TrainingSettings(
            method=settings.method,
            sequence=settings.sequence,
            micro_batch=self.micro_batch,
            precision=self.precision,
            rank=settings.rank,
            targets=targets,
            dora=settings.dora,
            adapter_precision=self.adapter_precision,
            optimizer=self.optimizer,
            loss=self.loss,
            attention=self.attention,
            checkpointing=self.checkpointing,
            world=world,
            sharding=self.sharding,
        )


def decide(
    settings: FinetuneSettings,
    hardware: Hardware,
    *,
    traits: AttentionTraits,
    corpus: CorpusSize,
    need: MemoryEstimator | None,
) -> Decisions:
    """Choose what `settings` leave open. `traits` are the model's; `need` is None where its shape is not known.

    Raises DevkitError for what was asked for and cannot work.
    """

    return decide_by_memory(settings, hardware, ComputeDecisions(settings, hardware, traits, corpus), need)


# How a run computes: precision, attention, loss and compilation, by what the device can do.

T = TypeVar("T")

BITSANDBYTES_FEATURES = {Method.QLORA: "nf4", Method.INT8_LORA: "llm-int8"}
"""Method -> what bitsandbytes does for it, as the tables call it."""

MIN_PACKED_STEPS = 50
"""Optimizer steps below which full rows are not worth having fewer of them: a schedule needs room to rise and fall."""

MIN_STEPS_PER_EPOCH = 4
"""Steps in which full rows must be gone through once where the number of steps was asked for: with fewer, every step
would learn from much of the data, and from little else than the step before."""

PAGED_OPTIMIZERS = (Optimizer.PAGED_ADAMW, Optimizer.PAGED_ADAMW_8BIT)

BITSANDBYTES_OPTIMIZERS = (Optimizer.ADAMW_8BIT, Optimizer.PAGED_ADAMW, Optimizer.PAGED_ADAMW_8BIT)
"""Optimizers that bitsandbytes has and torch has not."""

ADAPTER_LEARNING_RATE = 2e-4
FULL_LEARNING_RATE = 2e-5
"""QLoRA's adapters up to 13B learn with 2e-4 (https://arxiv.org/abs/2305.14314, appendix B); whole models are tuned
with a tenth of it, as in the Alpaca recipe (https://github.com/tatsu-lab/stanford_alpaca)."""


class ComputeDecisions:
    """The choices that do not depend on how much memory is free.

    Raises DevkitError while it is made, for what was asked for and cannot work.
    """

    def __init__(
        self, settings: FinetuneSettings, hardware: Hardware, traits: AttentionTraits, corpus: CorpusSize
    ) -> None:
        self._settings = settings
        self._hardware = hardware
        self.reasons: list[Decision] = []
        self.warnings: list[str] = []
        _require_bitsandbytes(settings, hardware)
        self.precision = self.noted("precision", settings.precision, *_precision(settings, hardware))
        self._judge_precision()
        self.adapter_precision = self._adapter_precision()
        self.attention = self._attention(traits)
        self.packing = self._packing(traits, corpus)
        self.loss = self.noted("loss", settings.loss, *_loss(hardware))
        if self.loss is Loss.FUSED and "liger_kernel" not in hardware.packages:
            raise DevkitError("--loss fused needs Liger's kernels", "pip install liger-kernel, or --loss chunked")
        self.compile = self._compile()
        self.sharding = self._sharding()
        self.learning_rate = self.noted("learning_rate", settings.learning_rate, *_learning_rate(settings))

    def noted(self, name: str, asked: T | None, chosen: T, because: str) -> T:
        """What was asked for, else what was chosen; either way with its reason."""
        value = chosen if asked is None else asked
        shown = ("yes" if value else "no") if isinstance(value, bool) else f"{value}"
        self.reasons.append(Decision(name, shown, because if asked is None else USER_CHOICE))
        return value

    def _judge_precision(self) -> None:
        if self._settings.method is Method.FULL and self.precision is Precision.FP16:
            raise DevkitError(
                "--precision fp16 cannot train a whole model: updates to its weights would round to nothing",
                "Use --precision bf16 where the GPU has it, else fp32; or --method lora.",
            )
        asked = self._settings.precision
        if asked is Precision.BF16 and not _has_bf16(self._hardware):
            self.warnings.append(
                f"bf16 was asked for, which {self._hardware.name} only emulates: expect a fraction of fp16's speed"
            )
        if asked is Precision.FP16 and self._hardware.kind is DeviceKind.CPU:
            self.warnings.append("fp16 was asked for, which few CPUs compute in: expect it to be slow")

        if self._settings.optimizer in PAGED_OPTIMIZERS and self._hardware.kind is not DeviceKind.CUDA:
            self.warnings.append(f"{self._settings.optimizer} was asked for, which pages on NVIDIA GPUs alone")

    def _adapter_precision(self) -> Precision:
        if self._settings.method is Method.FULL:
            return self.precision
        if self.precision is Precision.FP16:
            because = "gradients in fp16 cannot be scaled back and checked; the adapter is small"
            return self.noted("adapter_precision", self._settings.adapter_precision, Precision.FP32, because)
        because = "that of the computation"
        if self.precision is not Precision.FP32:
            because += ": fp32 would keep a second copy of each layer's input"
        return self.noted("adapter_precision", self._settings.adapter_precision, self.precision, because)

    def _attention(self, traits: AttentionTraits) -> Attention:
        kernels = _kernels(self._hardware, self.precision)
        asked = self._settings.attention
        refusal = find_attention_refusal(asked, traits, kernels) if asked is not None else None
        if refusal is not None:
            best, because = choose_attention(traits, kernels)
            raise DevkitError(f"--attention {asked} is out: {refusal}", f"Use --attention {best}: {because}.")
        return self.noted("attention", asked, *choose_attention(traits, kernels))

    def _packing(self, traits: AttentionTraits, corpus: CorpusSize) -> bool:
        refusal = find_packing_refusal(traits)
        if self._settings.packing and refusal is not None:
            raise DevkitError(f"--packing is out: {refusal}", "Leave out --packing.")
        chosen = (False, refusal) if refusal else _packing(self._settings, self.attention, corpus)
        return self.noted("packing", self._settings.packing, *chosen)

    def _compile(self) -> bool:
        compiles = self.noted(
            "compile", self._settings.compile, *_compile(self._settings, self._hardware, self.packing)
        )
        if compiles and not self._hardware.can_compile:
            raise DevkitError(
                "--compile needs Triton and a C compiler, which are not here", "Install gcc, or leave out --compile."
            )
        return compiles

    def _sharding(self) -> Sharding:
        asked = self._settings.sharding
        if self._hardware.world == 1:
            if asked not in (None, Sharding.DDP):
                raise DevkitError(
                    f"--sharding {asked} has nothing to share out: this is one process",
                    "Start several: torchrun --nproc-per-node N -m devkit finetune ...",
                )
            return Sharding.DDP
        return self.noted("sharding", asked, Sharding.DDP, "every process holds the whole model; least is sent")


def _require_bitsandbytes(settings: FinetuneSettings, hardware: Hardware) -> None:
    feature = BITSANDBYTES_FEATURES.get(settings.method)
    if feature is None and settings.optimizer not in BITSANDBYTES_OPTIMIZERS:
        return
    what = f"--method {settings.method}" if feature else f"--optimizer {settings.optimizer}"
    if "bitsandbytes" not in hardware.packages:
        raise DevkitError(
            f"{what} needs bitsandbytes, which is not installed",
            "pip install bitsandbytes, or --method lora --optimizer adamw",
        )
    if feature is None or hardware.capability is None:
        return
    row = load_tables().stack.features[feature]
    if hardware.capability < row.capability and not row.is_inferred:
        raise DevkitError(
            f"{what} needs compute capability {row.capability}; {hardware.name} has {hardware.capability}",
            "Use --method qlora, which runs from 6.0, or --method lora."
            if settings.method is Method.INT8_LORA
            else "Use --method lora.",
        )


def _has_bf16(hardware: Hardware) -> bool:
    if hardware.kind is DeviceKind.CUDA and hardware.capability is not None:
        return hardware.capability >= load_tables().stack.features["bf16"].capability
    return hardware.kind is DeviceKind.ROCM or hardware.has_bf16


def _precision(settings: FinetuneSettings, hardware: Hardware) -> tuple[Precision, str]:
    if hardware.kind is DeviceKind.CPU:
        return Precision.FP32, "CPUs compute fp32 exactly and fast"
    if _has_bf16(hardware):
        has = f"compute capability {hardware.capability}" if hardware.capability else hardware.name
        return Precision.BF16, f"{has} computes in bf16, which has fp32's range"
    if hardware.kind is DeviceKind.MPS:
        return Precision.FP32, "this macOS has no bf16 on Apple's GPU; it has from macOS 14"
    before = f"compute capability {hardware.capability} is before 8.0, the first with bf16"
    if settings.method is Method.FULL:
        return Precision.FP32, f"{before}, and fp16 weights would lose small updates"
    return Precision.FP16, f"{before}; the loss is scaled"


def _kernels(hardware: Hardware, precision: Precision) -> AttentionKernels:
    is_rocm = hardware.kind is DeviceKind.ROCM
    return AttentionKernels(
        device="cuda" if is_rocm else str(hardware.kind),
        precision=precision,
        capability=hardware.capability,
        rocm=is_rocm,
        varlen=hardware.has_varlen,
        flash="flash_attn" in hardware.packages,
    )


def _packing(settings: FinetuneSettings, attention: Attention, corpus: CorpusSize) -> tuple[bool, str]:
    if attention not in (Attention.VARLEN, Attention.FLASH):
        return False, f"{attention} attention would pay for the whole row with every short text in it"
    of_an_epoch = corpus.tokens / settings.sequence / settings.batch
    steps = settings.steps or round(settings.epochs * of_an_epoch)
    # Steps that were asked for stay as many; full rows are worth having there unless they are the same ones each time.
    if steps < MIN_PACKED_STEPS and (settings.steps is None or of_an_epoch < MIN_STEPS_PER_EPOCH):
        full = format_count(max(1, round(of_an_epoch)), "step")
        made = f"packed, each pass over the data would be {full}, {MIN_STEPS_PER_EPOCH} at least are wanted"
        if settings.steps is None:
            made = f"packed, the data would make {format_count(max(1, steps), 'step')}"
        return False, f"{made}; this attention pads nothing either way"
    length = corpus.tokens // max(1, corpus.texts)
    return True, f"texts of {length} tokens on average fill rows of {settings.sequence}; attention keeps them apart"


def _loss(hardware: Hardware) -> tuple[Loss, str]:
    if hardware.kind is DeviceKind.CUDA and "liger_kernel" in hardware.packages:
        return Loss.FUSED, "Liger's kernel is installed"
    return Loss.CHUNKED, "logits of all tokens are never in memory at once"


def _compile(settings: FinetuneSettings, hardware: Hardware, packing: bool) -> tuple[bool, str]:
    if hardware.kind is DeviceKind.CPU:
        return False, "on a CPU it takes longer than it saves"
    if not hardware.can_compile:
        return False, "needs Triton and a C compiler, which are not here"
    if settings.method in BITSANDBYTES_FEATURES:
        return False, "bitsandbytes' kernels cut the model into pieces too small to gain from it"
    if not packing:
        return False, "passes of many lengths would be compiled many times"
    return True, "packed passes are of nearly one length, and fused kernels read memory less often"


def _learning_rate(settings: FinetuneSettings) -> tuple[float, str]:
    if settings.method is Method.FULL:
        return FULL_LEARNING_RATE, "usual for whole models"
    return ADAPTER_LEARNING_RATE, "usual for adapters; ten times that of whole models"


# What fits: micro-batch, accumulation, checkpointing and optimizer, by the estimate against free memory.

MIN_EFFICIENT_TOKENS = 1024
"""Tokens in one pass from which matrix products are bound by arithmetic: an H200 does 989e12 operations in the time
in which it reads 4.8e12 bytes, about 206 for each byte of a 16-bit weight; five times that leaves room for the rest."""

MAX_TOKENS_PER_PASS = 16384
"""Tokens in one pass beyond which a pass only takes longer."""

MAX_TOKENS_PER_PASS_ON_CPU = 4096


@dataclass(frozen=True)
class _Fit:
    """One way to share the work out, and what it takes; None where no estimate is to be had."""

    micro_batch: int
    checkpointing: bool
    optimizer: Optimizer
    estimate: MemoryEstimate | None = None

    @property
    def peak(self) -> Interval | None:
        """What torch's allocator holds at the peak, in bytes."""
        return self.estimate.reserved_peak_bytes if self.estimate is not None else None


def decide_by_memory(
    settings: FinetuneSettings, hardware: Hardware, computing: ComputeDecisions, need: MemoryEstimator | None
) -> Decisions:
    """The decisions with everything that memory decides. Raises DevkitError where a batch cannot be shared out."""
    rows = _rows(settings, hardware)
    draft = _draft(settings, computing)
    tried = [_estimated(fit, draft, settings, hardware, need) for fit in _candidates(settings, hardware, rows)]
    fit = next((each for each in tried if _fits(each, hardware)), tried[-1])
    accumulation = -(-rows // fit.micro_batch)
    computing.reasons.extend(_reasons(settings, hardware, fit, rows, accumulation))
    warnings = [*computing.warnings, *_too_little(fit, hardware, settings)]
    return replace(
        draft,
        micro_batch=fit.micro_batch,
        accumulation=accumulation,
        checkpointing=fit.checkpointing,
        optimizer=fit.optimizer,
        estimate=fit.estimate,
        reasons=tuple(computing.reasons),
        warnings=tuple(warnings),
    )


def _rows(settings: FinetuneSettings, hardware: Hardware) -> int:
    """How many rows of a batch one process learns from."""
    if settings.batch < hardware.world:
        raise DevkitError(
            f"--batch {settings.batch} cannot be shared by {hardware.world} processes",
            f"Give --batch {hardware.world} or more.",
        )
    return -(-settings.batch // hardware.world)


def _draft(settings: FinetuneSettings, computing: ComputeDecisions) -> Decisions:
    return Decisions(
        precision=computing.precision,
        adapter_precision=computing.adapter_precision,
        attention=computing.attention,
        packing=computing.packing,
        checkpointing=bool(settings.checkpointing),
        micro_batch=1,
        accumulation=1,
        optimizer=settings.optimizer or Optimizer.ADAMW,
        loss=computing.loss,
        compile=computing.compile,
        sharding=computing.sharding,
        learning_rate=computing.learning_rate,
        estimate=None,
        reasons=(),
    )


def _candidates(settings: FinetuneSettings, hardware: Hardware, rows: int) -> Iterator[_Fit]:
    """Every way that the settings leave open, the fastest first.

    Recomputing costs a third of the time, so it comes after every pass that is large enough without it; states in
    8 bits come last, because they change what is learned.
    """
    sizes = _sizes(settings, hardware, rows)
    large = [size for size in sizes if size * settings.sequence >= MIN_EFFICIENT_TOKENS] or sizes[:1]
    small = [size for size in sizes if size not in large]
    for optimizer in _optimizers(settings, hardware):
        for checkpointing, some in ((False, large), (True, sizes), (False, small)):
            if settings.checkpointing in (None, checkpointing):
                yield from (_Fit(size, checkpointing, optimizer) for size in some)
    # Nothing fits: what takes least is what is tried.
    yield _Fit(sizes[-1], settings.checkpointing is not False, _optimizers(settings, hardware)[-1])


def _sizes(settings: FinetuneSettings, hardware: Hardware, rows: int) -> list[int]:
    """Micro-batches worth trying, largest first: those that share `rows` out evenly, or the one that was asked for."""
    if settings.micro_batch is not None:
        return [min(settings.micro_batch, rows)]
    most = MAX_TOKENS_PER_PASS if hardware.is_gpu else MAX_TOKENS_PER_PASS_ON_CPU
    largest = max(1, most // settings.sequence)
    return [size for size in range(min(rows, largest), 0, -1) if rows % size == 0]


def _optimizers(settings: FinetuneSettings, hardware: Hardware) -> list[Optimizer]:
    if settings.optimizer is not None:
        return [settings.optimizer]
    can_shrink = (
        settings.method is Method.FULL and hardware.kind is DeviceKind.CUDA and "bitsandbytes" in hardware.packages
    )
    return [Optimizer.ADAMW, Optimizer.ADAMW_8BIT, Optimizer.PAGED_ADAMW_8BIT] if can_shrink else [Optimizer.ADAMW]


def _estimated(
    fit: _Fit, draft: Decisions, settings: FinetuneSettings, hardware: Hardware, need: MemoryEstimator | None
) -> _Fit:
    if need is None:
        return fit
    tried = replace(draft, micro_batch=fit.micro_batch, checkpointing=fit.checkpointing, optimizer=fit.optimizer)
    estimate = need(tried.training(settings, world=hardware.world))
    return replace(fit, estimate=estimate if hardware.is_gpu else drop_gpu_overhead(estimate))


def _fits(fit: _Fit, hardware: Hardware) -> bool:
    """Without an estimate only one row at a time, computed again in the backward pass, is sure to be the least."""
    return fit.peak.upper <= hardware.free_bytes if fit.peak is not None else not hardware.is_gpu


def _reasons(
    settings: FinetuneSettings, hardware: Hardware, fit: _Fit, rows: int, accumulation: int
) -> Iterator[Decision]:
    room = _room(fit, hardware)
    if settings.optimizer is not None:
        yield Decision("optimizer", fit.optimizer, USER_CHOICE)
    elif fit.optimizer in BITSANDBYTES_OPTIMIZERS:
        yield Decision("optimizer", fit.optimizer, "its states in fp32 or bf16 would not fit")
    elif settings.method is Method.FULL:
        yield Decision("optimizer", fit.optimizer, "fused: one pass over memory and no copy of the weights")
    else:
        yield Decision("optimizer", fit.optimizer, "computed in fp32, so that small steps are not rounded away")
    if settings.checkpointing is not None:
        yield Decision("checkpointing", "yes" if fit.checkpointing else "no", USER_CHOICE)
    elif fit.checkpointing:
        yield Decision("checkpointing", "yes", f"without it there is no room; {room}")
    else:
        yield Decision("checkpointing", "no", f"everything fits without computing twice; {room}")
    fits = "the largest useful one that fits" if _fits(fit, hardware) else "the least there is"
    because = USER_CHOICE if settings.micro_batch is not None else f"{fits}; {room}"
    yield Decision("micro_batch", f"{fit.micro_batch}", because)
    shared = f" by each of {hardware.world} processes" if hardware.world > 1 else ""
    yield Decision("accumulation", f"{accumulation}", f"{rows} rows a step{shared}, {fit.micro_batch} in one pass")


def _room(fit: _Fit, hardware: Hardware) -> str:
    free = format_bytes(hardware.free_bytes)
    if fit.peak is None:
        return f"{free} free, and no estimate for this model"
    return f"about {format_bytes(fit.peak.point)}, at most {format_bytes(fit.peak.upper)}, of {free} free"


def _too_little(fit: _Fit, hardware: Hardware, settings: FinetuneSettings) -> Iterator[str]:
    if fit.peak is None or fit.peak.upper <= hardware.free_bytes:
        return
    word = "may not" if fit.peak.point <= hardware.free_bytes else "will probably not"
    smaller = "--method qlora" if settings.method in (Method.LORA, Method.FULL) else "a smaller model"
    yield f"this {word} fit: {_room(fit, hardware)}. Shorten --sequence, or use {smaller}"


# How much memory a run on a model will take, by the estimate.


def build_memory_estimator(config: Mapping[str, Any]) -> MemoryEstimator | None:
    """The estimate for the model of this configuration; None for an architecture that it does not know."""
    from devkit.estimate.config import build_model_shape
    from devkit.estimate.training import estimate_training

    try:
        shape = build_model_shape(config)
    except DevkitError:
        return None
    return partial(estimate_training, shape)
