"""Merging an adapter into its base model, in a folder that every program reads."""

import os
import shutil
from pathlib import Path

import torch

from devkit.errors import DevkitError
from devkit.estimate.settings import Precision
from devkit.workload.device import TORCH_DTYPES
from devkit.workload.finetune.files import BaseQuantization, ModelFiles, SavedAdapter, flush_to_disk
from devkit.workload.finetune.model import LoadedBase, apply_adapter, silence_loading
from devkit.workload.models import Model

MERGE_TOLERANCE = {Precision.FP32: 1e-4, Precision.BF16: 5e-2, Precision.FP16: 5e-3}
"""Largest change of the logits by merging, as a share of their range: the sum of two weights is rounded once more.

fp32: additions in another order, 1.2e-5 of the range measured. bf16 keeps 8 bits of each weight and fp16 11: 0.0143 was
measured in bf16 on SmolLM2-135M after an ordinary run. A merge that leaves the adapter out changes them by far more.
"""

PROBE_TOKENS = 32


def require_empty_folder(folder: Path) -> None:
    """Raise DevkitError for a folder that holds anything, before minutes of work go into it."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise DevkitError(f"{folder} is already in use", "Name a new folder.")
    if folder.is_dir() and any(folder.iterdir()):
        raise DevkitError(f"{folder} is not empty", "Choose a new folder, or empty this one.")
    if not folder.parent.is_dir():
        raise DevkitError(f"{folder.parent} is not a directory: cannot create {folder.name}", "Create it first.")


def find_stored_precision(files: ModelFiles) -> Precision:
    """Return the precision that config.json names, or else bf16: a merged model is to be as large as its base."""
    configured = str(files.config.get("dtype") or files.config.get("torch_dtype"))
    return {"float32": Precision.FP32, "float16": Precision.FP16}.get(configured, Precision.BF16)


def merge_adapter(
    base: LoadedBase, adapter: SavedAdapter, *, precision: Precision, quantization: BaseQuantization
) -> tuple[Model, float]:
    """Merge the adapter into its base's weights, and return the largest change of a logit, as a share of their range.

    Changes `base` in place.

    A base in 4 or 8 bits is first dequantized to 16 bits, the values that the adapter was trained on; added to 4-bit
    weights, most of the adapter would be rounded away. Raises DevkitError if the merged model's logits differ from
    those of the base with its adapter.
    """
    dense = base.model
    if quantization is not BaseQuantization.NONE:
        with silence_loading():
            dense = dense.dequantize().to(TORCH_DTYPES[precision])
        dense.config.__dict__.pop("quantization_config", None)
    # In fp32, so that only the sum is rounded.
    model = apply_adapter(dense, adapter, precision=Precision.FP32)
    before = _probe_logits(model)
    with torch.no_grad():
        merged = model.merge_and_unload(safe_merge=True)
    after = _probe_logits(merged)
    change = float((after - before).abs().max() / (before.max() - before.min()))
    if not change <= MERGE_TOLERANCE[precision]:
        raise DevkitError(
            f"merging changed the logits by {change:.2g} of their range, but only {MERGE_TOLERANCE[precision]:g} is allowed",
            "Use the adapter with its base, or merge with --dtype fp32.",
        )
    return merged, change


def _probe_logits(model: Model) -> torch.Tensor:
    """Compute the logits of a few tokens from the whole vocabulary. Shape: [1, tokens, vocabulary]."""
    device = next(model.parameters()).device
    size = model.config.get_text_config().vocab_size
    ids = torch.linspace(0, size - 1, PROBE_TOKENS, device=device).long()[None]
    with torch.no_grad():
        logits: torch.Tensor = model(input_ids=ids).logits.float()
    return logits


def write_merged_model(model: Model, base: LoadedBase, folder: Path) -> None:
    """Write the model and its base's tokenizer into `folder`, which appears complete or not at all.

    Raises DevkitError for a folder that holds anything, and where the disk is full.
    """
    require_empty_folder(folder)
    scratch = folder.with_name(f"{folder.name}.tmp-{os.getpid()}")
    try:
        with silence_loading():
            model.save_pretrained(str(scratch))
        base.tokenizer.save_pretrained(str(scratch))
        for file in scratch.iterdir():
            flush_to_disk(file)
        scratch.replace(folder)
        flush_to_disk(folder.parent)
    except OSError as error:
        raise DevkitError(
            f"cannot write {folder}: {error.strerror or error}", "Free disk space, or choose another folder."
        ) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
