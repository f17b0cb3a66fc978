"""The program that is traced: transformers' own modules on tensors that have shapes and no data."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import nn
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM

from devkit.errors import DevkitError
from devkit.estimate.settings import Attention, Precision
from devkit.workload.finetune.model import DTYPES
from devkit.workload.tracing.ledger import Ledger
from devkit.workload.tracing.stream import Phase, Section

Model: TypeAlias = Any
"""A model of transformers or peft, whose own types promise less than they hold."""

Document = Mapping[str, Any]
"""A config.json."""


ATTENTION_DROPOUT = ("attention_dropout", "attn_pdrop")
"""What families call the dropout of attention. Kernels on GPUs draw it inside and keep nothing for it; on CPUs it
leads past them."""


def config_of(document: Document, *, depth: int | None, attention: Attention) -> Any:  # noqa: ANN401 - one class an architecture
    """transformers' configuration for a config.json, cut to `depth` layers.

    Raises DevkitError for an architecture that this transformers does not know.
    """
    kept = {name: value for name, value in document.items() if name not in {"model_type", "quantization_config"}}
    try:
        config = AutoConfig.for_model(document.get("model_type", ""), **kept).get_text_config()
    except ValueError as error:
        raise DevkitError(
            f"transformers here knows no architecture {document.get('model_type')!r}", "Estimate without --exact."
        ) from error
    if depth is not None:
        config.num_hidden_layers = depth
        if getattr(config, "layer_types", None):
            config.layer_types = config.layer_types[:depth]
    if attention is Attention.EAGER:
        config._attn_implementation = "eager"
    for name in ATTENTION_DROPOUT:
        if getattr(config, name, 0.0):
            setattr(config, name, 0.0)
    return config


def on_meta(config: Any, precision: Precision) -> Model:  # noqa: ANN401 - one class an architecture
    """The model of a configuration, its weights without memory."""
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise DevkitError(
            f"{config.model_type} is no causal language model, and the trace runs no other", "Estimate without --exact."
        )
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, dtype=DTYPES[precision])


def materialise(model: Model) -> None:
    """Give every parameter and buffer a tensor on the CPU; under a FakeTensorMode one without data. Ties are kept."""
    parameters: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in _present(module._parameters):
            made = parameters.get(id(parameter))
            if made is None:
                made = parameters[id(parameter)] = nn.Parameter(_real(parameter), requires_grad=parameter.requires_grad)
            module._parameters[name] = made
        for name, buffer in _present(module._buffers):
            module._buffers[name] = _real(buffer)


def _present(tensors: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(name, tensor) for name, tensor in tensors.items() if tensor is not None]


def _real(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")


def layers_of(model: Model) -> nn.ModuleList:
    """The decoder layers of a model, adapters or not."""
    depth = model.config.get_text_config().num_hidden_layers
    return next(module for module in model.modules() if isinstance(module, nn.ModuleList) and len(module) == depth)


def layer_number(model: Model) -> Callable[[str], int | None]:
    """Which layer a parameter belongs to by its name, None for those outside of all layers."""
    layers = layers_of(model)
    prefix = next(name for name, module in model.named_modules() if module is layers) + "."

    def number(name: str) -> int | None:
        return int(name.removeprefix(prefix).split(".", 1)[0]) if name.startswith(prefix) else None

    return number


def watch(ledger: Ledger, model: Model) -> None:
    """Have the ledger know which layer, and which direction, the program is in."""
    layers = layers_of(model)
    for number, layer in enumerate(layers):
        layer.register_forward_pre_hook(_entering(ledger, number))
        layer.register_forward_hook(_leaving(ledger, number, is_last=number == len(layers) - 1))


def _entering(ledger: Ledger, number: int) -> Callable[..., None]:
    def hook(_: nn.Module, inputs: tuple[Any, ...]) -> None:
        ledger.section = Section(ledger.running, number)
        if number == 0 and inputs and inputs[0].requires_grad:
            inputs[0].register_hook(_turning(ledger, Section(Phase.BACKWARD, part="embedding")))

    return hook


def _leaving(ledger: Ledger, number: int, *, is_last: bool) -> Callable[..., None]:
    def hook(_: nn.Module, __: object, made: Any) -> None:  # noqa: ANN401 - a tensor, or a tuple that begins with one
        hidden = made[0] if isinstance(made, tuple) else made
        if hidden.requires_grad:
            hidden.register_hook(_turning(ledger, Section(Phase.BACKWARD, number)))
        if is_last:
            ledger.section = Section(Phase.LOSS if ledger.running is Phase.FORWARD else ledger.running, part="head")

    return hook


def _turning(ledger: Ledger, section: Section) -> Callable[[torch.Tensor], None]:
    def hook(_: torch.Tensor) -> None:
        ledger.section = section

    return hook
