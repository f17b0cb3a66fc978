"""A base model and its tokenizer, loaded from the files straight onto the device that uses them."""

import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from logging import CRITICAL
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

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
from devkit.workload.finetune.model.files import Tokenizer as Tokenizer
from devkit.workload.finetune.model.hub import resolve_model_folder
from devkit.workload.models import Model as Model
from devkit.workload.models import build_int8_config, build_nf4_config, prepare_4bit_layers

TORCH_DTYPES = {Precision.FP32: torch.float32, Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}

NF4_BITS = 4.127
"""Bits per weight with double quantization: 4, 8 for the scale of 64 weights, 32 for the scale of 256 scales.

Source: Dettmers et al., QLoRA, 2023, section 3 (https://arxiv.org/abs/2305.14314).
"""

CPU_KERNEL_BLOCK = 32
"""bitsandbytes 0.50, functional.py, _convert_weight_packed_for_cpu: block_n."""


@dataclass(frozen=True)
class LoadedBase:
    """A base ready for use. `name` is what the user called it; `notes` are for people before training."""

    name: str
    files: ModelFiles
    model: Model
    tokenizer: Tokenizer
    notes: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """The folder of the model's files."""
        return self.files.folder

    @property
    def config(self) -> Any:  # noqa: ANN401 - each architecture has a class of its own
        """The model's configuration, as transformers reads it."""
        return self.model.config


@dataclass(frozen=True)
class FusedExperts:
    """Weights of experts that are one parameter of three dimensions."""

    tensors: int
    parameters: int

    def note_on_quantization(self, precision: Precision) -> str:
        """Return a note on the memory of experts, as bitsandbytes quantizes linear layers only."""
        actual, in_4_bits = self.parameters * precision.bytes, round(self.parameters * NF4_BITS / 8)
        return (
            f"{format_count(self.tensors, 'expert weight')} with {self.parameters:,} parameters stay in "
            f"{precision.value}: bitsandbytes quantizes linear layers only, and these are fused. They take "
            f"{format_bytes(actual)}, where 4 bits would take {format_bytes(in_4_bits)}."
        )

    def note_on_adapters(self) -> str:
        """Return a note on what is not trained: adapters, too, are for linear layers only."""
        weights = format_count(self.tensors, "expert weight")
        return f"{weights} with {self.parameters:,} parameters get no adapter: they are fused."


def load_base_and_tokenizer(name: str, settings: LoadSettings) -> LoadedBase:
    """Load the model called `name`, a folder or a hub id, in evaluation mode.

    Each tensor goes from the file to the device and is quantized there, so the host never holds the whole model.
    Raises DevkitError for a model that does not exist, is damaged, or is no causal language model.
    """
    files = inspect_model(resolve_model_folder(name))
    notes = find_load_notes(files, settings)
    return LoadedBase(name, files, load_base(files, settings), load_tokenizer(files.folder), notes)


def find_load_notes(files: ModelFiles, settings: LoadSettings) -> tuple[str, ...]:
    """Return notes on what these settings cost on this model, by its shape alone."""
    if settings.quantisation is BaseQuantization.NONE:
        return ()
    experts = find_fused_experts(build_meta_model(files.folder))
    return (experts.note_on_quantization(settings.precision),) if experts else ()


def load_tokenizer(folder: Path) -> Tokenizer:
    """Load the tokenizer in a model's folder. Code that comes with a model is never run."""
    try:
        return AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except (ValueError, OSError, KeyError, ImportError) as error:
        raise DevkitError(
            f"the tokenizer in {folder} cannot be read: {to_one_line(str(error))}",
            "Copy tokenizer.json and tokenizer_config.json from the original model.",
        ) from error


def build_meta_model(folder: Path, *, attention: str | None = None) -> Model:
    """Build the model of a folder on torch's meta device, with shapes and no weights. Raises DevkitError."""
    try:
        config = AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, attn_implementation=attention, trust_remote_code=False)
    except (ValueError, KeyError, ImportError) as error:
        raise explain_load_error(folder, error) from error


def find_fused_experts(model: Model) -> FusedExperts | None:
    """Find the parameters that bitsandbytes ignores because they belong to no linear layer; None if it takes all.

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


def load_base(files: ModelFiles, settings: LoadSettings) -> Model:
    """Load the weights of a model's folder in evaluation mode. Raises DevkitError.

    If they are to be broadcast, 4-bit layers have weights that are packed once they reach a device.
    """
    if files.quantised not in (BaseQuantization.NONE, settings.quantisation):
        raise DevkitError(
            f"the weights in {files.folder} are already quantized to {files.quantised.value}",
            "Train on them with the method of that quantization, or name the 16-bit model they were made from.",
        )
    if settings.quantisation is not BaseQuantization.NONE:
        require_bitsandbytes(f"a base in {settings.quantisation}", without="a base in 16 bits, as --method lora has it")
    if settings.placement is WeightPlacement.ONTO_DEVICE:
        return _load_weights(files, settings)
    if settings.placement is WeightPlacement.MAPPED:
        model = _load_weights(files, replace(settings, quantisation=BaseQuantization.NONE, device="cpu"))
    else:
        model = build_meta_model(files.folder, attention=settings.attention)
    if settings.quantisation is BaseQuantization.NF4:
        prepare_4bit_layers(model, _build_quantization_config(settings))
    return model.eval()


def _load_weights(files: ModelFiles, settings: LoadSettings) -> Model:
    """Load the weights onto the device of `settings`. On the CPU they stay in the file until something changes them."""
    quantization = {}
    if files.quantised is BaseQuantization.NONE and settings.quantisation is not BaseQuantization.NONE:
        # Given as None, it would hide the quantization of the weights that the model's own configuration declares.
        quantization["quantization_config"] = _build_quantization_config(settings)
    dtype = TORCH_DTYPES[settings.precision]
    try:
        with silence_loading():
            model, report = AutoModelForCausalLM.from_pretrained(
                str(files.folder),
                dtype=dtype,
                attn_implementation=settings.attention,
                device_map={"": torch.device(settings.device)},
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
                **quantization,
            )
    except (SafetensorError, UnpicklingError) as error:
        cause = to_one_line(str(error))
        raise DevkitError(f"a weight file in {files.folder} is damaged: {cause}", FETCH_AGAIN_HINT) from error
    except (ValueError, KeyError, ImportError) as error:
        raise explain_load_error(files.folder, error) from error
    _require_complete(files, report)
    for module in model.modules():
        # Weights that were saved in 4 bits come with a compute dtype of their own; ours counts.
        if hasattr(module, "compute_dtype"):
            module.compute_dtype = dtype
    disable_cpu_avx512_kernel(model)
    return model.eval()


def _build_quantization_config(settings: LoadSettings) -> BitsAndBytesConfig:
    if settings.quantisation is BaseQuantization.INT8:
        return build_int8_config()
    dtype = TORCH_DTYPES[settings.precision]
    storage = dtype if settings.is_sharded else torch.uint8
    return build_nf4_config(dtype, double=settings.double_quantisation, storage=storage)


@contextmanager
def silence_loading() -> Iterator[None]:
    """Suppress transformers' own report and, without a terminal, its progress bar: errors are raised by us."""
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


def disable_cpu_avx512_kernel(model: Model) -> int:
    """Disable bitsandbytes's AVX512 kernel for 4-bit layers that it cannot compute, and return how many those are.

    On CPUs with AVX512-BF16, layers in evaluation mode lay their weights out for a kernel that takes outputs by 32 and
    inputs by whole blocks: any other width would fail there, with an assertion. Source: bitsandbytes 0.50,
    functional.py, _convert_weight_packed_for_cpu, and nn/modules.py, Linear4bit.forward.
    """
    unfit = 0
    for module in model.modules():
        state = getattr(getattr(module, "weight", None), "quant_state", None)
        if state is None or not getattr(module, "support_avx512bf16_for_cpu", False):
            continue
        outputs, inputs = state.shape
        if outputs % CPU_KERNEL_BLOCK or inputs % state.blocksize:
            module.support_avx512bf16_for_cpu = False
            unfit += 1
    return unfit


def _require_complete(files: ModelFiles, report: Mapping[str, Any]) -> None:
    """Reject what transformers only warns of: weights that are in no file are initialized at random."""
    absent = sorted(report["missing_keys"])
    if absent:
        raise DevkitError(
            f"{files.folder} lacks {format_count(len(absent), 'weight')} of {files.architecture}, such as {absent[0]}",
            FETCH_AGAIN_HINT,
        )
    mismatched = sorted(f"{each[0]}" for each in report["mismatched_keys"])
    if mismatched:
        raise DevkitError(
            f"{files.folder}: {mismatched[0]} has another shape than config.json declares",
            "Take both from the same model.",
        )


def explain_load_error(folder: Path, error: Exception) -> DevkitError:
    """Explain why transformers cannot build the model: too old, code that is not run, or a missing package."""
    from transformers import __version__

    cause = to_one_line(str(error))
    if "trust_remote_code" in cause or "custom code" in cause:
        return DevkitError(
            f"{folder} comes with code of its own, which devkit does not run", "Name a model without it."
        )
    if isinstance(error, ImportError):
        return DevkitError(f"{folder} needs a package that is not installed", cause)
    if "Unrecognized configuration class" in cause:
        return DevkitError(f"{folder} is no model that generates text", "Name a causal language model.")
    if isinstance(error, KeyError) or "does not recognize" in cause or "Unrecognized model" in cause:
        return DevkitError(
            f"transformers {__version__} does not know the architecture of {folder}",
            "A newer release may: pip install --upgrade transformers.",
        )
    return DevkitError(f"transformers {__version__} cannot build the model in {folder}", cause)


def prepare_for_training(model: Model, *, checkpointing: bool) -> None:
    """Enable gradient checkpointing if wanted. The configuration stays: it is saved with whole models.

    peft's `prepare_model_for_kbit_training` is left out on purpose: it turns embeddings, head and norms, and with them
    the whole residual stream, into fp32. For Llama-3.1-8B at 2048 tokens that costs 2.5 GiB and buys nothing that
    bf16's range does not have already. Its other half, inputs that require gradients, is what reentrant checkpointing
    needs; this is the other kind. See https://github.com/huggingface/trl/pull/4457.
    """
    if checkpointing:
        # Renamed in transformers 5; the old name warns there.
        enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
        enable({"use_reentrant": False})
