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
    for name in wanted:
        if not any(layer == name or layer.endswith(f".{name}") for layer in layers):
            raise _unknown(name, layers)
    return list(wanted)


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
