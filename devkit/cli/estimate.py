"""`devkit estimate`: how much GPU memory it takes, where it fits, and what to change."""

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from devkit.cli.names import complete_gpus, complete_models
from devkit.cli.runtime import is_drawn
from devkit.cli.terminal import draw_estimate, make_console, show_status
from devkit.errors import DevkitError, ExitCode
from devkit.estimate.settings import (
    ALL_LINEAR,
    Attention,
    CacheKind,
    InferenceSettings,
    Loss,
    Method,
    Optimizer,
    Precision,
    Quantization,
    Sharding,
    Stack,
    TrainingSettings,
    decode_settings,
)
from devkit.reading import MAX_CONFIG_BYTES, MAX_DOCUMENT_BYTES, read_bounded
from devkit.user_folder import find_user_file, remove_user_file, require_user_file, write_user_file

if TYPE_CHECKING:
    from devkit.estimate.gpus import GpuSpec
    from devkit.estimate.measured_runs import ObservedRun
    from devkit.estimate.memory import MemoryEstimate
    from devkit.estimate.report import RuleOfThumb, Scenario
    from devkit.estimate.resources import Prices
    from devkit.facts.gpu import Gpu

EstimateOptions = Mapping[str, Any]
"""Flags by setting; None where one was not given."""

_MEASUREMENTS_FILE = "measured.json"
_FILE = click.Path(path_type=Path, dir_okay=False)
_PRECISION = click.Choice([each.value for each in Precision])


def _choose(kind: type[Any]) -> "click.Choice[str]":
    return click.Choice([each.value for each in kind])


_TRAINING = (
    click.option("--method", type=_choose(Method), help="What is trained. Default: lora."),
    click.option("--rank", type=int, metavar="N", help="Rank of the adapters. Default: 16."),
    click.option(
        "--targets", metavar="NAMES", help="Modules with adapters, such as q_proj,v_proj. Default: all-linear."
    ),
    click.option("--dora", is_flag=True, default=None, help="Use DoRA: adapters with a magnitude vector."),
    click.option("--adapter-dtype", "adapter_precision", type=_PRECISION, help="Data type of the adapters."),
    click.option("--micro-batch", type=int, metavar="N", help="Rows in one forward and backward pass. Default: 1."),
    click.option(
        "--accumulation",
        type=int,
        metavar="N",
        help="Micro-batches per optimizer step (gradient accumulation). Default: 1.",
    ),
    click.option(
        "--checkpointing/--no-checkpointing",
        default=None,
        help="Recompute activations in the backward pass (gradient checkpointing).",
    ),
    click.option("--optimizer", type=_choose(Optimizer), help="Default: adamw, PyTorch's fused one."),
    click.option("--loss", type=_choose(Loss), help="Loss on full logits, or in chunks."),
    click.option("--kbit-upcast/--no-kbit-upcast", "upcast", default=None, help="prepare_model_for_kbit_training ran."),
    click.option("--double-quantization/--no-double-quantization", default=None, help="Quantize the nf4 scales, too."),
    click.option(
        "--stack", type=_choose(Stack), help="Training loop; its defaults fill in the flags above. Default: devkit."
    ),
    click.option(
        "--autocast/--no-autocast",
        default=None,
        help="Matrix products in 16 bits: bf16=True or fp16=True of Trainer and TRL.",
    ),
    click.option(
        "--keeps-outputs", is_flag=True, default=None, help="The loop keeps the logits during the backward pass."
    ),
    click.option("--sharding", type=_choose(Sharding), help="How --world processes shard the model. Default: ddp."),
    click.option("--shard-size", type=int, metavar="N", help="Processes that shard one copy of it. Default: all."),
)
_INFERENCE = (
    click.option("--new-tokens", "new", type=int, metavar="N", help="Tokens to generate. Default: 256."),
    click.option("--sequences", type=int, metavar="N", help="Sequences in one batch. Default: 1."),
    click.option("--cache", type=_choose(CacheKind), help="KV cache. Default: dynamic."),
    click.option("--cache-dtype", "cache_precision", type=_PRECISION, help="Default: that of the weights."),
    click.option("--quantize", "quantization", type=_choose(Quantization), help="Quantization of the weights."),
)
_BOTH = (
    click.option("--dtype", "precision", type=_PRECISION, help="Data type of weights. Default: bf16."),
    click.option("--seq", "sequence", type=int, metavar="N", help="Tokens of a row, or of the prompt."),
    click.option("--attention", type=_choose(Attention), help="Default: sdpa."),
    click.option("--world", type=int, metavar="N", help="World size: the number of GPUs. Default: 1."),
)
_SHAPE = (
    click.option("--hidden", "hidden_size", type=int, metavar="N", help="Describe a model of your own: its width."),
    click.option("--layers", "num_hidden_layers", type=int, metavar="N"),
    click.option("--heads", "num_attention_heads", type=int, metavar="N"),
    click.option("--kv-heads", "num_key_value_heads", type=int, metavar="N"),
    click.option("--head-dim", "head_dim", type=int, metavar="N"),
    click.option("--intermediate", "intermediate_size", type=int, metavar="N", help="Width of its MLP."),
    click.option("--vocabulary", "vocab_size", type=int, metavar="N"),
    click.option(
        "--tied", "tie_word_embeddings", is_flag=True, default=None, help="The output head is tied to the embedding."
    ),
    click.option("--architecture", "model_type", metavar="NAME", help="Built like this one. Default: llama."),
)
_GROUPS = {"training": _TRAINING, "inference": _INFERENCE, "both": _BOTH, "shape": _SHAPE}

_FLAGS: dict[str, dict[str, str]] = {}
"""By group: setting -> its flag; filled below."""


def estimate_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a Click command these flags, which it receives by group as one argument, `flags`."""

    @wraps(command)
    def with_flags(*args: Any, **values: Any) -> Any:  # noqa: ANN401 - whatever the command takes and returns
        flags = {group: {name: values.pop(name) for name in names} for group, names in _FLAGS.items()}
        return command(*args, flags=flags, **values)

    wrapped: Callable[..., Any] = with_flags
    for group, options in reversed(_GROUPS.items()):
        for option in reversed(options):
            wrapped = option(wrapped)
        added = wrapped.__click_params__[-len(options) :]  # type: ignore[attr-defined]
        _FLAGS[group] = {str(each.name): each.opts[0] for each in reversed(added)}
    return wrapped


@dataclass(frozen=True)
class _CommandOptions:
    """The command's flags other than those of the settings."""

    model: str | None
    inference: bool
    gpus: tuple[str, ...]
    facts_files: tuple[Path, ...]
    tokens: int | None
    price_file: Path | None
    rule_names: tuple[str, ...]
    exact: bool
    why: str | None
    learn_file: str | None
    reset: bool
    as_json: bool


@click.command()
@click.argument("model", required=False, shell_complete=complete_models)
@click.option("--inference", is_flag=True, help="Generate text instead of training.")
@estimate_options
@click.option(
    "--gpu",
    "gpus",
    multiple=True,
    metavar="NAME",
    shell_complete=complete_gpus,
    help='Does it fit there? "RTX 4090", "H100 MIG 3g.40gb", "L4/4" for one of four programs.',
)
@click.option(
    "--facts", "facts_files", multiple=True, type=_FILE, metavar="FILE", help="A machine saved by devkit doctor."
)
@click.option("--tokens", type=click.IntRange(min=1), metavar="N", help="How many tokens to train on: time and disk.")
@click.option("--prices", "price_file", type=_FILE, metavar="FILE", help="Your prices; see examples/prices.toml.")
@click.option("--rule", "rule_names", multiple=True, metavar="NAME", help="Compare a rule of thumb, such as seed:4x.")
@click.option("--exact", is_flag=True, help="Trace the real program (needs torch, takes seconds).")
@click.option("--why", metavar="TERM", help="Explain one term of the peak.")
@click.option(
    "--learn",
    "learn_file",
    is_flag=False,
    flag_value="",
    metavar="FILE",
    help="Calibrate the bounds with a measured run.",
)
@click.option("--reset", is_flag=True, help="With --learn: forget what was learned.")
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
@click.pass_context
def estimate(ctx: click.Context, /, *, flags: Mapping[str, EstimateOptions], **given: Any) -> None:  # noqa: ANN401
    """Say how much GPU memory training or inference takes, where it fits, and what to change.

    MODEL is a known name such as llama-3.1-8b, a config.json or its folder, or a repository on the hub; or describe it
    with --hidden, --layers and so on. Nothing is downloaded but a config.json. Ends with 1 where it fits on none of the
    GPUs: those named, those of --facts, or those of this machine.
    """
    from devkit.estimate.config import build_model_shape
    from devkit.estimate.report import (
        Scenario,
        build_estimate_report,
        estimate_memory,
        format_estimate_report,
        format_term,
        serialize_estimate_report,
    )

    options = _CommandOptions(**given)
    if options.reset or options.learn_file is not None:
        if options.model is not None or bool(options.learn_file) == options.reset:
            raise DevkitError(
                "--learn takes a file or --reset, and no model", "devkit estimate --learn OUTPUT/run.json"
            )
        click.echo(learn_from_runs(Path(options.learn_file)) if options.learn_file else forget_learned())
        ctx.exit(ExitCode.DONE)
    settings = build_estimate_settings(flags, is_inference=options.inference)
    config, name = find_model_config(options.model, build_model_config(flags["shape"], model=options.model))
    gpus, learned_from = apply_learned_bounds(_find_gpus(options, settings.precision))
    rules: tuple[RuleOfThumb, ...] = ()
    if options.rule_names:
        from devkit.estimate.report import find_rule_of_thumb

        rules = tuple(find_rule_of_thumb(name) for name in options.rule_names)
    scenario = Scenario(
        shape=build_model_shape(config, name=name),
        settings=settings,
        gpus=gpus,
        tokens=options.tokens or 0,
        prices=_read_prices(options.price_file) if options.price_file else None,
        rules=rules,
    )
    memory = _trace(scenario, config) if options.exact else estimate_memory(scenario)
    width = shutil.get_terminal_size().columns
    if options.why:
        click.echo(format_term(memory, options.why, width=width))
        ctx.exit(ExitCode.DONE)
    report = build_estimate_report(scenario, memory, learned_from=learned_from)
    if options.as_json:
        click.echo(json.dumps(serialize_estimate_report(report), indent=2, ensure_ascii=False))
    else:
        text = format_estimate_report(report, width=width)
        if is_drawn(sys.stdout):
            draw_estimate(make_console(sys.stdout), report, text)
        else:
            click.echo(text)
    ctx.exit(ExitCode.DONE if report.fits_somewhere else ExitCode.ANSWER_IS_NO)


def build_estimate_settings(
    flags: Mapping[str, EstimateOptions], *, is_inference: bool
) -> TrainingSettings | InferenceSettings:
    """Build the settings. Raises DevkitError for flags that contradict each other."""
    group, other = ("inference", "training") if is_inference else ("training", "inference")
    given = {name: value for name, value in {**flags[group], **flags["both"]}.items() if value is not None}
    about = "--inference" if is_inference else "training; add --inference"
    wrong = [(_FLAGS[other][name], about) for name, value in flags[other].items() if value is not None]
    if not is_inference:
        # A flag that has no effect with the method: its user may be thinking of another method.
        method = Method(given.get("method", Method.LORA))
        wrong += [(_FLAGS["training"][name], f"--method {method}") for name in _UNUSED.get(method, ()) if name in given]
    for flag, subject in wrong:
        raise DevkitError(f"{flag} says nothing about {subject}", "Leave out one of the two.")
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
    return {
        "loss": Loss.STANDARD,
        "adapter_precision": Precision.FP32,
        "checkpointing": False,
        "upcast": is_quantized,
    }


def build_model_config(flags: EstimateOptions, *, model: str | None) -> dict[str, Any] | None:
    """Build the config.json that the shape flags describe; None without any.

    Raises DevkitError where a flag is missing, and where a model is named as well.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    if not given:
        return None
    if model is not None:
        raise DevkitError(f"{model} and flags describe two models", "Leave out one of the two.")
    for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"):
        if name not in given:
            raise DevkitError(
                f"{_FLAGS['shape'][name]} is missing",
                "A model of your own needs width, layers, heads, --intermediate and --vocabulary.",
            )
    return {"model_type": "llama", **given}


def find_model_config(model: str | None, described: Mapping[str, Any] | None) -> tuple[Mapping[str, Any], str]:
    """Return the model's config and name: a config.json, a known name, a hub repository, or `described` by flags.

    Raises DevkitError where there is no such model.
    """
    if model is None:
        if described is None:
            raise DevkitError("no model is named", "Name one, such as llama-3.1-8b, or give a config.json.")
        return described, "your model"
    if os.path.exists(model):  # noqa: PTH110 - pathlib would cost a tenth of the command
        return _read_config(Path(model))
    from devkit.estimate.model_catalog import find_model

    known = find_model(model)
    return (known.config, known.id) if known else _download_config(model)


def _read_config(path: Path) -> tuple[Mapping[str, Any], str]:
    file = path / "config.json" if path.is_dir() else path
    config = _read_object(file, "Give a model's config.json, or the folder that holds it.")
    return config, file.resolve().parent.name if file.name == "config.json" else file.stem


def _read_object(file: Path, hint: str) -> Mapping[str, Any]:
    """Read a JSON object. Raises DevkitError with the hint."""
    try:
        document = json.loads(read_bounded(file, MAX_DOCUMENT_BYTES))
    except OSError as error:
        raise DevkitError(f"cannot read {file}: {error.strerror}", hint) from None
    except (ValueError, RecursionError) as error:
        raise DevkitError(f"{file} is not JSON: {error}", hint) from None
    if not isinstance(document, dict):
        raise DevkitError(f"{file} holds no object", hint)
    return document


def _download_config(model: str) -> tuple[Mapping[str, Any], str]:
    """Download the config.json of a hub repository, and nothing else of it."""
    from devkit.estimate.model_catalog import find_closest_models, list_models

    close = find_closest_models(model)
    known = f"{len(list_models())} models are known, such as llama-3.1-8b."
    known = f"Did you mean {' or '.join(close)}?" if close else known
    if model.count("/") != 1 or model.startswith((".", "/")):
        raise DevkitError(f"there is no model {model!r}", f"{known} Or give its config.json, or its name on the hub.")
    hint = f"{known} Or download its config.json and give that."
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
    except ImportError:
        from devkit.workload.interpreter import continue_in_project

        # transformers brings it; where the project's environment has neither, the answer is the same.
        with contextlib.suppress(DevkitError):
            continue_in_project("devkit estimate")
        raise DevkitError(
            f"{model} is not among the known models, and huggingface_hub is not installed to query the hub", hint
        ) from None
    try:
        path = hf_hub_download(model, "config.json")
    except (HfHubHTTPError, LocalEntryNotFoundError, HFValidationError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DevkitError(f"cannot query the hub for {model}: {reason}", hint) from None
    return _read_config(Path(path))[0], model


def _find_gpus(options: _CommandOptions, precision: Precision) -> "tuple[GpuSpec, ...]":
    """Return the GPUs to judge: those named and those of saved machines, else those of this machine."""
    from devkit.estimate.gpus import find_gpu_spec, group_gpus

    named = tuple(find_gpu_spec(name, precision) for name in options.gpus)
    if not options.facts_files:
        return named or group_gpus(read_local_gpus(), precision)
    from devkit.probe.saved_facts import load_saved_facts

    saved = (gpu for path in options.facts_files for gpu in group_gpus(load_saved_facts([path]).gpus, precision))
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


def _read_prices(path: Path) -> "Prices":
    from devkit.estimate.resources import parse_prices
    from devkit.probe.documents import parse_toml

    try:
        return parse_prices(parse_toml(read_bounded(path, MAX_CONFIG_BYTES).decode()), origin=str(path))
    except OSError as error:
        raise DevkitError(f"cannot read {path}: {error.strerror}", "See examples/prices.toml for one.") from None
    except ValueError as error:
        raise DevkitError(f"{path} is not TOML: {error}", "See examples/prices.toml for one.") from None


def _trace(scenario: "Scenario", config: Mapping[str, Any]) -> "MemoryEstimate":
    """Trace the real program in a child process: importing torch takes seconds."""
    import subprocess

    from devkit.workload.interpreter import build_module_command, require_workload_python
    from devkit.workload.tracing.request import TraceRequest, dump_request, parse_estimate

    python = require_workload_python("devkit estimate --exact").executable
    request = dump_request(TraceRequest(document=config, settings=scenario.settings))
    argv = build_module_command(python, "devkit.workload.tracing")
    with show_status("tracing the program"):
        child = subprocess.run(argv, input=request, capture_output=True, text=True, check=False)
    if child.returncode == ExitCode.DONE:
        return parse_estimate(child.stdout)
    message, _, hint = child.stderr.strip().rpartition("\n")
    if child.returncode == ExitCode.WRONG_INPUT:
        raise DevkitError(message, hint)
    raise RuntimeError(f"the trace ended with {child.returncode}:\n{child.stderr}")


def apply_learned_bounds(gpus: "Sequence[GpuSpec]") -> "tuple[tuple[GpuSpec, ...], str]":
    """Return the GPUs with bounds calibrated by measured runs, and the file with those runs, "" where it has none."""
    path = find_user_file(_MEASUREMENTS_FILE)
    if not gpus or path is None or not os.access(path, os.F_OK):
        return tuple(gpus), ""
    from devkit.estimate.measured_runs import calibrate_bounds

    runs = _read_kept_runs(Path(path))
    calibrated = tuple(replace(gpu, bounds=calibrate_bounds(runs, gpu.name)) for gpu in gpus)
    return calibrated, path if any(gpu.bounds for gpu in calibrated) else ""


def learn_from_runs(source: Path) -> str:
    """Keep the runs of a file, and return a text on how far off the estimates were. Raises DevkitError."""
    from devkit.estimate.measured_runs import ENOUGH_RUNS, calibrate_bounds, serialize_observed_runs
    from devkit.text import format_bytes, format_count

    path = require_user_file(_MEASUREMENTS_FILE)
    before = _read_kept_runs(path) if path.exists() else ()
    new = [run for run in _read_runs(source) if run not in before]
    runs = (*before, *new)
    write_user_file(_MEASUREMENTS_FILE, json.dumps(serialize_observed_runs(runs), indent=1).encode())
    lines = [
        f"{run.gpu}: estimated {format_bytes(run.estimated_bytes)}, measured {format_bytes(run.allocated_bytes)} "
        f"({run.error:+.1%}); the allocator held {run.slack:.1%} more"
        for run in new
    ]
    for gpu in dict.fromkeys(run.gpu for run in new or runs):
        bounds = calibrate_bounds(runs, gpu)
        count = format_count(sum(run.gpu == gpu for run in runs), "run")
        if bounds is None:
            lines.append(f"{gpu}: {count}, the bounds move from {ENOUGH_RUNS} on")
        else:
            share = f"{bounds.slack_point:.1%} now, at most {bounds.slack_upper:.1%}"
            lines.append(f"{gpu}: {count}; the allocator's share is {share}")
    return "\n".join([*lines, f"Kept in {path}; `devkit estimate --learn --reset` forgets it."])


def forget_learned() -> str:
    """Remove all measured runs, and return a text that says so. Raises DevkitError."""
    remove_user_file(_MEASUREMENTS_FILE)
    path = find_user_file(_MEASUREMENTS_FILE)
    return f"Forgotten: {path} is gone, and the bounds are the general ones again."


def _read_kept_runs(path: Path) -> "tuple[ObservedRun, ...]":
    """Read the runs kept so far. A file that cannot be read is ignored with a warning."""
    try:
        return _read_runs(path)
    except DevkitError as error:
        click.echo(f"Warning: {error.message}; `devkit estimate --learn --reset` drops it", err=True)
        return ()


def _read_runs(path: Path) -> "tuple[ObservedRun, ...]":
    from devkit.estimate.measured_runs import parse_observed_runs

    hint = "Give run.json of a finished devkit finetune, or the report of devkit verify on a GPU."
    return parse_observed_runs(_read_object(path, hint), origin=str(path))
