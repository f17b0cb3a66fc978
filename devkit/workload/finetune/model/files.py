"""Models and adapters as files: is a folder complete, of a kind that can be tuned, and which weights does it hold?

Importable without torch: what is wrong with a folder is reported within a second.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeAlias

from devkit.errors import DevkitError
from devkit.estimate.settings import Method, Precision
from devkit.text import format_bytes, join_words

Tokenizer: TypeAlias = Any
"""A tokenizer of transformers, of any of its classes, whose own types promise less than they hold."""

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")
"""One of these is in every folder with a tokenizer; tokenizer_config.json alone holds no vocabulary."""

NON_GENERATIVE_HEADS = ("ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
"""Heads that cannot generate text from a prompt."""

MAX_HEADER_BYTES = 100_000_000
"""The limit of the safetensors library itself. Source: https://github.com/huggingface/safetensors#format."""

SAMPLE_BYTES = 1024
LFS_POINTER = b"version https://git-lfs.github.com/"
FETCH_AGAIN_HINT = "Fetch it again; a download or copy may have been cut short."

ADAPTER_CONFIG_FILE = "adapter_config.json"
ADAPTER_WEIGHTS_FILE = "adapter_model.safetensors"
ADAPTER_BASE_FILE = "devkit_base.json"
"""Holds which weights the adapter was trained on; peft's own file holds only their name."""

CHAT_TEMPLATE_FILE = "chat_template.jinja"
"""Holds the chat template of the training, under the name that transformers gives it."""

PEFT_PREFIX = "base_model.model."


class BaseQuantization(StrEnum):
    """The format of the base's linear layers: as they are computed with, in 4 bits, or in 8."""

    NONE = "none"
    NF4 = "nf4"
    INT8 = "int8"

    @classmethod
    def from_method(cls, method: Method) -> "BaseQuantization":
        """Return the quantization of the base under a training method."""
        return {Method.QLORA: cls.NF4, Method.INT8_LORA: cls.INT8}.get(method, cls.NONE)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "BaseQuantization":
        """Return the quantization of the weights on disk, by the config.json beside them."""
        quantization = config.get("quantization_config") or {}
        if quantization.get("load_in_4bit"):
            return cls.NF4
        return cls.INT8 if quantization.get("load_in_8bit") else cls.NONE


def is_packed_before_sharding(in_files: BaseQuantization, method: Method, *, dora: bool) -> bool:
    """Return True if weights are packed before they are sharded, so that each rank reads all of them onto its device.

    These are weights that are packed in their files, and those whose norms DoRA needs when it is attached.
    """
    will_be_packed = BaseQuantization.from_method(method) is not BaseQuantization.NONE
    return in_files is not BaseQuantization.NONE or (will_be_packed and dora)


class WeightPlacement(StrEnum):
    """The place of a base's weights once it is loaded."""

    ONTO_DEVICE = "onto the device"
    MAPPED = "mapped"
    """In their files, which are mapped into memory: they reach devices when they are broadcast."""
    NOWHERE = "nowhere"
    """On the meta device: the model has its shapes, and gets its weights from the rank that reads them."""


@dataclass(frozen=True, kw_only=True)
class LoadSettings:
    """The settings of loading a base onto a device. `device` is named as torch does, `attention` as transformers does.

    `precision` is that of the computation, and of weights that are not quantized. `double_quantisation` also quantizes
    the scales of 4-bit weights, which saves 0.4 bits of each. `is_sharded` is True if FSDP2 will shard the weights;
    `placement` is then where this rank's weights are.
    """

    precision: Precision = Precision.FP32
    device: str = "cpu"
    quantisation: BaseQuantization = BaseQuantization.NONE
    double_quantisation: bool = True
    is_sharded: bool = False
    placement: WeightPlacement = WeightPlacement.ONTO_DEVICE
    attention: str = "sdpa"


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file: `begin` and `end` are bytes from the start of `file`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    begin: int
    end: int


def reject_lfs_pointer(file: Path) -> None:
    """Raise DevkitError if Git LFS left a pointer instead of the file, or the file cannot be read at all."""
    try:
        with file.open("rb") as stream:
            is_pointer = stream.read(len(LFS_POINTER)) == LFS_POINTER
    except OSError as error:
        raise DevkitError(f"cannot read {file}: {error.strerror}", "Check that the file is there and yours.") from error
    if is_pointer:
        raise DevkitError(f"{file} is a pointer of Git LFS, not the file", f"Run git lfs pull in {file.parent}.")


def read_safetensors_header(file: Path) -> tuple[StoredTensor, ...]:
    """Read the tensors' places from the header of a safetensors file. Raises DevkitError for an incomplete file."""
    reject_lfs_pointer(file)
    try:
        size_bytes = file.stat().st_size
        with file.open("rb") as stream:
            start = stream.read(8)
            length = int.from_bytes(start, "little")
            if len(start) < 8 or length > min(size_bytes - 8, MAX_HEADER_BYTES):
                raise DevkitError(f"{file} is not a complete safetensors file", FETCH_AGAIN_HINT)
            header = json.loads(stream.read(length))
        tensors = []
        for name, entry in header.items():
            if name != "__metadata__":
                begin, end = (8 + length + int(offset) for offset in entry["data_offsets"])
                shape = tuple(int(each) for each in entry["shape"])
                tensors.append(StoredTensor(name, str(entry["dtype"]), shape, file, begin, end))
    except OSError as error:
        raise DevkitError(f"{file} cannot be read to its end: {error.strerror}", FETCH_AGAIN_HINT) from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DevkitError(f"{file} has a damaged header", FETCH_AGAIN_HINT) from error
    end = max((each.end for each in tensors), default=0)
    if end > size_bytes:
        raise DevkitError(f"{file} ends after {format_bytes(size_bytes)} of {format_bytes(end)}", FETCH_AGAIN_HINT)
    return tuple(tensors)


def fingerprint_tensors(tensors: Iterable[StoredTensor]) -> str:
    """Return a SHA-256 over every tensor's name, dtype, shape and a kilobyte from its middle.

    Training changes every element of a weight that it trains, so the sample distinguishes a model from the one it was
    tuned from without reading all of it. How the tensors are spread over files does not matter.
    """
    digest = hashlib.sha256()
    for tensor in sorted(tensors, key=lambda each: each.name):
        digest.update(f"{tensor.name} {tensor.dtype} {tensor.shape}\n".encode())
        digest.update(_sample(tensor.file, tensor.begin, tensor.end))
    return digest.hexdigest()


def fingerprint_files(files: Iterable[Path]) -> str:
    """Return the same for weights in a format without a header: a SHA-256 over every file's name, size and middle."""
    digest = hashlib.sha256()
    for file in sorted(files):
        size_bytes = file.stat().st_size
        digest.update(f"{file.name} {size_bytes}\n".encode())
        digest.update(_sample(file, 0, size_bytes))
    return digest.hexdigest()


def _sample(file: Path, begin: int, end: int) -> bytes:
    """Read a kilobyte from the middle between `begin` and `end`."""
    with file.open("rb") as stream:
        stream.seek(max(begin, (begin + end - SAMPLE_BYTES) // 2))
        return stream.read(min(SAMPLE_BYTES, end - begin))


@dataclass(frozen=True)
class ModelFiles:
    """The files of a model's folder. `tensors` is empty for weights in PyTorch's own format, which has no header."""

    folder: Path
    config: Mapping[str, Any]
    weights: tuple[Path, ...]
    tensors: tuple[StoredTensor, ...]

    @property
    def architecture(self) -> str:
        """The model's class, as its configuration names it."""
        return next(iter(self.config.get("architectures") or ()), str(self.config["model_type"]))

    @property
    def quantised(self) -> BaseQuantization:
        """The quantization of the weights on disk."""
        return BaseQuantization.from_config(self.config)

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the weights, see `fingerprint_tensors`; "" if the format has no header."""
        return fingerprint_tensors(self.tensors) if self.tensors else ""

    @property
    def identity(self) -> str:
        """Sixteen hexadecimal digits that distinguish these weights from others, whatever their format."""
        return (self.fingerprint or fingerprint_files(self.weights))[:16]


def inspect_model(folder: Path) -> ModelFiles:
    """Inspect the files of a causal language model. Raises DevkitError, with one reason, for any other folder."""
    config = _read_model_config(folder)
    quantization = config.get("quantization_config")
    method = quantization.get("quant_method") if isinstance(quantization, dict) else None
    if method and method != "bitsandbytes":
        raise DevkitError(
            f"{folder} is quantized with {method}, which cannot be tuned or merged here",
            "Name the 16-bit model that it was made from; --method qlora then quantizes it while it loads.",
        )
    architectures = [each for each in config.get("architectures") or () if isinstance(each, str)]
    name = next(iter(architectures), config["model_type"])
    if config.get("is_encoder_decoder"):
        raise DevkitError(
            f"{folder} is an encoder-decoder ({name}); devkit tunes decoders only", "Name a causal language model."
        )
    if architectures and all(each.endswith(NON_GENERATIVE_HEADS) for each in architectures):
        raise DevkitError(f"{folder} is {name}, which cannot generate text", "Name a causal language model.")
    weights = _find_weights(folder)
    for file in weights:
        reject_lfs_pointer(file)
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise DevkitError(
            f"{folder} has no tokenizer", "Copy tokenizer.json and tokenizer_config.json from the original model."
        )
    tensors = (each for file in weights if file.suffix == ".safetensors" for each in read_safetensors_header(file))
    return ModelFiles(folder, config, weights, tuple(tensors))


def _read_model_config(folder: Path) -> dict[str, Any]:
    file = folder / "config.json"
    if not file.is_file():
        raise _explain_missing_config(folder)
    try:
        config = json.loads(file.read_bytes())
    except OSError as error:
        raise DevkitError(f"cannot read {file}: {error.strerror}", "Check its owner and permissions.") from error
    except ValueError as error:
        raise DevkitError(f"{file} is not JSON: {error}", FETCH_AGAIN_HINT) from error
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise DevkitError(f"{file} names no model_type", "Name the folder of a model that transformers reads.")
    return config


def _explain_missing_config(folder: Path) -> DevkitError:
    if (folder / ADAPTER_CONFIG_FILE).is_file():
        return DevkitError(
            f"{folder} is an adapter, not a model", "Name the model it was trained on, and the adapter beside it."
        )
    return DevkitError(f"{folder} has no config.json, so it is no model of transformers", "Name a model's folder.")


def _find_weights(folder: Path) -> tuple[Path, ...]:
    for single in ("model.safetensors", "pytorch_model.bin"):
        if (folder / f"{single}.index.json").is_file():
            return _find_shards(folder / f"{single}.index.json")
        if (folder / single).is_file():
            return (folder / single,)
    raise DevkitError(f"{folder} has a config.json and no weights", "Fetch model.safetensors, or its shards, too.")


def _find_shards(index: Path) -> tuple[Path, ...]:
    try:
        names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
        files = tuple(index.parent / name for name in names)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DevkitError(f"{index} is damaged", FETCH_AGAIN_HINT) from error
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        shown = join_words([*missing[:2], *(["others"] if len(missing) > 2 else [])])
        raise DevkitError(
            f"{index.parent} lacks {len(missing)} of {len(files)} weight files: {shown}", FETCH_AGAIN_HINT
        )
    return files


@dataclass(frozen=True)
class BaseReference:
    """The base that an adapter was trained on. `fingerprint` is that of `ModelFiles`, "" if it is not known."""

    name: str
    architecture: str = ""
    fingerprint: str = ""

    def to_document(self) -> dict[str, str]:
        """Return the JSON object that is saved beside the adapter."""
        return {"schema": "devkit.adapter/1", **vars(self)}


@dataclass(frozen=True)
class LoraMatrix:
    """One of LoRA's two matrices of a layer: `a` of shape [rank, inputs], `b` of shape [outputs, rank]."""

    layer: str
    letter: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class SavedAdapter:
    """An adapter's folder: its configuration, tensors, and base."""

    folder: Path
    config: dict[str, Any]
    tensors: tuple[StoredTensor, ...]
    base: BaseReference
    chat_template: str = ""

    def lora_matrices(self) -> Iterator[LoraMatrix]:
        """Yield the matrices of linear layers, in the file's order."""
        for tensor in self.tensors:
            for letter in ("a", "b"):
                ending = f".lora_{letter.upper()}.weight"
                if tensor.name.startswith(PEFT_PREFIX) and tensor.name.endswith(ending):
                    yield LoraMatrix(tensor.name.removeprefix(PEFT_PREFIX).removesuffix(ending), letter, tensor.shape)

    def rank_of(self, layer: str) -> int:
        """Return the rank that the configuration gives a layer."""
        patterns: dict[str, int] = self.config.get("rank_pattern") or {}
        special = (rank for name, rank in patterns.items() if layer == name or layer.endswith(f".{name}"))
        return next(special, int(self.config["r"]))


def inspect_adapter(folder: Path) -> SavedAdapter:
    """Inspect the adapter in a folder. Raises DevkitError for any other folder, or a damaged one."""
    config = _read_adapter_config(folder)
    if config.get("peft_type") != "LORA":
        raise DevkitError(f"{folder} is an adapter of kind {config.get('peft_type')}", "devkit reads LoRA and DoRA.")
    if config.get("target_parameters"):
        raise DevkitError(f"{folder} adapts fused experts, which devkit does not", "Use it with peft itself.")
    if not isinstance(config.get("r"), int):
        raise DevkitError(f"{folder / ADAPTER_CONFIG_FILE} names no rank", FETCH_AGAIN_HINT)
    weights = folder / ADAPTER_WEIGHTS_FILE
    if not weights.is_file():
        raise DevkitError(f"{folder} has no {ADAPTER_WEIGHTS_FILE}", "Save the adapter again, in safetensors.")
    tensors = read_safetensors_header(weights)
    base = _read_base_reference(folder, config)
    template = folder / CHAT_TEMPLATE_FILE
    try:
        chat_template = template.read_text(encoding="utf-8") if template.is_file() else ""
    except (OSError, ValueError) as error:
        raise DevkitError(f"{template} cannot be read: {error}", FETCH_AGAIN_HINT) from error
    return SavedAdapter(folder, config, tensors, base, chat_template)


def _read_adapter_config(folder: Path) -> dict[str, Any]:
    file = folder / ADAPTER_CONFIG_FILE
    if not folder.is_dir():
        raise DevkitError(f"there is no folder {folder}", f"Name the folder that holds {ADAPTER_CONFIG_FILE}.")
    if not file.is_file():
        if (folder / "config.json").is_file():
            raise DevkitError(f"{folder} is a whole model, not an adapter", "Name it with --model, without an adapter.")
        inside = sorted(f"{each.parent}" for each in folder.glob(f"*/{ADAPTER_CONFIG_FILE}"))
        hint = f"Did you mean {join_words(inside, 'or')}?" if inside else f"Name the folder that holds {file.name}."
        raise DevkitError(f"{folder} has no {file.name}, so it is no adapter", hint)
    try:
        config = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise DevkitError(f"{file} cannot be read: {error}", FETCH_AGAIN_HINT) from error
    if not isinstance(config, dict):
        raise DevkitError(f"{file} holds no settings", FETCH_AGAIN_HINT)
    return config


def _read_base_reference(folder: Path, config: dict[str, Any]) -> BaseReference:
    file = folder / ADAPTER_BASE_FILE
    if not file.is_file():
        return BaseReference(str(config.get("base_model_name_or_path") or ""))
    try:
        document = json.loads(file.read_bytes())
        return BaseReference(str(document["name"]), str(document["architecture"]), str(document["fingerprint"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DevkitError(f"{file} is damaged", "Delete it to use the adapter on any base that it fits.") from error
