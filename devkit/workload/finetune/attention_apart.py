"""Whether this very model keeps the texts of a row apart, tried on the spot before anything is learned.

Configurations and class attributes say what a model's code promises; this sees what it does. A model in which texts see
each other would train without any error, on what it will never meet again.
"""

import torch

from devkit.errors import DevkitError
from devkit.estimate.settings import Attention
from devkit.workload.finetune.attention_varlen import model_inputs
from devkit.workload.finetune.batch import Example, Row, collated
from devkit.workload.finetune.layout import Layout
from devkit.workload.tiny import Model

BEFORE = (Example((1, 2, 3, 4, 5), (0,) * 5), Example((5, 3, 1, 2, 4), (0,) * 5))
"""Two texts of which one stands before the text that is watched."""

WATCHED = Example((2, 4, 1, 3), (0,) * 4)

MOST_SEEN = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}
"""Data type -> the change that rounding alone may make, relative to the largest value. Kernels for experts group the
tokens of a batch anew for each text; everything else gives equal bits."""


def require_apart(model: Model, attention: Attention, layout: Layout, device: torch.device) -> None:
    """Raises DevkitError where the texts of a row see each other in this model with this attention.

    The model computes as in training, since bitsandbytes rearranges its weights on some CPUs as soon as it does not.
    Afterwards it is in the mode that it was in, and random numbers go on as if nothing had been asked.
    """
    was_training = model.training
    model.train()
    first, second = (_watched(model, before, attention, layout, device) for before in BEFORE)
    model.train(was_training)
    seen = float((first - second).abs().max() / first.abs().max().clamp_min(torch.finfo(torch.float32).tiny))
    if not seen <= MOST_SEEN.get(next(model.parameters()).dtype, MOST_SEEN[torch.bfloat16]):
        raise DevkitError(
            f"this model lets texts that share a row see each other with {attention} attention: "
            f"what stands before a text changes it by {seen:.1%}",
            "Keep them apart with --no-packing --attention sdpa.",
        )


def _watched(model: Model, before: Example, attention: Attention, layout: Layout, device: torch.device) -> torch.Tensor:
    """What the model makes of the watched text behind another, shape [tokens, vocabulary], in fp32."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    batch = collated([Row((before, WATCHED))], layout)
    cuda = [device] if device.type == "cuda" else []
    with torch.no_grad(), torch.random.fork_rng(devices=cuda):
        # Equal random numbers for both texts, so that dropout makes no difference.
        torch.manual_seed(0)
        logits = base(**model_inputs(batch, attention, device)).logits
    kept: torch.Tensor = logits[0, -len(WATCHED.ids) :].float()
    return kept
