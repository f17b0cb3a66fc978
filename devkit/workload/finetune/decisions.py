"""What a run does with a machine, and why: settings and hardware in, decisions with reasons out. Without torch."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from devkit.estimate.model import MemoryEstimate
from devkit.estimate.settings import Attention, Loss, Optimizer, Precision, Sharding, TrainingSettings
from devkit.facts.values import ComputeCapability
from devkit.workload.finetune.attention import Traits
from devkit.workload.finetune.settings import FinetuneSettings

ASKED = "asked for"
Need = Callable[[TrainingSettings], MemoryEstimate]
"""How much memory settings take at their peak."""


class Kind(StrEnum):
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

    kind: Kind
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
        return self.kind is not Kind.CPU


@dataclass(frozen=True)
class Corpus:
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
    settings: FinetuneSettings, hardware: Hardware, *, traits: Traits, corpus: Corpus, need: Need | None
) -> Decisions:
    """Choose what `settings` leave open. `traits` are the model's; `need` is None where its shape is not known.

    Raises DevkitError for what was asked for and cannot work.
    """
    from devkit.workload.finetune.decisions_compute import Computing
    from devkit.workload.finetune.decisions_memory import fitted

    return fitted(settings, hardware, Computing(settings, hardware, traits, corpus), need)
