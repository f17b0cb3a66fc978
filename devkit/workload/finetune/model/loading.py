"""A base model and its tokenizer, loaded straight onto the device that uses them."""

import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from logging import CRITICAL
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, TypeAlias

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig
from transformers.utils import logging

from devkit.errors import DevkitError
from devkit.estimate.settings import Precision
from devkit.text import format_bytes, format_count, to_one_line
from devkit.workload.environment import require_bitsandbytes
from devkit.workload.finetune.model.files import (
    FETCH_AGAIN_HINT,
    BaseQuantization,
    LoadSettings,
    ModelFiles,
    WeightPlacement,
    inspect_model,
)
from devkit.workload.finetune.model.hub import resolve_model_folder
from devkit.workload.models import Model, build_int8_config, build_nf4_config, prepare_4bit_layers

# A model without its weights: what its layers are called and how large they are, known before anything is loaded.

NF4_BITS = 4.127
"""Bits per weight with double quantisation: 4, 8 for the scale of 64 weights, 32 for the scale of 256 scales.

Source: Dettmers et al., QLoRA, 2023, section 3 (https://arxiv.org/abs/2305.14314).
"""


def build_meta_model(folder: Path, *, attention: str | None = None) -> Model:
    """The model of a folder on torch's meta device, which holds shapes and no numbers. Raises DevkitError."""
    try:
        config = AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        # Tensors of the meta device have a shape and no memory.
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, attn_implementation=attention, trust_remote_code=False)
    except (ValueError, KeyError, ImportError) as error:
        raise explain_load_error(folder, error) from error


@dataclass(frozen=True)
class FusedExperts:
    """Weights of experts that are kept together as one parameter of three dimensions."""

    tensors: int
    parameters: int

    def note(self, precision: Precision) -> str:
        """What it costs that bitsandbytes quantises linear layers alone."""
        kept, would_be = self.parameters * precision.bytes, round(self.parameters * NF4_BITS / 8)
        return (
            f"{format_count(self.tensors, 'expert weight')} with {self.parameters:,} numbers stay in {precision.value}: "
            f"bitsandbytes quantises linear layers alone, and these are fused. They take {format_bytes(kept)}, "
            f"where 4 bits would take {format_bytes(would_be)}."
        )

    def note_on_adapters(self) -> str:
        """What is not trained: adapters are put on linear layers alone, too."""
        weights = format_count(self.tensors, "expert weight")
        return f"{weights} with {self.parameters:,} numbers get no adapter: they are fused."


def find_fused_experts(model: Model) -> FusedExperts | None:
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
    return FusedExperts(len(fused), sum(math.prod(each.shape) for each in fused)) if fused else None


def explain_load_error(folder: Path, error: Exception) -> DevkitError:
    """transformers cannot make the model: too old, code that is not run, or a package that is missing."""
    from transformers import __version__

    said = to_one_line(str(error))
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


Tokenizer: TypeAlias = Any
"""A tokenizer of transformers, whose own types promise less than they hold."""

TORCH_DTYPES = {Precision.FP32: torch.float32, Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}


@dataclass(frozen=True)
class LoadedBase:
    """A base ready for use. `name` is what the user called it; `notes` is what its user should hear before training."""

    name: str
    files: ModelFiles
    model: Model
    tokenizer: Tokenizer
    notes: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """Where the model's files lie."""
        return self.files.folder

    @property
    def config(self) -> Any:  # noqa: ANN401 - each architecture has a class of its own
        """The model's configuration, as transformers reads it."""
        return self.model.config


def load_base_and_tokenizer(name: str, choices: LoadSettings) -> LoadedBase:
    """The model called `name`, a folder or a hub id, in evaluation mode.

    Each tensor goes from the file to the device and is quantised there, so the host never holds the whole model.
    Raises DevkitError for a model that is not there, damaged, or no causal language model.
    """
    files = inspect_model(resolve_model_folder(name))
    notes = find_load_notes(files, choices)
    return LoadedBase(name, files, load_base(files, choices), load_tokenizer(files.folder), notes)


def find_load_notes(files: ModelFiles, choices: LoadSettings) -> tuple[str, ...]:
    """What these choices cost on this model, known from its shape alone."""
    if choices.quantisation is BaseQuantization.NONE:
        return ()
    experts = find_fused_experts(build_meta_model(files.folder))
    return (experts.note(choices.precision),) if experts else ()


CPU_KERNEL_BLOCK = 32
"""bitsandbytes 0.50, functional.py, _convert_weight_packed_for_cpu: block_n."""


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer in a model's folder. Code that a model brings along is never run."""
    try:
        return AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except (ValueError, OSError, KeyError, ImportError) as error:
        raise DevkitError(
            f"the tokenizer in {folder} cannot be read: {to_one_line(str(error))}",
            "Copy tokenizer.json and tokenizer_config.json from the original model.",
        ) from error


def load_base(files: ModelFiles, choices: LoadSettings) -> Model:
    """The weights of a model's folder, as `choices` want them, in evaluation mode. Raises DevkitError.

    Where they are to be handed out, 4-bit layers have weights that are packed once they reach a device.
    """
    _require_same_quantisation(files, choices)
    if choices.quantisation is not BaseQuantization.NONE:
        require_bitsandbytes(f"a base in {choices.quantisation}", without="a base in 16 bits, as --method lora has it")
    if choices.reading is WeightPlacement.ONTO_DEVICE:
        return _read(files, choices)
    if choices.reading is WeightPlacement.MAPPED:
        model = _read(files, replace(choices, quantisation=BaseQuantization.NONE, device="cpu"))
    else:
        model = build_meta_model(files.folder, attention=choices.attention)
    if choices.quantisation is BaseQuantization.NF4:
        prepare_4bit_layers(model, _quantised_by(choices))
    return model.eval()


def _read(files: ModelFiles, choices: LoadSettings) -> Model:
    """The weights on the device that `choices` name. On the CPU they stay in the file until something changes them."""
    # Given as None, it would hide what the model's own configuration says of its quantised weights.
    quantisation = {"quantization_config": _quantised_by(choices)} if _is_quantised_now(files, choices) else {}
    try:
        with silence_loading():
            model, report = AutoModelForCausalLM.from_pretrained(
                str(files.folder),
                dtype=TORCH_DTYPES[choices.precision],
                attn_implementation=choices.attention,
                device_map={"": torch.device(choices.device)},
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
                **quantisation,
            )
    except (SafetensorError, UnpicklingError) as error:
        said = to_one_line(str(error))
        raise DevkitError(f"a weight file in {files.folder} is damaged: {said}", FETCH_AGAIN_HINT) from error
    except (ValueError, KeyError, ImportError) as error:
        raise explain_load_error(files.folder, error) from error
    _require_complete(files, report)
    _compute_in(model, TORCH_DTYPES[choices.precision])
    disable_cpu_avx512_kernel(model)
    return model.eval()


@contextmanager
def silence_loading() -> Iterator[None]:
    """Keep transformers from its own report and, where nobody watches, from its progress bar: we judge and say it."""
    verbosity = logging.get_verbosity()
    had_bar = logging.is_progress_bar_enabled()
    logging.set_verbosity(CRITICAL)
    if not sys.stderr.isatty():
        logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if had_bar:
            logging.enable_progress_bar()


def _is_quantised_now(files: ModelFiles, choices: LoadSettings) -> bool:
    return files.quantised is BaseQuantization.NONE and choices.quantisation is not BaseQuantization.NONE


def _compute_in(model: Model, dtype: torch.dtype) -> None:
    """Weights that were saved in 4 bits also say what to compute in; what was asked for counts."""
    for module in model.modules():
        if hasattr(module, "compute_dtype"):
            module.compute_dtype = dtype


def disable_cpu_avx512_kernel(model: Model) -> int:
    """Have 4-bit layers that bitsandbytes's kernel for CPUs cannot take computed the usual way; how many those are.

    Where the CPU has AVX512-BF16, layers that are not in training lay their weights out for a kernel that takes
    outputs by 32 and inputs by whole blocks: any other width would fail there, with an assertion. Source: bitsandbytes
    0.50, functional.py, _convert_weight_packed_for_cpu, and nn/modules.py, Linear4bit.forward.
    """
    unfit = [each for each in model.modules() if _is_unfit(each)]
    for each in unfit:
        each.support_avx512bf16_for_cpu = False
    return len(unfit)


def _is_unfit(module: Any) -> bool:  # noqa: ANN401 - bitsandbytes may not be there to name its type
    state = getattr(getattr(module, "weight", None), "quant_state", None)
    if state is None or not getattr(module, "support_avx512bf16_for_cpu", False):
        return False
    outputs, inputs = state.shape
    return bool(outputs % CPU_KERNEL_BLOCK or inputs % state.blocksize)


def _require_same_quantisation(files: ModelFiles, choices: LoadSettings) -> None:
    if files.quantised not in (BaseQuantization.NONE, choices.quantisation):
        raise DevkitError(
            f"the weights in {files.folder} are already quantised to {files.quantised.value}",
            "Train on them with the method of that quantisation, or name the 16-bit model they were made from.",
        )


def _require_complete(files: ModelFiles, report: Mapping[str, Any]) -> None:
    """Refuse what transformers only warns of: weights that no file holds are drawn at random."""
    absent = sorted(report["missing_keys"])
    if absent:
        raise DevkitError(
            f"{files.folder} lacks {format_count(len(absent), 'weight')} of {files.architecture}, such as {absent[0]}",
            FETCH_AGAIN_HINT,
        )
    unfit = sorted(f"{each[0]}" for each in report["mismatched_keys"])
    if unfit:
        raise DevkitError(
            f"{files.folder}: {unfit[0]} has another shape than config.json says", "Take both from one place."
        )


def _quantised_by(choices: LoadSettings) -> BitsAndBytesConfig:
    if choices.quantisation is BaseQuantization.INT8:
        return build_int8_config()
    computed = TORCH_DTYPES[choices.precision]
    storage = computed if choices.is_shared_out else torch.uint8
    return build_nf4_config(computed, double=choices.double_quantisation, storage=storage)


def prepare_for_training(model: Model, *, checkpointing: bool) -> None:
    """Have layers compute their activations again where asked. The configuration stays: it is saved with whole models.

    peft's `prepare_model_for_kbit_training` is left out on purpose: it turns embeddings, head and norms, and with them
    the whole residual stream, into fp32. For Llama-3.1-8B at 2048 tokens that costs 2.5 GiB and buys nothing that
    bf16's range does not have already. Its other half, inputs that require gradients, is what reentrant checkpointing
    needs; this is the other kind. See https://github.com/huggingface/trl/pull/4457.
    """
    if checkpointing:
        # Renamed in transformers 5; the old name warns there.
        enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
        enable({"use_reentrant": False})
