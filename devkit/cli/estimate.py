"""`devkit estimate`: how much GPU memory it takes, where it fits, and what to change."""

import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from devkit.cli.command import Command, Decorator, complete_gpus, complete_models, facts_option, section
from devkit.cli.output import dump_json
from devkit.cli.runtime import is_drawn
from devkit.cli.terminal import draw_estimate, make_console
from devkit.errors import DevkitError, ExitCode
from devkit.estimate.settings import (
    ALL_LINEAR,
    Attention,
    CacheKind,
    InferenceSettings,
    Loss,
    Method,
    Objective,
    Optimizer,
    Precision,
    Quantization,
    Sharding,
    Stack,
    TrainingSettings,
    decode_settings,
    replace_bf16,
)
from devkit.facts.settings import describe_settings, format_setting
from devkit.facts.values import Unknown
from devkit.formats.jsonc import parse_json_object
from devkit.reading import MAX_DOCUMENT_BYTES, read_json_object
from devkit.text import escape_text, find_similar, suggest

if TYPE_CHECKING:
    from devkit.estimate.memory import GpuSpec
    from devkit.facts.gpu import Gpu

EstimateOptions = Mapping[str, Any]
"""Flags by setting; None where one was not given."""

_PRECISION = click.Choice([each.value for each in Precision])


def _name_options(options: Iterable[Decorator]) -> dict[str, str]:
    """Return the flag of each parameter that the options give a command."""
    command = click.command()(section("", *options)(lambda: None))
    return {str(each.name): each.opts[0] for each in command.params}


def _choose(kind: type[Any]) -> "click.Choice[str]":
    return click.Choice([each.value for each in kind])


_TRAINING = (
    click.option("--method", type=_choose(Method), help="Training method. Default: lora."),
    click.option("--objective", type=_choose(Objective), help="Training objective. Default: sft."),
    click.option("--rank", type=int, metavar="N", help="Rank of the adapters. Default: 16."),
    click.option("--targets", metavar="NAMES", help="Target modules, such as q_proj,v_proj. Default: all-linear."),
    click.option("--dora", is_flag=True, default=None, help="Use DoRA: adapters with a magnitude vector."),
    click.option("--adapter-dtype", "adapter_precision", type=_PRECISION, help="Data type of the adapters."),
    click.option("--micro-batch", type=int, metavar="N", help="Rows in one forward and backward pass. Default: 1."),
    click.option(
        "--checkpointing/--no-checkpointing",
        default=None,
        help="Gradient checkpointing: recompute activations in the backward pass.",
    ),
    click.option("--optimizer", type=_choose(Optimizer), help="Default: adamw, PyTorch's fused version."),
    click.option("--stack", type=_choose(Stack), help="Training loop; its defaults apply. Default: devkit."),
    click.option(
        "--padded",
        "masked",
        is_flag=True,
        default=None,
        help="Pad rows. The mask makes attention repeat keys and values for every head.",
    ),
    click.option("--sharding", type=_choose(Sharding), help="How --world processes shard the model. Default: ddp."),
)
_INFERENCE = (
    click.option("--inference", is_flag=True, help="Generate text instead of training."),
    click.option("--max-new-tokens", "new", type=int, metavar="TOKENS", help="Tokens to generate. Default: 256."),
    click.option("--sequences", type=int, metavar="N", help="Sequences in one batch. Default: 1."),
    click.option("--cache", type=_choose(CacheKind), help="KV cache. Default: dynamic."),
    click.option("--quantization", type=_choose(Quantization), help="Quantization of the weights."),
)
_BOTH = (
    click.option("--dtype", "precision", type=_PRECISION, help="Data type of the weights. Default: bf16."),
    click.option(
        "--max-length", "sequence", type=int, metavar="TOKENS", help="Sequence length of a row or prompt, in tokens."
    ),
    click.option("--attention", type=_choose(Attention), help="Default: sdpa."),
    click.option("--world", type=int, metavar="N", help="World size: the number of GPUs. Default: 1."),
    click.option(
        "--shape",
        multiple=True,
        metavar="KEY=N,…",
        help="Describe a model that has no config.json, in the keys of that file: 'hidden_size=4096, "
        "num_hidden_layers=32, num_attention_heads=32, intermediate_size=14336, vocab_size=128256'.",
    ),
)
_WITHOUT_FLAG = {
    "loss": "standard (on full logits) or chunked.",
    "upcast": "Whether peft's prepare_model_for_kbit_training ran.",
    "double_quantization": "Also quantize the scales of nf4.",
    "autocast": "Whether Trainer or TRL sets bf16=True or fp16=True.",
    "keeps_outputs": "Whether the loop keeps the logits during the backward pass.",
    "hidden_states": "Whether DPO requests all hidden states, as TRL 0.19 to 0.28 does.",
    "accumulation": "Gradient accumulation steps. Default: 1.",
    "completions": "Completions that GRPO generates at once. Default: 16.",
    "prompt": "Prompt tokens in each row, which are masked out of the loss. Default: 0 (unknown).",
    "cache_precision": "Data type of the KV cache. Default: that of the weights.",
}
"""The settings for --set, with their meanings."""
_SETTINGS = {
    "training": list(_name_options(_TRAINING)),
    "inference": [name for name in _name_options(_INFERENCE) if name != "inference"],
    "both": [name for name in _name_options(_BOTH) if name != "shape"],
}
"""The settings that have a flag, by what they are for."""
_SETTINGS["inference"].append("cache_precision")
_SETTINGS["training"] += [name for name in _WITHOUT_FLAG if name != "cache_precision"]
_FLAGS = _name_options((*_TRAINING, *_INFERENCE, *_BOTH)) | {name: f"--set {name}" for name in _WITHOUT_FLAG}
_REMOVED = dict.fromkeys(
    ("--tokens", "--train-tokens"), "devkit finetune prints how long a run will take after its first step."
)
RENAMED_FLAGS = {
    **{"--seq": "--max-length", "--new-tokens": "--max-new-tokens", "--quantize": "--quantization"},
    **{
        f"--{flag}": f"--shape {key}="
        for flag, key in (
            *(("hidden", "hidden_size"), ("layers", "num_hidden_layers"), ("heads", "num_attention_heads")),
            *(("kv-heads", "num_key_value_heads"), ("head-dim", "head_dim"), ("intermediate", "intermediate_size")),
            *(("vocabulary", "vocab_size"), ("architecture", "model_type")),
        )
    },
    "--tied": "--shape tie_word_embeddings=true",
    "--accumulation": "--set accumulation=",
    **{"--loss": "--set loss=", "--cache-dtype": "--set cache_precision="},
    **{
        f"--{prefix}{flag}": f"--set {name}={value}"
        for prefix, value in (("", "true"), ("no-", "false"))
        for flag, name in (
            *(("kbit-upcast", "upcast"), ("double-quantization", "double_quantization"), ("autocast", "autocast")),
            ("keeps-outputs", "keeps_outputs"),
        )
    },
}


class _EstimateCommand(Command):
    """The command, whose help lists the settings that have no flag."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Format the flags, and the settings for --set."""
        super().format_options(ctx, formatter)
        with formatter.section("Settings for --set"):
            formatter.write_dl(list(_WITHOUT_FLAG.items()))


@click.command(cls=_EstimateCommand, renamed=RENAMED_FLAGS, removed=_REMOVED)
@click.argument("model", required=False, shell_complete=complete_models)
@section(
    "Where",
    click.option(
        "--gpu",
        "gpus",
        multiple=True,
        metavar="NAME",
        shell_complete=complete_gpus,
        help='Check whether it fits on this GPU: "RTX 4090", "H100 MIG 3g.40gb", "L4/4" (a quarter of an L4).',
    ),
    facts_option("A machine saved by devkit doctor."),
)
@section("Training and inference", *_BOTH)
@section("Training", *_TRAINING)
@section("Inference", *_INFERENCE)
@click.option("--set", "assignments", metavar="NAME=VALUE", multiple=True, help="Any other setting.")
@click.option("--why", metavar="TERM", help="Explain one term of the memory peak.")
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
@click.pass_context
def estimate(ctx: click.Context, /, **given: Any) -> None:  # noqa: ANN401 - one for each option
    """Estimate how much GPU memory training or inference takes, where it fits, and what to change.

    MODEL is a known name such as llama-3.1-8b, a config.json or its folder, or a repository on the hub. Alternatively,
    describe it with --shape. Only a config.json is downloaded. The exit code is 1 if the model does not fit on any of the GPUs:
    those in --gpu or --facts, or this machine's.
    """
    from devkit.estimate.config import build_model_shape
    from devkit.estimate.report import (
        build_estimate_report,
        format_estimate_report,
        format_term,
        serialize_estimate_report,
    )

    rare = parse_assignments(given.pop("assignments"))
    flags = {
        group: {name: rare.get(name) if name in _WITHOUT_FLAG else given.pop(name) for name in names}
        for group, names in _SETTINGS.items()
    }
    model, is_inference = given["model"], given["inference"]
    settings = build_estimate_settings(flags, is_inference=is_inference)
    gpus = _find_gpus(given["gpus"], given["facts_files"])
    if gpus and flags["both"]["precision"] is None and all(each.lacks_bf16 for each in gpus):
        flags["both"]["precision"] = replace_bf16(settings)
        settings = build_estimate_settings(flags, is_inference=is_inference)
    config, name = find_model_config(model, build_model_config(given["shape"], model=model))
    report = build_estimate_report(build_model_shape(config, name=name), settings, gpus)
    width = shutil.get_terminal_size().columns
    if given["why"]:
        click.echo(format_term(report.estimate, given["why"], width=width))
        ctx.exit(ExitCode.DONE)
    choices = (choice for each in report.gpus for choice in (*each.recommended, each.together) if choice)
    fitting = settings if report.fits_somewhere else next((choice.settings for choice in choices), None)
    command = format_finetune_command(model, fitting) if isinstance(fitting, TrainingSettings) else ""
    if given["as_json"]:
        document = {**serialize_estimate_report(report), "command": command or None}
        click.echo(dump_json(document))
    else:
        text = format_estimate_report(report, width=width)
        if is_drawn(sys.stdout):
            draw_estimate(make_console(sys.stdout), report, text)
        else:
            click.echo(text)
        if not command and not report.fits_somewhere and report.smallest:
            command = shlex.join(["devkit", "estimate", *ctx.meta["words"], "--gpu", report.smallest.name])
        if command:
            click.echo(escape_text(f"\nNext:\n  {command}"))
    ctx.exit(ExitCode.DONE if report.fits_somewhere else ExitCode.ANSWER_IS_NO)


def parse_assignments(texts: Sequence[str]) -> dict[str, object]:
    """Parse NAME=VALUE of --set into plain values. Raises DevkitError for a name without a setting."""
    found: dict[str, object] = {}
    for text in texts:
        name, mark, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not mark or name not in _WITHOUT_FLAG:
            near = () if name in _WITHOUT_FLAG else find_similar(name, _WITHOUT_FLAG)
            raise DevkitError(f"--set {text!r} is not a setting", suggest(near, f"Names: {', '.join(_WITHOUT_FLAG)}."))
        found[name] = _parse_value(value)
    return found


def _parse_value(text: str) -> bool | int | str:
    return {"true": True, "false": False}.get(text, int(text) if text.isdecimal() else text)


def format_finetune_command(model: str | None, settings: TrainingSettings) -> str:
    """Format the command that trains with these settings; "" where devkit has no loop that does."""
    from devkit.workload.finetune.settings import FinetuneSettings

    if model is None or settings.stack is not Stack.DEVKIT or settings.sharding is Sharding.ZERO1:
        return ""
    if os.path.isfile(model):  # noqa: PTH113 - pathlib would cost a tenth of the command
        model = os.path.dirname(model) or "."  # noqa: PTH120
    defaults, known = TrainingSettings(), describe_settings(FinetuneSettings)
    shown = ("method", "sequence", "micro_batch", "precision", "checkpointing")
    words = ["--model", model, "--data", "DATA"]
    for name in known:
        if name in shown or getattr(settings, name, None) != getattr(defaults, name, None):
            words += format_setting(FinetuneSettings, name, getattr(settings, name))
    if settings.objective is Objective.GRPO:
        words += ["--batch", str(settings.completions), "--reward", "FILE.py:FUNCTION"]
    launcher = ["torchrun", "--nproc-per-node", str(settings.world), "-m"] if settings.world > 1 else []
    return shlex.join([*launcher, "devkit", "finetune", *words])


def build_estimate_settings(
    flags: Mapping[str, EstimateOptions], *, is_inference: bool
) -> TrainingSettings | InferenceSettings:
    """Build the settings. Raises DevkitError for flags that contradict each other."""
    group, other = ("inference", "training") if is_inference else ("training", "inference")
    given = {name: value for name, value in {**flags[group], **flags["both"]}.items() if value is not None}
    about = "--inference" if is_inference else "training; add --inference"
    wrong = [(name, about) for name, value in flags[other].items() if value is not None]
    if not is_inference:
        # A flag that has no effect with the method: its user may be thinking of another method.
        method = Method(given.get("method", Method.LORA))
        wrong += [(name, f"--method {method}") for name in _UNUSED.get(method, ()) if name in given]
    for name, subject in wrong:
        raise DevkitError(f"{_FLAGS[name]} has no effect with {subject}", "Remove one of them.")
    if is_inference:
        renamed = {"prompt" if name == "sequence" else name: value for name, value in given.items()}
        return decode_settings(InferenceSettings, renamed)
    if "targets" in given:
        given["targets"] = [name.strip() for name in given["targets"].split(",") if name.strip()] or list(ALL_LINEAR)
    stack = Stack(given.get("stack", Stack.DEVKIT))
    return decode_settings(TrainingSettings, {**_find_defaults(stack, method, given), **given})


_ADAPTER_SETTINGS = ("rank", "targets", "dora", "adapter_precision")
_UNUSED = {
    Method.FULL: (*_ADAPTER_SETTINGS, "upcast", "double_quantization"),
    Method.LORA: ("upcast", "double_quantization"),
    Method.INT8_LORA: ("double_quantization",),
}
"""The settings that have no effect with a method."""


def _find_defaults(stack: Stack, method: Method, given: EstimateOptions) -> dict[str, Any]:
    """Return the stack's defaults for flags that were not given.

    Sources: https://github.com/huggingface/peft/blob/v0.21.2/src/peft/tuners/tuners_utils.py (adapters of 16-bit models
    are kept in fp32), https://huggingface.co/docs/peft/developer_guides/quantization (upcast before training),
    https://github.com/huggingface/trl/blob/v1.16.0/trl/trainer/sft_trainer.py (no upcast, adapters of quantized models
    in bf16, the loss in tiles), https://github.com/huggingface/trl/blob/v1.16.0/trl/trainer/base_config.py (bf16=True).
    """
    if stack is Stack.DEVKIT:
        # fp16 adapters do not train: their updates are lost in rounding.
        is_fp16 = given.get("precision") is Precision.FP16
        return {"lean": True, **({"adapter_precision": Precision.FP32} if is_fp16 else {})}
    is_quantized = method in {Method.QLORA, Method.INT8_LORA}
    if stack is Stack.TRL:
        precision = Precision.BF16 if is_quantized else Precision.FP32
        return {"loss": Loss.CHUNKED, "adapter_precision": precision, "checkpointing": True, "autocast": True}
    return {"loss": Loss.STANDARD, "adapter_precision": Precision.FP32, "checkpointing": False, "upcast": is_quantized}


_NEEDED_KEYS = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")


def build_model_config(shape: Sequence[str], *, model: str | None) -> dict[str, Any] | None:
    """Build the config.json that --shape describes; None without it.

    Raises DevkitError where a key is missing or no number, and where a model is named as well.
    """
    if not shape:
        return None
    if model is not None:
        raise DevkitError(f"{model} and --shape describe different models", "Remove one of them.")
    config: dict[str, Any] = {"model_type": "llama"}
    for pair in (pair.strip() for text in shape for pair in text.split(",")):
        key, _, value = pair.partition("=")
        if not value or not (value.isdecimal() or value in ("true", "false") or key == "model_type"):
            raise DevkitError(f"invalid --shape {pair}: expected KEY=N", "Use the keys of config.json.")
        config[key] = value if key == "model_type" else _parse_value(value)
    if missing := [key for key in _NEEDED_KEYS if key not in config]:
        other = next((key for key in config if key not in (*_NEEDED_KEYS, "model_type")), "")
        near = [key for key in missing if other and other in key] or find_similar(other, missing)
        has = f", but has {other!r}" if near else ""
        raise DevkitError(f"--shape lacks {', '.join(missing)}{has}", suggest(near, "Put all of them in one --shape."))
    return config


def find_model_config(model: str | None, described: Mapping[str, Any] | None) -> tuple[Mapping[str, Any], str]:
    """Return the model's config and name: a config.json, a known name, a hub repository, or `described` by flags.

    Raises DevkitError where there is no such model.
    """
    if model is None:
        if described is None:
            raise DevkitError("no model was given", "Specify one, such as llama-3.1-8b, or a config.json.")
        return described, "your model"
    if os.path.exists(model):  # noqa: PTH110 - pathlib would cost a tenth of the command
        path = Path(model)
        file = path / "config.json" if path.is_dir() else path
        config = read_json_object(file, MAX_DOCUMENT_BYTES, "Specify a model's config.json, or its folder.")
        return config, file.resolve().parent.name if file.name == "config.json" else file.stem
    from devkit.estimate.shape import find_model

    known = find_model(model)
    return (known.config, known.id) if known else _download_config(model)


def _download_config(model: str) -> tuple[Mapping[str, Any], str]:
    """Download the config.json of a hub repository, and nothing else of it."""
    from devkit.estimate.shape import find_closest_models, list_models
    from devkit.workload.finetune.files import find_similar_names

    close = find_similar_names(model) or find_closest_models(model)
    known = suggest(close, f"{len(list_models())} models are known, such as llama-3.1-8b.")
    if model.count("/") != 1 or model.startswith((".", "/")):
        lacks = "does not exist" if model[:1] in (".", "/", "~") else "is not known"
        raise DevkitError(
            f"the model {model!r} {lacks}",
            f"{known} Alternatively, give its folder, its config.json or its name on the hub.",
        )
    from devkit.probe.host import LocalHost
    from devkit.probe.hub import read_model_config
    from devkit.probe.package_indexes import require_addresses

    require_addresses(["HF_ENDPOINT"])

    hint = f"{known} Alternatively, download its config.json and pass that file."
    text = read_model_config(LocalHost(), model)
    if isinstance(text, Unknown):
        raise DevkitError(f"cannot query the hub for {model}: {text.reason}", hint)
    return parse_json_object(text, f"the config.json of {model}", hint), model


def _find_gpus(names: tuple[str, ...], facts_files: tuple[Path, ...]) -> "tuple[GpuSpec, ...]":
    """Return the GPUs to judge: those named and those of saved machines, else those of this machine."""
    from devkit.estimate.memory import find_gpu_spec, group_gpus

    named = tuple(find_gpu_spec(name) for name in names)
    if not facts_files:
        return named or group_gpus(read_local_gpus())
    from devkit.probe.saved_facts import load_saved_facts

    saved = (gpu for path in facts_files for gpu in group_gpus(load_saved_facts([path]).gpus))
    return (*named, *saved)


_DEVICE_NODES = ("/dev/nvidiactl", "/dev/dxg")
"""Device nodes of NVIDIA's driver on Linux, and of GPUs in WSL 2."""
_NVML_S = 3.0


def read_local_gpus() -> "tuple[Gpu, ...]":
    """Read the GPUs of this machine. Without a device node of their driver there are none, and NVML is not loaded."""
    if not any(os.access(node, os.F_OK) for node in _DEVICE_NODES):
        return ()
    from devkit.facts.gpu import Gpu, NvmlAnswer
    from devkit.probe.gpu.nvml import read_nvml
    from devkit.probe.host import LocalHost

    answer = read_nvml(LocalHost(), deadline_s=_NVML_S)
    return tuple(gpu for gpu in answer.gpus if isinstance(gpu, Gpu)) if isinstance(answer, NvmlAnswer) else ()
