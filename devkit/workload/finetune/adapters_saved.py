"""Adapters written to disk, and put back on the base that they were trained on."""

import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch

from devkit.errors import DevkitError
from devkit.estimate.settings import Precision
from devkit.text import count_of
from devkit.workload.finetune.adapters_files import BASE_FILE, TEMPLATE_FILE, SavedAdapter, TrainedOn
from devkit.workload.finetune.adapters_targets import adaptable
from devkit.workload.finetune.model import DTYPES, Loaded, Model
from devkit.workload.finetune.model_files import ModelFiles
from devkit.workload.tuners import PeftConfig, PeftModelForCausalLM, attaching


def save_adapter(model: Model, folder: Path, base: Loaded) -> None:
    """Write the adapter of `model` alone, as safetensors, with a note of its base."""
    # Vocabularies never grow here, so embeddings are never part of an adapter; asking peft to find out asks the hub.
    model.save_pretrained(str(folder), save_embedding_layers=False)
    write_beside(folder, base)


def write_beside(folder: Path, base: Loaded) -> None:
    """What peft does not write: which base the adapter is for, and how the chats were written that it learned from."""
    text = json.dumps(trained_on(base).to_document(), indent=2) + "\n"
    (folder / BASE_FILE).write_text(text, encoding="utf-8")
    if base.tokenizer.chat_template:
        (folder / TEMPLATE_FILE).write_text(base.tokenizer.chat_template, encoding="utf-8")


def trained_on(base: Loaded) -> TrainedOn:
    """What an adapter should remember of its base. A folder is remembered by its whole path."""
    name = os.fspath(Path(base.name).expanduser().resolve()) if Path(base.name).expanduser().is_dir() else base.name
    return TrainedOn(name, base.files.architecture, base.files.fingerprint)


def require_fit(adapter: SavedAdapter, shape: Model, files: ModelFiles, *, any_base: bool = False) -> None:
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
    layers = dict(adaptable(shape))
    halves = list(adapter.halves())
    absent = sorted({half.layer for half in halves} - layers.keys())
    if absent:
        yield f"it adapts {count_of(len(absent), 'layer')} that the model lacks, such as {absent[0]}"
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


def put_on(base: Model, adapter: SavedAdapter, *, precision: Precision, trainable: bool = False) -> Model:
    """The adapter on a base that it fits, its weights in `precision`. Changes `base` in place.

    Raises DevkitError where the adapter's file holds less than its configuration promises: peft only warns then, and
    the layers in question would do nothing.
    """
    config = PeftConfig.from_pretrained(str(adapter.folder))
    config.inference_mode = not trainable
    with attaching(base):
        warnings.filterwarnings("ignore", message="Found missing adapter keys")
        model = PeftModelForCausalLM(base, config, autocast_adapter_dtype=False)
        found = model.load_adapter(
            str(adapter.folder), "default", is_trainable=trainable, autocast_adapter_dtype=False, torch_device="cpu"
        )
    if found.missing_keys:
        lacking = [key for key in found.missing_keys if ".lora_" in key]
        if lacking:
            raise DevkitError(
                f"the adapter in {adapter.folder} lacks {count_of(len(lacking), 'weight')}, such as {lacking[0]}",
                "Save or fetch it again.",
            )
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            parameter.data = parameter.data.to(DTYPES[precision])
    return model if trainable else model.eval()
