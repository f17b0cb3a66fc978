"""The model that is traced: transformers' own modules on tensors with shapes and without data."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM

from devkit.errors import DevkitError
from devkit.estimate.settings import Attention, Precision
from devkit.workload.finetune.model.loading import TORCH_DTYPES
from devkit.workload.models import LORA_PARAMETER_MARK, Model
from devkit.workload.tracing.emulation import Linear4bit, Linear8bit
from devkit.workload.tracing.recorder import AllocationRecorder
from devkit.workload.tracing.stream import Allocation, Deallocation, Section, StepPhase, TensorKind

ConfigDocument = Mapping[str, Any]
"""A config.json."""

ATTENTION_DROPOUT_FIELDS = ("attention_dropout", "attn_pdrop")
"""The dropout of attention, by architecture. GPU kernels apply it inside and keep nothing for it; CPU kernels lack it."""

HALF_BYTES = 2


def build_config(document: ConfigDocument, *, depth: int | None, attention: Attention) -> Any:  # noqa: ANN401 - one class an architecture
    """Build transformers' configuration for a config.json, cut to `depth` layers.

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
    """Build the model of a configuration on the meta device."""
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise DevkitError(
            f"{config.model_type} is no causal language model, and the trace runs no other", "Estimate without --exact."
        )
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, dtype=TORCH_DTYPES[precision])


def materialize_parameters(model: Model) -> None:
    """Move every parameter and buffer to the CPU, under a FakeTensorMode without data. Tied parameters stay tied."""
    parameters: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                if id(parameter) not in parameters:
                    empty = torch.empty_like(parameter, device="cpu")
                    parameters[id(parameter)] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
                module._parameters[name] = parameters[id(parameter)]
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = torch.empty_like(buffer, device="cpu")


def find_decoder_layers(model: Model) -> nn.ModuleList:
    """Find the decoder layers of a model, with or without adapters."""
    depth = model.config.get_text_config().num_hidden_layers
    return next(module for module in model.modules() if isinstance(module, nn.ModuleList) and len(module) == depth)


def build_layer_lookup(model: Model) -> Callable[[str], int | None]:
    """Return a function from a parameter's name to its layer, None for those outside of all layers."""
    layers = find_decoder_layers(model)
    prefix = next(name for name, module in model.named_modules() if module is layers) + "."

    def number(name: str) -> int | None:
        return int(name.removeprefix(prefix).split(".", 1)[0]) if name.startswith(prefix) else None

    return number


def register_phase_hooks(recorder: AllocationRecorder, model: Model) -> None:
    """Register hooks that tell the recorder which layer the program is in, forward or backward."""

    def enter(section: Section) -> Callable[[torch.Tensor], None]:
        def hook(_: torch.Tensor) -> None:
            recorder.section = section

        return hook

    def register(layer: nn.Module, number: int, *, is_last: bool) -> None:
        def before(_: nn.Module, inputs: tuple[Any, ...]) -> None:
            recorder.section = Section(recorder.current_pass, number)
            if number == 0 and inputs and inputs[0].requires_grad:
                inputs[0].register_hook(enter(Section(StepPhase.BACKWARD, part="embedding")))

        def after(_: nn.Module, __: object, output: Any) -> None:  # noqa: ANN401 - a tensor, or a tuple that begins with one
            hidden = output[0] if isinstance(output, tuple) else output
            if hidden.requires_grad:
                hidden.register_hook(enter(Section(StepPhase.BACKWARD, number)))
            if is_last:
                is_training = recorder.current_pass is StepPhase.FORWARD
                recorder.section = Section(StepPhase.LOSS if is_training else recorder.current_pass, part="head")

        layer.register_forward_pre_hook(before)
        layer.register_forward_hook(after)

    layers = find_decoder_layers(model)
    for number, layer in enumerate(layers):
        register(layer, number, is_last=number == len(layers) - 1)


def replace_linear_layers(model: Model, *, is_int8: bool, double_quantization: bool) -> None:
    """Replace every linear layer but the output head by a packed one. Fused experts are no linear layers."""
    head = model.get_output_embeddings()
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Linear and child is not head:
                packed = Linear8bit(child) if is_int8 else Linear4bit(child, double_quantisation=double_quantization)
                setattr(module, name, packed)


def record_loading(recorder: AllocationRecorder, model: Model, *, is_upcast: bool) -> None:
    """Record the base's tensors in the order and with the temporary copies of loading, then the adapter's.

    A weight that is packed is in memory next to its packed form for a moment; one that peft upcasts to fp32 had a
    16-bit form, and these are freed one by one after everything was loaded.
    """
    find_layer = build_layer_lookup(model)
    unpacked_bytes = {
        f"{name}.packed": module.in_features * module.out_features * HALF_BYTES
        for name, module in model.named_modules()
        if isinstance(module, Linear4bit | Linear8bit)
    }

    def record(name: str, tensor: torch.Tensor, kind: TensorKind) -> None:
        recorder.section = Section(StepPhase.LOAD, find_layer(name))
        recorder.record_existing([tensor], kind)

    tensors = list(_iterate_tensors(model))
    base = [(name, tensor) for name, tensor in tensors if LORA_PARAMETER_MARK not in name]
    halves: dict[str, Allocation] = {}
    for name, tensor in base:
        layer = find_layer(name)
        # Without the layer's number, equal in each layer.
        part = ".".join(part for part in name.split(".") if not part.isdigit())
        is_packed = name.endswith((".packed", ".scales", ".scales_of_scales", ".codes"))
        if is_upcast and tensor.dtype == torch.float32 and not is_packed:
            section = Section(StepPhase.LOAD, layer, part=f"half {name}" if layer is None else part)
            halves[name] = Allocation(section, 0, tensor.numel() * HALF_BYTES)
            recorder.stream.append(halves[name])
            continue
        if name in unpacked_bytes:
            unpacked = Allocation(Section(StepPhase.LOAD, layer, part=part), 0, unpacked_bytes[name])
            recorder.stream += [unpacked, Deallocation(unpacked.section, unpacked.name)]
        record(name, tensor, TensorKind.WEIGHTS)
    for name, tensor in base:
        if name in halves:
            record(name, tensor, TensorKind.WEIGHTS)
            recorder.stream.append(Deallocation(halves[name].section, halves[name].name))
    for name, tensor in tensors:
        if LORA_PARAMETER_MARK in name:
            record(name, tensor, TensorKind.ADAPTERS)


def _iterate_tensors(model: Model) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield parameters and buffers in the order of the modules, each once."""
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        for name, tensor in [*module._parameters.items(), *module._buffers.items()]:
            if tensor is not None and id(tensor) not in seen:
                seen.add(id(tensor))
                yield f"{prefix}.{name}" if prefix else name, tensor
