"""The model that is traced, transformers' own modules on tensors without data, and the mode that records their storages."""

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM

from benchmarks.tracing.emulation import SCRATCH_BYTES, Linear4bit, Linear8bit
from benchmarks.tracing.stream import Allocation, Deallocation, EventStream, Section, StepPhase, TensorKind
from devkit.errors import DevkitError
from devkit.estimate.settings import Attention, Precision
from devkit.workload.device import TORCH_DTYPES
from devkit.workload.models import Model


class AllocationRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records storages and not tensors: views share theirs, and saved tensors keep theirs alive.

    Enter it above a FakeTensorMode: then nothing is computed, and shapes and lifetimes are the real program's.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.stream: EventStream = []
        self.section = Section(StepPhase.LOAD)
        self.kind = TensorKind.OTHER
        self.current_pass = StepPhase.FORWARD
        """The phase that a pass through the layers belongs to: forward, prefill or decode."""
        self._live: dict[int, tuple[weakref.ref[torch.UntypedStorage], Allocation]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401 - torch's own signature
        output = func(*args, **(kwargs or {}))
        size = SCRATCH_BYTES[func](*args) if func in SCRATCH_BYTES else 0
        scratch = self._append(size) if size else None
        self._record(output)
        if scratch is not None:
            self.stream.append(Deallocation(self.section, scratch))
        return output

    def record_existing(self, tensors: Iterable[torch.Tensor], kind: TensorKind) -> None:
        """Record tensors that exist already, as if they were allocated now."""
        with self.label_new(kind):
            for tensor in tensors:
                self._record(tensor)

    @contextmanager
    def label_new(self, kind: TensorKind) -> Iterator[None]:
        """Label all allocations within the block as of this kind."""
        previous, self.kind = self.kind, kind
        try:
            yield
        finally:
            self.kind = previous

    def relabel(self, tensors: Iterable[torch.Tensor], kind: TensorKind) -> None:
        """Change the kind of live tensors."""
        for tensor in tensors:
            self._live[id(tensor.untyped_storage())][1].kind = kind

    def _record(self, output: object) -> None:
        if isinstance(output, torch.Tensor):
            self._record_storage(output.untyped_storage())
        elif isinstance(output, list | tuple):
            for each in output:
                self._record(each)

    def _record_storage(self, storage: torch.UntypedStorage) -> None:
        key = id(storage)
        if key in self._live or storage.nbytes() == 0:
            return
        allocation = self._append(storage.nbytes())

        def drop(_: object) -> None:
            del self._live[key]
            self.stream.append(Deallocation(self.section, allocation))

        self._live[key] = weakref.ref(storage, drop), allocation

    def _append(self, size_bytes: int) -> Allocation:
        allocation = Allocation(self.section, size_bytes, self.kind)
        self.stream.append(allocation)
        return allocation


ConfigDocument = Mapping[str, Any]
"""A config.json."""

ATTENTION_DROPOUT_FIELDS = ("attention_dropout", "attn_pdrop")
"""The dropout of attention, by architecture. GPU kernels apply it inside and keep nothing for it; CPU kernels lack it."""

HALF_BYTES = 2


def build_config(document: ConfigDocument, *, attention: Attention) -> Any:  # noqa: ANN401 - one class an architecture
    """Build transformers' configuration for a config.json.

    Raises DevkitError for an architecture that this transformers does not know.
    """
    kept = {name: value for name, value in document.items() if name not in {"model_type", "quantization_config"}}
    try:
        config = AutoConfig.for_model(document.get("model_type", ""), **kept).get_text_config()
    except ValueError as error:
        raise DevkitError(
            f"transformers here knows no architecture {document.get('model_type')!r}", "Compare without the trace."
        ) from error
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
            f"{config.model_type} is no causal language model, and the trace runs no other",
            "Compare without the trace.",
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
                inputs[0].register_hook(enter(Section(StepPhase.BACKWARD)))

        def after(_: nn.Module, __: object, output: Any) -> None:  # noqa: ANN401 - a tensor, or a tuple that begins with one
            hidden = output[0] if isinstance(output, tuple) else output
            if hidden.requires_grad:
                hidden.register_hook(enter(Section(StepPhase.BACKWARD, number)))
            if is_last:
                is_training = recorder.current_pass is StepPhase.FORWARD
                recorder.section = Section(StepPhase.LOSS if is_training else recorder.current_pass)

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
                packed = Linear8bit(child) if is_int8 else Linear4bit(child, double_quantization=double_quantization)
                setattr(module, name, packed)


def record_loading(recorder: AllocationRecorder, model: Model, *, is_upcast: bool) -> None:
    """Record the base's tensors in the order and with the temporary copies of loading, then the adapter's.

    A weight that is packed is in memory next to its packed form for a moment; one that peft upcasts to fp32 had a
    16-bit form, and these are freed one by one after everything was loaded.
    """
    loading = Section(StepPhase.LOAD)
    recorder.section = loading
    unpacked_bytes = {
        f"{name}.packed": module.in_features * module.out_features * HALF_BYTES
        for name, module in model.named_modules()
        if isinstance(module, Linear4bit | Linear8bit)
    }
    tensors = list(_iterate_tensors(model))
    halves: list[tuple[torch.Tensor, Allocation]] = []
    for name, tensor in tensors:
        if ".lora_" in name:
            continue
        is_packed = name.endswith((".packed", ".scales", ".scales_of_scales", ".codes"))
        if is_upcast and tensor.dtype == torch.float32 and not is_packed:
            halves.append((tensor, Allocation(loading, tensor.numel() * HALF_BYTES)))
            recorder.stream.append(halves[-1][1])
            continue
        if name in unpacked_bytes:
            unpacked = Allocation(loading, unpacked_bytes[name])
            recorder.stream += [unpacked, Deallocation(loading, unpacked)]
        recorder.record_existing([tensor], TensorKind.WEIGHTS)
    for tensor, half in halves:
        recorder.record_existing([tensor], TensorKind.WEIGHTS)
        recorder.stream.append(Deallocation(loading, half))
    adapters = (tensor for name, tensor in tensors if ".lora_" in name)
    recorder.record_existing(adapters, TensorKind.ADAPTERS)


def _iterate_tensors(model: Model) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield parameters and buffers in the order of the modules, each once."""
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        for name, tensor in [*module._parameters.items(), *module._buffers.items()]:
            if tensor is not None and id(tensor) not in seen:
                seen.add(id(tensor))
                yield f"{prefix}.{name}" if prefix else name, tensor
