"""Stages that go through `devkit finetune` itself: with the user's own model, and for the memory that it takes."""

import gc
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from devkit.workload import models
from devkit.workload.finetune.program import run_finetuning
from devkit.workload.finetune.run_folder import ADAPTER_FOLDER, RECORD_FILE
from devkit.workload.finetune.settings import FinetuneSettings
from devkit.workload.generation.files import Prompt, find_generation_files
from devkit.workload.generation.program import GenerationSession, resolve_model
from devkit.workload.generation.settings import DecodingSettings, GenerateSettings
from devkit.workload.proof.stages import (
    StageReading,
    StageSkipped,
    expect_at_most,
    expect_equal,
    record_series,
    record_value,
)
from devkit.workload.proof.training import ProofModels

OWN_MODEL_STEPS = 8
OWN_MODEL_SEQUENCE = 128
"""Every model reads rows of so many tokens."""

LEARNING_RATE = 1e-3
LEARNED_SHARE = 0.9
"""Of the first loss: eight steps on one sentence bring any model below it, and chance does not."""

ESTIMATED_SEQUENCE = 1024
ESTIMATE_FACTOR = 2.0
"""Beyond it memory goes somewhere that nobody accounts for, such as attention that writes all scores out."""


@dataclass(frozen=True)
class FinishedRun:
    """A finished run: its losses, its record, its folder."""

    losses: list[float]
    record: dict[str, Any]
    output: Path


def prove_own_model(bench: ProofModels) -> Iterator[StageReading]:
    """The model that was named learns a sentence with LoRA in a few steps, and answers with the adapter."""
    model = bench.settings.model
    if not model:
        raise StageSkipped("no model was named with --model")
    settings = FinetuneSettings(
        model=model, sequence=OWN_MODEL_SEQUENCE, batch=1, steps=OWN_MODEL_STEPS, learning_rate=LEARNING_RATE
    )
    ran = _finetuned(bench, settings, bench.folder / "own-model")
    yield record_series("losses", ran.losses)
    yield record_value("first_loss", ran.losses[0])
    yield expect_at_most("last_loss", ran.losses[-1], ran.losses[0] * LEARNED_SHARE)
    yield record_value("tokens_per_s", ran.record["tokens_per_s"])
    yield from _memory(ran)
    words = bench.settings.sentence.split()
    answer = _answered(model, ran.output / ADAPTER_FOLDER, " ".join(words[: len(words) // 2]))
    yield record_value("generated", answer)
    yield StageReading("generated_characters", len(answer), "> 0", bool(answer))


def prove_memory_estimate(bench: ProofModels) -> Iterator[StageReading]:
    """A model of a hundred million parameters trains within the memory that `devkit estimate` says."""
    if bench.device.kind != "cuda":
        raise StageSkipped("memory is counted on CUDA devices alone")
    folder = models.write_random_llama(bench.folder / "sized", seed=bench.settings.seed)
    settings = FinetuneSettings(model=str(folder), sequence=ESTIMATED_SEQUENCE, batch=4, micro_batch=4, steps=2)
    ran = _finetuned(bench, settings, bench.folder / "sized-run")
    yield expect_equal("steps", len(ran.losses), 2)
    yield from _memory(ran)


def _finetuned(bench: ProofModels, settings: FinetuneSettings, output: Path) -> FinishedRun:
    """Train on the sentence, over and over. Raises RuntimeError where the run does not end well."""
    output.parent.mkdir(exist_ok=True)
    text = output.with_suffix(".jsonl")
    # No token of any model is shorter than a character: each line fills a row.
    line = " ".join([bench.settings.sentence] * (settings.sequence // 8))
    text.write_text((json.dumps({"text": line}) + "\n") * settings.batch * OWN_MODEL_STEPS, encoding="utf-8")
    losses: list[float] = []

    def listen(event: dict[str, Any]) -> None:
        if event["event"] == "step":
            losses.append(float(event["loss"]))

    if bench.device.kind == "cuda":
        _count_from_here()
    code = run_finetuning(replace(settings, data=(str(text),), output=output), listeners=(listen,))
    record = json.loads((output / RECORD_FILE).read_text(encoding="utf-8"))
    if code != 0:
        raise RuntimeError(f"devkit finetune ended with {code}: {record.get('status')}")
    return FinishedRun(losses, record, output)


def _count_from_here() -> None:
    """Let torch give back what stages before left in its cache: it counts as reserved, gigabytes of it."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def _memory(ran: FinishedRun) -> Iterator[StageReading]:
    """The measured peak beside the estimated one, where both are known."""
    measured, estimated = ran.record.get("measured"), ran.record.get("estimated")
    if not measured or not estimated:
        return
    peak, wanted = measured["allocated_peak_bytes"], estimated["allocated_peak_bytes"]
    least, most = wanted / ESTIMATE_FACTOR, wanted * ESTIMATE_FACTOR
    expected = f"{least:.4g} to {most:.4g}; estimate {wanted}"
    yield StageReading("allocated_peak_bytes", peak, expected, least <= peak <= most)
    # What `devkit estimate --learn` reads of a report.
    yield record_value("reserved_peak_bytes", measured["reserved_peak_bytes"])
    yield record_value("estimated_allocated_peak_bytes", wanted)
    yield record_value("estimate_is_off_percent", round(100 * (wanted - peak) / peak, 1))


def _answered(model: str, adapter: Path, prompt: str) -> str:
    settings = GenerateSettings(model=model, adapter=adapter, raw=True, decoding=DecodingSettings(tokens=32))
    (answer,) = GenerationSession(resolve_model(find_generation_files(settings))).generate_many([Prompt(prompt)])
    return answer.text
