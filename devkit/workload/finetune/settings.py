"""What a fine-tuning run is asked to do. Importable without torch."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from devkit.errors import DevkitError
from devkit.estimate.settings import ALL_LINEAR, Attention, Loss, Method, Optimizer, Precision, Sharding
from devkit.facts.said import Said, check_ranges, flag_of
from devkit.text import listed


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

    model: Annotated[str, Said("Folder or hub id of the base model.")] = ""
    data: Annotated[tuple[str, ...], Said("File, folder or hub id of the data. Repeat.")] = ()
    output: Annotated[Path, Said("Folder for adapter, checkpoints and metrics.")] = Path("finetuned")
    method: Annotated[Method, Said("What is trained, and how the base is kept.")] = Method.LORA
    rank: Annotated[int, Said("Rank of the adapter.", at_least=1)] = 16
    alpha: Annotated[int, Said("Scale of the adapter: alpha over rank.", at_least=1)] = 32
    dropout: Annotated[float, Said("Dropout before the adapter.", at_least=0.0, at_most=0.99)] = 0.0
    targets: Annotated[tuple[str, ...], Said("Layers that get an adapter. Repeat.")] = ALL_LINEAR
    dora: Annotated[bool, Said("Train DoRA: the adapter's direction and length apart.")] = False
    sequence: Annotated[int, Said("Longest row, in tokens.", at_least=2)] = 2048
    packing: Annotated[bool | None, Said("Lay short texts end to end in one row.")] = None
    completion_only: Annotated[bool, Said("Learn answers and not prompts.")] = True
    batch: Annotated[int, Said("Rows that one optimizer step learns from, over all processes.", at_least=1)] = 16
    micro_batch: Annotated[int | None, Said("Rows in one pass.", at_least=1)] = None
    epochs: Annotated[float, Said("How often the data is seen.", at_least=0.0)] = 1.0
    steps: Annotated[int | None, Said("Optimizer steps; wins over --epochs.", at_least=1)] = None
    learning_rate: Annotated[float | None, Said("Highest learning rate.", at_least=0.0)] = None
    schedule: Annotated[Schedule, Said("How the learning rate moves after the warm-up.")] = Schedule.COSINE
    warmup: Annotated[
        float, Said("Share of the steps in which the learning rate rises.", at_least=0.0, at_most=1.0)
    ] = 0.03
    weight_decay: Annotated[float, Said("Decay of weights; norms and biases are left out.", at_least=0.0)] = 0.0
    gradient_limit: Annotated[float, Said("Longest gradient; 0 for no limit.", at_least=0.0)] = 1.0
    precision: Annotated[Precision | None, Said("Data type of the base model and its arithmetic.")] = None
    adapter_precision: Annotated[Precision | None, Said("Data type of the adapter.")] = None
    attention: Annotated[Attention | None, Said("Who computes attention.")] = None
    checkpointing: Annotated[bool | None, Said("Keep less, and compute it again in the backward pass.")] = None
    optimizer: Annotated[Optimizer | None, Said("How weights are moved.")] = None
    loss: Annotated[Loss | None, Said("How the cross-entropy is computed.")] = None
    compile: Annotated[bool | None, Said("Compile the model with torch.compile.")] = None
    sharding: Annotated[Sharding | None, Said("How several processes share the work.")] = None
    eval_data: Annotated[tuple[str, ...], Said("Data to evaluate on. Repeat.")] = ()
    eval_share: Annotated[float, Said("Share of the data held out to evaluate on.", at_least=0.0, at_most=0.9)] = 0.0
    eval_every: Annotated[int, Said("Steps between evaluations.", at_least=1)] = 100
    seed: Annotated[int, Said("Seed of order, dropout and adapter.", at_least=0, at_most=2**63 - 1)] = 0
    save_every: Annotated[int, Said("Steps between checkpoints.", at_least=1)] = 100
    keep: Annotated[int, Said("Checkpoints to keep.", at_least=2)] = 2
    resume: Annotated[bool, Said("Go on from the newest checkpoint in --output.")] = True


def checked(settings: FinetuneSettings) -> FinetuneSettings:
    """`settings` when they can be a run at all. Raises DevkitError for what no machine could do."""
    check_ranges(settings)
    _given(settings)
    _consistent(settings)
    return settings


def _given(settings: FinetuneSettings) -> None:
    missing = [flag_of(name) for name in ("model", "data") if not getattr(settings, name)]
    if missing:
        raise DevkitError(
            f"{listed(missing)} {'is' if len(missing) == 1 else 'are'} missing",
            "devkit finetune --model FOLDER_OR_ID --data FILE --output FOLDER",
        )


def _consistent(settings: FinetuneSettings) -> None:
    if settings.learning_rate == 0:
        raise DevkitError("--learning-rate is 0, so nothing would be learned", "Give a rate above 0, such as 2e-4.")
    if settings.steps is None and settings.epochs <= 0:
        raise DevkitError("--epochs is 0, so nothing would be trained", "Give --epochs or --steps above 0.")
    if settings.method is Method.FULL and (settings.dora or settings.targets != ALL_LINEAR):
        raise DevkitError(
            "--method full trains every weight and has no adapter to shape", "Leave out --dora, --targets."
        )
    if settings.method is Method.FULL and settings.adapter_precision is not None:
        raise DevkitError("--method full has no adapter whose precision could be set", "Leave out --adapter-precision.")
    if settings.sharding is not None:
        require_shareable(settings.sharding, settings.method)
    if settings.eval_data and settings.eval_share:
        raise DevkitError("--eval-data and --eval-share both say what to evaluate on", "Keep one of the two.")
    if settings.micro_batch is not None and settings.micro_batch > settings.batch:
        raise DevkitError(
            f"--micro-batch {settings.micro_batch} is more than --batch {settings.batch}",
            "One step learns from --batch rows, in passes of at most --micro-batch.",
        )


def require_shareable(sharding: Sharding, method: Method) -> None:
    """Raises DevkitError for a way in which several processes cannot share such a model."""
    if sharding is Sharding.ZERO1:
        raise DevkitError(
            f"{sharding} is not among the ways in which devkit shares a model",
            "Use ddp, or zero2 or zero3 (FSDP2), which also spare the memory of the gradients.",
        )
    if sharding is not Sharding.DDP and method is Method.INT8_LORA:
        raise DevkitError(
            f"{method} and {sharding} do not go together: FSDP2 shares out weights in one data type, and those of "
            "LLM.int8() are integers with a scale for each row apart",
            f"Use --method qlora with {sharding}, which takes less still, or --method {method} with --sharding ddp.",
        )
