"""Stages about LoRA on the plain base model."""

from collections.abc import Iterator

import torch

from devkit.workload import lora
from devkit.workload.bench import Bench, Tuned, without_adapter
from devkit.workload.settings import Precision
from devkit.workload.stage import Reading, at_most, differs, equals, fact, series
from devkit.workload.tiny import Model

MEMORISED_LOSS = 0.01
"""Mean loss per token, in nats, at which greedy decoding cannot go astray. The proof ends near 0.0003."""

MERGE_TOLERANCE = {Precision.FP32: 1e-4, Precision.BF16: 2e-2, Precision.FP16: 4e-3}
"""Largest logit difference after merging, relative to the range of the logits: merged weights are rounded once."""


def lora_memorises(bench: Bench) -> Iterator[Reading]:
    """The tuned model says the sentence exactly; the base model does not, so it was learned here."""
    yield from memorises(bench, bench.tuned)


def memorises(bench: Bench, tuned: Tuned) -> Iterator[Reading]:
    """The readings that show a sentence was learned. A falling loss alone would not."""
    yield fact("steps", len(tuned.losses))
    yield series("losses", tuned.losses)
    yield fact("first_loss", tuned.losses[0] if tuned.losses else float("nan"))
    yield at_most("last_loss", tuned.losses[-1] if tuned.losses else float("nan"), MEMORISED_LOSS)
    yield equals("generated", bench.generate(tuned.model), bench.settings.sentence)
    yield Reading(
        "base_says_it_too",
        tuned.base_text == bench.settings.sentence,
        "False",
        tuned.base_text != bench.settings.sentence,
    )


def base_frozen(bench: Bench) -> Iterator[Reading]:
    """Training changed no bit of the base, and did change the adapter."""
    yield from unchanged(bench.tuned)
    moved = [name for name, weight in bench.tuned.model.named_parameters() if "lora_B" in name and bool(weight.any())]
    yield Reading("adapters_changed", len(moved), "> 0", len(moved) > 0)


def unchanged(tuned: Tuned) -> Iterator[Reading]:
    """No frozen tensor has other bytes than before training."""
    yield fact("frozen_tensors", tuned.frozen_tensors)
    yield equals("changed_tensors", len(tuned.changed), 0)


def adapter_disabled(bench: Bench) -> Iterator[Reading]:
    """With the adapter switched off, the tuned model is the base model, to the bit; switched on, it is not."""
    with without_adapter(bench.tuned.model):
        off = bench.logits(bench.tuned.model)
    yield at_most("difference_off", largest_difference(off, bench.tuned.base_logits), 0.0)
    on = largest_difference(bench.logits(bench.tuned.model), bench.tuned.base_logits)
    yield Reading("difference_on", on, "> 0", on > 0)


def adapter_reload(bench: Bench) -> Iterator[Reading]:
    """The adapter, saved and loaded onto a fresh base, gives the same logits to the bit, and the sentence."""
    reloaded = bench.reloaded()
    size = sum(each.stat().st_size for each in bench.adapter_folder.iterdir())
    yield fact("adapter_bytes", size)
    yield fact("adapter_sha256", lora.digest(bench.tuned.model))
    difference = largest_difference(bench.logits(reloaded), bench.logits(bench.tuned.model))
    yield at_most("largest_difference", difference, 0.0)
    yield equals("generated", bench.generate(reloaded), bench.settings.sentence)


def adapter_merged(bench: Bench) -> Iterator[Reading]:
    """Merged into the base, the adapter gives the same logits within rounding, and the sentence."""
    merged, wanted = bench.merged(), bench.logits(bench.tuned.model)
    relative = largest_difference(bench.logits(merged), wanted) / float(wanted.max() - wanted.min())
    yield at_most("relative_difference", relative, MERGE_TOLERANCE[bench.device.precision])
    yield equals("generated", bench.generate(merged), bench.settings.sentence)


def resume(bench: Bench) -> Iterator[Reading]:
    """A run stopped half-way and resumed from disk ends bit-equal to one that was not stopped.

    Its negative control, resumed without the optimizer state, must differ: otherwise the comparison sees nothing.
    """
    runs = bench.continued
    yield fact("steps", bench.settings.resume_steps)
    yield equals("losses_equal", runs.resumed_losses == runs.straight_losses, wanted=True)
    yield equals("different_tensors", different_tensors(runs.straight, runs.resumed), 0)
    yield differs("different_without_optimizer_state", different_tensors(runs.straight, runs.dropped), 0)


def different_tensors(left: Model, right: Model) -> int:
    """How many trainable tensors of two models differ in any bit."""
    pairs = zip(lora.trainable(left), lora.trainable(right), strict=True)
    return sum(not torch.equal(a, b) for a, b in pairs)


def largest_difference(left: torch.Tensor, right: torch.Tensor) -> float:
    """The largest absolute difference; not-a-number when either side holds one."""
    return float((left - right).abs().max())


def checkpointing_agrees(bench: Bench) -> Iterator[Reading]:
    """Gradient checkpointing, which recomputes activations to save memory, gives the same losses."""
    steps = bench.settings.resume_steps // 2
    plain = lora.attach(bench.base(), bench.settings)
    saving = lora.attach(bench.base(), bench.settings)
    saving.enable_input_require_grads()
    saving.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    wanted = bench.train(plain, bench.optimizer(plain), steps)
    found = bench.train(saving, bench.optimizer(saving), steps)
    yield at_most("largest_loss_difference", max(abs(a - b) for a, b in zip(wanted, found, strict=True)), 1e-3)
