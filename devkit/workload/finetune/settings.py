"""What a fine-tuning run is asked to do. Importable without torch."""

import tomllib
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from devkit.errors import DevkitError
from devkit.estimate.settings import ALL_LINEAR, Attention, Loss, Method, Optimizer, Precision, Sharding
from devkit.facts.settings import SettingInfo, format_flag, validate_ranges
from devkit.render.toml_tables import TableSource, parse_table, split_toml_error
from devkit.text import join_words


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

    model: Annotated[str, SettingInfo("Folder or hub id of the base model.")] = ""
    data: Annotated[tuple[str, ...], SettingInfo("File, folder or hub id of the data. Repeat.")] = ()
    output: Annotated[Path, SettingInfo("Folder for adapter, checkpoints and metrics.")] = Path("finetuned")
    method: Annotated[Method, SettingInfo("What is trained, and how the base is kept.")] = Method.LORA
    rank: Annotated[int, SettingInfo("Rank of the adapter.", at_least=1)] = 16
    alpha: Annotated[int, SettingInfo("Scale of the adapter: alpha over rank.", at_least=1)] = 32
    dropout: Annotated[float, SettingInfo("Dropout before the adapter.", at_least=0.0, at_most=0.99)] = 0.0
    targets: Annotated[tuple[str, ...], SettingInfo("Layers that get an adapter. Repeat.")] = ALL_LINEAR
    dora: Annotated[bool, SettingInfo("Train DoRA: the adapter's direction and length apart.")] = False
    sequence: Annotated[int, SettingInfo("Longest row, in tokens.", at_least=2)] = 2048
    packing: Annotated[bool | None, SettingInfo("Lay short texts end to end in one row.")] = None
    completion_only: Annotated[bool, SettingInfo("Learn answers and not prompts.")] = True
    batch: Annotated[int, SettingInfo("Rows that one optimizer step learns from, over all processes.", at_least=1)] = 16
    micro_batch: Annotated[int | None, SettingInfo("Rows in one pass.", at_least=1)] = None
    epochs: Annotated[float, SettingInfo("How often the data is seen.", at_least=0.0)] = 1.0
    steps: Annotated[int | None, SettingInfo("Optimizer steps; wins over --epochs.", at_least=1)] = None
    learning_rate: Annotated[float | None, SettingInfo("Highest learning rate.", at_least=0.0)] = None
    schedule: Annotated[Schedule, SettingInfo("How the learning rate moves after the warm-up.")] = Schedule.COSINE
    warmup: Annotated[
        float, SettingInfo("Share of the steps in which the learning rate rises.", at_least=0.0, at_most=1.0)
    ] = 0.03
    weight_decay: Annotated[float, SettingInfo("Decay of weights; norms and biases are left out.", at_least=0.0)] = 0.0
    gradient_limit: Annotated[float, SettingInfo("Longest gradient; 0 for no limit.", at_least=0.0)] = 1.0
    precision: Annotated[Precision | None, SettingInfo("Data type of the base model and its arithmetic.")] = None
    adapter_precision: Annotated[Precision | None, SettingInfo("Data type of the adapter.")] = None
    attention: Annotated[Attention | None, SettingInfo("Who computes attention.")] = None
    checkpointing: Annotated[bool | None, SettingInfo("Keep less, and compute it again in the backward pass.")] = None
    optimizer: Annotated[Optimizer | None, SettingInfo("How weights are moved.")] = None
    loss: Annotated[Loss | None, SettingInfo("How the cross-entropy is computed.")] = None
    compile: Annotated[bool | None, SettingInfo("Compile the model with torch.compile.")] = None
    sharding: Annotated[Sharding | None, SettingInfo("How several processes share the work.")] = None
    eval_data: Annotated[tuple[str, ...], SettingInfo("Data to evaluate on. Repeat.")] = ()
    eval_share: Annotated[
        float, SettingInfo("Share of the data held out to evaluate on.", at_least=0.0, at_most=0.9)
    ] = 0.0
    eval_every: Annotated[int, SettingInfo("Steps between evaluations.", at_least=1)] = 100
    seed: Annotated[int, SettingInfo("Seed of order, dropout and adapter.", at_least=0, at_most=2**63 - 1)] = 0
    save_every: Annotated[int, SettingInfo("Steps between checkpoints.", at_least=1)] = 100
    keep: Annotated[int, SettingInfo("Checkpoints to keep.", at_least=2)] = 2
    resume: Annotated[bool, SettingInfo("Go on from the newest checkpoint in --output.")] = True


def validate_finetune_settings(settings: FinetuneSettings) -> FinetuneSettings:
    """`settings` when they can be a run at all. Raises DevkitError for what no machine could do."""
    validate_ranges(settings)
    _given(settings)
    _consistent(settings)
    return settings


def _given(settings: FinetuneSettings) -> None:
    missing = [format_flag(name) for name in ("model", "data") if not getattr(settings, name)]
    if missing:
        raise DevkitError(
            f"{join_words(missing)} {'is' if len(missing) == 1 else 'are'} missing",
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
        require_sharding_supported(settings.sharding, settings.method)
    if settings.eval_data and settings.eval_share:
        raise DevkitError("--eval-data and --eval-share both say what to evaluate on", "Keep one of the two.")
    if settings.micro_batch is not None and settings.micro_batch > settings.batch:
        raise DevkitError(
            f"--micro-batch {settings.micro_batch} is more than --batch {settings.batch}",
            "One step learns from --batch rows, in passes of at most --micro-batch.",
        )


def require_sharding_supported(sharding: Sharding, method: Method) -> None:
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


# Settings of a run from a TOML file, whose keys are the settings' names. Importable without torch.


def read_settings_file(path: Path) -> dict[str, Any]:
    """What the file at `path` sets, by name of setting. Its paths start where the command runs, as those of flags do.

    Raises DevkitError with line and column for TOML errors, unknown keys and wrong types.
    """
    text = _text(path)
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        # Not only TOMLDecodeError: a number of five thousand digits, and brackets without end, are others.
        problem, place = split_toml_error(str(error), text)
        where = f"{path}:{place}" if place else f"{path}"
        raise DevkitError(f"{where} is not TOML: {problem}", "Correct that line.") from None
    return parse_table(document, FinetuneSettings, TableSource(str(path), text))


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise DevkitError(f"cannot read {path}: {error.strerror}", "Name a file of settings with --settings.") from None
    except UnicodeDecodeError:
        raise DevkitError(f"{path} is not TOML: it is not UTF-8", "Save the file as UTF-8.") from None
