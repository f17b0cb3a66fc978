"""Stages that run `devkit finetune` itself: with the user's own model, and to compare its memory with the estimate."""

import gc
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from devkit.workload.finetune.program import run_finetuning
from devkit.workload.finetune.run_folder import ADAPTER_FOLDER, RECORD_FILE
from devkit.workload.finetune.settings import FinetuneSettings
from devkit.workload.generation.files import Prompt, find_generation_files
from devkit.workload.generation.program import GenerationSession, resolve_model
from devkit.workload.generation.settings import DecodingSettings, GenerateSettings
from devkit.workload.proof.models import write_random_llama
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
"""Every model has this context length."""

LEARNING_RATE = 1e-3
LEARNED_SHARE = 0.9
"""Share of the first loss: eight steps on one sentence bring any model below it, and chance does not."""

ESTIMATED_SEQUENCE = 1024
ESTIMATE_FACTOR = 2.0
"""Beyond it memory is taken that the estimate does not count, such as attention scores written to memory."""


@dataclass(frozen=True)
class FinishedRun:
    """A finished run: its losses, its record, its folder."""

    losses: list[float]
    record: dict[str, Any]
    output: Path


def prove_own_model(proof: ProofModels) -> Iterator[StageReading]:
    """Prove that the model named with --model learns a sentence in a few LoRA steps, and answers with the adapter."""
    model = proof.settings.model
    if not model:
        raise StageSkipped("no model was named with --model")
    settings = FinetuneSettings(
        model=model, sequence=OWN_MODEL_SEQUENCE, batch=1, steps=OWN_MODEL_STEPS, learning_rate=LEARNING_RATE
    )
    ran = _finetune(proof, settings, proof.folder / "own-model")
    yield record_series("losses", ran.losses)
    yield record_value("first_loss", ran.losses[0])
    yield expect_at_most("last_loss", ran.losses[-1], ran.losses[0] * LEARNED_SHARE)
    yield record_value("tokens_per_s", ran.record["tokens_per_s"])
    yield from _compare_memory(ran)
    words = proof.settings.sentence.split()
    prompt = Prompt(" ".join(words[: len(words) // 2]))
    generation = GenerateSettings(
        model=model, adapter=ran.output / ADAPTER_FOLDER, raw=True, decoding=DecodingSettings(tokens=32)
    )
    (answer,) = GenerationSession(resolve_model(find_generation_files(generation))).generate_many([prompt])
    yield record_value("generated", answer.text)
    yield StageReading("generated_characters", len(answer.text), "> 0", bool(answer.text))


def prove_memory_estimate(proof: ProofModels) -> Iterator[StageReading]:
    """Prove that a model of a hundred million parameters trains within the memory that `devkit estimate` says."""
    if proof.device.kind != "cuda":
        raise StageSkipped("memory is counted on CUDA devices alone")
    folder = write_random_llama(proof.folder / "sized", seed=proof.settings.seed)
    settings = FinetuneSettings(model=str(folder), sequence=ESTIMATED_SEQUENCE, batch=4, micro_batch=4, steps=2)
    ran = _finetune(proof, settings, proof.folder / "sized-run")
    yield expect_equal("steps", len(ran.losses), 2)
    yield from _compare_memory(ran)


def _finetune(proof: ProofModels, settings: FinetuneSettings, output: Path) -> FinishedRun:
    """Train on the sentence, repeated. Raises RuntimeError if the run fails."""
    output.parent.mkdir(exist_ok=True)
    text = output.with_suffix(".jsonl")
    # No token of any model is shorter than a character: each line fills a row.
    line = " ".join([proof.settings.sentence] * (settings.sequence // 8))
    text.write_text((json.dumps({"text": line}) + "\n") * settings.batch * OWN_MODEL_STEPS, encoding="utf-8")
    losses: list[float] = []

    def listen(event: dict[str, Any]) -> None:
        if event["event"] == "step":
            losses.append(float(event["loss"]))

    if proof.device.kind == "cuda":
        # Memory that earlier stages left in torch's cache would count as reserved, gigabytes of it.
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    code = run_finetuning(replace(settings, data=(str(text),), output=output), listeners=(listen,))
    record = json.loads((output / RECORD_FILE).read_text(encoding="utf-8"))
    if code != 0:
        raise RuntimeError(f"devkit finetune ended with {code}: {record.get('status')}")
    return FinishedRun(losses, record, output)


def _compare_memory(ran: FinishedRun) -> Iterator[StageReading]:
    """Compare the measured peak with the estimated one, where both are known."""
    measured, estimated = ran.record.get("measured"), ran.record.get("estimated")
    if not measured or not estimated:
        return
    peak, wanted = measured["allocated_peak_bytes"], estimated["allocated_peak_bytes"]
    least, most = wanted / ESTIMATE_FACTOR, wanted * ESTIMATE_FACTOR
    expected = f"{least:.4g} to {most:.4g}; estimate {wanted}"
    yield StageReading("allocated_peak_bytes", peak, expected, least <= peak <= most)
    # `devkit estimate --learn` reads these from a report.
    yield record_value("reserved_peak_bytes", measured["reserved_peak_bytes"])
    yield record_value("estimated_allocated_peak_bytes", wanted)
    yield record_value("estimate_is_off_percent", round(100 * (wanted - peak) / peak, 1))
