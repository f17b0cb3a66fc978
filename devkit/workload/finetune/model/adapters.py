"""LoRA and DoRA adapters: target modules, attaching, the fused forward pass, saving, and loading onto a base."""

import json
import os
import warnings
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

from devkit.errors import DevkitError
from devkit.estimate.settings import ALL_LINEAR, Precision
from devkit.text import format_count, join_words
from devkit.workload.finetune.model.files import (
    ADAPTER_BASE_FILE,
    CHAT_TEMPLATE_FILE,
    BaseReference,
    ModelFiles,
    SavedAdapter,
)
from devkit.workload.finetune.model.loading import TORCH_DTYPES, LoadedBase, find_fused_experts
from devkit.workload.finetune.settings import FinetuneSettings
from devkit.workload.models import Model
from devkit.workload.peft_import import (
    Linear,
    LoraConfig,
    LoraLayer,
    PeftConfig,
    PeftModelForCausalLM,
    adapter_injection,
    get_peft_model,
)

MAX_SUGGESTIONS = 3
EXPERT_LAYER_NAMES = frozenset({"gate", "gate_proj", "up_proj", "down_proj", "w1", "w2", "w3"})
"""Source: peft 0.21, peft/utils/transformers_weight_conversion.py, _MOE_TARGET_MODULE_MAPPING."""


def resolve_targets(model: Model, targets: Sequence[str]) -> str | list[str]:
    """Resolve the target modules for peft. Raises DevkitError for a name that no layer has.

    A name is the last part of a layer's, such as q_proj, or more of it, such as layers.0.self_attn.q_proj.
    """
    if tuple(targets) == ALL_LINEAR:
        return ALL_LINEAR[0] if find_fused_experts(model) is None else _linear_names_beside_experts(model)
    layers = dict(find_adaptable_layers(model))
    head = model.get_output_embeddings()
    is_tied = head is not None and head.weight is model.get_input_embeddings().weight
    tied = [name for name, each in layers.items() if is_tied and each is head]
    for name in targets:
        if any(_matches(name, layer) for layer in tied):
            raise DevkitError(
                f"{name} cannot get an adapter: in this model it shares its weight with the embedding, and merging "
                "would change both",
                "Leave it out; all-linear targets every other linear layer.",
            )
        if not any(_matches(name, layer) for layer in layers):
            raise _explain_unknown_target(name, {layer: layers[layer] for layer in layers if layer not in tied})
    return list(targets)


def _matches(name: str, layer: str) -> bool:
    return layer == name or layer.endswith(f".{name}")


def _linear_names_beside_experts(model: Model) -> list[str]:
    """Return the last parts of the names of a mixture's linear layers, without its head.

    peft takes all-linear, and names that its fused experts once had, to mean the experts as well: it would put
    adapters on them that recompute the whole weight in each pass, and that other programs do not read.
    """
    head = model.get_output_embeddings()
    linear = (name for name, each in model.named_modules() if isinstance(each, nn.Linear) and each is not head)
    return sorted({name.rpartition(".")[2] for name in linear} - EXPERT_LAYER_NAMES)


def find_adaptable_layers(model: Model) -> Iterator[tuple[str, nn.Module]]:
    """Yield every layer that LoRA can adapt, with its name. bitsandbytes's layers are linear ones, too."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Embedding | Conv1D):
            yield name, module


def _explain_unknown_target(name: str, layers: dict[str, nn.Module]) -> DevkitError:
    groups: dict[str, list[str]] = {}
    for layer, module in layers.items():
        if isinstance(module, nn.Embedding):
            continue
        parent, _, last = layer.rpartition(".")
        members = groups.setdefault(parent.rpartition(".")[2], [])
        if last not in members:
            members.append(last)
    known = dict.fromkeys(member for members in groups.values() for member in members)
    # A name of several parts is compared by its last part, too.
    near = get_close_matches(name.rpartition(".")[2], known, n=MAX_SUGGESTIONS, cutoff=0.5)
    hint = [f"Did you mean {join_words(near, 'or')}?"] if near else []
    several = [each.strip() for each in name.split(",")]
    if len(several) > 1 and all(each.rpartition(".")[2] in known for each in several):
        hint = [f"Repeat the flag: {' '.join(f'--targets {each}' for each in several)}"]
    shown = "; ".join(
        f"{group}: {', '.join(members)}" if group else ", ".join(members) for group, members in groups.items()
    )
    hint.append(f"The model has {shown}; or all-linear.")
    return DevkitError(f"no layer of the model is called {name}", "\n".join(hint))


def attach_adapter(base: Model, settings: FinetuneSettings, *, precision: Precision) -> Model:
    """Attach a new trainable adapter to the layers that `settings.targets` names, with weights in `precision`.

    Changes `base` in place and freezes its weights. The adapter is initialized from `settings.seed` alone, so every
    rank has the same. Raises DevkitError for a target that the model does not have.
    """
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=resolve_targets(base, settings.targets),
        use_dora=settings.dora,
        task_type="CAUSAL_LM",
    )
    devices = list({parameter.device for parameter in base.parameters() if parameter.device.type == "cuda"})
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(settings.seed)
        with adapter_injection(base):
            model = get_peft_model(base, config, autocast_adapter_dtype=False)
    for parameter in trainable_parameters(model):
        parameter.data = parameter.data.to(TORCH_DTYPES[precision])
    return model


def trainable_parameters(model: Model) -> list[nn.Parameter]:
    """Return the trainable parameters, in the model's order."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def use_fused_lora_forward(model: Model) -> int:
    """Replace the forward pass of LoRA layers by one with fewer passes over memory, and return how many.

    peft computes the adapter's product, a scaled copy of it and the sum with the base's product, each as large as the
    layer's output, and as many gradients in the backward pass; on 4-bit bases it copies the base's product first. Here
    the scale goes into the product itself, which is added to the base's product in place. Layers keep peft's forward
    that do more than add a scaled product: with dropout, with DoRA's magnitudes, with weights of several data types.
    What is saved, and what peft computes on a model that was loaded again, stays the same. Source of what is replaced:
    peft 0.21, peft/tuners/lora/layer.py, Linear.forward, and peft/tuners/lora/bnb.py, Linear4bit.forward.
    """
    layers = [each for each in model.modules() if isinstance(each, LoraLayer) and _can_be_fused(each)]
    for layer in layers:
        layer.forward = _FusedForward(layer)
    return len(layers)


def _can_be_fused(layer: Any) -> bool:  # noqa: ANN401 - peft's layers share no type that has forward and weights
    """Return True if `layer` computes base(x) + scale * B(A(x)) and nothing else."""
    names = list(layer.active_adapters)
    if not isinstance(layer.get_base_layer(), nn.Linear) or layer.merged or layer.disable_adapters or len(names) != 1:
        return False
    name = names[0]
    if name not in layer.lora_A:
        return False
    # Before its release 0.16, peft knew DoRA and no other variants.
    is_variant = name in layer.lora_variant if hasattr(layer, "lora_variant") else bool(layer.use_dora.get(name))
    dropout = layer.lora_dropout[name]
    has_dropout = not isinstance(dropout, nn.Identity) and not (isinstance(dropout, nn.Dropout) and dropout.p == 0.0)
    if is_variant or has_dropout:
        return False
    down, up = layer.lora_A[name], layer.lora_B[name]
    is_plain = type(down) is nn.Linear and type(up) is nn.Linear and down.bias is None and up.bias is None
    return is_plain and down.weight.dtype is up.weight.dtype


class _FusedForward:
    """The replacement of a LoRA layer's `forward`."""

    def __init__(self, layer: Any) -> None:  # noqa: ANN401 - as above
        name = next(iter(layer.active_adapters))
        self._layer = layer
        self._base = layer.get_base_layer()
        self._down, self._up = layer.lora_A[name], layer.lora_B[name]
        self._scale = float(layer.scaling[name])
        self._is_plain = type(layer) is Linear and type(self._base) is nn.Linear and not self._base.weight.requires_grad

    def __call__(self, inputs: torch.Tensor, *more: Any, **named: Any) -> torch.Tensor:  # noqa: ANN401 - passed on
        """Shape [..., inputs] to [..., outputs]."""
        down, up = self._down.weight, self._up.weight
        if self._layer.disable_adapters or self._layer.merged or inputs.dtype is not down.dtype or more or named:
            computed: torch.Tensor = type(self._layer).forward(self._layer, inputs, *more, **named)
            return computed
        if self._is_plain and self._base.weight.dtype is inputs.dtype:
            fused: torch.Tensor = _FusedLoraLinear.apply(  # type: ignore[no-untyped-call]
                inputs, self._base.weight, self._base.bias, down, up, self._scale
            )
            return fused
        outputs: torch.Tensor = self._base(inputs)
        if outputs.dtype is not inputs.dtype:
            return outputs + (self._scale * functional.linear(functional.linear(inputs, down), up)).to(outputs.dtype)
        inner = functional.linear(inputs, down).reshape(-1, down.shape[0])
        added = torch.addmm(outputs.reshape(-1, outputs.shape[-1]), inner, up.T, alpha=self._scale)
        return added.view(outputs.shape)


class _FusedLoraLinear(torch.autograd.Function):
    """A frozen weight and its adapter. The base's product and its gradient are computed once and added to in place."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - autograd's context has no public type
        inputs: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        down: torch.Tensor,
        up: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        """`inputs` is [..., inputs], `weight` [outputs, inputs], `down` [rank, inputs], `up` [outputs, rank]."""
        flat = inputs.reshape(-1, inputs.shape[-1])
        inner = flat @ down.T
        outputs = functional.linear(flat, weight, bias).addmm_(inner, up.T, alpha=scale)
        ctx.save_for_backward(flat, inner, weight, down, up)
        ctx.scale, ctx.shape = scale, inputs.shape
        return outputs.view(*inputs.shape[:-1], weight.shape[0])

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: ANN401
        """Return the gradients of `inputs`, `down` and `up`; the base is frozen."""
        flat, inner, weight, down, up = ctx.saved_tensors
        gradient = grad_outputs[0].reshape(-1, weight.shape[0])
        grad_inner = gradient @ up
        grad_inputs = None
        if ctx.needs_input_grad[0]:
            grad_inputs = (gradient @ weight).addmm_(grad_inner, down, alpha=ctx.scale).view(ctx.shape)
        grad_down = (grad_inner.T @ flat).mul_(ctx.scale)
        grad_up = (gradient.T @ inner).mul_(ctx.scale)
        return grad_inputs, None, None, grad_down, grad_up, None


def save_trained_adapter(model: Model, folder: Path, base: LoadedBase) -> None:
    """Save the adapter of `model` alone, as safetensors, with a reference to its base."""
    # Vocabularies never grow here, so embeddings are never part of an adapter; peft would query the hub to find out.
    model.save_pretrained(str(folder), save_embedding_layers=False)
    write_adapter_metadata(folder, base)


def write_adapter_metadata(folder: Path, base: LoadedBase) -> None:
    """Write what peft does not: which base the adapter is for, and the chat template of the training."""
    text = json.dumps(describe_base(base).to_document(), indent=2) + "\n"
    (folder / ADAPTER_BASE_FILE).write_text(text, encoding="utf-8")
    if base.tokenizer.chat_template:
        (folder / CHAT_TEMPLATE_FILE).write_text(base.tokenizer.chat_template, encoding="utf-8")


def describe_base(base: LoadedBase) -> BaseReference:
    """Return the reference to a base for its adapters. A folder is named by its absolute path."""
    path = Path(base.name).expanduser()
    name = os.fspath(path.resolve()) if path.is_dir() else base.name
    return BaseReference(name, base.files.architecture, base.files.fingerprint)


def require_adapter_fits(adapter: SavedAdapter, model: Model, files: ModelFiles, *, any_base: bool = False) -> None:
    """Raise DevkitError for an adapter of another base, with the reason. `model` may be without weights.

    With `any_base`, equal shapes are enough: the weights may be others than those it was trained on.
    """
    base = adapter.base
    hint = "Name the model it was trained on."
    if base.name:
        other = f", a {base.architecture}" if base.architecture and base.architecture != files.architecture else ""
        hint = f"It was trained on {base.name}{other}: name that model."
    for reason in _find_misfits(adapter, model):
        raise DevkitError(f"the adapter in {adapter.folder} does not fit {files.folder}: {reason}", hint)
    wanted, found = base.fingerprint, files.fingerprint
    if wanted and found and wanted != found and not any_base:
        raise DevkitError(
            f"the adapter in {adapter.folder} was trained on other weights ({wanted[:12]}) "
            f"than those in {files.folder} ({found[:12]})",
            f"{hint}\nWith --any-base it is used all the same.",
        )


def _find_misfits(adapter: SavedAdapter, model: Model) -> Iterator[str]:
    """Yield reasons why the adapter does not fit a model of this shape, most telling first."""
    layers = dict(find_adaptable_layers(model))
    matrices = list(adapter.lora_matrices())
    absent = sorted({matrix.layer for matrix in matrices} - layers.keys())
    if absent:
        yield f"it adapts {format_count(len(absent), 'layer')} that the model lacks, such as {absent[0]}"
    for matrix in matrices:
        is_down = matrix.letter == "a"
        rank = matrix.shape[0] if is_down else matrix.shape[1]
        if rank != adapter.rank_of(matrix.layer):
            yield f"{matrix.layer} has rank {rank}, and adapter_config.json says {adapter.rank_of(matrix.layer)}"
        inputs, outputs = _input_and_output_size(layers[matrix.layer])
        size, wanted, noun = (matrix.shape[1], inputs, "inputs") if is_down else (matrix.shape[0], outputs, "outputs")
        if size != wanted:
            yield f"its {matrix.layer} has {size} {noun}, and the model's has {wanted}"
    first, second = ({matrix.layer for matrix in matrices if matrix.letter == letter} for letter in "ab")
    if first != second:
        yield f"{sorted(first ^ second)[0]} has only one of its two matrices"


def _input_and_output_size(layer: nn.Module) -> tuple[int, int]:
    """Return the sizes of a linear layer; GPT-2's has its weight transposed."""
    if isinstance(layer, nn.Linear):
        return layer.in_features, layer.out_features
    inputs, outputs = layer.weight.shape  # type: ignore[misc] # Conv1D and Embedding: [inputs, outputs]
    return int(inputs), int(outputs)


def apply_adapter(base: Model, adapter: SavedAdapter, *, precision: Precision, trainable: bool = False) -> Model:
    """Load the adapter onto a base that it fits, its weights in `precision`. Changes `base` in place.

    Raises DevkitError if the adapter's file lacks weights that its configuration promises: peft only warns then, and
    the layers in question would do nothing.
    """
    config = PeftConfig.from_pretrained(str(adapter.folder))
    config.inference_mode = not trainable
    with adapter_injection(base):
        warnings.filterwarnings("ignore", message="Found missing adapter keys")
        model = PeftModelForCausalLM(base, config, autocast_adapter_dtype=False)
        found = model.load_adapter(
            str(adapter.folder), "default", is_trainable=trainable, autocast_adapter_dtype=False, torch_device="cpu"
        )
    lacking = [key for key in found.missing_keys or () if ".lora_" in key]
    if lacking:
        raise DevkitError(
            f"the adapter in {adapter.folder} lacks {format_count(len(lacking), 'weight')}, such as {lacking[0]}",
            "Save or fetch it again.",
        )
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            parameter.data = parameter.data.to(TORCH_DTYPES[precision])
    return model if trainable else model.eval()
