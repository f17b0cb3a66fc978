"""The program that is traced: transformers' own modules on tensors that have shapes and no data."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import torch
from torch import nn
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM

from devkit.errors import DevkitError
from devkit.estimate.settings import Attention, Method, Precision, TrainingSettings
from devkit.workload.finetune.model.loading import TORCH_DTYPES
from devkit.workload.tracing.emulation import Linear4bit, Linear8bit
from devkit.workload.tracing.recorder import AllocationRecorder
from devkit.workload.tracing.stream import Allocation, Deallocation, Section, StepPhase, TensorKind

Model: TypeAlias = Any
"""A model of transformers or peft, whose own types promise less than they hold."""

ConfigDocument = Mapping[str, Any]
"""A config.json."""


ATTENTION_DROPOUT_FIELDS = ("attention_dropout", "attn_pdrop")
"""What families call the dropout of attention. Kernels on GPUs draw it inside and keep nothing for it; on CPUs it
leads past them."""


def build_config(document: ConfigDocument, *, depth: int | None, attention: Attention) -> Any:  # noqa: ANN401 - one class an architecture
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
    for name in ATTENTION_DROPOUT_FIELDS:
        if getattr(config, name, 0.0):
            setattr(config, name, 0.0)
    return config


def build_on_meta(config: Any, precision: Precision) -> Model:  # noqa: ANN401 - one class an architecture
    """The model of a configuration, its weights without memory."""
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise DevkitError(
            f"{config.model_type} is no causal language model, and the trace runs no other", "Estimate without --exact."
        )
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, dtype=TORCH_DTYPES[precision])


def materialize_parameters(model: Model) -> None:
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


def find_decoder_layers(model: Model) -> nn.ModuleList:
    """The decoder layers of a model, adapters or not."""
    depth = model.config.get_text_config().num_hidden_layers
    return next(module for module in model.modules() if isinstance(module, nn.ModuleList) and len(module) == depth)


def build_layer_lookup(model: Model) -> Callable[[str], int | None]:
    """Which layer a parameter belongs to by its name, None for those outside of all layers."""
    layers = find_decoder_layers(model)
    prefix = next(name for name, module in model.named_modules() if module is layers) + "."

    def number(name: str) -> int | None:
        return int(name.removeprefix(prefix).split(".", 1)[0]) if name.startswith(prefix) else None

    return number


def register_phase_hooks(ledger: AllocationRecorder, model: Model) -> None:
    """Have the ledger know which layer, and which direction, the program is in."""
    layers = find_decoder_layers(model)
    for number, layer in enumerate(layers):
        layer.register_forward_pre_hook(_entering(ledger, number))
        layer.register_forward_hook(_leaving(ledger, number, is_last=number == len(layers) - 1))


def _entering(ledger: AllocationRecorder, number: int) -> Callable[..., None]:
    def hook(_: nn.Module, inputs: tuple[Any, ...]) -> None:
        ledger.section = Section(ledger.current_pass, number)
        if number == 0 and inputs and inputs[0].requires_grad:
            inputs[0].register_hook(_turning(ledger, Section(StepPhase.BACKWARD, part="embedding")))

    return hook


def _leaving(ledger: AllocationRecorder, number: int, *, is_last: bool) -> Callable[..., None]:
    def hook(_: nn.Module, __: object, made: Any) -> None:  # noqa: ANN401 - a tensor, or a tuple that begins with one
        hidden = made[0] if isinstance(made, tuple) else made
        if hidden.requires_grad:
            hidden.register_hook(_turning(ledger, Section(StepPhase.BACKWARD, number)))
        if is_last:
            ledger.section = Section(
                StepPhase.LOSS if ledger.current_pass is StepPhase.FORWARD else ledger.current_pass, part="head"
            )

    return hook


def _turning(ledger: AllocationRecorder, section: Section) -> Callable[[torch.Tensor], None]:
    def hook(_: torch.Tensor) -> None:
        ledger.section = section

    return hook


# Weights onto the GPU, in the order and through the detours that loading takes.

LORA_PARAMETER_MARK = ".lora_"
"""What peft puts into the name of every parameter of a LoRA or DoRA adapter."""

HALF_BYTES = 2


def record_loading(ledger: AllocationRecorder, model: Model, *, is_upcast: bool) -> None:
    """Write down the base's tensors, then the adapter's.

    A weight that is packed stands beside its packed form for a moment; one that peft turns into fp32 had a 16-bit
    form, and these are given back one by one after everything was loaded.
    """
    number = build_layer_lookup(model)
    tensors = list(_tensors(model))
    base = [(name, tensor) for name, tensor in tensors if LORA_PARAMETER_MARK not in name]
    unpacked = _unpacked_bytes(model)
    halves = {}
    for name, tensor in base:
        if is_upcast and tensor.dtype == torch.float32 and not _is_of_packed(name):
            section = Section(
                StepPhase.LOAD, number(name), part=f"half {name}" if number(name) is None else _short(name)
            )
            halves[name] = Allocation(section, 0, tensor.numel() * HALF_BYTES)
            ledger.stream.append(halves[name])
            continue
        if name in unpacked:
            _pass_through(ledger, Section(StepPhase.LOAD, number(name), part=_short(name)), unpacked[name])
        _take(ledger, number, name, tensor, TensorKind.WEIGHTS)
    for name, tensor in base:
        if name in halves:
            _take(ledger, number, name, tensor, TensorKind.WEIGHTS)
            ledger.stream.append(Deallocation(halves[name].section, halves[name].name))
    for name, tensor in tensors:
        if LORA_PARAMETER_MARK in name:
            _take(ledger, number, name, tensor, TensorKind.ADAPTERS)


def _take(
    ledger: AllocationRecorder, number: Callable[[str], int | None], name: str, tensor: torch.Tensor, kind: TensorKind
) -> None:
    ledger.section = Section(StepPhase.LOAD, number(name))
    ledger.record_existing([tensor], kind)


def _pass_through(ledger: AllocationRecorder, section: Section, size_bytes: int) -> None:
    made = Allocation(section, 0, size_bytes)
    ledger.stream.extend([made, Deallocation(section, made.name)])


def _short(name: str) -> str:
    """The name without its layer's number, equal in each layer."""
    return ".".join(part for part in name.split(".") if not part.isdigit())


def _is_of_packed(name: str) -> bool:
    return name.endswith((".packed", ".scales", ".scales_of_scales", ".codes"))


def _unpacked_bytes(model: Model) -> dict[str, int]:
    """What a packed weight takes before it is packed, by the name of its packed form."""
    return {
        f"{name}.packed": module.in_features * module.out_features * HALF_BYTES
        for name, module in model.named_modules()
        if isinstance(module, Linear4bit | Linear8bit)
    }


def _tensors(model: Model) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and buffers in the order of the modules, each once."""
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        for name, tensor in [*module._parameters.items(), *module._buffers.items()]:
            if tensor is not None and id(tensor) not in seen:
                seen.add(id(tensor))
                yield f"{prefix}.{name}" if prefix else name, tensor


# A model's linear layers swapped for packed ones, as loading with bitsandbytes does.


def replace_linear_layers(model: Model, settings: TrainingSettings) -> None:
    """Swap every linear layer but the output head. Fused experts are no linear layers and stay as they are."""
    head = model.get_output_embeddings()
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Linear and child is not head:
                setattr(module, name, _packed(child, settings))


def upcast_to_fp32(model: Model) -> None:
    """As peft's prepare_model_for_kbit_training: whatever is not packed becomes fp32."""
    for parameter in model.parameters():
        parameter.data = parameter.data.float()


def _packed(layer: nn.Linear, settings: TrainingSettings) -> nn.Linear:
    if settings.method is Method.INT8_LORA:
        return Linear8bit(layer)
    return Linear4bit(layer, double_quantisation=settings.double_quantisation)
