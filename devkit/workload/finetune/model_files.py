"""A model's folder looked at before anything heavy starts: is it a whole model of a kind that can be tuned?

Importable without torch: what is wrong with a folder is said within a second.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devkit.errors import DevkitError
from devkit.text import listed
from devkit.workload.finetune.model_choices import Quantisation
from devkit.workload.finetune.model_weights import (
    FETCH_AGAIN,
    Tensor,
    fingerprint,
    fingerprint_of_files,
    refuse_pointer,
    tensors_in,
)

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")
"""One of these is in every folder with a tokenizer; tokenizer_config.json alone holds no vocabulary."""

NOT_GENERATIVE = ("ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
"""Heads that cannot write text on from a prompt."""


@dataclass(frozen=True)
class ModelFiles:
    """What a model's folder holds. `tensors` is empty for weights in PyTorch's own format, which has no header."""

    folder: Path
    config: Mapping[str, Any]
    weights: tuple[Path, ...]
    tensors: tuple[Tensor, ...]

    @property
    def architecture(self) -> str:
        """The model's class, as its configuration calls it."""
        return next(iter(self.config.get("architectures") or ()), str(self.config["model_type"]))

    @property
    def quantised(self) -> Quantisation:
        """How the weights on disk are quantised already."""
        return Quantisation.in_files(self.config)

    @property
    def fingerprint(self) -> str:
        """Which weights these are, see `model_weights.fingerprint`; "" where the format has no header."""
        return fingerprint(self.tensors) if self.tensors else ""

    @property
    def identity(self) -> str:
        """Sixteen hexadecimal digits that tell these weights from others, whatever their format."""
        return (self.fingerprint or fingerprint_of_files(self.weights))[:16]


def examined(folder: Path) -> ModelFiles:
    """The files of a causal language model. Raises DevkitError, with one reason, for any other folder."""
    config = _config(folder)
    _require_known_quantisation(folder, config)
    _require_generative(folder, config)
    weights = _weights(folder)
    for file in weights:
        refuse_pointer(file)
    _require_tokenizer(folder)
    tensors = tuple(tensor for file in weights if file.suffix == ".safetensors" for tensor in tensors_in(file))
    return ModelFiles(folder, config, weights, tensors)


def _config(folder: Path) -> dict[str, Any]:
    file = folder / "config.json"
    if not file.is_file():
        raise _without_config(folder)
    try:
        config = json.loads(file.read_bytes())
    except OSError as error:
        raise DevkitError(f"cannot read {file}: {error.strerror}", "Check its owner and permissions.") from error
    except ValueError as error:
        raise DevkitError(f"{file} is no JSON: {error}", FETCH_AGAIN) from error
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise DevkitError(f"{file} names no model_type", "Name the folder of a model that transformers reads.")
    return config


def _without_config(folder: Path) -> DevkitError:
    if (folder / "adapter_config.json").is_file():
        return DevkitError(
            f"{folder} is an adapter, not a model", "Name the model it was trained on, and the adapter beside it."
        )
    gguf = sorted(folder.glob("*.gguf"))
    if gguf:
        return DevkitError(
            f"{folder} holds {gguf[0].name}: GGUF is for inference by llama.cpp and cannot be tuned",
            "Name the model that it was made from, in safetensors.",
        )
    return DevkitError(f"{folder} has no config.json, so it is no model of transformers", "Name a model's folder.")


def _require_known_quantisation(folder: Path, config: Mapping[str, Any]) -> None:
    how = config.get("quantization_config")
    method = how.get("quant_method") if isinstance(how, dict) else None
    if method and method != "bitsandbytes":
        raise DevkitError(
            f"{folder} is quantised with {method}, which cannot be tuned or merged here",
            "Name the 16-bit model that it was made from; --method qlora then quantises it while it loads.",
        )


def _require_generative(folder: Path, config: Mapping[str, Any]) -> None:
    architectures = [each for each in config.get("architectures") or () if isinstance(each, str)]
    name = next(iter(architectures), config["model_type"])
    if config.get("is_encoder_decoder"):
        raise DevkitError(
            f"{folder} is an encoder-decoder ({name}); devkit tunes decoders alone", "Name a causal language model."
        )
    if architectures and all(each.endswith(NOT_GENERATIVE) for each in architectures):
        raise DevkitError(f"{folder} is {name}, which cannot generate text", "Name a causal language model.")


def _weights(folder: Path) -> tuple[Path, ...]:
    for single, index in (
        ("model.safetensors", "model.safetensors.index.json"),
        ("pytorch_model.bin", "pytorch_model.bin.index.json"),
    ):
        if (folder / index).is_file():
            return _shards(folder / index)
        if (folder / single).is_file():
            return (folder / single,)
    raise DevkitError(f"{folder} has a config.json and no weights", "Fetch model.safetensors, or its parts, too.")


def _shards(index: Path) -> tuple[Path, ...]:
    try:
        names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
        files = tuple(index.parent / name for name in names)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DevkitError(f"{index} is damaged", FETCH_AGAIN) from error
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        shown = listed([*missing[:2], *(["others"] if len(missing) > 2 else [])])
        raise DevkitError(f"{index.parent} lacks {len(missing)} of {len(files)} weight files: {shown}", FETCH_AGAIN)
    return files


def _require_tokenizer(folder: Path) -> None:
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise DevkitError(
            f"{folder} has no tokenizer", "Copy tokenizer.json and tokenizer_config.json from the original model."
        )
