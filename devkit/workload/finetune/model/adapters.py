"""LoRA and DoRA adapters on a base: attached for training, and counted."""

import json
import os
import warnings
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeAlias

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

# LoRA on a linear layer in the fewest passes over memory: what peft computes, in another order.
#
# peft makes the adapter's product, a scaled copy of it and the sum with the base's product, each as large as the layer's
# output, and as many gradients on the way back; on 4-bit bases it copies the base's product first. Here the scale goes
# into the product itself, which is added up where the base's product lies. Source of what is replaced: peft 0.21,
# peft/tuners/lora/layer.py, Linear.forward, and peft/tuners/lora/bnb.py, Linear4bit.forward.

Gradients: TypeAlias = tuple[torch.Tensor | None, ...]


def use_fused_lora_forward(model: Model) -> int:
    """Have every layer of `model` that can compute so do it; how many can.

    Layers stay as they are that do more than add a scaled product: with dropout, with DoRA's magnitudes, with weights
    of several data types. What is saved, and what peft computes on a model that was loaded again, stays the same.
    """
    chosen = [each for each in model.modules() if isinstance(each, LoraLayer) and _can(each)]
    for layer in chosen:
        layer.forward = _Quick(layer)
    return len(chosen)


def _can(layer: Any) -> bool:  # noqa: ANN401 - peft's layers share no type that has forward and weights
    """Whether `layer` computes base(x) + scale * B(A(x)) and nothing else."""
    base = layer.get_base_layer()
    names = list(layer.active_adapters)
    if not isinstance(base, nn.Linear) or layer.merged or layer.disable_adapters or len(names) != 1:
        return False
    name = names[0]
    if name not in layer.lora_A or _is_variant(layer, name) or not _is_idle(layer.lora_dropout[name]):
        return False
    first, second = layer.lora_A[name], layer.lora_B[name]
    is_plain = type(first) is nn.Linear and type(second) is nn.Linear and first.bias is None and second.bias is None
    return is_plain and first.weight.dtype is second.weight.dtype


def _is_variant(layer: Any, name: str) -> bool:  # noqa: ANN401 - as above
    """Whether peft computes something else there, such as DoRA, which is all that it knew before its release 0.16."""
    if hasattr(layer, "lora_variant"):
        return name in layer.lora_variant
    return bool(layer.use_dora.get(name))


def _is_idle(dropout: nn.Module) -> bool:
    return isinstance(dropout, nn.Identity) or (isinstance(dropout, nn.Dropout) and dropout.p == 0.0)


class _Quick:
    """What stands in the place of a layer's `forward`."""

    def __init__(self, layer: Any) -> None:  # noqa: ANN401 - as above
        name = next(iter(layer.active_adapters))
        self._layer = layer
        self._base = layer.get_base_layer()
        self._first, self._second = layer.lora_A[name], layer.lora_B[name]
        self._scale = float(layer.scaling[name])
        self._is_bare = type(layer) is Linear and type(self._base) is nn.Linear and not self._base.weight.requires_grad

    def __call__(self, given: torch.Tensor, *more: Any, **named: Any) -> torch.Tensor:  # noqa: ANN401 - handed on
        """Shape [..., inputs] to [..., outputs]."""
        first, second = self._first.weight, self._second.weight
        if self._layer.disable_adapters or self._layer.merged or given.dtype is not first.dtype or more or named:
            computed: torch.Tensor = type(self._layer).forward(self._layer, given, *more, **named)
            return computed
        if self._is_bare and self._base.weight.dtype is given.dtype:
            found: torch.Tensor = _Adapted.apply(  # type: ignore[no-untyped-call]
                given, self._base.weight, self._base.bias, first, second, self._scale
            )
            return found
        whole: torch.Tensor = self._base(given)
        if whole.dtype is not given.dtype:
            return whole + (self._scale * functional.linear(functional.linear(given, first), second)).to(whole.dtype)
        inner = functional.linear(given, first).reshape(-1, first.shape[0])
        added = torch.addmm(whole.reshape(-1, whole.shape[-1]), inner, second.T, alpha=self._scale)
        return added.view(whole.shape)


class _Adapted(torch.autograd.Function):
    """A frozen weight and its adapter. The base's product and its gradient are made once and added to in place."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - autograd's context has no public type
        given: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        first: torch.Tensor,
        second: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        """`given` is [..., inputs], `weight` [outputs, inputs], `first` [rank, inputs], `second` [outputs, rank]."""
        flat = given.reshape(-1, given.shape[-1])
        inner = flat @ first.T
        whole = functional.linear(flat, weight, bias).addmm_(inner, second.T, alpha=scale)
        ctx.save_for_backward(flat, inner, weight, first, second)
        ctx.scale, ctx.shape = scale, given.shape
        return whole.view(*given.shape[:-1], weight.shape[0])

    @staticmethod
    def backward(ctx: Any, *outer: torch.Tensor) -> Gradients:  # noqa: ANN401
        """The gradients of `given`, `first` and `second`; the base is frozen."""
        flat, inner, weight, first, second = ctx.saved_tensors
        gradient = outer[0].reshape(-1, weight.shape[0])
        through = gradient @ second
        of_given = None
        if ctx.needs_input_grad[0]:
            of_given = (gradient @ weight).addmm_(through, first, alpha=ctx.scale).view(ctx.shape)
        of_first = (through.T @ flat).mul_(ctx.scale)
        of_second = (gradient.T @ inner).mul_(ctx.scale)
        return of_given, None, None, of_first, of_second, None


# Which layers of a model can be given an adapter, and which of them a user's words name.

MAX_SUGGESTIONS = 3
EXPERT_LAYER_NAMES = frozenset({"gate", "gate_proj", "up_proj", "down_proj", "w1", "w2", "w3"})
"""Source: peft 0.21, peft/utils/transformers_weight_conversion.py, _MOE_TARGET_MODULE_MAPPING."""


def resolve_targets(model: Model, wanted: Sequence[str]) -> str | list[str]:
    """The layers that `wanted` names, as peft takes them. Raises DevkitError for a name that no layer has.

    A name is the last part of a layer's, such as q_proj, or more of it, such as layers.0.self_attn.q_proj.
    """
    if tuple(wanted) == ALL_LINEAR:
        return ALL_LINEAR[0] if find_fused_experts(model) is None else _beside_experts(model)
    layers = dict(find_adaptable_layers(model))
    tied = [name for name, each in layers.items() if _is_tied_head(each, model)]
    for name in wanted:
        if any(_names(name, layer) for layer in tied):
            raise _tied(name)
        if not any(_names(name, layer) for layer in layers):
            raise _unknown(name, {layer: layers[layer] for layer in layers if layer not in tied})
    return list(wanted)


def _names(name: str, layer: str) -> bool:
    return layer == name or layer.endswith(f".{name}")


def _is_tied_head(layer: torch.nn.Module, model: Model) -> bool:
    """Whether `layer` is the output head and its weight that of the embedding."""
    if layer is not model.get_output_embeddings():
        return False
    weight: object = model.get_input_embeddings().weight
    return layer.weight is weight


def _tied(name: str) -> DevkitError:
    return DevkitError(
        f"{name} can be given no adapter: in this model it is the embedding, too, and merging would change both",
        "Leave it out; all-linear names every other linear layer.",
    )


def _beside_experts(model: Model) -> list[str]:
    """The linear layers of a mixture by the last part of their names, without its head.

    peft takes all-linear, and names that its fused experts once had, to mean the experts as well: it would put
    adapters on them that make the whole weight anew in each pass, and that other programs do not read.
    """
    head = model.get_output_embeddings()
    linear = (name for name, each in model.named_modules() if isinstance(each, torch.nn.Linear) and each is not head)
    return sorted({name.rpartition(".")[2] for name in linear} - EXPERT_LAYER_NAMES)


def find_adaptable_layers(model: Model) -> Iterator[tuple[str, torch.nn.Module]]:
    """Every layer that LoRA can be put on, by its name. bitsandbytes's layers are linear ones, too."""
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear | torch.nn.Embedding | Conv1D):
            yield name, module


def _unknown(name: str, layers: dict[str, torch.nn.Module]) -> DevkitError:
    groups: dict[str, list[str]] = {}
    for layer in layers:
        if isinstance(layers[layer], torch.nn.Embedding):
            continue
        parent, _, last = layer.rpartition(".")
        members = groups.setdefault(parent.rpartition(".")[2], [])
        if last not in members:
            members.append(last)
    known = dict.fromkeys(member for members in groups.values() for member in members)
    # A part of a name that is longer than the last part is compared by its last part, too.
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
    """A fresh trainable adapter on the layers that `settings.targets` name, its weights kept in `precision`.

    Changes `base` in place and freezes its weights. The adapter is drawn from `settings.seed` alone, so every process
    of a run has the same. Raises DevkitError for a target that the model does not have.
    """
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=resolve_targets(base, settings.targets),
        use_dora=settings.dora,
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=_devices_of(base)):
        torch.manual_seed(settings.seed)
        with adapter_injection(base):
            model = get_peft_model(base, config, autocast_adapter_dtype=False)
    for parameter in trainable_parameters(model):
        parameter.data = parameter.data.to(TORCH_DTYPES[precision])
    return model


def trainable_parameters(model: Model) -> list[torch.nn.Parameter]:
    """The parameters that training changes, in the model's order."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def count_trainable_parameters(model: Model) -> int:
    """How many numbers training changes."""
    return sum(parameter.numel() for parameter in trainable_parameters(model))


def _devices_of(model: Model) -> list[torch.device]:
    return list({parameter.device for parameter in model.parameters() if parameter.device.type == "cuda"})


# Adapters written to disk, and put back on the base that they were trained on.


def save_trained_adapter(model: Model, folder: Path, base: LoadedBase) -> None:
    """Write the adapter of `model` alone, as safetensors, with a note of its base."""
    # Vocabularies never grow here, so embeddings are never part of an adapter; asking peft to find out asks the hub.
    model.save_pretrained(str(folder), save_embedding_layers=False)
    write_adapter_metadata(folder, base)


def write_adapter_metadata(folder: Path, base: LoadedBase) -> None:
    """What peft does not write: which base the adapter is for, and how the chats were written that it learned from."""
    text = json.dumps(describe_base(base).to_document(), indent=2) + "\n"
    (folder / ADAPTER_BASE_FILE).write_text(text, encoding="utf-8")
    if base.tokenizer.chat_template:
        (folder / CHAT_TEMPLATE_FILE).write_text(base.tokenizer.chat_template, encoding="utf-8")


def describe_base(base: LoadedBase) -> BaseReference:
    """What an adapter should remember of its base. A folder is remembered by its whole path."""
    name = os.fspath(Path(base.name).expanduser().resolve()) if Path(base.name).expanduser().is_dir() else base.name
    return BaseReference(name, base.files.architecture, base.files.fingerprint)


def require_adapter_fits(adapter: SavedAdapter, shape: Model, files: ModelFiles, *, any_base: bool = False) -> None:
    """Refuse an adapter that was made for another base, with the reason. `shape` may be a model without weights.

    With `any_base`, equal shapes are enough: the weights may be others than those it was trained on.
    """
    for reason in _misfits(adapter, shape):
        raise DevkitError(
            f"the adapter in {adapter.folder} does not fit {files.folder}: {reason}", _its_base(adapter, files)
        )
    wanted, found = adapter.base.fingerprint, files.fingerprint
    if wanted and found and wanted != found and not any_base:
        raise DevkitError(
            f"the adapter in {adapter.folder} was trained on other weights ({wanted[:12]}) "
            f"than those in {files.folder} ({found[:12]})",
            f"{_its_base(adapter, files)}\nWith --any-base it is used all the same.",
        )


def _its_base(adapter: SavedAdapter, files: ModelFiles) -> str:
    base = adapter.base
    kind = f", a {base.architecture}" if base.architecture and base.architecture != files.architecture else ""
    return (
        f"It was trained on {base.name}{kind}: name that model." if base.name else "Name the model it was trained on."
    )


def _misfits(adapter: SavedAdapter, shape: Model) -> Iterator[str]:
    """Why the adapter cannot be put on a model of this shape, most telling reason first."""
    layers = dict(find_adaptable_layers(shape))
    halves = list(adapter.lora_matrices())
    absent = sorted({half.layer for half in halves} - layers.keys())
    if absent:
        yield f"it adapts {format_count(len(absent), 'layer')} that the model lacks, such as {absent[0]}"
    for half in halves:
        rank = half.shape[0] if half.letter == "a" else half.shape[1]
        if rank != adapter.rank_of(half.layer):
            yield f"{half.layer} has rank {rank}, and adapter_config.json says {adapter.rank_of(half.layer)}"
        inputs, outputs = _sizes(layers[half.layer])
        size, wanted, verb = (
            (half.shape[1], inputs, "reads") if half.letter == "a" else (half.shape[0], outputs, "gives")
        )
        if size != wanted:
            yield f"its {half.layer} {verb} {size} numbers, and the model's {verb} {wanted}"
    first, second = ({half.layer for half in halves if half.letter == letter} for letter in "ab")
    if first != second:
        yield f"{sorted(first ^ second)[0]} has one of its two matrices alone"


def _sizes(layer: torch.nn.Module) -> tuple[int, int]:
    """Inputs and outputs of a linear layer; GPT-2's keeps its weight the other way round."""
    if isinstance(layer, torch.nn.Linear):
        return layer.in_features, layer.out_features
    inputs, outputs = layer.weight.shape  # type: ignore[misc] # Conv1D and Embedding: [inputs, outputs]
    return int(inputs), int(outputs)


def apply_adapter(base: Model, adapter: SavedAdapter, *, precision: Precision, trainable: bool = False) -> Model:
    """The adapter on a base that it fits, its weights in `precision`. Changes `base` in place.

    Raises DevkitError where the adapter's file holds less than its configuration promises: peft only warns then, and
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
    if found.missing_keys:
        lacking = [key for key in found.missing_keys if ".lora_" in key]
        if lacking:
            raise DevkitError(
                f"the adapter in {adapter.folder} lacks {format_count(len(lacking), 'weight')}, such as {lacking[0]}",
                "Save or fetch it again.",
            )
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            parameter.data = parameter.data.to(TORCH_DTYPES[precision])
    return model if trainable else model.eval()
