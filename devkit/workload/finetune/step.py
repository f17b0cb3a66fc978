"""One optimizer step: passes over its micro-batches, added up, shortened, taken."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from devkit.estimate.settings import Loss
from devkit.workload.finetune.batch import MicroBatch
from devkit.workload.finetune.loss import Head, head_of, speaks_for, summed_loss
from devkit.workload.tiny import Model


class Trained(torch.nn.Module):
    """The model with its loss: what several processes wrap, so that the head is inside.

    `forward` takes one micro-batch and gives the summed loss of its counted tokens, shape [], in fp32.
    """

    def __init__(self, model: Model, loss: Loss) -> None:
        super().__init__()
        self.model = model
        self.loss = loss
        self._base = model.get_base_model() if hasattr(model, "get_base_model") else model
        self.head: Head = head_of(self._base)

    def can_skip_logits(self) -> bool:
        """Whether the decoder and the head, called apart, give what the model gives: then logits need not be whole."""
        return speaks_for(self.head, self._base, lambda **inputs: self._hidden(**inputs))

    def _hidden(self, **inputs: Any) -> torch.Tensor:  # noqa: ANN401 - transformers' own keyword arguments
        states: torch.Tensor = self._base.get_decoder()(**inputs, use_cache=False).last_hidden_state
        return states

    def forward(self, batch: MicroBatch) -> torch.Tensor:
        """Shape []."""
        inputs = {"input_ids": batch.ids, "position_ids": batch.positions, "attention_mask": batch.mask}
        return summed_loss(self.head, self._hidden(**inputs), batch.labels, self.loss)


def on_device(batch: MicroBatch, device: torch.device) -> MicroBatch:
    """The same batch where the model is."""
    moved: dict[str, Any] = {
        name: value.to(device, non_blocking=True)
        for name, value in vars(batch).items()
        if isinstance(value, torch.Tensor)
    }
    return replace(batch, **moved)


@dataclass(frozen=True)
class Passes:
    """What one step's passes gave: the loss summed over this process's counted tokens."""

    loss: float
    count: int


def gradients_of(
    trained: Callable[[MicroBatch], torch.Tensor], batches: Sequence[MicroBatch], *, device: torch.device, scale: float
) -> Passes:
    """Add up the gradients of `scale` times the summed loss over `batches`."""
    total = torch.zeros((), device=device, dtype=torch.float64 if device.type != "mps" else torch.float32)
    for batch in batches:
        loss = trained(on_device(batch, device))
        (loss * scale).backward()  # type: ignore[no-untyped-call]
        total += loss.detach()
    return Passes(float(total), len(batches))
