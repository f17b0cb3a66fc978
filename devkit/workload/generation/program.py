"""`devkit generate` after its options are read: resolve the model, load it, answer prompts, measure, or merge."""

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from types import FrameType

from devkit.errors import DevkitError
from devkit.estimate.settings import Method, Precision
from devkit.text import format_number
from devkit.workload.device import Device, choose_device, is_out_of_memory, probe_hardware
from devkit.workload.finetune.decisions import choose_precision
from devkit.workload.finetune.files import BaseQuantization, LoadSettings
from devkit.workload.finetune.model import (
    LoadedBase,
    apply_adapter,
    build_meta_model,
    load_base,
    load_tokenizer,
    require_adapter_fits,
)
from devkit.workload.generation import merging
from devkit.workload.generation.decoding import (
    Completion,
    TextGenerator,
    encode_prompt,
    generate_in_order,
    generate_one,
    remaining_tokens,
)
from devkit.workload.generation.settings import GenerationFiles, Prompt


@contextmanager
def catch_interrupt() -> Iterator[Callable[[], bool]]:
    """Let Ctrl-C set a flag within the block, which the yielded function returns."""
    is_interrupted = False

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        nonlocal is_interrupted
        is_interrupted = True

    previous = signal.signal(signal.SIGINT, interrupt)
    try:
        yield lambda: is_interrupted
    finally:
        signal.signal(signal.SIGINT, previous)


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
    merging.require_empty_folder(folder)
    resolved = resolve_model(files)
    if resolved.adapter is None:
        raise DevkitError("nothing to merge", "Give the adapter with --adapter.")
    precision = resolved.settings.precision or merging.find_stored_precision(resolved.files)
    base = resolved.load(precision)
    quantization = resolved.quantization
    if quantization is not BaseQuantization.NONE:
        remark(f"The base in {quantization.value} was dequantized to {precision.value} for the merge.")
    merged, change = merging.merge_adapter(base, resolved.adapter, precision=precision, quantization=quantization)
    merging.write_merged_model(merged, base, folder)
    remark(
        f"Merged in {precision.value} into {folder}: no logit changed by more than {format_number(change)} of their range "
        f"({merging.MERGE_TOLERANCE[precision]:g} is allowed)."
    )
