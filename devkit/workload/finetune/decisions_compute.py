"""How a run computes: precision, attention, loss and compilation, by what the device can do."""

from typing import TypeVar

from devkit.compat.load import tables
from devkit.errors import DevkitError
from devkit.estimate.settings import Attention, Loss, Method, Optimizer, Precision, Sharding
from devkit.text import count_of
from devkit.workload.finetune.attention import Kernels, Traits, attention_choice, packing_refusal, refusal_of
from devkit.workload.finetune.decisions import ASKED, Corpus, Decision, Hardware, Kind
from devkit.workload.finetune.settings import FinetuneSettings

T = TypeVar("T")

FEATURES = {Method.QLORA: "nf4", Method.INT8_LORA: "llm-int8"}
"""Method -> what bitsandbytes does for it, as the tables call it."""

LEAST_STEPS = 50
"""Optimizer steps below which full rows are not worth having fewer of them: a schedule needs room to rise and fall."""

LEAST_OF_AN_EPOCH = 4
"""Steps in which full rows must be gone through once where the number of steps was asked for: with fewer, every step
would learn from much of the data, and from little else than the step before."""

PAGED = (Optimizer.PAGED_ADAMW, Optimizer.PAGED_ADAMW_8BIT)

EIGHT_BIT = (Optimizer.ADAMW_8BIT, Optimizer.PAGED_ADAMW, Optimizer.PAGED_ADAMW_8BIT)
"""Optimizers that bitsandbytes has and torch has not."""

ADAPTER_LEARNING_RATE = 2e-4
FULL_LEARNING_RATE = 2e-5
"""QLoRA's adapters up to 13B learn with 2e-4 (https://arxiv.org/abs/2305.14314, appendix B); whole models are tuned
with a tenth of it, as in the Alpaca recipe (https://github.com/tatsu-lab/stanford_alpaca)."""


class Computing:
    """The choices that do not depend on how much memory is free.

    Raises DevkitError while it is made, for what was asked for and cannot work.
    """

    def __init__(self, settings: FinetuneSettings, hardware: Hardware, traits: Traits, corpus: Corpus) -> None:
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
        self.reasons.append(Decision(name, shown, because if asked is None else ASKED))
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
        if asked is Precision.FP16 and self._hardware.kind is Kind.CPU:
            self.warnings.append("fp16 was asked for, which few CPUs compute in: expect it to be slow")

        if self._settings.optimizer in PAGED and self._hardware.kind is not Kind.CUDA:
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

    def _attention(self, traits: Traits) -> Attention:
        kernels = _kernels(self._hardware, self.precision)
        asked = self._settings.attention
        refusal = refusal_of(asked, traits, kernels) if asked is not None else None
        if refusal is not None:
            best, because = attention_choice(traits, kernels)
            raise DevkitError(f"--attention {asked} is out: {refusal}", f"Use --attention {best}: {because}.")
        return self.noted("attention", asked, *attention_choice(traits, kernels))

    def _packing(self, traits: Traits, corpus: Corpus) -> bool:
        refusal = packing_refusal(traits)
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
    feature = FEATURES.get(settings.method)
    if feature is None and settings.optimizer not in EIGHT_BIT:
        return
    what = f"--method {settings.method}" if feature else f"--optimizer {settings.optimizer}"
    if "bitsandbytes" not in hardware.packages:
        raise DevkitError(
            f"{what} needs bitsandbytes, which is not installed",
            "pip install bitsandbytes, or --method lora --optimizer adamw",
        )
    if feature is None or hardware.capability is None:
        return
    row = tables().stack.features[feature]
    if hardware.capability < row.capability and not row.is_inferred:
        raise DevkitError(
            f"{what} needs compute capability {row.capability}; {hardware.name} has {hardware.capability}",
            "Use --method qlora, which runs from 6.0, or --method lora."
            if settings.method is Method.INT8_LORA
            else "Use --method lora.",
        )


def _has_bf16(hardware: Hardware) -> bool:
    if hardware.kind is Kind.CUDA and hardware.capability is not None:
        return hardware.capability >= tables().stack.features["bf16"].capability
    return hardware.kind is Kind.ROCM or hardware.has_bf16


def _precision(settings: FinetuneSettings, hardware: Hardware) -> tuple[Precision, str]:
    if hardware.kind is Kind.CPU:
        return Precision.FP32, "CPUs compute fp32 exactly and fast"
    if _has_bf16(hardware):
        has = f"compute capability {hardware.capability}" if hardware.capability else hardware.name
        return Precision.BF16, f"{has} computes in bf16, which has fp32's range"
    if hardware.kind is Kind.MPS:
        return Precision.FP32, "this macOS has no bf16 on Apple's GPU; it has from macOS 14"
    before = f"compute capability {hardware.capability} is before 8.0, the first with bf16"
    if settings.method is Method.FULL:
        return Precision.FP32, f"{before}, and fp16 weights would lose small updates"
    return Precision.FP16, f"{before}; the loss is scaled"


def _kernels(hardware: Hardware, precision: Precision) -> Kernels:
    is_rocm = hardware.kind is Kind.ROCM
    return Kernels(
        device="cuda" if is_rocm else str(hardware.kind),
        precision=precision,
        capability=hardware.capability,
        rocm=is_rocm,
        varlen=hardware.has_varlen,
        flash="flash_attn" in hardware.packages,
    )


def _packing(settings: FinetuneSettings, attention: Attention, corpus: Corpus) -> tuple[bool, str]:
    if attention not in (Attention.VARLEN, Attention.FLASH):
        return False, f"{attention} attention would pay for the whole row with every short text in it"
    of_an_epoch = corpus.tokens / settings.sequence / settings.batch
    steps = settings.steps or round(settings.epochs * of_an_epoch)
    # Steps that were asked for stay as many; full rows are worth having there unless they are the same ones each time.
    if steps < LEAST_STEPS and (settings.steps is None or of_an_epoch < LEAST_OF_AN_EPOCH):
        full = count_of(max(1, round(of_an_epoch)), "step")
        made = f"packed, each pass over the data would be {full}, {LEAST_OF_AN_EPOCH} at least are wanted"
        if settings.steps is None:
            made = f"packed, the data would make {count_of(max(1, steps), 'step')}"
        return False, f"{made}; this attention pads nothing either way"
    length = corpus.tokens // max(1, corpus.texts)
    return True, f"texts of {length} tokens on average fill rows of {settings.sequence}; attention keeps them apart"


def _loss(hardware: Hardware) -> tuple[Loss, str]:
    if hardware.kind is Kind.CUDA and "liger_kernel" in hardware.packages:
        return Loss.FUSED, "Liger's kernel is installed"
    return Loss.CHUNKED, "logits of all tokens are never in memory at once"


def _compile(settings: FinetuneSettings, hardware: Hardware, packing: bool) -> tuple[bool, str]:
    if hardware.kind is Kind.CPU:
        return False, "on a CPU it takes longer than it saves"
    if not hardware.can_compile:
        return False, "needs Triton and a C compiler, which are not here"
    if settings.method in FEATURES:
        return False, "bitsandbytes' kernels cut the model into pieces too small to gain from it"
    if not packing:
        return False, "passes of many lengths would be compiled many times"
    return True, "packed passes are of nearly one length, and fused kernels read memory less often"


def _learning_rate(settings: FinetuneSettings) -> tuple[float, str]:
    if settings.method is Method.FULL:
        return FULL_LEARNING_RATE, "usual for whole models"
    return ADAPTER_LEARNING_RATE, "usual for adapters; ten times that of whole models"
