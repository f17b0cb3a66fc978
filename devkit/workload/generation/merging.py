"""An adapter and its base made one model, in a folder that every program reads."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch

from devkit.errors import DevkitError
from devkit.estimate.settings import Precision
from devkit.workload.finetune.model.adapters import apply_adapter
from devkit.workload.finetune.model.files import BaseQuantization, ModelFiles, SavedAdapter
from devkit.workload.finetune.model.loading import TORCH_DTYPES, LoadedBase, silence_loading
from devkit.workload.models import Model

MERGE_TOLERANCE = {Precision.FP32: 1e-4, Precision.BF16: 2e-2, Precision.FP16: 5e-3}
"""How far logits may move by merging, as a share of their range: the sum of two weights is rounded once more.

fp32: additions in another order, 1.2e-5 of the range measured. bf16 keeps 8 bits of each weight and fp16 11.
"""

SAFETENSORS_PRECISIONS = {"F32": Precision.FP32, "BF16": Precision.BF16, "F16": Precision.FP16}
"""A data type as safetensors calls it -> as we do."""

PROBE_TOKENS = 32


@dataclass(frozen=True)
class MergedModel:
    """A model of its own. `moved` is the largest change of a logit by merging, as a share of the logits' range."""

    model: Model
    max_logit_change: float


def require_empty_folder(folder: Path) -> None:
    """Refuse a folder that holds anything, before minutes of work go into it."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise DevkitError(f"{folder} is no folder of its own", "Name a new folder.")
    if folder.is_dir() and any(folder.iterdir()):
        raise DevkitError(f"{folder} is not empty", "Name a new folder, or empty this one.")
    if not folder.parent.is_dir():
        raise DevkitError(f"{folder.parent} is no directory, so {folder.name} cannot be made there", "Make it first.")


def find_stored_precision(files: ModelFiles) -> Precision:
    """In what most of the model's weights are stored: a merged model is to be as large as its base."""
    counts: dict[Precision, int] = {}
    for tensor in files.tensors:
        if tensor.dtype in SAFETENSORS_PRECISIONS:
            counts[SAFETENSORS_PRECISIONS[tensor.dtype]] = (
                counts.get(SAFETENSORS_PRECISIONS[tensor.dtype], 0) + tensor.end - tensor.begin
            )
    said = str(files.config.get("dtype") or files.config.get("torch_dtype"))
    by_config = {"float32": Precision.FP32, "float16": Precision.FP16}.get(said, Precision.BF16)
    return max(counts, key=lambda each: counts[each], default=by_config)


def merge_adapter(
    base: LoadedBase, adapter: SavedAdapter, *, precision: Precision, quantisation: BaseQuantization
) -> MergedModel:
    """The adapter added to its base's weights, once. Changes `base` in place.

    A base in 4 or 8 bits is first turned into the 16-bit weights that those bits stand for, which is what the adapter
    was trained on; added to 4-bit weights, most of it would be rounded away. Raises DevkitError where the result is not
    what the adapter said.
    """
    plain = base.model
    if quantisation is not BaseQuantization.NONE:
        with silence_loading():
            plain = plain.dequantize().to(TORCH_DTYPES[precision])
        plain.config.__dict__.pop("quantization_config", None)
    # In fp32, so that only the sum is rounded.
    model = apply_adapter(plain, adapter, precision=Precision.FP32)
    before = _probe(model)
    with torch.no_grad():
        whole = model.merge_and_unload(safe_merge=True)
    after = _probe(whole)
    moved = float((after - before).abs().max() / (before.max() - before.min()))
    if not moved <= MERGE_TOLERANCE[precision]:
        raise DevkitError(
            f"merging moved the logits by {moved:.2g} of their range, and {MERGE_TOLERANCE[precision]:g} is allowed",
            "Use the adapter beside its base; or merge in --precision fp32.",
        )
    return MergedModel(whole, moved)


def _probe(model: Model) -> torch.Tensor:
    """Logits of a few tokens from all over the vocabulary."""
    device = next(model.parameters()).device
    size = model.config.get_text_config().vocab_size
    ids = torch.linspace(0, size - 1, PROBE_TOKENS, device=device).long()[None]
    with torch.no_grad():
        logits: torch.Tensor = model(input_ids=ids).logits.float()
    return logits


def write_merged_model(whole: Model, base: LoadedBase, folder: Path) -> None:
    """Write the model and its base's tokenizer into `folder`, which then is there as a whole or not at all.

    Raises DevkitError for a folder that holds anything, and where the disk is full.
    """
    require_empty_folder(folder)
    scratch = folder.with_name(f"{folder.name}.tmp-{os.getpid()}")
    try:
        with silence_loading():
            whole.save_pretrained(str(scratch))
        base.tokenizer.save_pretrained(str(scratch))
        for file in scratch.iterdir():
            _to_disk(file)
        scratch.replace(folder)
        _to_disk(folder.parent)
    except OSError as error:
        raise DevkitError(f"cannot write {folder}: {error.strerror or error}", "Make room, or name another.") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _to_disk(path: Path) -> None:
    """What is renamed before it is on the disk may be empty after a power cut."""
    if os.name == "nt":
        # Windows flushes handles that were opened for writing alone.
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
