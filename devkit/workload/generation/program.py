"""`devkit generate` after its options are read: resolve the model, load it, answer prompts and measure, or merge an adapter."""

import os
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from types import FrameType

import torch

from devkit.errors import DevkitError
from devkit.estimate.settings import Method, Precision
from devkit.text import format_number
from devkit.whole_files import flush_to_disk
from devkit.workload.device import TORCH_DTYPES, Device, choose_device, is_out_of_memory, probe_hardware
from devkit.workload.finetune.decisions import choose_precision
from devkit.workload.finetune.files import BaseQuantization, LoadSettings, ModelFiles, SavedAdapter
from devkit.workload.finetune.model import (
    LoadedBase,
    apply_adapter,
    build_meta_model,
    load_base,
    load_tokenizer,
    require_adapter_fits,
    silence_loading,
)
from devkit.workload.finetune.process import handle_signals
from devkit.workload.generation.decoding import (
    Completion,
    TextGenerator,
    encode_prompt,
    generate_in_order,
    generate_one,
    remaining_tokens,
)
from devkit.workload.generation.settings import GenerationFiles, Prompt
from devkit.workload.models import Model


@contextmanager
def catch_interrupt() -> Iterator[Callable[[], bool]]:
    """Let Ctrl-C set a flag within the block, which the yielded function returns."""
    is_interrupted = False

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        nonlocal is_interrupted
        is_interrupted = True

    with handle_signals(interrupt, (signal.SIGINT,)):
        yield lambda: is_interrupted


_TUNED_BY = {BaseQuantization.from_method(each): each for each in (Method.LORA, Method.QLORA, Method.INT8_LORA)}
"""Quantization of the base -> the method that trains on it, whose precision it generates in."""


@dataclass(frozen=True)
class ResolvedModel(GenerationFiles):
    """The files of a base and of an adapter that fits it, checked and not loaded."""

    device: Device

    def load(self, precision: Precision) -> LoadedBase:
        """Load the base onto the device and its tokenizer, with the chat template that the adapter was trained with."""
        load_settings = LoadSettings(
            precision=precision, device=f"{self.device.torch_device}", quantization=self.quantization
        )
        try:
            base, tokenizer = load_base(self.files, load_settings), load_tokenizer(self.files.folder)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise DevkitError(
                f"memory ran out while loading {self.files.folder} onto {self.device.name}",
                "Load it in 4 bits with --quantization nf4, or find out what fits: devkit estimate MODEL --inference.",
            ) from error
        if self.adapter and self.adapter.chat_template:
            tokenizer.chat_template = self.adapter.chat_template
        return LoadedBase(self.settings.model, self.files, base, tokenizer)


def resolve_model(found: GenerationFiles) -> ResolvedModel:
    """Check that the adapter fits, before anything large is read. Raises DevkitError."""
    shape = build_meta_model(found.files.folder)
    if found.adapter:
        require_adapter_fits(found.adapter, shape, found.files, any_base=found.settings.any_base)
    device = choose_device(found.settings.precision)
    if not found.settings.precision:
        hardware = probe_hardware(device.torch_device, world_size=1)
        precision, because = choose_precision(_TUNED_BY[found.quantization], hardware)
        device = replace(device, precision=precision, precision_reason=because)
    return ResolvedModel(**vars(found), device=device)


class GenerationSession:
    """A loaded model that answers prompts and measures its speed."""

    def __init__(self, found: ResolvedModel) -> None:
        self._settings = found.settings
        precision = found.device.precision
        base = found.load(precision)
        model = apply_adapter(base.model, found.adapter, precision=precision) if found.adapter else base.model
        self.generator = TextGenerator(model, base.tokenizer)
        self._tokens, self._seconds = 0, 0.0

    def generate(self, prompt: Prompt, show: Callable[[str], None]) -> Completion:
        """Answer one prompt, streamed to `show`. Ctrl-C ends it early."""
        decoding = self._settings.decoding
        started = perf_counter()
        with catch_interrupt() as should_stop:
            ids = self._encode(prompt)
            completion = generate_one(self.generator, ids, decoding, show=show, should_stop=should_stop)
        self._tokens += len(completion.ids)
        self._seconds += perf_counter() - started
        return completion

    def generate_many(self, prompts: Sequence[Prompt]) -> Iterator[Completion]:
        """Answer prompts, in their order."""
        ids = [self._encode(prompt) for prompt in prompts]
        decoding = self._settings.decoding
        started = perf_counter()
        for completion in generate_in_order(self.generator, ids, decoding):
            self._tokens += len(completion.ids)
            yield completion
        self._seconds += perf_counter() - started

    def compute_speed(self) -> dict[str, float]:
        """Return tokens, seconds, and tokens per second of all answers so far, as in devkit.generate/1."""
        speed = self._tokens / self._seconds if self._seconds else 0.0
        return {"tokens": self._tokens, "seconds": round(self._seconds, 3), "tokens_per_s": round(speed, 2)}

    def _encode(self, prompt: Prompt) -> list[int]:
        try:
            ids = encode_prompt(prompt, self.generator.tokenizer, raw=self._settings.raw)
            remaining_tokens(self.generator, len(ids), 1)
        except DevkitError as error:
            # Name the file and line: there may be a thousand.
            message = f"{prompt.place}: {error.message}" if prompt.place else error.message
            raise DevkitError(message, error.hint) from error
        return ids


def merge_adapter_into(files: GenerationFiles, folder: Path, remark: Callable[[str], None]) -> None:
    """Write base and adapter as one model into `folder`, and report what that changed. Raises DevkitError."""
    require_empty_folder(folder)
    resolved = resolve_model(files)
    if resolved.adapter is None:
        raise DevkitError("nothing to merge", "Give the adapter with --adapter.")
    precision = resolved.settings.precision or find_stored_precision(resolved.files)
    base = resolved.load(precision)
    quantization = resolved.quantization
    if quantization is not BaseQuantization.NONE:
        remark(f"The base in {quantization.value} was dequantized to {precision.value} for the merge.")
    merged, change = merge_adapter(base, resolved.adapter, precision=precision, quantization=quantization)
    write_merged_model(merged, base, folder)
    remark(
        f"Merged in {precision.value} into {folder}: no logit changed by more than {format_number(change)} of their range "
        f"({MERGE_TOLERANCE[precision]:g} is allowed)."
    )


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
