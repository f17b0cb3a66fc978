"""`devkit estimate`: how much GPU memory it takes, where it fits, and what to change."""

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from devkit.cli import exit_codes
from devkit.cli.user_tables import find_user_tables_file
from devkit.errors import DevkitError
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

if TYPE_CHECKING:
    from collections.abc import Mapping

    from devkit.estimate.gpus import GpuSpec
    from devkit.estimate.measured_runs import ObservedRun
    from devkit.estimate.memory import MemoryEstimate
    from devkit.estimate.report import Scenario
    from devkit.estimate.resources import Prices
    from devkit.estimate.rules_of_thumb import RuleOfThumb
    from devkit.estimate.settings import Precision
    from devkit.facts.gpu import Gpu

# The flags of `devkit estimate`, and the settings and shapes that they make.

EstimateOptions = Mapping[str, Any]
"""Flags as typed, by field; None where one was not given."""

_PRECISION = click.Choice([each.value for each in Precision])


def _choice(kind: type[Any]) -> click.Choice[str]:
    return click.Choice([each.value for each in kind])


_TRAINING = (
    click.option("--method", type=_choice(Method), help="What is trained. Default: lora."),
    click.option("--rank", type=int, metavar="N", help="Rank of the adapters. Default: 16."),
    click.option(
        "--targets", metavar="NAMES", help="Modules with adapters, such as q_proj,v_proj. Default: all-linear."
    ),
    click.option("--dora", is_flag=True, default=None, help="Adapters with a magnitude of their own (DoRA)."),
    click.option("--adapter-dtype", "adapter_precision", type=_PRECISION, help="Data type of the adapters."),
    click.option("--micro-batch", type=int, metavar="N", help="Rows in one pass. Default: 1."),
    click.option("--accumulation", type=int, metavar="N", help="Passes before a step. Default: 1."),
    click.option(
        "--checkpointing/--no-checkpointing", default=None, help="Compute layers again instead of keeping them."
    ),
    click.option("--optimizer", type=_choice(Optimizer), help="Default: adamw, which is torch's fused one."),
    click.option("--loss", type=_choice(Loss), help="On whole logits, or on parts of them."),
    click.option("--kbit-upcast/--no-kbit-upcast", "upcast", default=None, help="prepare_model_for_kbit_training ran."),
    click.option(
        "--double-quantisation/--no-double-quantisation", default=None, help="Whether nf4's scales are packed, too."
    ),
    click.option(
        "--stack", type=_choice(Stack), help="Whose loop; sets what the flags above leave open. Default: devkit."
    ),
    click.option(
        "--keeps-outputs", is_flag=True, default=None, help="The loop holds the logits while it goes backward."
    ),
    click.option("--sharding", type=_choice(Sharding), help="How --world processes share the work. Default: ddp."),
)
_INFERENCE = (
    click.option("--new-tokens", "new", type=int, metavar="N", help="Tokens to generate. Default: 256."),
    click.option("--sequences", type=int, metavar="N", help="Texts at once. Default: 1."),
    click.option("--cache", type=_choice(CacheKind), help="How past tokens are kept. Default: dynamic."),
    click.option("--cache-dtype", "cache_precision", type=_PRECISION, help="Default: that of the weights."),
    click.option("--quantise", "quantisation", type=_choice(Quantization), help="How the weights are kept."),
)
_BOTH = (
    click.option("--dtype", "precision", type=_PRECISION, help="Data type of weights. Default: bf16."),
    click.option("--seq", "sequence", type=int, metavar="N", help="Tokens of a row, or of the prompt."),
    click.option("--attention", type=_choice(Attention), help="Default: sdpa."),
    click.option("--world", type=int, metavar="N", help="GPUs that work together. Default: 1."),
)
_SHAPE = (
    click.option("--hidden", "hidden_size", type=int, metavar="N", help="Describe a model of your own: its width."),
    click.option("--layers", "num_hidden_layers", type=int, metavar="N"),
    click.option("--heads", "num_attention_heads", type=int, metavar="N"),
    click.option("--kv-heads", "num_key_value_heads", type=int, metavar="N"),
    click.option("--head-dim", "head_dim", type=int, metavar="N"),
    click.option("--intermediate", "intermediate_size", type=int, metavar="N", help="Width of its MLP."),
    click.option("--vocabulary", "vocab_size", type=int, metavar="N"),
    click.option("--tied", "tie_word_embeddings", is_flag=True, default=None, help="Its output head is its embedding."),
    click.option("--architecture", "model_type", metavar="NAME", help="Built like this one. Default: llama."),
)
_GROUPS = {"training": _TRAINING, "inference": _INFERENCE, "both": _BOTH, "shape": _SHAPE}

_NAMES: dict[str, dict[str, str]] = {}
"""By group: field -> the flag that gives it; filled below."""


def estimate_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a Click command these flags; it receives them by group as one argument, `flags`."""

    @wraps(command)
    def with_flags(*args: Any, **values: Any) -> Any:  # noqa: ANN401 - whatever the command takes and returns
        flags = {group: {name: values.pop(name) for name in names} for group, names in _NAMES.items()}
        return command(*args, flags=flags, **values)

    wrapped: Callable[..., Any] = with_flags
    for group, options in reversed(_GROUPS.items()):
        for option in reversed(options):
            wrapped = option(wrapped)
        added = wrapped.__click_params__[-len(options) :]  # type: ignore[attr-defined]
        _NAMES[group] = {str(each.name): each.opts[0] for each in reversed(added)}
    return wrapped


def build_estimate_settings(
    flags: Mapping[str, EstimateOptions], *, is_inference: bool
) -> TrainingSettings | InferenceSettings:
    """The settings that the flags make. Raises DevkitError for flags that contradict each other."""
    group, other = ("inference", "training") if is_inference else ("training", "inference")
    _refuse(flags, other, "--inference" if is_inference else "training; add --inference")
    given = {name: value for name, value in {**flags[group], **flags["both"]}.items() if value is not None}
    return _inference(given) if is_inference else _training(given)


def build_model_config(flags: EstimateOptions, *, model: str | None) -> dict[str, Any] | None:
    """The config.json that the shape flags describe; None without any.

    Raises DevkitError where one is missing, and where a model is named besides.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    if not given:
        return None
    if model is not None:
        raise DevkitError(f"{model} and flags describe two models", "Leave the one or the other away.")
    for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"):
        if name not in given:
            raise DevkitError(
                f"{_NAMES['shape'][name]} is missing",
                "A model of your own needs width, layers, heads, --intermediate and --vocabulary.",
            )
    return {"model_type": "llama", **given}


def _refuse(flags: Mapping[str, EstimateOptions], group: str, about: str) -> None:
    wrong = [_NAMES[group][name] for name, value in flags[group].items() if value is not None]
    if wrong:
        raise DevkitError(f"{wrong[0]} says nothing about {about}", "Leave the one or the other away.")


def _inference(given: dict[str, Any]) -> InferenceSettings:
    renamed = {"prompt" if name == "sequence" else name: value for name, value in given.items()}
    return decode_settings(InferenceSettings, renamed)


def _training(given: dict[str, Any]) -> TrainingSettings:
    values = dict(given)
    if "targets" in values:
        values["targets"] = [name.strip() for name in values["targets"].split(",") if name.strip()] or list(ALL_LINEAR)
    method, stack = Method(values.get("method", Method.LORA)), Stack(values.get("stack", Stack.DEVKIT))
    _refuse_for(method, given)
    return decode_settings(TrainingSettings, {**_defaults(stack, method, values), **values})


def _refuse_for(method: Method, given: EstimateOptions) -> None:
    """Flags that mean nothing for a method: who gave them thinks of another one."""
    adapters = ("rank", "targets", "dora", "adapter_precision")
    wrong = {
        Method.FULL: (*adapters, "upcast", "double_quantisation"),
        Method.LORA: ("upcast", "double_quantisation"),
        Method.INT8_LORA: ("double_quantisation",),
    }
    for name in wrong.get(method, ()):
        if name in given:
            raise DevkitError(
                f"{_NAMES['training'][name]} says nothing about --method {method}", "Leave the one or the other away."
            )


def _defaults(stack: Stack, method: Method, given: EstimateOptions) -> dict[str, Any]:
    """What the stack does where the flags leave it open.

    Sources: https://github.com/huggingface/peft/blob/v0.21.2/src/peft/tuners/tuners_utils.py (adapters of 16-bit models
    are kept in fp32), https://huggingface.co/docs/peft/developer_guides/quantization (upcast before training),
    https://github.com/huggingface/trl/pull/4457 (TRL stopped to upcast).
    """
    if stack is Stack.DEVKIT:
        # fp16 adapters do not train: their updates are lost in rounding.
        return {"adapter_precision": Precision.FP32} if given.get("precision") is Precision.FP16 else {}
    is_quantised = method in {Method.QLORA, Method.INT8_LORA}
    return {
        "loss": Loss.STANDARD,
        "adapter_precision": Precision.FP32,
        "checkpointing": stack is Stack.TRL,
        "upcast": is_quantised and stack is Stack.TRAINER,
    }


_FILE = click.Path(path_type=Path, dir_okay=False)
_NVML_S = 3.0
_NODES = ("/dev/nvidiactl", "/dev/dxg")
"""Device nodes of NVIDIA's driver on Linux, and of GPUs in WSL 2."""


@click.command()
@click.argument("model", required=False)
@click.option("--inference", is_flag=True, help="Generate text instead of training.")
@estimate_options
@click.option("--gpu", "gpus", multiple=True, metavar="NAME", help='Does it fit there? "RTX 4090", "H100 MIG 3g.40gb".')
@click.option(
    "--facts", "facts_files", multiple=True, type=_FILE, metavar="FILE", help="A machine saved by devkit doctor."
)
@click.option("--tokens", type=click.IntRange(min=1), metavar="N", help="How many tokens to train on: time and disk.")
@click.option("--prices", "price_file", type=_FILE, metavar="FILE", help="Your prices; see examples/prices.toml.")
@click.option("--rule", "rule_names", multiple=True, metavar="NAME", help="A rule of thumb beside it, such as seed:4x.")
@click.option("--exact", is_flag=True, help="Trace the real program (needs torch, takes seconds).")
@click.option("--why", metavar="TERM", help="Explain one term of the peak.")
@click.option(
    "--learn", "learn_file", is_flag=False, flag_value="", metavar="FILE", help="Draw the bounds in by a measured run."
)
@click.option("--reset", is_flag=True, help="With --learn: forget what was learned.")
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
@click.pass_context
def estimate(ctx: click.Context, /, *, flags: "Mapping[str, EstimateOptions]", **asked: Any) -> None:  # noqa: ANN401 - see _Asked
    """Say how much GPU memory training or inference takes, where it fits, and what to change.

    MODEL is a known name such as llama-3.1-8b, a config.json or its folder, or a repository on the hub; or describe it
    with --hidden, --layers and so on. Nothing is downloaded but a config.json. Ends with 1 where it fits on none of the
    GPUs: those named, those of --facts, or those of this machine.
    """
    ctx.exit(_answered(_Asked(**asked), flags))


@dataclass(frozen=True)
class _Asked:
    """The command's own flags, as typed."""

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


def _answered(asked: _Asked, flags: "Mapping[str, EstimateOptions]") -> int:
    from devkit.estimate.report import (
        build_estimate_report,
        estimate_memory,
        format_estimate_report,
        format_term,
        serialize_estimate_report,
    )

    if asked.reset or asked.learn_file is not None:
        return _learned(asked)
    question, config, learned_from = _question(asked, flags)
    found = _traced(question, config) if asked.exact else estimate_memory(question)
    width = shutil.get_terminal_size().columns
    if asked.why:
        click.echo(format_term(found, asked.why, width=width))
        return exit_codes.DONE
    told = build_estimate_report(question, found, learned_from=learned_from)
    if asked.as_json:
        click.echo(json.dumps(serialize_estimate_report(told), indent=2, ensure_ascii=False))
    else:
        click.echo(format_estimate_report(told, width=width))
    return exit_codes.DONE if told.fits_somewhere else exit_codes.ANSWER_IS_NO


def _question(asked: _Asked, flags: "Mapping[str, EstimateOptions]") -> "tuple[Scenario, Mapping[str, Any], str]":
    """The question, the model's config, and the file of measurements that moved bounds, "" for none."""
    from devkit.estimate.config import build_model_shape
    from devkit.estimate.report import Scenario

    settings = build_estimate_settings(flags, is_inference=asked.inference)
    config, name = find_model_config(asked.model, build_model_config(flags["shape"], model=asked.model))
    cards, learned_from = apply_learned_bounds(_cards(asked, settings.precision))
    question = Scenario(
        shape=build_model_shape(config, name=name),
        settings=settings,
        gpus=cards,
        tokens=asked.tokens or 0,
        prices=_prices(asked.price_file) if asked.price_file else None,
        rules=_rules(asked.rule_names),
    )
    return question, config, learned_from


def _cards(asked: _Asked, precision: "Precision") -> "tuple[GpuSpec, ...]":
    """The GPUs asked about: by name, of saved machines, else of this one."""
    from devkit.estimate.gpus import find_gpu_spec, group_gpus

    named = tuple(find_gpu_spec(name, precision) for name in asked.gpus)
    if not asked.facts_files:
        return named or group_gpus(_gpus_here(), precision)
    from devkit.cli.facts import load_saved_facts

    saved = (card for path in asked.facts_files for card in group_gpus(load_saved_facts([path]).gpus, precision))
    return (*named, *saved)


def _gpus_here() -> "tuple[Gpu, ...]":
    """The GPUs of this machine. Without a device node of their driver there are none, and NVML is not loaded."""
    if not any(os.access(node, os.F_OK) for node in _NODES):
        return ()
    from devkit.facts.gpu import Gpu, NvmlAnswer
    from devkit.probe.gpu.nvml import read_nvml
    from devkit.probe.host import LocalHost

    found = read_nvml(LocalHost(), deadline_s=_NVML_S)
    return tuple(gpu for gpu in found.gpus if isinstance(gpu, Gpu)) if isinstance(found, NvmlAnswer) else ()


def _rules(names: tuple[str, ...]) -> "tuple[RuleOfThumb, ...]":
    if not names:
        return ()
    from devkit.estimate.rules_of_thumb import find_rule_of_thumb

    return tuple(find_rule_of_thumb(name) for name in names)


def _prices(path: Path) -> "Prices":
    import tomllib

    from devkit.estimate.resources import parse_prices

    try:
        return parse_prices(tomllib.loads(path.read_text(encoding="utf-8")), origin=str(path))
    except OSError as error:
        raise DevkitError(f"cannot read {path}: {error.strerror}", "See examples/prices.toml for one.") from None
    except ValueError as error:
        raise DevkitError(f"{path} is not TOML: {error}", "See examples/prices.toml for one.") from None


def _traced(question: "Scenario", config: "Mapping[str, Any]") -> "MemoryEstimate":
    """The estimate of the real program, traced in a process of its own: importing torch takes seconds."""
    import subprocess
    import sys
    from importlib.util import find_spec

    from devkit.workload.tracing.request import TraceRequest, dump_request, parse_estimate

    if find_spec("torch") is None:
        raise DevkitError(
            "--exact needs torch, which is not installed here", 'Install it: pip install "devkit-gpu[workload]"'
        )
    asked = dump_request(TraceRequest(document=config, settings=question.settings))
    child = subprocess.run(
        [sys.executable, "-m", "devkit.workload.tracing"], input=asked, capture_output=True, text=True, check=False
    )
    if child.returncode == exit_codes.DONE:
        return parse_estimate(child.stdout)
    message, _, hint = child.stderr.strip().rpartition("\n")
    if child.returncode == exit_codes.WRONG_INPUT:
        raise DevkitError(message, hint)
    raise RuntimeError(f"the trace ended with {child.returncode}:\n{child.stderr}")


def _learned(asked: _Asked) -> int:

    if asked.model is not None or bool(asked.learn_file) == asked.reset:
        raise DevkitError("--learn takes a file or --reset, and no model", "devkit estimate --learn OUTPUT/run.json")
    click.echo(learn_from_runs(Path(asked.learn_file)) if asked.learn_file else forget_learned())
    return exit_codes.DONE


# What `devkit estimate` learned from measured runs: one file of the user's, named in every answer that it changes.


def find_measurements_file() -> str | None:
    """Where the runs are kept; None without a home."""
    beside = find_user_tables_file()
    return f"{os.path.dirname(beside)}/measured.json" if beside else None  # noqa: PTH120 - every estimate comes by here


def apply_learned_bounds(cards: "Sequence[GpuSpec]") -> "tuple[tuple[GpuSpec, ...], str]":
    """The GPUs with what was learned about them, and the file that says so, "" where none does."""
    path = find_measurements_file()
    if not cards or path is None or not os.access(path, os.F_OK):
        return tuple(cards), ""
    from devkit.estimate.measured_runs import calibrate_bounds

    found = _kept(Path(path))
    known = tuple(replace(card, bounds=calibrate_bounds(found, card.name)) for card in cards)
    return known, path if any(card.bounds for card in known) else ""


def learn_from_runs(source: Path) -> str:
    """Take up the runs of a file, and say how far off the estimates were. Raises DevkitError."""
    path = _needed_file()
    before = _kept(path) if path.exists() else ()
    new = [each for each in _read(source) if each not in before]
    _write(path, (*before, *new))
    return _told((*before, *new), new, path)


def forget_learned() -> str:
    """Drop all that was learned. Raises DevkitError."""
    path = _needed_file()
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise DevkitError(f"cannot remove {path}: {error.strerror}", "Remove it yourself.") from None
    return f"Forgotten: {path} is gone, and the bounds are the general ones again."


def _told(every: "Sequence[ObservedRun]", new: "Sequence[ObservedRun]", path: Path) -> str:
    from devkit.estimate.measured_runs import ENOUGH_RUNS, calibrate_bounds
    from devkit.text import format_bytes, format_count

    lines = [
        f"{each.gpu}: estimated {format_bytes(each.estimated_bytes)}, measured {format_bytes(each.allocated_bytes)} "
        f"({each.error:+.1%}); the allocator held {each.slack:.1%} more"
        for each in new
    ]
    for gpu in dict.fromkeys(each.gpu for each in new or every):
        bounds = calibrate_bounds(every, gpu)
        runs = format_count(sum(each.gpu == gpu for each in every), "run")
        if bounds is None:
            lines.append(f"{gpu}: {runs}, the bounds move from {ENOUGH_RUNS} on")
        else:
            share = f"{bounds.slack_point:.1%} now, at most {bounds.slack_upper:.1%}"
            lines.append(f"{gpu}: {runs}; the allocator's share is {share}")
    return "\n".join([*lines, f"Kept in {path}; `devkit estimate --learn --reset` forgets it."])


def _kept(path: Path) -> "tuple[ObservedRun, ...]":
    """The runs kept so far. A file that cannot be read counts for nothing, which is said."""
    try:
        return _read(path)
    except DevkitError as error:
        click.echo(f"Warning: {error.message}; `devkit estimate --learn --reset` drops it", err=True)
        return ()


def _read(path: Path) -> "tuple[ObservedRun, ...]":
    from devkit.estimate.measured_runs import parse_observed_runs

    hint = "Give run.json of a finished devkit finetune, or the report of devkit verify on a GPU."
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DevkitError(f"cannot read {path}: {error.strerror}", hint) from None
    except (ValueError, RecursionError) as error:
        raise DevkitError(f"{path} is not JSON: {error}", hint) from None
    if not isinstance(document, dict):
        raise DevkitError(f"{path} holds no object", hint)
    return parse_observed_runs(document, origin=str(path))


def _write(path: Path, found: "Sequence[ObservedRun]") -> None:
    """Whole or not at all."""
    from tempfile import NamedTemporaryFile

    from devkit.estimate.measured_runs import serialize_observed_runs

    staged = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, prefix="measured-", delete=False) as file:
            staged = Path(file.name)
            json.dump(serialize_observed_runs(found), file, indent=1)
        staged.replace(path)
    except OSError as error:
        if staged is not None:
            staged.unlink(missing_ok=True)
        raise DevkitError(f"cannot write {path}: {error.strerror}", "Make room there, or set XDG_DATA_HOME.") from None


def _needed_file() -> Path:
    path = find_measurements_file()
    if path is None:
        raise DevkitError("there is no home folder to keep measurements in", "Set HOME or XDG_DATA_HOME to a folder.")
    return Path(path)


# The model that `devkit estimate` is asked about: a known name, a config.json, a repository on the hub, or flags.

_MOST_BYTES = 1 << 20


def find_model_config(model: str | None, described: Mapping[str, Any] | None) -> tuple[Mapping[str, Any], str]:
    """The config and the name of the model. Raises DevkitError where there is none of that name."""
    if model is None:
        if described is None:
            raise DevkitError("no model is named", "Name one, such as llama-3.1-8b, or give a config.json.")
        return described, "your model"
    if os.path.exists(model):  # noqa: PTH110 - pathlib would cost a tenth of the command
        return _from_file(model)
    return _known(model) or _from_hub(model)


def _known(model: str) -> tuple[Mapping[str, Any], str] | None:
    from devkit.estimate.model_catalog import find_model

    found = find_model(model)
    return (found.config, found.id) if found else None


def _from_file(path: str) -> tuple[Mapping[str, Any], str]:
    from pathlib import Path

    file = Path(path) / "config.json" if Path(path).is_dir() else Path(path)
    hint = "Give a model's config.json, or the folder that holds it."
    try:
        with file.open("rb") as opened:
            content = opened.read(_MOST_BYTES)
    except OSError as error:
        raise DevkitError(f"cannot read {file}: {error.strerror}", hint) from None
    return _parsed(content, str(file), hint), file.resolve().parent.name if file.name == "config.json" else file.stem


def _parsed(content: bytes, origin: str, hint: str) -> Mapping[str, Any]:
    try:
        config = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DevkitError(f"{origin} is not JSON: {error}", hint) from None
    if not isinstance(config, dict):
        raise DevkitError(f"{origin} holds no object", hint)
    return config


def _from_hub(model: str) -> tuple[Mapping[str, Any], str]:
    """The config.json of a repository on the hub, and nothing else of it."""
    from devkit.estimate.model_catalog import count_models, find_closest_models

    near = find_closest_models(model)
    known = (
        f"Did you mean {' or '.join(near)}?" if near else f"{count_models()} models are known, such as llama-3.1-8b."
    )
    if model.count("/") != 1 or model.startswith((".", "/")):
        raise DevkitError(f"there is no model {model!r}", f"{known} Or give its config.json, or its name on the hub.")
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
    except ImportError:
        raise DevkitError(
            f"{model} is not among the known models, and huggingface_hub is not installed to ask the hub",
            f"{known} Or fetch its config.json and give that.",
        ) from None
    try:
        path = hf_hub_download(model, "config.json")
    except (HfHubHTTPError, LocalEntryNotFoundError, HFValidationError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DevkitError(
            f"cannot ask the hub for {model}: {reason}", f"{known} Or fetch its config.json and give that."
        ) from None
    return _from_file(path)[0], model
