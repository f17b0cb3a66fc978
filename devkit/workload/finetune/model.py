"""A base model and its tokenizer, loaded straight onto the device that uses them."""

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
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig
from transformers.utils import logging

from devkit.errors import DevkitError
from devkit.estimate.settings import Precision
from devkit.text import count_of, on_one_line
from devkit.workload.finetune.hub import model_folder
from devkit.workload.finetune.model_choices import ModelChoices, Quantisation, Reading
from devkit.workload.finetune.model_files import ModelFiles, examined
from devkit.workload.finetune.model_skeleton import fused_experts, skeleton, unreadable
from devkit.workload.finetune.model_weights import FETCH_AGAIN
from devkit.workload.packages import require_bitsandbytes
from devkit.workload.quantized import int8, nf4, pack_later
from devkit.workload.tiny import Model as Model

Tokenizer: TypeAlias = Any
"""A tokenizer of transformers, whose own types promise less than they hold."""

DTYPES = {Precision.FP32: torch.float32, Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}


@dataclass(frozen=True)
class Loaded:
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


def load(name: str, choices: ModelChoices) -> Loaded:
    """The model called `name`, a folder or a hub id, in evaluation mode.

    Each tensor goes from the file to the device and is quantised there, so the host never holds the whole model.
    Raises DevkitError for a model that is not there, damaged, or no causal language model.
    """
    files = examined(model_folder(name))
    notes = notes_on(files, choices)
    return Loaded(name, files, load_base(files, choices), load_tokenizer(files.folder), notes)


def notes_on(files: ModelFiles, choices: ModelChoices) -> tuple[str, ...]:
    """What these choices cost on this model, known from its shape alone."""
    if choices.quantisation is Quantisation.NONE:
        return ()
    experts = fused_experts(skeleton(files.folder))
    return (experts.note(choices.precision),) if experts else ()


KERNEL_OUTPUTS = 32
"""bitsandbytes 0.50, functional.py, _convert_weight_packed_for_cpu: block_n."""


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer in a model's folder. Code that a model brings along is never run."""
    try:
        return AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except (ValueError, OSError, KeyError, ImportError) as error:
        raise DevkitError(
            f"the tokenizer in {folder} cannot be read: {on_one_line(str(error))}",
            "Copy tokenizer.json and tokenizer_config.json from the original model.",
        ) from error


def load_base(files: ModelFiles, choices: ModelChoices) -> Model:
    """The weights of a model's folder, as `choices` want them, in evaluation mode. Raises DevkitError.

    Where they are to be handed out, 4-bit layers have weights that are packed once they reach a device.
    """
    _require_same_quantisation(files, choices)
    if choices.quantisation is not Quantisation.NONE:
        require_bitsandbytes(f"a base in {choices.quantisation}", without="a base in 16 bits, as --method lora has it")
    if choices.reading is Reading.ONTO_DEVICE:
        return _read(files, choices)
    if choices.reading is Reading.MAPPED:
        model = _read(files, replace(choices, quantisation=Quantisation.NONE, device="cpu"))
    else:
        model = skeleton(files.folder, attention=choices.attention)
    if choices.quantisation is Quantisation.NF4:
        pack_later(model, _quantised_by(choices))
    return model.eval()


def _read(files: ModelFiles, choices: ModelChoices) -> Model:
    """The weights on the device that `choices` name. On the CPU they stay in the file until something changes them."""
    # Given as None, it would hide what the model's own configuration says of its quantised weights.
    quantisation = {"quantization_config": _quantised_by(choices)} if _is_quantised_now(files, choices) else {}
    try:
        with quiet_loading():
            model, report = AutoModelForCausalLM.from_pretrained(
                str(files.folder),
                dtype=DTYPES[choices.precision],
                attn_implementation=choices.attention,
                device_map={"": torch.device(choices.device)},
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
                **quantisation,
            )
    except (SafetensorError, UnpicklingError) as error:
        said = on_one_line(str(error))
        raise DevkitError(f"a weight file in {files.folder} is damaged: {said}", FETCH_AGAIN) from error
    except (ValueError, KeyError, ImportError) as error:
        raise unreadable(files.folder, error) from error
    _require_complete(files, report)
    _compute_in(model, DTYPES[choices.precision])
    lead_past_kernel(model)
    return model.eval()


@contextmanager
def quiet_loading() -> Iterator[None]:
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


def _is_quantised_now(files: ModelFiles, choices: ModelChoices) -> bool:
    return files.quantised is Quantisation.NONE and choices.quantisation is not Quantisation.NONE


def _compute_in(model: Model, dtype: torch.dtype) -> None:
    """Weights that were saved in 4 bits also say what to compute in; what was asked for counts."""
    for module in model.modules():
        if hasattr(module, "compute_dtype"):
            module.compute_dtype = dtype


def lead_past_kernel(model: Model) -> int:
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
    return bool(outputs % KERNEL_OUTPUTS or inputs % state.blocksize)


def _require_same_quantisation(files: ModelFiles, choices: ModelChoices) -> None:
    if files.quantised not in (Quantisation.NONE, choices.quantisation):
        raise DevkitError(
            f"the weights in {files.folder} are already quantised to {files.quantised.value}",
            "Train on them with the method of that quantisation, or name the 16-bit model they were made from.",
        )


def _require_complete(files: ModelFiles, report: Mapping[str, Any]) -> None:
    """Refuse what transformers only warns of: weights that no file holds are drawn at random."""
    absent = sorted(report["missing_keys"])
    if absent:
        raise DevkitError(
            f"{files.folder} lacks {count_of(len(absent), 'weight')} of {files.architecture}, such as {absent[0]}",
            FETCH_AGAIN,
        )
    unfit = sorted(f"{each[0]}" for each in report["mismatched_keys"])
    if unfit:
        raise DevkitError(
            f"{files.folder}: {unfit[0]} has another shape than config.json says", "Take both from one place."
        )


def _quantised_by(choices: ModelChoices) -> BitsAndBytesConfig:
    if choices.quantisation is Quantisation.INT8:
        return int8()
    computed = DTYPES[choices.precision]
    storage = computed if choices.is_shared_out else torch.uint8
    return nf4(computed, double=choices.double_quantisation, storage=storage)


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
