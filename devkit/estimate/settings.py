"""Settings of training and inference runs that estimate, finetune and export share."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, TypeVar

from devkit.errors import DevkitError
from devkit.facts.decode import InvalidValue, UnknownKey, decode_fields
from devkit.text import find_similar, suggest


class Precision(StrEnum):
    """A data type of weights or activations."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"

    @property
    def bytes(self) -> int:
        """Bytes of one number."""
        return 4 if self is Precision.FP32 else 2


class Method(StrEnum):
    """The training method: adapters on a base in one of several formats, or all weights."""

    LORA = "lora"
    QLORA = "qlora"
    INT8_LORA = "int8-lora"
    FULL = "full"


class Objective(StrEnum):
    """The training objective: texts (supervised fine-tuning), the better of two answers (a policy by DPO, a reward model),
    or answers that a function rewards (GRPO)."""

    SFT = "sft"
    DPO = "dpo"
    REWARD = "reward"
    GRPO = "grpo"

    @property
    def is_paired(self) -> bool:
        """True if a row of the data is two answers, each computed as a row."""
        return self in (Objective.DPO, Objective.REWARD)


class Optimizer(StrEnum):
    """The optimizer. `foreach` is torch's default on CUDA; paged ones may move their state to host memory."""

    ADAMW = "adamw"
    ADAMW_FOREACH = "adamw-foreach"
    ADAMW_8BIT = "adamw-8bit"
    PAGED_ADAMW = "paged-adamw"
    PAGED_ADAMW_8BIT = "paged-adamw-8bit"


class Loss(StrEnum):
    """The implementation of cross-entropy: on whole logits, on chunks, or by a kernel that never materializes them."""

    STANDARD = "standard"
    CHUNKED = "chunked"
    FUSED = "fused"


class Attention(StrEnum):
    """The implementation of attention. `varlen` is ours: one call for packed rows."""

    EAGER = "eager"
    SDPA = "sdpa"
    FLASH = "flash"
    VARLEN = "varlen"


class Sharding(StrEnum):
    """Data parallelism with or without sharding. FSDP2's full shard is zero3."""

    DDP = "ddp"
    ZERO1 = "zero1"
    ZERO2 = "zero2"
    ZERO3 = "zero3"


class Stack(StrEnum):
    """The training loop; what loops keep in memory differs by gigabytes."""

    DEVKIT = "devkit"
    TRAINER = "trainer"
    TRL = "trl"


class CacheKind(StrEnum):
    """The KV cache: concatenated again for every token, allocated in full at once, or in pages
    of a pool that a server shares out."""

    DYNAMIC = "dynamic"
    STATIC = "static"
    PAGED = "paged"


class Quantization(StrEnum):
    """The format of the base model's weights."""

    NONE = "none"
    NF4 = "nf4"
    NF4_DOUBLE = "nf4-double"
    INT8 = "int8"


CHUNK_TOKENS = 512
"""Tokens whose logits a chunked loss has in memory at once."""

ALL_LINEAR = ("all-linear",)
"""Adapters on every linear layer but the output head, as PEFT spells it."""


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """One training step on one process. `sequence` is in tokens, `micro_batch` in rows of that many.

    `double_quantization` and `upcast` (peft's prepare_model_for_kbit_training) speak of quantized bases alone.
    """

    method: Method = Method.LORA
    objective: Objective = Objective.SFT
    """`micro_batch` is in pairs for DPO and reward models, in completions for GRPO."""
    completions: int = 16
    """Completions that GRPO generates at once: those of an optimizer step."""
    sequence: int = 2048
    prompt: int = 0
    """Tokens of a row that were given: GRPO generates the others and has logits of those alone, as DPO has with
    TRL's use_logits_to_keep. 0 where it is not known: GRPO then generates half of the row, and all tokens have logits.
    """
    micro_batch: int = 1
    precision: Precision = Precision.BF16
    rank: int = 16
    targets: tuple[str, ...] = ALL_LINEAR
    dora: bool = False
    adapter_precision: Precision = Precision.BF16
    double_quantization: bool = True
    upcast: bool = False
    optimizer: Optimizer = Optimizer.ADAMW
    loss: Loss = Loss.CHUNKED
    attention: Attention = Attention.SDPA
    checkpointing: bool = True
    autocast: bool = False
    """Whether matrix products run in 16 bits under torch.autocast: Trainer's and TRL's `bf16=True` and `fp16=True`."""
    masked: bool = False
    """Whether transformers passes a mask, as for padded rows: it then repeats keys and values for every head."""
    stack: Stack = Stack.DEVKIT
    keeps_outputs: bool = False
    """Whether the loop still holds the model's outputs, and so the logits, in the backward pass."""
    hidden_states: bool = False
    """Whether DPO asks its models for the hidden states of all layers, as TRL 0.19 to 0.28 do."""
    lean: bool = False
    """Whether norms and gated MLPs keep their inputs alone, as devkit's loop has them without torch.compile."""
    accumulation: int = 1
    """Backward passes before a step: from two on, gradients are in memory all the time."""
    world: int = 1
    sharding: Sharding = Sharding.DDP
    """Processes that shard one copy of the model; 0 for all of them."""

    @property
    def rows(self) -> int:
        """Rows of `sequence` tokens in one pass."""
        return self.micro_batch * (2 if self.objective.is_paired else 1)

    @property
    def unscored_tokens(self) -> int:
        """Tokens of one pass without logits: those of prompts but for the last, which predicts the answer's first."""
        return 0 if self.objective is Objective.SFT else self.rows * max(self.prompt - 1, 0)

    @property
    def is_upcast(self) -> bool:
        """True if everything that is not packed was cast to fp32 before training."""
        return self.upcast and self.method in {Method.QLORA, Method.INT8_LORA}

    @property
    def residual_bytes(self) -> int:
        """Bytes of one number of the residual stream: fp32 where everything that is not packed was cast to fp32."""
        return Precision.FP32.bytes if self.is_upcast else self.precision.bytes

    @property
    def compute_bytes(self) -> int:
        """Bytes of one number that linears and attention compute with."""
        return Precision.BF16.bytes if self.autocast else self.residual_bytes

    @property
    def is_lean(self) -> bool:
        """True if what adapters read is computed again in the backward pass where a layer allows it."""
        is_plain = self.method is Method.LORA and not self.dora and self.adapter_precision is self.precision
        return self.lean and is_plain and not self.checkpointing

    @property
    def has_masters(self) -> bool:
        """True if the optimizer updates fp32 master weights: devkit's own AdamW does for adapters in 16 bits."""
        return (
            self.stack is Stack.DEVKIT
            and self.method is not Method.FULL
            and self.adapter_precision is not Precision.FP32
            and self.optimizer is Optimizer.ADAMW
        )


@dataclass(frozen=True, kw_only=True)
class InferenceSettings:
    """Text generation by one process: `sequences` at once, each with `prompt` tokens and `new` ones to come."""

    prompt: int = 1024
    new: int = 256
    sequences: int = 1
    precision: Precision = Precision.BF16
    cache_precision: Precision | None = None
    """None for that of the weights."""
    cache: CacheKind = CacheKind.DYNAMIC
    quantization: Quantization = Quantization.NONE
    attention: Attention = Attention.SDPA
    world: int = 1
    """GPUs that share every layer (tensor parallel)."""


MAX_SIZE = 1 << 34


def replace_bf16(settings: TrainingSettings | InferenceSettings) -> Precision:
    """Return the data type for a GPU without bf16: fp16 loses small updates of whole models, and TRL scales no loss for it."""
    is_whole = isinstance(settings, TrainingSettings) and settings.method is Method.FULL
    is_of_trl = isinstance(settings, TrainingSettings) and settings.objective is not Objective.SFT
    return Precision.FP32 if is_whole or is_of_trl else Precision.FP16


def validate_sizes(sizes: Mapping[str, int]) -> None:
    """Raise DevkitError for a flag whose number cannot be a number of things."""
    for flag, size in sizes.items():
        if not 0 < size < MAX_SIZE:
            raise DevkitError(f"{flag} is {size}", f"It must be a whole number above zero and below {MAX_SIZE:,}.")


SettingsT = TypeVar("SettingsT")


def decode_settings(kind: type[SettingsT], values: Mapping[str, Any]) -> SettingsT:
    """Decode settings of class `kind` from plain values, as flags, TOML and JSON have them; absent ones keep defaults.

    Raises DevkitError for a name or a value that `kind` does not have.
    """
    try:
        return kind(**decode_fields(values, kind))
    except UnknownKey as error:
        known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
        hint = suggest(find_similar(error.key, known, count=1), f"Known: {', '.join(known)}.")
        raise DevkitError(f"unknown setting {error.key!r}", hint) from None
    except InvalidValue as error:
        message = f"{error.path[0]} must be {error.expected}, not {error.value!r}"
        raise DevkitError(message, f"Write it as {error.expected}.") from None
