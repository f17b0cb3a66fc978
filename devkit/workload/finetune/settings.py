"""The settings of a fine-tuning run, and how a TOML file gives them. Importable without torch."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from devkit.errors import DevkitError
from devkit.estimate.settings import ALL_LINEAR, Attention, Method, Objective, Optimizer, Precision, Sharding
from devkit.facts.settings import SettingInfo, format_flag, format_option, validate_ranges
from devkit.text import join_words


class Schedule(StrEnum):
    """The shape of the learning rate after the warmup."""

    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"


@dataclass(frozen=True, kw_only=True)
class FinetuneSettings:
    """The settings of one run. None means: chosen for this machine, and reported with the reason.

    `batch` is the number of rows of one optimizer step, over all ranks and accumulated micro-batches: it stays when
    `micro_batch` must shrink. `sequence` is the longest row in tokens. `steps` overrides `epochs`.
    """

    model: Annotated[
        str, SettingInfo("Folder or Hugging Face Hub ID of the base model.", section="Model and output")
    ] = ""
    data: Annotated[
        tuple[str, ...], SettingInfo("File, folder or hub id of the data. May be repeated.", section="Data")
    ] = ()
    output: Annotated[
        Path, SettingInfo("Folder for the adapter, checkpoints and metrics.", section="Model and output")
    ] = Path("finetuned")
    method: Annotated[
        Method, SettingInfo("Training method: adapter type and precision of the base.", section="Method")
    ] = Method.LORA
    objective: Annotated[Objective, SettingInfo("Training objective. All but sft need TRL.", section="Method")] = (
        Objective.SFT
    )
    reward: Annotated[
        str, SettingInfo("Your reward function for completions (grpo).", example="FILE.py:FUNCTION", section="Method")
    ] = ""
    generations: Annotated[
        int, SettingInfo("Completions of each prompt in a step (grpo).", at_least=2, has_flag=False)
    ] = 8
    max_new_tokens: Annotated[int, SettingInfo("Longest completion, in tokens (grpo).", at_least=1, has_flag=False)] = (
        256
    )
    beta: Annotated[
        float, SettingInfo("Weight for staying close to the base model (dpo).", at_least=0.0, has_flag=False)
    ] = 0.1
    rank: Annotated[int, SettingInfo("LoRA rank.", at_least=1, at_most=2**31 - 1, section="Method")] = 16
    alpha: Annotated[
        int, SettingInfo("LoRA alpha; the adapter is scaled by alpha / rank.", at_least=1, has_flag=False)
    ] = 32
    dropout: Annotated[float, SettingInfo("LoRA dropout.", at_least=0.0, at_most=0.99, has_flag=False)] = 0.0
    targets: Annotated[
        tuple[str, ...], SettingInfo("Target modules of the adapter. May be repeated.", section="Method")
    ] = ALL_LINEAR
    dora: Annotated[bool, SettingInfo("Train with DoRA (weight-decomposed LoRA).", section="Method")] = False
    sequence: Annotated[
        int, SettingInfo("Sequence length: the longest row, in tokens.", example="TOKENS", at_least=2, section="Data")
    ] = 2048
    packing: Annotated[
        bool | None,
        SettingInfo("Pack short sequences into one row, without attention across sequences.", section="Data"),
    ] = None
    completion_only: Annotated[
        bool, SettingInfo("Train on completions only: mask the prompt out of the loss.", section="Data")
    ] = True
    batch: Annotated[
        int, SettingInfo("Effective batch size: rows per optimizer step over all ranks.", at_least=1, section="Steps")
    ] = 16
    micro_batch: Annotated[
        int | None, SettingInfo("Rows per forward and backward pass.", at_least=1, section="Steps")
    ] = None
    epochs: Annotated[float, SettingInfo("Passes over the data.", at_least=0.0, section="Steps")] = 1.0
    steps: Annotated[int | None, SettingInfo("Optimizer steps; overrides --epochs.", at_least=1, section="Steps")] = (
        None
    )
    learning_rate: Annotated[float | None, SettingInfo("Peak learning rate.", at_least=0.0, section="Steps")] = None
    schedule: Annotated[Schedule, SettingInfo("Learning rate schedule after the warmup.", has_flag=False)] = (
        Schedule.COSINE
    )
    warmup: Annotated[
        float, SettingInfo("Warmup: share of steps with a rising rate.", at_least=0.0, at_most=1.0, has_flag=False)
    ] = 0.03
    weight_decay: Annotated[
        float, SettingInfo("Weight decay; norms and biases are left out.", at_least=0.0, has_flag=False)
    ] = 0.0
    gradient_limit: Annotated[
        float, SettingInfo("Maximum gradient norm (clipping); 0 for none.", at_least=0.0, has_flag=False)
    ] = 1.0
    precision: Annotated[
        Precision | None, SettingInfo("Data type of the base model and of computation.", section="Memory and speed")
    ] = None
    adapter_precision: Annotated[
        Precision | None, SettingInfo("Data type of the adapter weights.", section="Memory and speed")
    ] = None
    attention: Annotated[Attention | None, SettingInfo("Attention implementation.", section="Memory and speed")] = None
    checkpointing: Annotated[
        bool | None, SettingInfo("Gradient checkpointing: recompute activations.", section="Memory and speed")
    ] = None
    optimizer: Annotated[Optimizer | None, SettingInfo("Optimizer.", section="Memory and speed")] = None
    compile: Annotated[bool | None, SettingInfo("Compile the model with torch.compile.", has_flag=False)] = None
    sharding: Annotated[
        Sharding | None,
        SettingInfo(
            "Data parallelism: DDP, or FSDP2 (zero2, zero3).", unsupported=("zero1",), section="Memory and speed"
        ),
    ] = None
    eval_data: Annotated[
        tuple[str, ...], SettingInfo("Held-out data for evaluation. May be repeated.", section="Data")
    ] = ()
    eval_share: Annotated[
        float, SettingInfo("Share of the data to hold out for evaluation.", at_least=0.0, at_most=0.9, has_flag=False)
    ] = 0.0
    eval_every: Annotated[int, SettingInfo("Steps between evaluations.", at_least=1, has_flag=False)] = 100
    seed: Annotated[
        int,
        SettingInfo("Seed for the data order, dropout and adapter.", at_least=0, at_most=2**63 - 1, section="Steps"),
    ] = 0
    save_every: Annotated[int, SettingInfo("Steps between checkpoints.", at_least=1, section="Steps")] = 100
    keep: Annotated[int, SettingInfo("Checkpoints to keep.", at_least=2, has_flag=False)] = 2
    resume: Annotated[bool, SettingInfo("Resume from the newest checkpoint in --output.", section="Steps")] = True
    timeout: Annotated[
        int,
        SettingInfo(
            "Seconds to wait for a process that does not answer.", at_least=1, at_most=2**31 - 1, has_flag=False
        ),
    ] = 1800


def validate_finetune_settings(settings: FinetuneSettings) -> FinetuneSettings:
    """Return `settings` if they describe a possible run. Raises DevkitError for what no machine could do."""
    validate_ranges(settings)
    missing = [format_flag(name) for name in ("model", "data") if not getattr(settings, name)]
    if missing:
        raise DevkitError(
            f"{join_words(missing)} {'is' if len(missing) == 1 else 'are'} missing",
            'devkit finetune --model FOLDER_OR_ID --data FILE, or in a settings file: model = "FOLDER_OR_ID", data = ["FILE"]',
        )
    if settings.learning_rate == 0:
        raise DevkitError("--learning-rate is 0, so no learning happens", "Give a rate above 0, such as 2e-4.")
    if settings.steps is None and settings.epochs <= 0:
        raise DevkitError("--epochs is 0, so nothing would be trained", "Give --epochs or --steps above 0.")
    names = ("dora", "targets", "adapter_precision", "rank", "alpha", "dropout")
    configured = [each for each in names if getattr(settings, each) != getattr(FinetuneSettings, each)]
    if settings.method is Method.FULL and configured:
        shown = join_words((format_option(FinetuneSettings, each) for each in configured), "and")
        raise DevkitError("--method full trains every weight, so it has no adapter to configure", f"Remove {shown}.")
    if settings.objective is not Objective.SFT:
        _validate_objective(settings)
    if (settings.objective is Objective.GRPO) != bool(settings.reward):
        raise DevkitError(
            "--objective grpo and --reward belong together: the function scores the completions",
            "--objective grpo --reward FILE.py:FUNCTION",
        )
    if settings.sharding is not None:
        require_sharding_supported(settings.sharding, settings.method, settings.optimizer)
    if settings.eval_data and settings.eval_share:
        raise DevkitError("--eval-data and eval_share both choose the evaluation data", "Remove one of them.")
    if settings.micro_batch is not None and settings.micro_batch > settings.batch:
        raise DevkitError(
            f"--micro-batch {settings.micro_batch} is more than --batch {settings.batch}",
            "An optimizer step takes --batch rows, in passes of at most --micro-batch rows.",
        )
    return settings


def _validate_objective(settings: FinetuneSettings) -> None:
    """Raise DevkitError for settings that do not reach TRL's trainers, and for groups that a step does not hold."""
    is_quantized = settings.method in (Method.QLORA, Method.INT8_LORA)
    absent = ["packing", "sharding", "compile"]
    given = [format_option(FinetuneSettings, name) for name in absent if getattr(settings, name)]
    given += [] if settings.completion_only else ["--no-completion-only"]
    given += ["--targets lm_head"] if any(each.endswith("lm_head") for each in settings.targets) else []
    if settings.precision is Precision.FP16 or (is_quantized and settings.precision is Precision.FP32):
        given.append(f"--method {settings.method} --dtype {settings.precision}")
    if given:
        raise DevkitError(f"--objective {settings.objective} does not work with {given[0]}", "Leave it out.")
    if settings.objective is Objective.GRPO and settings.batch % settings.generations:
        raise DevkitError(
            f"--batch {settings.batch} cannot be divided into groups of {settings.generations} completions",
            "A step takes --batch completions, so give a multiple, or --set generations=N.",
        )


def require_sharding_supported(sharding: Sharding, method: Method, optimizer: Optimizer | None = None) -> None:
    """Raise DevkitError for a combination that cannot be trained."""
    if sharding is Sharding.ZERO1:
        raise DevkitError(
            f"devkit does not train with {sharding}",
            "Use ddp, or zero2 or zero3 (FSDP2), which also shard the gradients.",
        )
    if sharding is not Sharding.DDP and optimizer not in (None, Optimizer.ADAMW, Optimizer.ADAMW_FOREACH):
        raise DevkitError(
            f"--optimizer {optimizer} does not work with {sharding}: bitsandbytes updates only whole weights",
            "Use --optimizer adamw, or --sharding ddp.",
        )
    if sharding is not Sharding.DDP and method is Method.INT8_LORA:
        raise DevkitError(
            f"{method} does not work with {sharding}: FSDP2 shards weights of one data type, and those of LLM.int8() "
            "are integers with a separate scale for each row",
            f"Use --method qlora with {sharding}, which needs less memory still, or --method {method} with "
            "--sharding ddp.",
        )


def read_settings_file(path: Path) -> dict[str, Any]:
    """Read the TOML file at `path`, whose keys are names of settings. Relative paths in it start at the working folder.

    Raises DevkitError with line and column for TOML errors, unknown keys and wrong types.
    """
    from devkit.reading import MAX_CONFIG_BYTES, read_named_file
    from devkit.render.toml_tables import TableSource, parse_file, parse_table

    content = read_named_file(path, MAX_CONFIG_BYTES, "Check the path of the settings file.")
    text, document = parse_file(content, str(path))
    return parse_table(document, FinetuneSettings, TableSource(str(path), text))
