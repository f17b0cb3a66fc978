"""What a fine-tuning run is asked to do. Importable without torch."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from devkit.estimate.settings import ALL_LINEAR, Attention, Loss, Method, Optimizer, Precision, Sharding


class Schedule(StrEnum):
    """How the learning rate moves after the warm-up."""

    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"


@dataclass(frozen=True, kw_only=True)
class FinetuneSettings:
    """The wishes of one run. None means: chosen for this machine, and said with its reason.

    `batch` is the number of rows that one optimizer step learns from, over all processes and accumulated passes:
    it stays when `micro_batch` must shrink. `sequence` is the longest row in tokens. `steps` wins over `epochs`.
    """

    model: str
    data: tuple[str, ...]
    output: Path
    method: Method = Method.LORA
    rank: int = 16
    alpha: int = 32
    dropout: float = 0.0
    targets: tuple[str, ...] = ALL_LINEAR
    dora: bool = False
    sequence: int = 2048
    packing: bool | None = None
    completion_only: bool = True
    batch: int = 16
    micro_batch: int | None = None
    epochs: float = 1.0
    steps: int | None = None
    learning_rate: float = 2e-4
    schedule: Schedule = Schedule.COSINE
    warmup: float = 0.03
    weight_decay: float = 0.0
    gradient_limit: float = 1.0
    precision: Precision | None = None
    adapter_precision: Precision | None = None
    attention: Attention | None = None
    checkpointing: bool | None = None
    optimizer: Optimizer | None = None
    loss: Loss | None = None
    compile: bool | None = None
    sharding: Sharding | None = None
    seed: int = 0
    save_every: int = 100
    keep: int = 2
    resume: bool = True
