"""From settings to a model that answers: what `devkit generate` calls once its flags are read."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from devkit.compat.gpus import find_datasheet
from devkit.errors import DevkitError
from devkit.estimate.settings import Precision
from devkit.text import format_bytes, format_number
from devkit.workload.device import Device, choose_device
from devkit.workload.finetune.memory import is_out_of_memory
from devkit.workload.finetune.model.adapters import apply_adapter, require_adapter_fits
from devkit.workload.finetune.model.files import BaseQuantization, LoadSettings, ModelFiles, SavedAdapter
from devkit.workload.finetune.model.loading import (
    LoadedBase,
    build_meta_model,
    find_load_notes,
    load_base,
    load_tokenizer,
)
from devkit.workload.generation import merging
from devkit.workload.generation.chat import catch_interrupt
from devkit.workload.generation.decoding import (
    Completion,
    TextGenerator,
    generate_in_order,
    generate_one,
    is_compiling_worthwhile,
    remaining_tokens,
)
from devkit.workload.generation.files import GenerationFiles, Prompt
from devkit.workload.generation.settings import DecodingSettings, GenerateSettings
from devkit.workload.generation.tokenization import TextStreamer, encode_prompt
from devkit.workload.models import Model

# How fast answers came, and how near that is to what the GPU's memory allows.


@dataclass(frozen=True)
class GenerationSpeed:
    """Figures of one generation. `rows` were generated side by side; `bandwidth` is the data sheet's, bytes per second.

    Each step reads every weight once, so steps cannot come faster than bandwidth through bytes. The cache of keys and
    values is left out and the prompt's time is not, so the share of that roofline is a lower bound.
    """

    tokens: int
    seconds: float
    rows: int
    bytes_per_step: int
    bandwidth: float | None

    @property
    def tokens_per_s(self) -> float:
        """Over all rows side by side."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def roofline(self) -> float | None:
        """The share of the fastest possible decoding; None where no data sheet is known."""
        if not self.bandwidth:
            return None
        return self.tokens_per_s / max(1, self.rows) * self.bytes_per_step / self.bandwidth

    def to_document(self) -> dict[str, Any]:
        """As it stands in devkit.generate/1."""
        share = {} if self.roofline is None else {"roofline": round(self.roofline, 4)}
        return {
            "tokens": self.tokens,
            "seconds": round(self.seconds, 3),
            "tokens_per_s": round(self.tokens_per_s, 2),
            "bytes_per_step": self.bytes_per_step,
            **share,
        }

    def __str__(self) -> str:
        shown = f"{self.tokens} tokens in {self.seconds:.1f} s: {format_number(self.tokens_per_s)} tokens/s"
        if self.roofline is None:
            return f"{shown}; {format_bytes(self.bytes_per_step)} of weights a step"
        return f"{shown}, {self.roofline:.0%} of what the GPU's memory allows"


def compute_speed(speaker: TextGenerator, *, tokens: int, seconds: float, rows: int) -> GenerationSpeed:
    """The figures of a generation on the speaker's device."""
    name = torch.cuda.get_device_name(speaker.device) if speaker.device.type == "cuda" else ""
    rates = find_datasheet(name) if name else None
    bandwidth = rates.bandwidth_gb_per_s * 1e9 if rates else None
    return GenerationSpeed(tokens, seconds, rows, count_bytes_per_step(speaker.base_model), bandwidth)


def count_bytes_per_step(model: Model) -> int:
    """The bytes that one step reads: all weights but the table of input embeddings, of which it takes single rows."""
    table = model.get_input_embeddings().weight
    head = model.get_output_embeddings()
    is_tied = head is not None and head.weight is table
    total = sum(each.numel() * each.element_size() for each in model.parameters())
    return int(total if is_tied else total - table.numel() * table.element_size())


@dataclass(frozen=True)
class ResolvedModel:
    """The files of a base and of an adapter that fits it, looked at and not loaded."""

    settings: GenerateSettings
    files: ModelFiles
    adapter: SavedAdapter | None
    device: Device

    def load(self, precision: Precision) -> LoadedBase:
        """The base on the device and its tokenizer, with the chat template that the adapter learned from."""
        choices = LoadSettings(
            precision=precision, device=f"{self.device.torch_device}", quantisation=self.quantisation()
        )
        notes = find_load_notes(self.files, choices)
        try:
            base, tokenizer = load_base(self.files, choices), load_tokenizer(self.files.folder)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise DevkitError(
                f"memory ran out while {self.files.folder} was loaded onto {self.device.name}",
                "Keep it in 4 bits with --quantisation nf4; or see what fits: devkit estimate MODEL --inference.",
            ) from error
        if self.adapter and self.adapter.chat_template:
            tokenizer.chat_template = self.adapter.chat_template
        return LoadedBase(self.settings.model, self.files, base, tokenizer, notes)

    def quantisation(self) -> BaseQuantization:
        """Weights that are stored in 4 or 8 bits stay so."""
        return self.settings.quantisation if self.files.quantised is BaseQuantization.NONE else self.files.quantised


def resolve_model(found: GenerationFiles) -> ResolvedModel:
    """What was looked up, refused where the adapter does not fit, before anything large is read."""
    if found.adapter:
        shape = build_meta_model(found.files.folder)
        require_adapter_fits(found.adapter, shape, found.files, any_base=found.settings.any_base)
    return ResolvedModel(found.settings, found.files, found.adapter, choose_device(found.settings.precision))


class GenerationSession:
    """A loaded model that answers prompts, and keeps the time."""

    def __init__(self, found: ResolvedModel) -> None:
        self._settings = found.settings
        precision = found.device.precision
        base = found.load(precision)
        self.notes = base.notes
        model = apply_adapter(base.model, found.adapter, precision=precision) if found.adapter else base.model
        self.generator = TextGenerator(model, base.tokenizer)
        self._tokens, self._seconds, self._rows = 0, 0.0, 1

    def generate(self, prompt: Prompt, show: Callable[[str], None]) -> Completion:
        """The answer to one prompt, shown while it is made. Ctrl-C ends it early."""
        decoding = self._settings.decoding
        words = TextStreamer(self.generator.tokenizer, show, self.generator.find_stop_texts(decoding))
        started = perf_counter()
        with catch_interrupt() as asked:
            answer = generate_one(self.generator, self._ids(prompt), decoding, words=words, asked=asked)
        self._count(len(answer.ids), perf_counter() - started, rows=1)
        return answer

    def generate_many(self, prompts: Sequence[Prompt]) -> Iterator[Completion]:
        """The answers to prompts, in their order."""
        ids = [self._ids(prompt) for prompt in prompts]
        started = perf_counter()
        tokens = 0
        for answer in generate_in_order(self.generator, ids, self._decoding_of(len(ids))):
            tokens += len(answer.ids)
            yield answer
        self._count(tokens, perf_counter() - started, rows=min(len(ids), self._settings.decoding.batch))

    def _decoding_of(self, prompts: int) -> DecodingSettings:
        asked = self._settings.decoding
        if asked.static_cache is not None:
            return asked
        is_static = is_compiling_worthwhile(
            self.generator.device, prompts=prompts, batch=asked.batch, tokens=asked.tokens
        )
        return replace(asked, static_cache=is_static)

    def speed(self) -> GenerationSpeed:
        """The figures of everything that was answered so far."""
        return compute_speed(self.generator, tokens=self._tokens, seconds=self._seconds, rows=self._rows)

    def _ids(self, prompt: Prompt) -> list[int]:
        try:
            ids = encode_prompt(prompt, self.generator.tokenizer, raw=self._settings.raw)
            remaining_tokens(self.generator, len(ids), 1)
        except DevkitError as error:
            # One of a thousand lines: which?
            raise DevkitError(
                f"{prompt.place}: {error.message}" if prompt.place else error.message, error.hint
            ) from error
        return ids

    def _count(self, tokens: int, seconds: float, *, rows: int) -> None:
        self._tokens, self._seconds, self._rows = self._tokens + tokens, self._seconds + seconds, rows


def merge_adapter_into(looked: GenerationFiles, folder: Path, remark: Callable[[str], None]) -> None:
    """Write base and adapter as one model into `folder`, and say what that changed. Raises DevkitError."""
    merging.require_empty_folder(folder)
    found = resolve_model(looked)
    if found.adapter is None:
        raise DevkitError("there is nothing to merge", "Name the adapter with --adapter.")
    precision = found.settings.precision or merging.find_stored_precision(found.files)
    base = found.load(precision)
    quantisation = found.quantisation()
    if quantisation is not BaseQuantization.NONE:
        remark(
            f"The base is in {quantisation.value}: merged into the {precision.value} weights that those bits stand for."
        )
    whole = merging.merge_adapter(base, found.adapter, precision=precision, quantisation=quantisation)
    merging.write_merged_model(whole.model, base, folder)
    allowed = merging.MERGE_TOLERANCE[precision]
    remark(
        f"Merged in {precision.value} into {folder}: no logit moved by more than {format_number(whole.max_logit_change)} of their "
        f"range ({allowed:g} is allowed)."
    )
