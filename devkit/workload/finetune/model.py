"""A base model and its tokenizer, loaded straight onto the device that uses them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig

from devkit.errors import DevkitError
from devkit.estimate.settings import Precision
from devkit.workload.finetune.hub import model_folder
from devkit.workload.finetune.model_choices import ModelChoices, Quantisation
from devkit.workload.quantized import int8, nf4

Model: TypeAlias = Any
"""A model of transformers or peft, whose own types promise less than they hold."""

Tokenizer: TypeAlias = Any
"""A tokenizer of transformers, for the same reason."""

DTYPES = {Precision.FP32: torch.float32, Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}


@dataclass(frozen=True)
class Loaded:
    """A base ready for use. `name` is what the user called it, `folder` where its files lie."""

    name: str
    folder: Path
    model: Model
    tokenizer: Tokenizer

    @property
    def config(self) -> Any:  # noqa: ANN401 - each architecture has a class of its own
        """The model's configuration, as transformers reads it."""
        return self.model.config


def load(name: str, choices: ModelChoices) -> Loaded:
    """The model called `name`, a folder or a hub id, in evaluation mode.

    Each tensor goes from the file to the device and is quantised there, so the host never holds the whole model.
    Raises DevkitError for a model that is not there, damaged, or no causal language model.
    """
    folder = model_folder(name)
    return Loaded(name, folder, load_base(folder, choices), load_tokenizer(folder))


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer in a model's folder. Code that a model brings along is never run."""
    return AutoTokenizer.from_pretrained(str(folder), local_files_only=True)


def load_base(folder: Path, choices: ModelChoices) -> Model:
    """The weights in a model's folder, as `choices` want them."""
    model, report = AutoModelForCausalLM.from_pretrained(
        str(folder),
        dtype=DTYPES[choices.precision],
        attn_implementation=choices.attention,
        device_map={"": torch.device(choices.device)},
        quantization_config=_quantised_by(choices),
        local_files_only=True,
        output_loading_info=True,
    )
    if report["missing_keys"]:
        raise DevkitError(f"{folder} holds no weights for {sorted(report['missing_keys'])[0]}", "Fetch it again.")
    return model.eval()


def _quantised_by(choices: ModelChoices) -> BitsAndBytesConfig | None:
    if choices.quantisation is Quantisation.INT8:
        return int8()
    if choices.quantisation is Quantisation.NF4:
        return nf4(DTYPES[choices.precision], double=choices.double_quantisation)
    return None


def prepare_for_training(model: Model, *, checkpointing: bool) -> None:
    """Switch off what only generation needs, and have layers compute their activations again where asked.

    peft's `prepare_model_for_kbit_training` is left out on purpose: it turns embeddings, head and norms, and with them
    the whole residual stream, into fp32. For Llama-3.1-8B at 2048 tokens that costs 2.5 GiB and buys nothing that
    bf16's range does not have already. Its other half, inputs that require gradients, is what reentrant checkpointing
    needs; this is the other kind. See https://github.com/huggingface/trl/pull/4457.
    """
    model.config.use_cache = False
    if checkpointing:
        # Renamed in transformers 5; the old name warns there.
        enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
        enable({"use_reentrant": False})
