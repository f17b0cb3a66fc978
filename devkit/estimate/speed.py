"""How long training takes, and which settings are faster: operations per token, and what each setting costs."""

import math

from devkit.estimate.settings import Loss, Method, Optimizer, Precision, Sharding, TrainingSettings
from devkit.estimate.shape import ModelShape
from devkit.facts.record import record

UTILISATION = (0.2, 0.5)
"""Share of the data sheet's dense rate that training reaches, recomputation not counted as useful: plain stacks lie at
the lower end, packed and compiled ones at the upper. Sources: https://github.com/pytorch/torchtune (57 % of an A100 in
full fine-tuning, 34 % with LoRA), https://github.com/hiyouga/LLaMA-Factory/wiki/Performance-comparison (20 to 34 %)."""

ENOUGH_TOKENS = 1024
"""Tokens in one pass from which matrix products keep a GPU busy: compute over bandwidth is about 200 operations for
each byte, five times that leaves room for everything else."""


@record
class Cost:
    """What a setting costs: how many times as long a step takes, in words, and where that was measured."""

    factor: float
    says: str
    source: str


_TORCHTUNE = "https://github.com/pytorch/torchtune"
_SWIFT = "https://github.com/modelscope/ms-swift"
CHECKPOINTING = Cost(1.3, "checkpointing computes every layer twice: about 30% slower", _SWIFT)
QLORA = Cost(1.28, "4-bit weights are unpacked in every pass: about 28% slower", _TORCHTUNE)
INT8 = Cost(1.6, "8-bit products with outliers apart: slower than 4-bit", "https://arxiv.org/abs/2208.07339")
FP32_ADAPTERS = Cost(1.1, "fp32 adapters cast their input in every layer", "https://github.com/huggingface/peft")
EIGHT_BIT = Cost(1.02, "8-bit optimizer state: rounds, and steps a little slower", "https://arxiv.org/abs/2110.02861")
PAGED = Cost(1.05, "paged optimizer state: may wait for host memory", "https://arxiv.org/abs/2305.14314")
STANDARD_LOSS = Cost(1.02, "whole logits are written and read several times", _TORCHTUNE)
ZERO3 = Cost(1.2, "every layer is fetched from the other GPUs in every pass", "https://arxiv.org/abs/2304.11277")
ZERO2 = Cost(1.05, "gradients are shared out after every pass", "https://arxiv.org/abs/1910.02054")


def costs_of(settings: TrainingSettings) -> tuple[Cost, ...]:
    """What the settings cost against the fastest way to do the same."""
    by_optimizer = {
        Optimizer.ADAMW_8BIT: (EIGHT_BIT,),
        Optimizer.PAGED_ADAMW: (PAGED,),
        Optimizer.PAGED_ADAMW_8BIT: (EIGHT_BIT, PAGED),
    }
    by_method = {Method.QLORA: (QLORA,), Method.INT8_LORA: (INT8,)}
    by_sharding = {Sharding.ZERO2: (ZERO2,), Sharding.ZERO3: (ZERO3,)}
    has_wide_adapters = settings.method is not Method.FULL and settings.adapter_precision is Precision.FP32
    return (
        *by_method.get(settings.method, ()),
        *((CHECKPOINTING,) if settings.checkpointing else ()),
        *((FP32_ADAPTERS,) if has_wide_adapters and settings.precision is not Precision.FP32 else ()),
        *by_optimizer.get(settings.optimizer, ()),
        *((STANDARD_LOSS,) if settings.loss is Loss.STANDARD else ()),
        *by_sharding.get(settings.sharding, ()),
    )


def slowness(settings: TrainingSettings) -> float:
    """How many times as long a token takes as with the fastest settings; for ranking alone."""
    factor = 1.0
    for cost in costs_of(settings):
        factor *= cost.factor
    tokens = settings.micro_batch * settings.sequence
    return factor * max(1.0, math.sqrt(ENOUGH_TOKENS / tokens))


def flops_per_token(shape: ModelShape, settings: TrainingSettings) -> float:
    """Useful operations for one token, forward and backward; what checkpointing repeats is not counted.

    Every weight that a token meets is multiplied and added once forward, once for the gradient of what came in, and
    once more for its own gradient where it trains. Causal attention adds half of all pairs, in two products.
    """
    passes = 3 if settings.method is Method.FULL else 2
    attention = 2.0 * shape.depth * settings.sequence * shape.query_width
    return passes * 2.0 * shape.active_parameters + 3 * attention


def seconds_for(tokens: int, shape: ModelShape, settings: TrainingSettings, *, flops: float) -> tuple[float, float]:
    """The shortest and the longest time for that many tokens on `settings.world` GPUs of `flops` dense operations."""
    work = tokens * flops_per_token(shape, settings) / (flops * settings.world)
    slower = slowness(settings)
    low, high = UTILISATION
    return work * slower / high, work * slower / low
