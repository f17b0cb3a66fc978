"""One optimizer step's passes: forward and backward over its micro-batches, added up, agreed on by all processes."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import torch

from devkit.estimate.settings import Attention, Loss
from devkit.workload.finetune.attention_varlen import model_inputs
from devkit.workload.finetune.batch import MicroBatch
from devkit.workload.finetune.loss import Head, counted_of, head_of, loss_of, speaks_for
from devkit.workload.finetune.micro_batch import OutOfMemory, is_out_of_memory, let_go
from devkit.workload.finetune.ranks import Ranks
from devkit.workload.finetune.sharding import Shared
from devkit.workload.tiny import Model

T = TypeVar("T")

Trial: TypeAlias = Callable[[Model], object]
"""Something that is found out about a model by using it."""


class ModelWithLoss(torch.nn.Module):
    """The model with its loss: what several processes share, so that the output head is inside.

    `forward` takes one micro-batch and gives the summed loss of its counted tokens, shape [], in fp32. `is_split` says
    that decoder and head are called apart; see `split`.
    """

    def __init__(self, model: Model, *, loss: Loss, attention: Attention, device: torch.device) -> None:
        super().__init__()
        self.model = model
        self.attention = attention
        self.device = device
        self.loss = loss
        self.is_split = False
        self.train()

    def split(self, tried: Callable[[Callable[[Model], bool]], bool]) -> None:
        """From now on call decoder and head apart where they give what the model gives, `tried` as Shared has it.

        Where they do not, logits are made as a whole.
        """
        self.is_split = tried(lambda _: speaks_for(self._head(), self._base()))

    def _base(self) -> Model:
        model: Model = self.model
        return model.get_base_model() if hasattr(model, "get_base_model") else model

    def _head(self) -> Head:
        return head_of(self._base())

    def forward(self, given: MicroBatch | Trial) -> Any:  # noqa: ANN401 - whatever a trial finds
        """The loss of a micro-batch, shape []; or what a trial finds, since only here are shared-out weights whole."""
        return self.loss_over(given) if isinstance(given, MicroBatch) else given(self.model)

    def loss_over(self, batch: MicroBatch) -> torch.Tensor:
        """Shape []."""
        inputs = model_inputs(batch, self.attention, self.device)
        places, targets = counted_of(batch.labels, self.device)
        if not self.is_split:
            logits = _chosen(self._base()(**inputs).logits, places)
            return torch.nn.functional.cross_entropy(logits.float(), targets, reduction="sum")
        states = _chosen(self._base().get_decoder()(**inputs).last_hidden_state, places)
        return loss_of(self._head(), states, targets, self.loss)


def _chosen(values: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """The counted positions' of `values`, [rows, tokens, width], as [counted, width]."""
    return values.reshape(-1, values.shape[-1]).index_select(0, places)


class GivenUp(Exception):  # noqa: N818 - no error: a signal was obeyed between two passes
    """Somebody asked for the run to end; nothing of the step was taken."""


class Passes:
    """Forward and backward over a step's micro-batches. All processes have equally many, and agree before each.

    Where one ran out of memory, all of them give the step up before gradients travel: nobody waits for one that
    failed. FSDP2's processes need each other within every pass; there the error is left to end the run.
    """

    def __init__(self, shared: Shared, ranks: Ranks, *, is_sharded: bool, asked: Callable[[], object]) -> None:
        self._shared = shared
        self._ranks = ranks
        self._asked = asked
        self._can_retry = not is_sharded

    def gradients(self, batches: Sequence[MicroBatch], factor: float, *, alone: bool = False) -> torch.Tensor:
        """Add up the gradients of `factor` times the summed loss; the loss of this process, without the factor.

        The loss, shape [], in fp32, is on the device: a GPU that is still at work is not waited for.
        With `alone` they stay in this process. Raises OutOfMemory and GivenUp in all processes alike.
        """
        total = torch.zeros((), device=self._ranks.device, dtype=torch.float32)
        for number, batch in enumerate(batches, start=1):
            if number > 1 and self._asked():
                raise GivenUp
            with self._shared.passing():
                loss = self._agreed(lambda batch=batch: self._shared.module(batch))  # type: ignore[misc]
                self._agreed(lambda loss=loss: (loss * factor * self._shared.factor).backward())  # type: ignore[misc]
            total += loss.detach()
        if not alone:
            self._shared.exchange()
        return total

    def loss(self, batch: MicroBatch) -> torch.Tensor:
        """The summed loss of one pass, shape [], and no gradients. Raises OutOfMemory in all processes alike."""
        with torch.no_grad():
            found: torch.Tensor = self._agreed(lambda: self._shared.module(batch))
        return found

    def _agreed(self, half: Callable[[], T]) -> T:
        """What one half of a pass gives, once it went through in every process."""
        failed = False
        try:
            result = half()
        except RuntimeError as error:
            failed = self._noted(error)
        if self._ranks.any(failed):
            raise OutOfMemory
        return result

    def _noted(self, error: RuntimeError) -> bool:
        if not self._can_retry or not is_out_of_memory(error):
            raise error
        let_go(error, self._ranks.device)
        return True


def attempted(passes: Passes, optimizer: torch.optim.Optimizer, batch: MicroBatch) -> None:
    """One whole step on `batch` that leaves no trace but the memory that it took at its peak."""
    try:
        passes.gradients([batch], 1.0 / max(1, batch.counted), alone=True)
        for group in optimizer.param_groups:
            group["lr"] = 0.0
            for parameter in group["params"]:
                if parameter.grad is not None:
                    # At rate 0 a gradient that is no number would still spoil the weight.
                    parameter.grad.zero_()
        optimizer.step()
    finally:
        optimizer.zero_grad(set_to_none=True)
        optimizer.state.clear()
