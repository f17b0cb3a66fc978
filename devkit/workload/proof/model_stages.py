"""Stages about the proof's models: LoRA and QLoRA learn, and generation agrees with itself."""

from collections.abc import Iterator
from time import perf_counter

import torch

from devkit.estimate.settings import Precision
from devkit.workload.models import Model, build_int8_config
from devkit.workload.proof import standalone
from devkit.workload.proof.models import (
    RESUME_DROPOUT,
    ProofModels,
    count_linear_layers,
    load_quantized,
    prepare_for_kbit_training,
)
from devkit.workload.proof.stages import StageReading, StageSkipped, expect_at_most, expect_equal
from devkit.workload.proof.standalone import BOS, EOS, SENTENCE, Tuned, compute_logits, generate, generate_text

MERGE_TOLERANCE = {Precision.FP32: 1e-4, Precision.BF16: 2e-2, Precision.FP16: 4e-3}
"""Largest logit difference after merging, relative to the range of the logits: merged weights are rounded once."""

LINEAR_LAYERS = 14
"""Seven projections in each of two blocks; the output head is not among them."""


def prove_base_frozen(models: ProofModels) -> Iterator[StageReading]:
    """Prove that training changed no bit of the base, and did change the adapter."""
    yield from read_frozen_tensors(models.tuned)
    changed = sum(bool(weight.any()) for name, weight in models.tuned.model.named_parameters() if "lora_B" in name)
    yield StageReading("adapters_changed", changed, "> 0", changed > 0)


def read_frozen_tensors(tuned: Tuned) -> Iterator[StageReading]:
    """Read that no frozen tensor has different bytes than before training."""
    yield StageReading("frozen_tensors", tuned.frozen_tensors)
    yield expect_equal("changed_tensors", len(tuned.changed_tensors), 0)


def prove_adapter_disabled(models: ProofModels) -> Iterator[StageReading]:
    """Prove that with the adapter off the tuned model is bitwise the base model, and with the adapter on it is not."""
    with models.tuned.model.disable_adapter():
        off = compute_logits(models.tuned.model)
    yield expect_at_most("difference_off", standalone.compute_difference(off, models.tuned.base_logits), 0.0)
    on = standalone.compute_difference(compute_logits(models.tuned.model), models.tuned.base_logits)
    yield StageReading("difference_on", on, "> 0", on > 0)


def prove_adapter_merged(models: ProofModels) -> Iterator[StageReading]:
    """Prove that merged into the base, the adapter gives the same logits within rounding, and the sentence."""
    merged, wanted = models.reload_adapter().merge_and_unload(), compute_logits(models.tuned.model)
    relative = standalone.compute_difference(compute_logits(merged), wanted) / float(wanted.max() - wanted.min())
    yield expect_at_most("relative_difference", relative, MERGE_TOLERANCE[models.device.precision])
    yield expect_equal("generated", generate_text(merged), SENTENCE)


def prove_resume(models: ProofModels) -> Iterator[StageReading]:
    """Prove that a run stopped half-way and resumed from disk ends bitwise equal to one that was not stopped.

    Its negative control, resumed without the optimizer state, must differ: otherwise the comparison sees nothing.
    """
    half = models.settings.resume_steps // 2
    straight = models.attach_lora(models.build_base(), dropout=RESUME_DROPOUT)
    straight_losses = models.train(straight, models.build_optimizer(straight), 2 * half)
    resumed, losses = models.resume(with_optimizer_state=True)
    without_state, _ = models.resume(with_optimizer_state=False)
    yield StageReading("steps", 2 * half)
    yield expect_equal("losses_equal", losses == straight_losses[half:], wanted=True)

    def count_different(model: Model) -> int:
        pairs = zip(standalone.list_trainable(straight), standalone.list_trainable(model), strict=True)
        return sum(not torch.equal(a, b) for a, b in pairs)

    yield expect_equal("different_tensors", count_different(resumed), 0)
    different = count_different(without_state)
    yield StageReading("different_without_optimizer_state", different, "not 0", different != 0)


def prove_inference(models: ProofModels) -> Iterator[StageReading]:
    """Prove that greedy tokens are the same without a KV cache, with a dynamic one, and with a static one."""
    model = models.tuned.model.eval()
    plain = _without_cache(model)
    yield expect_equal("generated", standalone.decode(plain), SENTENCE)
    start = perf_counter()
    dynamic = generate(model)
    yield StageReading("tokens_per_s", round((len(dynamic) - 1) / (perf_counter() - start), 1))
    static = generate(model, cache_implementation="static", disable_compile=True)
    yield expect_equal("growing_cache_agrees", dynamic == plain, wanted=True)
    yield expect_equal("static_cache_agrees", static == plain, wanted=True)


def _without_cache(model: Model) -> list[int]:
    """Generate each token from a full pass over all before it."""
    ids = [BOS]
    device = next(model.parameters()).device
    with torch.inference_mode():
        while len(ids) <= standalone.TOKENS and ids[-1] != EOS:
            logits = model(input_ids=torch.tensor([ids], device=device), use_cache=False).logits
            ids.append(int(logits[0, -1].argmax()))
    return ids


def prove_qlora_memorizes(models: ProofModels) -> Iterator[StageReading]:
    """Prove that QLoRA on a 4-bit base with double quantization memorizes; the output head stays unquantized."""
    _require_backend(models)
    tuned = models.tuned_4bit
    base = tuned.model.get_base_model()
    yield expect_equal("linear4bit_layers", count_linear_layers(base).get("Linear4bit", 0), LINEAR_LAYERS)
    yield expect_equal("lm_head", type(base.lm_head).__name__, "Linear")
    yield from standalone.read_memorization(tuned.losses, generate_text(tuned.model), tuned.base_text)


def prove_qlora_frozen(models: ProofModels) -> Iterator[StageReading]:
    """Prove that training changed no packed byte."""
    packed = sum(type(each).__name__ == "Params4bit" for each in models.tuned_4bit.model.parameters())
    yield expect_equal("packed_tensors", packed, LINEAR_LAYERS)
    yield from read_frozen_tensors(models.tuned_4bit)


def prove_int8_base(models: ProofModels) -> Iterator[StageReading]:
    """Prove that LoRA on a base in LLM.int8() memorizes the sentence."""
    _require_backend(models)
    base = load_quantized(models.base_folder, build_int8_config(), models.device)
    yield expect_equal("linear8bit_layers", count_linear_layers(base).get("Linear8bitLt", 0), LINEAR_LAYERS)
    model = models.attach_lora(prepare_for_kbit_training(base))
    losses = models.train(model, models.build_optimizer(model), models.settings.steps)
    yield StageReading("losses", tuple(losses))
    yield StageReading("first_loss", losses[0])
    yield expect_at_most("last_loss", losses[-1], standalone.MEMORIZED_LOSS)
    yield expect_equal("generated", generate_text(model), SENTENCE)


def _require_backend(models: ProofModels) -> None:
    if models.device.kind == "mps":
        raise StageSkipped("devkit does not test 4-bit and 8-bit base models on Apple GPUs")
