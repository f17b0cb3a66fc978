"""Stages that need bitsandbytes: quantised base models and 8-bit optimizers."""

from collections.abc import Iterator

import torch

from devkit.workload import lora, quantized
from devkit.workload.bench import Bench, for_training
from devkit.workload.lora_stages import MEMORISED_LOSS, memorises, unchanged
from devkit.workload.stage import Reading, StageSkipped, at_most, equals, fact, series

LINEAR_LAYERS = 14
"""Seven projections in each of two blocks; the output head is not among them."""


def qlora_memorises(bench: Bench) -> Iterator[Reading]:
    """A base in 4-bit NormalFloat with double quantisation learns the sentence; its output head stays unquantised."""
    _needs_backend(bench)
    tuned = bench.quantized
    base = tuned.model.get_base_model()
    yield equals("linear4bit_layers", quantized.linear_kinds(base).get("Linear4bit", 0), LINEAR_LAYERS)
    yield equals("lm_head", type(base.lm_head).__name__, "Linear")
    yield from memorises(bench, tuned)


def qlora_frozen(bench: Bench) -> Iterator[Reading]:
    """Training changed no packed byte."""
    packed = quantized.packed_weights(bench.quantized.model)
    yield equals("packed_tensors", len(packed), LINEAR_LAYERS)
    yield from unchanged(bench.quantized)


def optimizer_8bit(bench: Bench) -> Iterator[Reading]:
    """LoRA memorises the sentence with bitsandbytes' AdamW that keeps its state in 8 bits."""
    _needs_backend(bench)
    import bitsandbytes

    model = lora.attach(bench.base(), bench.settings)
    optimizer: torch.optim.Optimizer = bitsandbytes.optim.AdamW8bit(
        lora.trainable(model), lr=bench.settings.learning_rate, weight_decay=0.0, min_8bit_size=1024
    )
    losses = bench.train(model, optimizer, bench.settings.steps)
    yield series("losses", losses)
    states = [state["state1"].dtype for state in optimizer.state.values() if "state1" in state]
    yield Reading("states_in_8_bits", states.count(torch.uint8), "> 0", torch.uint8 in states)
    yield at_most("last_loss", losses[-1], MEMORISED_LOSS)
    yield equals("generated", bench.generate(model), bench.settings.sentence)


def int8_base(bench: Bench) -> Iterator[Reading]:
    """LoRA on a base in LLM.int8() memorises the sentence."""
    _needs_backend(bench)
    base = quantized.load_quantized(bench.base_folder, quantized.int8(), bench.device)
    yield equals("linear8bit_layers", quantized.linear_kinds(base).get("Linear8bitLt", 0), LINEAR_LAYERS)
    model = lora.attach(for_training(base), bench.settings)
    losses = bench.train(model, bench.optimizer(model), bench.settings.steps)
    yield series("losses", losses)
    yield fact("first_loss", losses[0])
    yield at_most("last_loss", losses[-1], MEMORISED_LOSS)
    yield equals("generated", bench.generate(model), bench.settings.sentence)


def _needs_backend(bench: Bench) -> None:
    if bench.device.kind == "mps":
        raise StageSkipped("4-bit and 8-bit base models are not proved on Apple's GPU")
