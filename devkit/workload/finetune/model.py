"""The model of a run: a base and its tokenizer, loaded from the files straight onto the device, and LoRA or DoRA adapters."""

import json
import math
import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from logging import CRITICAL
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BitsAndBytesConfig,
)
from transformers.pytorch_utils import Conv1D
from transformers.utils import logging

from devkit.errors import DevkitError
from devkit.estimate.settings import ALL_LINEAR, Objective, Precision
from devkit.text import find_similar, format_bytes, format_count, suggest, to_one_line
from devkit.workload.device import TORCH_DTYPES
from devkit.workload.environment import require_bitsandbytes
from devkit.workload.finetune.files import (
    ADAPTER_BASE_FILE,
    ADAPTER_CONFIG_FILE,
    CHAT_TEMPLATE_FILE,
    FETCH_AGAIN_HINT,
    BaseQuantization,
    BaseReference,
    LoadSettings,
    ModelFiles,
    SavedAdapter,
    Tokenizer,
    inspect_model,
    resolve_model_folder,
)
from devkit.workload.finetune.process import limit_time
from devkit.workload.finetune.settings import FinetuneSettings
from devkit.workload.models import (
    LoraConfig,
    Model,
    PeftConfig,
    PeftModelForCausalLM,
    adapter_injection,
    build_int8_config,
    build_nf4_config,
    get_peft_model,
    prepare_4bit_layers,
)

MAX_PARAMETERS_PER_BYTE = 4
"""Those of 4 bits have two."""

CPU_KERNEL_BLOCK = 32
"""bitsandbytes 0.50, functional.py, _convert_weight_packed_for_cpu: block_n."""


@dataclass(frozen=True)
class LoadedBase:
    """A base ready for use. `name` is what the user called it."""

    name: str
    files: ModelFiles
    model: Model
    tokenizer: Tokenizer


@dataclass(frozen=True)
class FusedExperts:
    """Weights of experts that are one parameter of three dimensions."""

    tensors: int
    parameters: int

    def describe(self, precision: Precision) -> str:
        """Return a note for people: bitsandbytes and adapters are for linear layers only."""
        return (
            f"{format_count(self.tensors, 'expert weight')} with {self.parameters:,} parameters are fused: they get no "
            f"adapter, and stay in {precision.value}, which takes {format_bytes(self.parameters * precision.bytes)}"
        )


def load_base_and_tokenizer(name: str, settings: LoadSettings) -> LoadedBase:
    """Load the model called `name`, a folder or a hub id, in evaluation mode.

    Each tensor goes from the file to the device and is quantized there, so the host never holds the whole model.
    Raises DevkitError for a model that does not exist, is damaged, or is not a causal language model.
    """
    files = inspect_model(resolve_model_folder(name))
    model = load_base(files, settings)
    return LoadedBase(name, files, model, load_tokenizer(files.folder))


def load_tokenizer(folder: Path) -> Tokenizer:
    """Load the tokenizer in a model's folder. Code that comes with a model is never run."""
    try:
        return AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # the tokenizers library raises plain exceptions
        raise DevkitError(
            f"the tokenizer in {folder} cannot be read: {to_one_line(str(error))}",
            "Copy tokenizer.json and tokenizer_config.json from the original model.",
        ) from error


def build_meta_model(folder: Path) -> Model:
    """Build the model of a folder on torch's meta device, with shapes and no weights.

    Raises DevkitError for a configuration of no model, and for one that its weights do not hold: the rest would be made.
    """
    try:
        config = AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except Exception as error:  # whatever the numbers of a stranger's configuration lead to
        raise explain_load_error(folder, error) from error
    parameters = sum(each.numel() for each in model.parameters())
    stored_bytes = sum(file.stat().st_size for kind in ("*.safetensors", "*.bin") for file in folder.glob(kind))
    if stored_bytes and parameters > MAX_PARAMETERS_PER_BYTE * stored_bytes:
        raise DevkitError(
            f"{folder / 'config.json'} declares {parameters:,} parameters, but the weights have {format_bytes(stored_bytes)}",
            "Use both files from the same model.",
        )
    return model


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

    If they stay mapped, 4-bit layers have weights that are packed once they reach a device.
    """
    if files.quantized not in (BaseQuantization.NONE, settings.quantization):
        raise DevkitError(
            f"the weights in {files.folder} are already quantized to {files.quantized.value}",
            "Train on them with the method of that quantization, or use the original 16-bit model.",
        )
    if settings.quantization is not BaseQuantization.NONE:
        require_bitsandbytes(f"a base in {settings.quantization}", without="a 16-bit base, as with --method lora")
    if not settings.is_mapped:
        return _load_weights(files, settings)
    model = _load_weights(files, replace(settings, quantization=BaseQuantization.NONE, device="cpu"))
    if settings.quantization is BaseQuantization.NF4:
        prepare_4bit_layers(model, _build_quantization_config(settings))
    return model.eval()


def _load_weights(files: ModelFiles, settings: LoadSettings) -> Model:
    """Load the weights onto the device of `settings`. On the CPU they stay in the file until something changes them."""
    quantization = {}
    if files.quantized is BaseQuantization.NONE and settings.quantization is not BaseQuantization.NONE:
        # Given as None, it would hide the quantization of the weights that the model's own configuration declares.
        quantization["quantization_config"] = _build_quantization_config(settings)
    dtype = TORCH_DTYPES[settings.precision]
    loader: Any = AutoModelForSequenceClassification if settings.scores else AutoModelForCausalLM
    try:
        with silence_loading():
            model, report = loader.from_pretrained(
                str(files.folder),
                dtype=dtype,
                attn_implementation=settings.attention,
                device_map={"": torch.device(settings.device)},
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
                **({"num_labels": 1} if settings.scores else {}),
                **quantization,
            )
    except (SafetensorError, UnpicklingError) as error:
        cause = to_one_line(str(error))
        raise DevkitError(f"a weight file in {files.folder} is damaged: {cause}", FETCH_AGAIN_HINT) from error
    except (ValueError, KeyError, ImportError, TypeError, AttributeError, RecursionError) as error:
        raise explain_load_error(files.folder, error) from error
    if settings.scores:
        report["missing_keys"] = set(report["missing_keys"]) - {SCORE_WEIGHT}
    _require_complete(files, report)
    for module in model.modules():
        # Weights that were saved in 4 bits come with their own compute dtype; ours takes precedence.
        if hasattr(module, "compute_dtype"):
            module.compute_dtype = dtype
    disable_cpu_avx512_kernel(model)
    return model.eval()


def _build_quantization_config(settings: LoadSettings) -> BitsAndBytesConfig:
    if settings.quantization is BaseQuantization.INT8:
        return build_int8_config()
    dtype = TORCH_DTYPES[settings.precision]
    storage = dtype if settings.is_sharded else torch.uint8
    return build_nf4_config(dtype, storage=storage)


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


def disable_cpu_avx512_kernel(model: Model) -> None:
    """Disable bitsandbytes's AVX512 kernel for 4-bit layers that it cannot compute.

    On CPUs with AVX512-BF16, layers in evaluation mode lay their weights out for a kernel that takes outputs by 32 and
    inputs by whole blocks: any other width would fail there, with an assertion. Source: bitsandbytes 0.50,
    functional.py, _convert_weight_packed_for_cpu, and nn/modules.py, Linear4bit.forward.
    """
    for module in model.modules():
        state = getattr(getattr(module, "weight", None), "quant_state", None)
        if state is None or not getattr(module, "support_avx512bf16_for_cpu", False):
            continue
        outputs, inputs = state.shape
        if outputs % CPU_KERNEL_BLOCK or inputs % state.blocksize:
            module.support_avx512bf16_for_cpu = False


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
            f"{files.folder}: {mismatched[0]} and config.json declare different shapes",
            "Use both files from the same model.",
        )


def explain_load_error(folder: Path, error: Exception) -> DevkitError:
    """Explain why transformers cannot build the model: too old, code that is not run, or a missing package."""
    from transformers import __version__

    cause = to_one_line(str(error))
    if "trust_remote_code" in cause or "custom code" in cause:
        return DevkitError(f"{folder} contains custom code, which devkit does not run", "Use a model without it.")
    if isinstance(error, ImportError):
        return DevkitError(f"{folder} needs a package that is not installed", cause)
    if "Unrecognized configuration class" in cause:
        return DevkitError(f"{folder} is not a model that generates text", "Use a causal language model.")
    if isinstance(error, KeyError) or "does not recognize" in cause or "Unrecognized model" in cause:
        return DevkitError(
            f"transformers {__version__} does not know the architecture of {folder}",
            "A newer release may support it: pip install --upgrade transformers.",
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


SCORE_WEIGHT = "score.weight"
"""The head of transformers' decoders for sequence classification."""

EXPERT_LAYER_NAMES = frozenset({"gate", "gate_proj", "up_proj", "down_proj", "w1", "w2", "w3"})
"""Source: peft 0.21, peft/utils/transformers_weight_conversion.py, _MOE_TARGET_MODULE_MAPPING."""

PATTERN_TIMEOUT_S = 2.0
"""Patterns for names take microseconds."""


def resolve_targets(model: Model, targets: Sequence[str]) -> str | list[str]:
    """Resolve the target modules for peft. Raises DevkitError for a name that no layer has.

    A name is the last part of a layer's, such as q_proj, or more of it, such as layers.0.self_attn.q_proj.
    """
    if tuple(targets) == ALL_LINEAR:
        return ALL_LINEAR[0] if find_fused_experts(model) is None else _linear_names_beside_experts(model)
    # bitsandbytes's layers are linear ones, too.
    layers = {name: each for name, each in model.named_modules() if isinstance(each, nn.Linear | nn.Embedding | Conv1D)}
    head = model.get_output_embeddings()
    is_tied = head is not None and head.weight is model.get_input_embeddings().weight
    tied = [name for name, each in layers.items() if is_tied and each is head]
    for name in targets:
        if any(_matches(name, layer) for layer in tied):
            raise DevkitError(
                f"{name} cannot get an adapter: in this model, it shares its weight with the embedding, so merging "
                "would change both",
                "Leave that layer out; all-linear targets every other linear layer.",
            )
        if not any(_matches(name, layer) for layer in layers):
            raise _explain_unknown_target(name, {layer: layers[layer] for layer in layers if layer not in tied})
    return list(targets)


def _matches(name: str, layer: str) -> bool:
    return layer == name or layer.endswith(f".{name}")


def _linear_names_beside_experts(model: Model) -> list[str]:
    """Return the last parts of the names of a mixture's linear layers, without its head.

    peft takes all-linear, and names that its fused experts once had, to mean the experts as well: it would put
    adapters on them that recompute the whole weight in each pass, and that other programs do not read.
    """
    head = model.get_output_embeddings()
    linear = (name for name, each in model.named_modules() if isinstance(each, nn.Linear) and each is not head)
    return sorted({name.rpartition(".")[2] for name in linear} - EXPERT_LAYER_NAMES)


def _explain_unknown_target(name: str, layers: dict[str, nn.Module]) -> DevkitError:
    known = dict.fromkeys(
        layer.rpartition(".")[2] for layer, module in layers.items() if not isinstance(module, nn.Embedding)
    )
    # A name of several parts is compared by its last part, too.
    near = find_similar(name.rpartition(".")[2], known)
    hint = [suggest(near, "")] if near else []
    if "," in name:
        hint = ["Repeat the flag for each."]
    hint.append(f"Use one of {', '.join(known)}, or all-linear.")
    return DevkitError(f"the model does not have a layer called {name}", "\n".join(hint))


def attach_adapter(base: Model, settings: FinetuneSettings, *, precision: Precision) -> Model:
    """Attach a new trainable adapter to the layers that `settings.targets` names, with weights in `precision`.

    Changes `base` in place and freezes its weights. The adapter is initialized from `settings.seed` alone, so every
    rank has the same. Raises DevkitError for a target that the model does not have.
    """
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=resolve_targets(base, settings.targets),
        use_dora=settings.dora,
        # peft also trains the head of a SEQ_CLS, and saves it with the adapter.
        task_type="SEQ_CLS" if settings.objective is Objective.REWARD else "CAUSAL_LM",
    )
    devices = list({parameter.device for parameter in base.parameters() if parameter.device.type == "cuda"})
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(settings.seed)
        with adapter_injection(base):
            model = get_peft_model(base, config, autocast_adapter_dtype=False)
    for parameter in trainable_parameters(model):
        parameter.data = parameter.data.to(TORCH_DTYPES[precision])
    return model


def trainable_parameters(model: Model) -> list[nn.Parameter]:
    """Return the trainable parameters, in the model's order."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def write_adapter_metadata(folder: Path, base: LoadedBase) -> None:
    """Write what peft does not: which base the adapter is for, and the chat template of the training."""
    path = Path(base.name).expanduser()
    # A folder is named by its absolute path.
    name = os.fspath(path.resolve()) if path.is_dir() else base.name
    reference = BaseReference(name, base.files.architecture, base.files.fingerprint)
    text = json.dumps(reference.to_document(), indent=2) + "\n"
    (folder / ADAPTER_BASE_FILE).write_text(text, encoding="utf-8")
    if base.tokenizer.chat_template:
        (folder / CHAT_TEMPLATE_FILE).write_text(base.tokenizer.chat_template, encoding="utf-8")


def require_adapter_fits(adapter: SavedAdapter, shape: Model, files: ModelFiles, *, any_base: bool = False) -> None:
    """Raise DevkitError for an adapter of another base, with the reason. `shape` is the base without weights.

    peft attaches the adapter to it. With `any_base`, equal shapes are enough: the weights may be others than those it
    was trained on.
    """
    base = adapter.base
    hint = "Give the model that it was trained on."
    if base.name:
        other = f", a {base.architecture}" if base.architecture and base.architecture != files.architecture else ""
        hint = f"It was trained on {base.name}{other}: use that model."
    _require_bounded_patterns(adapter, [name for name, _ in shape.named_modules()])
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".* to a meta parameter in the current model, which is a no-op")
            apply_adapter(shape, adapter, precision=Precision.FP32)
    except Exception as error:  # whatever the values of a stranger's configuration lead to
        # torch begins with a title, and has a line for each weight.
        cause = to_one_line(str(error).partition("\n")[2].strip().partition("\n")[0] or str(error))
        raise DevkitError(f"the adapter in {adapter.folder} does not fit {files.folder}: {cause}", hint) from error
    wanted, found = base.fingerprint, files.fingerprint
    if wanted and found and wanted != found and not any_base:
        raise DevkitError(
            f"the adapter in {adapter.folder} was trained on other weights ({wanted[:12]}) "
            f"than those in {files.folder} ({found[:12]})",
            f"{hint}\nUse it anyway with --any-base.",
        )


def _require_bounded_patterns(adapter: SavedAdapter, modules: Sequence[str]) -> None:
    """Raise DevkitError for names and patterns of a configuration that peft would try for longer than a model takes."""
    for key in ("target_modules", "exclude_modules", "rank_pattern", "alpha_pattern"):
        value = adapter.config.get(key) or ()
        patterns = list(value) if isinstance(value, list | dict) else [value] if value else []
        problem = (
            f"{len(patterns):,} entries, but the model has only {len(modules):,} modules"
            if len(patterns) > len(modules)
            else ""
        )
        try:
            with limit_time(PATTERN_TIMEOUT_S):
                for pattern in [] if problem else [each for each in patterns if re.search(r"[^\w.]", each)]:
                    for module in modules:
                        re.match(rf"(.*\.)?({pattern})$", module)
        except (TimeoutError, TypeError, re.error, RecursionError, OverflowError) as error:
            problem = to_one_line(str(error))
        if problem:
            raise DevkitError(
                f"{adapter.folder / ADAPTER_CONFIG_FILE}: {key}: {problem}", "Use an adapter from an author you trust."
            )


def apply_adapter(base: Model, adapter: SavedAdapter, *, precision: Precision) -> Model:
    """Load the adapter onto its base, its weights in `precision`. Changes `base` in place.

    Raises ValueError if file and model do not have the same weights: peft only warns then, and the layers in question
    would do nothing.
    """
    config = PeftConfig.from_pretrained(str(adapter.folder))
    config.inference_mode = True
    with adapter_injection(base):
        warnings.filterwarnings("ignore", message="Found missing adapter keys")
        model = PeftModelForCausalLM(base, config, autocast_adapter_dtype=False)
        found = model.load_adapter(str(adapter.folder), "default", autocast_adapter_dtype=False, torch_device="cpu")
    if lacking := [key for key in found.missing_keys or () if ".lora_" in key]:
        raise ValueError(f"it lacks {format_count(len(lacking), 'weight')}, such as {lacking[0]}")
    if found.unexpected_keys:
        weights = format_count(len(found.unexpected_keys), "weight")
        raise ValueError(
            f"it has {weights} for layers that the model does not have, such as {found.unexpected_keys[0]}"
        )
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            parameter.data = parameter.data.to(TORCH_DTYPES[precision])
    return model.eval()
