"""Stages that run `devkit finetune` itself: with the user's own model, and to compare its memory with the estimate."""

import gc
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from devkit.estimate.settings import Objective
from devkit.workload.environment import find_installed_version
from devkit.workload.finetune.events import ADAPTER_FOLDER, METRICS_FILE, Event, read_events
from devkit.workload.finetune.program import run_finetuning
from devkit.workload.finetune.run_folder import RECORD_FILE
from devkit.workload.finetune.settings import FinetuneSettings
from devkit.workload.generation.program import GenerationSession, resolve_model
from devkit.workload.generation.settings import DecodingSettings, GenerateSettings, Prompt, find_generation_files
from devkit.workload.proof.models import ProofModels, write_random_llama
from devkit.workload.proof.stages import (
    StageReading,
    StageSkipped,
    expect_above,
    expect_at_most,
    expect_equal,
)
from devkit.workload.proof.standalone import SEED, SENTENCE

OWN_MODEL_STEPS = 8
OWN_MODEL_SEQUENCE = 128
"""Every model has this context length."""

LEARNING_RATE = 1e-3
LEARNED_SHARE = 0.9
"""Share of the first loss: eight steps on one sentence bring any model below it, and chance does not."""

PREFERENCE_LEARNING_RATE = 5e-3

ESTIMATED_SEQUENCE = 1024
ESTIMATE_FACTOR = 2.0
"""Beyond it memory is taken that the estimate does not count, such as attention scores written to memory."""


@dataclass(frozen=True)
class FinishedRun:
    """A finished run: its events, its record, its folder."""

    events: list[Event]
    record: dict[str, Any]
    output: Path

    @property
    def losses(self) -> list[float]:
        """The loss of each step."""
        return [float(each["loss"]) for each in self.events if each["event"] == "step"]


def prove_own_model(proof: ProofModels) -> Iterator[StageReading]:
    """Prove that the model named with --model learns a sentence in a few LoRA steps, and answers with the adapter."""
    model = proof.settings.model
    if not model:
        raise StageSkipped("no model was given with --model")
    settings = FinetuneSettings(
        model=model, sequence=OWN_MODEL_SEQUENCE, batch=1, steps=OWN_MODEL_STEPS, learning_rate=LEARNING_RATE
    )
    ran = _finetune(proof, settings, proof.folder / "own-model")
    yield StageReading("losses", tuple(ran.losses))
    yield StageReading("first_loss", ran.losses[0])
    yield expect_at_most("last_loss", ran.losses[-1], ran.losses[0] * LEARNED_SHARE)
    yield StageReading("tokens_per_s", ran.record["tokens_per_s"])
    yield from _compare_memory(ran)
    generation = GenerateSettings(
        model=model, adapter=ran.output / ADAPTER_FOLDER, raw=True, decoding=DecodingSettings(tokens=32)
    )
    session = GenerationSession(resolve_model(find_generation_files(generation)))
    # The adapter as it was saved, loaded by peft: what was learned is there, and switches off.
    with_adapter = _compute_sentence_loss(session)
    with session.generator.model.disable_adapter():
        without_adapter = _compute_sentence_loss(session)
    yield StageReading("loss_without_adapter", without_adapter)
    yield expect_at_most("loss_with_adapter", with_adapter, without_adapter * LEARNED_SHARE)
    words = SENTENCE.split()
    (answer,) = session.generate_many([Prompt(" ".join(words[: len(words) // 2]))])
    yield StageReading("generated", answer.text)
    yield StageReading("generated_characters", len(answer.text), "> 0", bool(answer.text))


def _compute_sentence_loss(session: GenerationSession) -> float:
    """Compute the mean loss of the sentence in nats a token."""
    model = session.generator.model
    ids = torch.tensor([session.generator.tokenizer(SENTENCE)["input_ids"]], device=session.generator.device)
    with torch.no_grad():
        logits = model(input_ids=ids).logits[0, :-1].float()
    return float(torch.nn.functional.cross_entropy(logits, ids[0, 1:]))


def prove_memory_estimate(proof: ProofModels) -> Iterator[StageReading]:
    """Prove that a model of a hundred million parameters trains within the memory that `devkit estimate` says."""
    if proof.device.kind != "cuda":
        raise StageSkipped("memory is counted only on CUDA devices")
    folder = write_random_llama(proof.folder / "sized", seed=SEED)
    settings = FinetuneSettings(model=str(folder), sequence=ESTIMATED_SEQUENCE, batch=4, micro_batch=4, steps=2)
    ran = _finetune(proof, settings, proof.folder / "sized-run")
    yield expect_equal("steps", len(ran.losses), 2)
    yield from _compare_memory(ran)


def prove_preferences(proof: ProofModels) -> Iterator[StageReading]:
    """Prove that DPO by TRL has a model prefer the chosen answers to prompts that it was not trained on."""
    if find_installed_version("trl") is None:
        raise StageSkipped("TRL is not installed")
    model = write_random_llama(proof.folder / "policy", seed=SEED, hidden=128, layers=2)
    pairs = [{"prompt": f"{letter}?", "chosen": " yes, please", "rejected": " no, never"} for letter in "abcdefghijkl"]
    data = model.with_suffix(".jsonl")
    data.write_text("".join(json.dumps(each) + "\n" for each in pairs), encoding="utf-8")
    given: dict[str, Any] = {"model": str(model), "data": (str(data),), "output": proof.folder / "preferred"}
    settings = FinetuneSettings(
        objective=Objective.DPO, batch=9, eval_share=0.25, steps=20, learning_rate=PREFERENCE_LEARNING_RATE, **given
    )
    ran = _run(proof, settings)
    yield StageReading("losses", tuple(ran.losses))
    # Before the first step, the policy is its reference.
    yield StageReading("first_loss", ran.losses[0], "ln 2 +- 0.01", abs(ran.losses[0] - math.log(2)) < 0.01)
    (held_out,) = [event for event in ran.events if event["event"] == "eval"]
    yield expect_above("margin", held_out["margin"], 0.0)
    yield expect_equal("accuracy", held_out["accuracy"], 1.0)


def _finetune(proof: ProofModels, settings: FinetuneSettings, output: Path) -> FinishedRun:
    """Train on the sentence, repeated. Raises RuntimeError if the run fails."""
    output.parent.mkdir(exist_ok=True)
    text = output.with_suffix(".jsonl")
    # No token of any model is shorter than a character: each line fills a row.
    line = " ".join([SENTENCE] * (settings.sequence // 8))
    text.write_text((json.dumps({"text": line}) + "\n") * settings.batch * OWN_MODEL_STEPS, encoding="utf-8")
    return _run(proof, replace(settings, data=(str(text),), output=output))


def _run(proof: ProofModels, settings: FinetuneSettings) -> FinishedRun:
    """Train. Raises RuntimeError if the run fails."""
    if proof.device.kind == "cuda":
        # Memory that earlier stages left in torch's cache would count as reserved, gigabytes of it.
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    code = run_finetuning(settings)
    record = json.loads((settings.output / RECORD_FILE).read_text(encoding="utf-8"))
    if code:
        raise RuntimeError(f"devkit finetune ended with {code}: {record.get('status')}")
    return FinishedRun(read_events(settings.output / METRICS_FILE), record, settings.output)


def _compare_memory(ran: FinishedRun) -> Iterator[StageReading]:
    """Compare the measured peak with the estimated one, where both are known."""
    measured, estimated = ran.record.get("measured"), ran.record.get("estimated")
    if not measured or not estimated:
        return
    peak, wanted = measured["allocated_peak_bytes"], estimated["allocated_peak_bytes"]
    least, most = wanted / ESTIMATE_FACTOR, wanted * ESTIMATE_FACTOR
    expected = f"{least:.4g} to {most:.4g}; estimate {wanted}"
    yield StageReading("allocated_peak_bytes", peak, expected, least <= peak <= most)
    yield StageReading("reserved_peak_bytes", measured["reserved_peak_bytes"])
    yield StageReading("estimated_allocated_peak_bytes", wanted)
    yield StageReading("estimate_is_off_percent", round(100 * (wanted - peak) / peak, 1))
