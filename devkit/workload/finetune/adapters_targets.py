"""Which layers of a model can be given an adapter, and which of them a user's words name."""

from collections.abc import Iterator, Sequence
from difflib import get_close_matches

import torch
from transformers.pytorch_utils import Conv1D

from devkit.errors import DevkitError
from devkit.estimate.settings import ALL_LINEAR
from devkit.text import listed
from devkit.workload.finetune.model_skeleton import fused_experts
from devkit.workload.tiny import Model

NUMBER_OF_NAMES = 3
NAMES_OF_EXPERTS = frozenset({"gate", "gate_proj", "up_proj", "down_proj", "w1", "w2", "w3"})
"""Source: peft 0.21, peft/utils/transformers_weight_conversion.py, _MOE_TARGET_MODULE_MAPPING."""


def targets_of(model: Model, wanted: Sequence[str]) -> str | list[str]:
    """The layers that `wanted` names, as peft takes them. Raises DevkitError for a name that no layer has.

    A name is the last part of a layer's, such as q_proj, or more of it, such as layers.0.self_attn.q_proj.
    """
    if tuple(wanted) == ALL_LINEAR:
        return ALL_LINEAR[0] if fused_experts(model) is None else _beside_experts(model)
    layers = dict(adaptable(model))
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
    return sorted({name.rpartition(".")[2] for name in linear} - NAMES_OF_EXPERTS)


def adaptable(model: Model) -> Iterator[tuple[str, torch.nn.Module]]:
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
    near = get_close_matches(name.rpartition(".")[2], known, n=NUMBER_OF_NAMES, cutoff=0.5)
    hint = [f"Did you mean {listed(near, 'or')}?"] if near else []
    several = [each.strip() for each in name.split(",")]
    if len(several) > 1 and all(each.rpartition(".")[2] in known for each in several):
        hint = [f"Repeat the flag: {' '.join(f'--targets {each}' for each in several)}"]
    shown = "; ".join(
        f"{group}: {', '.join(members)}" if group else ", ".join(members) for group, members in groups.items()
    )
    hint.append(f"The model has {shown}; or all-linear.")
    return DevkitError(f"no layer of the model is called {name}", "\n".join(hint))
