"""The flags of `devkit estimate`, and the settings and shapes that they make."""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import click

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
    Quantisation,
    Sharding,
    Stack,
    TrainingSettings,
)
from devkit.estimate.spelled import settings_from

Flags = Mapping[str, Any]
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
    click.option("--quantise", "quantisation", type=_choice(Quantisation), help="How the weights are kept."),
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


def settings_options(command: Callable[..., Any]) -> Callable[..., Any]:
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


def settings_of(flags: Mapping[str, Flags], *, is_inference: bool) -> TrainingSettings | InferenceSettings:
    """The settings that the flags make. Raises DevkitError for flags that contradict each other."""
    group, other = ("inference", "training") if is_inference else ("training", "inference")
    _refuse(flags, other, "--inference" if is_inference else "training; add --inference")
    given = {name: value for name, value in {**flags[group], **flags["both"]}.items() if value is not None}
    return _inference(given) if is_inference else _training(given)


def config_from(flags: Flags, *, model: str | None) -> dict[str, Any] | None:
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


def _refuse(flags: Mapping[str, Flags], group: str, about: str) -> None:
    wrong = [_NAMES[group][name] for name, value in flags[group].items() if value is not None]
    if wrong:
        raise DevkitError(f"{wrong[0]} says nothing about {about}", "Leave the one or the other away.")


def _inference(given: dict[str, Any]) -> InferenceSettings:
    renamed = {"prompt" if name == "sequence" else name: value for name, value in given.items()}
    return settings_from(InferenceSettings, renamed)


def _training(given: dict[str, Any]) -> TrainingSettings:
    values = dict(given)
    if "targets" in values:
        values["targets"] = [name.strip() for name in values["targets"].split(",") if name.strip()] or list(ALL_LINEAR)
    method, stack = Method(values.get("method", Method.LORA)), Stack(values.get("stack", Stack.DEVKIT))
    _refuse_for(method, given)
    return settings_from(TrainingSettings, {**_defaults(stack, method, values), **values})


def _refuse_for(method: Method, given: Flags) -> None:
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


def _defaults(stack: Stack, method: Method, given: Flags) -> dict[str, Any]:
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
