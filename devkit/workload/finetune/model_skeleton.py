"""A model without its weights: what its layers are called and how large they are, known before anything is loaded."""

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from devkit.errors import DevkitError
from devkit.estimate.settings import Precision
from devkit.text import count_of, human_bytes, on_one_line
from devkit.workload.tiny import Model

NF4_BITS = 4.127
"""Bits per weight with double quantisation: 4, 8 for the scale of 64 weights, 32 for the scale of 256 scales.

Source: Dettmers et al., QLoRA, 2023, section 3 (https://arxiv.org/abs/2305.14314).
"""


def skeleton(folder: Path, *, attention: str | None = None) -> Model:
    """The model of a folder on torch's meta device, which holds shapes and no numbers. Raises DevkitError."""
    try:
        config = AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        # Tensors of the meta device have a shape and no memory.
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, attn_implementation=attention, trust_remote_code=False)
    except (ValueError, KeyError, ImportError) as error:
        raise unreadable(folder, error) from error


@dataclass(frozen=True)
class Experts:
    """Weights of experts that are kept together as one parameter of three dimensions."""

    tensors: int
    parameters: int

    def note(self, precision: Precision) -> str:
        """What it costs that bitsandbytes quantises linear layers alone."""
        kept, would_be = self.parameters * precision.bytes, round(self.parameters * NF4_BITS / 8)
        return (
            f"{count_of(self.tensors, 'expert weight')} with {self.parameters:,} numbers stay in {precision.value}: "
            f"bitsandbytes quantises linear layers alone, and these are fused. They take {human_bytes(kept)}, "
            f"where 4 bits would take {human_bytes(would_be)}."
        )

    def note_on_adapters(self) -> str:
        """What is not trained: adapters are put on linear layers alone, too."""
        weights = count_of(self.tensors, "expert weight")
        return f"{weights} with {self.parameters:,} numbers get no adapter: they are fused."


def fused_experts(model: Model) -> Experts | None:
    """The parameters that bitsandbytes passes over because they belong to no linear layer; None where it takes all.

    Found by their dimensions and not by name: see https://github.com/bitsandbytes-foundation/bitsandbytes/issues/1849.
    """
    fused = [
        parameter
        for module in model.modules()
        if not isinstance(module, torch.nn.modules.conv._ConvNd)
        for parameter in module.parameters(recurse=False)
        if parameter.ndim >= 3
    ]
    return Experts(len(fused), sum(math.prod(each.shape) for each in fused)) if fused else None


def unreadable(folder: Path, error: Exception) -> DevkitError:
    """transformers cannot make the model: too old, code that is not run, or a package that is missing."""
    from transformers import __version__

    said = on_one_line(str(error))
    if "trust_remote_code" in said or "custom code" in said:
        return DevkitError(f"{folder} brings code of its own, which devkit does not run", "Name a model without it.")
    if isinstance(error, ImportError):
        return DevkitError(f"{folder} needs a package that is not installed", said)
    if "Unrecognized configuration class" in said:
        return DevkitError(f"{folder} is no model that generates text", "Name a causal language model.")
    if isinstance(error, KeyError) or "does not recognize" in said or "Unrecognized model" in said:
        return DevkitError(
            f"transformers {__version__} does not know the architecture of {folder}",
            "A newer release may: pip install --upgrade transformers.",
        )
    return DevkitError(f"transformers {__version__} cannot make the model in {folder}", said)
