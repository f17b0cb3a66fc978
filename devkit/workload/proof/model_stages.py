"""Stages about LoRA on the plain base model."""

from collections.abc import Iterator
from dataclasses import replace
from time import perf_counter

import torch

from devkit.workload import models, quantization
from devkit.workload.device import choose_cpu
from devkit.workload.models import Model
from devkit.workload.proof import training
from devkit.workload.proof.stages import (
    Precision,
    StageReading,
    StageSkipped,
    expect_at_most,
    expect_different,
    expect_equal,
    record_series,
    record_value,
)
from devkit.workload.proof.training import (
    EXTRA_TOKENS,
    ProofModels,
    TunedModel,
    disable_adapter,
    prepare_for_kbit_training,
)

# Stages about inference: what the model says does not depend on how its past is kept.


def prove_caches_agree(bench: ProofModels) -> Iterator[StageReading]:
    """Greedy tokens without a cache, with one that grows, and with one of fixed size are the same."""
    model = bench.tuned.model.eval()
    plain = _without_cache(model, len(bench.ids) + EXTRA_TOKENS)
    yield expect_equal("generated", models.decode_bytes(plain), bench.settings.sentence)
    start = perf_counter()
    growing = _with_cache(model, len(bench.ids) + EXTRA_TOKENS)
    yield record_value("tokens_per_s", round(len(growing) / (perf_counter() - start), 1))
    fixed = _with_cache(model, len(bench.ids) + EXTRA_TOKENS, cache_implementation="static", disable_compile=True)
    yield expect_equal("growing_cache_agrees", growing == plain, wanted=True)
    yield expect_equal("static_cache_agrees", fixed == plain, wanted=True)


def _without_cache(model: Model, tokens: int) -> list[int]:
    """The plain way, in our own few lines: each token from a full pass over all before it."""
    ids = [models.BOS]
    device = next(model.parameters()).device
    with torch.inference_mode():
        while len(ids) <= tokens and ids[-1] != models.EOS:
            logits = model(input_ids=torch.tensor([ids], device=device), use_cache=False).logits
            ids.append(int(logits[0, -1].argmax()))
    return ids[1:]


def _with_cache(model: Model, tokens: int, **how: object) -> list[int]:
    prompt = torch.tensor([[models.BOS]], device=next(model.parameters()).device)
    with torch.inference_mode():
        found = model.generate(
            input_ids=prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=tokens, do_sample=False, **how
        )
    ids: list[int] = found[0, 1:].tolist()
    return ids


MEMORIZED_LOSS = 0.01
"""Mean loss per token, in nats, at which greedy decoding cannot go astray. The proof ends near 0.0003."""

MERGE_TOLERANCE = {Precision.FP32: 1e-4, Precision.BF16: 2e-2, Precision.FP16: 4e-3}
"""Largest logit difference after merging, relative to the range of the logits: merged weights are rounded once."""


def prove_lora_memorizes(bench: ProofModels) -> Iterator[StageReading]:
    """The tuned model says the sentence exactly; the base model does not, so it was learned here."""
    yield from read_memorization(bench, bench.tuned)


def read_memorization(bench: ProofModels, tuned: TunedModel) -> Iterator[StageReading]:
    """The readings that show a sentence was learned. A falling loss alone would not."""
    yield record_value("steps", len(tuned.losses))
    yield record_series("losses", tuned.losses)
    yield record_value("first_loss", tuned.losses[0] if tuned.losses else float("nan"))
    yield expect_at_most("last_loss", tuned.losses[-1] if tuned.losses else float("nan"), MEMORIZED_LOSS)
    yield expect_equal("generated", bench.generate(tuned.model), bench.settings.sentence)
    yield StageReading(
        "base_says_it_too",
        tuned.base_text == bench.settings.sentence,
        "False",
        tuned.base_text != bench.settings.sentence,
    )


def prove_base_frozen(bench: ProofModels) -> Iterator[StageReading]:
    """Training changed no bit of the base, and did change the adapter."""
    yield from read_frozen_tensors(bench.tuned)
    moved = [name for name, weight in bench.tuned.model.named_parameters() if "lora_B" in name and bool(weight.any())]
    yield StageReading("adapters_changed", len(moved), "> 0", len(moved) > 0)


def read_frozen_tensors(tuned: TunedModel) -> Iterator[StageReading]:
    """No frozen tensor has other bytes than before training."""
    yield record_value("frozen_tensors", tuned.frozen_tensors)
    yield expect_equal("changed_tensors", len(tuned.changed_tensors), 0)


def prove_adapter_disabled(bench: ProofModels) -> Iterator[StageReading]:
    """With the adapter switched off, the tuned model is the base model, to the bit; switched on, it is not."""
    with disable_adapter(bench.tuned.model):
        off = bench.compute_logits(bench.tuned.model)
    yield expect_at_most("difference_off", max_abs_difference(off, bench.tuned.base_logits), 0.0)
    on = max_abs_difference(bench.compute_logits(bench.tuned.model), bench.tuned.base_logits)
    yield StageReading("difference_on", on, "> 0", on > 0)


def prove_adapter_reload(bench: ProofModels) -> Iterator[StageReading]:
    """The adapter, saved and loaded onto a fresh base, gives the same logits to the bit, and the sentence."""
    reloaded = bench.reload_adapter()
    size = sum(each.stat().st_size for each in bench.adapter_folder.iterdir())
    yield record_value("adapter_bytes", size)
    yield record_value("adapter_sha256", training.hash_trainable(bench.tuned.model))
    difference = max_abs_difference(bench.compute_logits(reloaded), bench.compute_logits(bench.tuned.model))
    yield expect_at_most("largest_difference", difference, 0.0)
    yield expect_equal("generated", bench.generate(reloaded), bench.settings.sentence)


def prove_adapter_merge(bench: ProofModels) -> Iterator[StageReading]:
    """Merged into the base, the adapter gives the same logits within rounding, and the sentence."""
    merged, wanted = bench.merge_adapter(), bench.compute_logits(bench.tuned.model)
    relative = max_abs_difference(bench.compute_logits(merged), wanted) / float(wanted.max() - wanted.min())
    yield expect_at_most("relative_difference", relative, MERGE_TOLERANCE[bench.device.precision])
    yield expect_equal("generated", bench.generate(merged), bench.settings.sentence)


def prove_resume(bench: ProofModels) -> Iterator[StageReading]:
    """A run stopped half-way and resumed from disk ends bit-equal to one that was not stopped.

    Its negative control, resumed without the optimizer state, must differ: otherwise the comparison sees nothing.
    """
    runs = bench.resume_runs
    yield record_value("steps", bench.settings.resume_steps)
    yield expect_equal("losses_equal", runs.resumed_losses == runs.straight_losses, wanted=True)
    yield expect_equal("different_tensors", count_different_tensors(runs.straight, runs.resumed), 0)
    yield expect_different(
        "different_without_optimizer_state", count_different_tensors(runs.straight, runs.without_optimizer_state), 0
    )


def count_different_tensors(left: Model, right: Model) -> int:
    """How many trainable tensors of two models differ in any bit."""
    pairs = zip(training.list_trainable(left), training.list_trainable(right), strict=True)
    return sum(not torch.equal(a, b) for a, b in pairs)


def max_abs_difference(left: torch.Tensor, right: torch.Tensor) -> float:
    """The largest absolute difference; not-a-number when either side holds one."""
    return float((left - right).abs().max())


def prove_checkpointing(bench: ProofModels) -> Iterator[StageReading]:
    """Gradient checkpointing, which recomputes activations to save memory, gives the same losses."""
    steps = bench.settings.resume_steps // 2
    plain = training.attach_lora(bench.build_base(), bench.settings)
    saving = training.attach_lora(bench.build_base(), bench.settings)
    saving.enable_input_require_grads()
    saving.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    wanted = bench.train(plain, bench.build_optimizer(plain), steps)
    found = bench.train(saving, bench.build_optimizer(saving), steps)
    yield expect_at_most("largest_loss_difference", max(abs(a - b) for a, b in zip(wanted, found, strict=True)), 1e-3)


# Stages that need bitsandbytes: quantised base models and 8-bit optimizers.

LINEAR_LAYERS = 14
"""Seven projections in each of two blocks; the output head is not among them."""


def prove_qlora_memorizes(bench: ProofModels) -> Iterator[StageReading]:
    """A base in 4-bit NormalFloat with double quantisation learns the sentence; its output head stays unquantised."""
    _needs_backend(bench)
    tuned = bench.tuned_4bit
    base = tuned.model.get_base_model()
    yield expect_equal("linear4bit_layers", quantization.count_linear_layers(base).get("Linear4bit", 0), LINEAR_LAYERS)
    yield expect_equal("lm_head", type(base.lm_head).__name__, "Linear")
    yield from read_memorization(bench, tuned)


def prove_qlora_frozen(bench: ProofModels) -> Iterator[StageReading]:
    """Training changed no packed byte."""
    packed = quantization.copy_packed_weights(bench.tuned_4bit.model)
    yield expect_equal("packed_tensors", len(packed), LINEAR_LAYERS)
    yield from read_frozen_tensors(bench.tuned_4bit)


def prove_8bit_optimizer(bench: ProofModels) -> Iterator[StageReading]:
    """LoRA memorises the sentence with bitsandbytes' AdamW that keeps its state in 8 bits."""
    _needs_backend(bench)
    import bitsandbytes

    model = training.attach_lora(bench.build_base(), bench.settings)
    optimizer: torch.optim.Optimizer = bitsandbytes.optim.AdamW8bit(
        training.list_trainable(model), lr=bench.settings.learning_rate, weight_decay=0.0, min_8bit_size=1024
    )
    losses = bench.train(model, optimizer, bench.settings.steps)
    yield record_series("losses", losses)
    states = [state["state1"].dtype for state in optimizer.state.values() if "state1" in state]
    yield StageReading("states_in_8_bits", states.count(torch.uint8), "> 0", torch.uint8 in states)
    yield expect_at_most("last_loss", losses[-1], MEMORIZED_LOSS)
    yield expect_equal("generated", bench.generate(model), bench.settings.sentence)


def prove_int8_base(bench: ProofModels) -> Iterator[StageReading]:
    """LoRA on a base in LLM.int8() memorises the sentence."""
    _needs_backend(bench)
    base = quantization.load_quantized(bench.base_folder, quantization.build_int8_config(), bench.device)
    yield expect_equal(
        "linear8bit_layers", quantization.count_linear_layers(base).get("Linear8bitLt", 0), LINEAR_LAYERS
    )
    model = training.attach_lora(prepare_for_kbit_training(base), bench.settings)
    losses = bench.train(model, bench.build_optimizer(model), bench.settings.steps)
    yield record_series("losses", losses)
    yield record_value("first_loss", losses[0])
    yield expect_at_most("last_loss", losses[-1], MEMORIZED_LOSS)
    yield expect_equal("generated", bench.generate(model), bench.settings.sentence)


def _needs_backend(bench: ProofModels) -> None:
    if bench.device.kind == "mps":
        raise StageSkipped("4-bit and 8-bit base models are not proved on Apple's GPU")


# The stage that another machine can repeat: the same few steps on the CPU in fp32, wherever the proof runs.

REFERENCE_STEPS = 12


def prove_reference(bench: ProofModels) -> Iterator[StageReading]:
    """LoRA starts to learn the sentence on the CPU. `devkit verify --check` repeats it and compares the losses.

    Equal software on an equal processor gives equal losses to the bit; others round differently.
    """
    settings = replace(bench.settings, precision=Precision.FP32)
    own = ProofModels(settings, choose_cpu(Precision.FP32), bench.folder)
    model = training.attach_lora(own.build_base(), settings)
    losses = own.train(model, own.build_optimizer(model), REFERENCE_STEPS)
    yield record_value("processor", own.device.name)
    yield record_value("instructions", torch.backends.cpu.get_cpu_capability())
    yield record_value("adapter_sha256", training.hash_trainable(model))
    yield expect_at_most("last_loss", losses[-1], losses[0])
    yield record_series("losses", losses)
