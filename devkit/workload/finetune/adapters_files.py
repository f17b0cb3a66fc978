"""An adapter's folder looked at before its base is loaded. Importable without torch."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devkit.errors import DevkitError
from devkit.text import listed
from devkit.workload.finetune.model_weights import FETCH_AGAIN, Tensor, tensors_in

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
BASE_FILE = "devkit_base.json"
"""What peft's own file does not say: which weights the adapter was trained on, not only what they were called."""

TEMPLATE_FILE = "chat_template.jinja"
"""How the chats were written that the adapter learned from, under the name that transformers gives it."""

PREFIX = "base_model.model."


@dataclass(frozen=True)
class TrainedOn:
    """The base of an adapter. `fingerprint` is that of `ModelFiles`, "" where it is not known."""

    name: str
    architecture: str = ""
    fingerprint: str = ""

    def to_document(self) -> dict[str, str]:
        """As it stands beside the adapter."""
        return {"schema": "devkit.adapter/1", **vars(self)}


@dataclass(frozen=True)
class Half:
    """One of the two matrices of LoRA on one layer: `a` of shape [rank, inputs], `b` of shape [outputs, rank]."""

    layer: str
    letter: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class SavedAdapter:
    """What an adapter's folder says of itself."""

    folder: Path
    config: dict[str, Any]
    tensors: tuple[Tensor, ...]
    base: TrainedOn
    chat_template: str = ""

    def halves(self) -> Iterator[Half]:
        """The matrices of linear layers, in the file's order."""
        for tensor in self.tensors:
            for letter in ("a", "b"):
                ending = f".lora_{letter.upper()}.weight"
                if tensor.name.startswith(PREFIX) and tensor.name.endswith(ending):
                    yield Half(tensor.name.removeprefix(PREFIX).removesuffix(ending), letter, tensor.shape)

    def rank_of(self, layer: str) -> int:
        """The rank that the configuration gives a layer."""
        patterns: dict[str, int] = self.config.get("rank_pattern") or {}
        special = (rank for name, rank in patterns.items() if layer == name or layer.endswith(f".{name}"))
        return next(special, int(self.config["r"]))


def examined_adapter(folder: Path) -> SavedAdapter:
    """The adapter in a folder. Raises DevkitError for any other folder, or a damaged one."""
    config = _config(folder)
    if config.get("peft_type") != "LORA":
        raise DevkitError(f"{folder} is an adapter of kind {config.get('peft_type')}", "devkit reads LoRA and DoRA.")
    if config.get("target_parameters"):
        raise DevkitError(f"{folder} adapts fused experts, which devkit does not", "Use it with peft itself.")
    if not isinstance(config.get("r"), int):
        raise DevkitError(f"{folder / CONFIG_FILE} names no rank", FETCH_AGAIN)
    weights = folder / WEIGHTS_FILE
    if not weights.is_file():
        raise DevkitError(f"{folder} has no {WEIGHTS_FILE}", "Save the adapter again, in safetensors.")
    return SavedAdapter(folder, config, tensors_in(weights), _base(folder, config), _template(folder))


def _config(folder: Path) -> dict[str, Any]:
    file = folder / CONFIG_FILE
    if not folder.is_dir():
        raise DevkitError(f"there is no folder {folder}", "Name the folder that holds adapter_config.json.")
    if not file.is_file():
        raise _no_adapter(folder)
    try:
        config = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise DevkitError(f"{file} cannot be read: {error}", FETCH_AGAIN) from error
    if not isinstance(config, dict):
        raise DevkitError(f"{file} holds no settings", FETCH_AGAIN)
    return config


def _no_adapter(folder: Path) -> DevkitError:
    if (folder / "config.json").is_file():
        return DevkitError(f"{folder} is a whole model, not an adapter", "Name it with --model, without an adapter.")
    inside = sorted(f"{each.parent}" for each in folder.glob(f"*/{CONFIG_FILE}"))
    hint = f"Did you mean {listed(inside, 'or')}?" if inside else f"Name the folder that holds {CONFIG_FILE}."
    return DevkitError(f"{folder} has no {CONFIG_FILE}, so it is no adapter", hint)


def _base(folder: Path, config: dict[str, Any]) -> TrainedOn:
    name = str(config.get("base_model_name_or_path") or "")
    file = folder / BASE_FILE
    if not file.is_file():
        return TrainedOn(name)
    try:
        said = json.loads(file.read_bytes())
        return TrainedOn(str(said["name"]), str(said["architecture"]), str(said["fingerprint"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DevkitError(f"{file} is damaged", "Delete it to use the adapter on any base that it fits.") from error


def _template(folder: Path) -> str:
    file = folder / TEMPLATE_FILE
    try:
        return file.read_text(encoding="utf-8") if file.is_file() else ""
    except (OSError, ValueError) as error:
        raise DevkitError(f"{file} cannot be read: {error}", FETCH_AGAIN) from error
