"""What happens when a loss or a gradient is not a number."""

import math
from collections.abc import Callable, Iterable
from enum import StrEnum

import torch

from devkit.workload.finetune.ranks import Ranks

MOST_IN_A_ROW = 3
"""One bad batch is skipped; three in a row mean that the weights or the learning rate are beyond help."""


class Verdict(StrEnum):
    """What to do with the gradients of this step."""

    STEP = "step"
    SKIP = "skip"
    STOP = "stop"


class FiniteGuard:
    """Keeps non-finite gradients out of the weights, and non-finite weights out of the checkpoints.

    `skipped` counts over the whole run, `in_a_row` since the last step that was taken; `passed_over` counts since then
    those too with which a scaler looked for its size.
    """

    def __init__(self, *, skipped: int = 0, most_in_a_row: int = MOST_IN_A_ROW) -> None:
        self.skipped = skipped
        self.in_a_row = 0
        self.passed_over = 0
        self._most = most_in_a_row

    def judge(self, ranks: Ranks, *, loss: float, gradient_norm: float, scale: float | None = None) -> Verdict:
        """Whether to take the step; the same answer for every process, and all must ask.

        `scale` is that of a GradScaler (fp16), else None. A gradient that overflows while it is above 1 is how the
        scaler finds its size: skipped, but no fault.
        """
        searching = scale is not None and scale > 1 and math.isfinite(loss)
        bad_loss = not math.isfinite(loss)
        told = 0.0 if not bad_loss and math.isfinite(gradient_norm) else 1.0 if searching else 2.0
        worst = ranks.largest(told)
        if worst == 0:
            self.in_a_row = self.passed_over = 0
            return Verdict.STEP
        self.passed_over += 1
        if worst == 1:
            return Verdict.SKIP
        self.skipped += 1
        self.in_a_row += 1
        return Verdict.STOP if self.in_a_row >= self._most else Verdict.SKIP

    def may_save(self, ranks: Ranks, trained: Iterable[torch.Tensor], loss_again: Callable[[], float]) -> bool:
        """Whether a checkpoint of these weights would be one to go on from; all processes must ask.

        A step may break the weights although its own loss and gradient were finite: that shows only in the next loss.
        Where that was not finite, `loss_again`, the loss on what the last step learned from, tells whether the
        weights are at fault or the texts.
        """
        if ranks.any(not all(_is_finite(each) for each in trained)):
            return False
        return self.in_a_row == 0 or not ranks.any(not math.isfinite(loss_again()))


def _is_finite(tensor: torch.Tensor) -> bool:
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return bool(torch.isfinite(local).all())
