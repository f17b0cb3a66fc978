"""The loss on texts that are not learned from."""

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import torch

from devkit.workload.finetune.feed import Feed
from devkit.workload.finetune.ranks import Ranks


@dataclass(frozen=True)
class Evaluated:
    """The mean loss over the counted tokens; `was_given_up` where a signal was obeyed before the end."""

    loss: float
    counted: int
    seconds: float
    was_given_up: bool = False


def evaluated(
    module: torch.nn.Module, feed: Feed, ranks: Ranks, *, micro_batch: int, asked: Callable[[], object]
) -> Evaluated:
    """The loss on all rows of `feed`, each once; all processes must call. Training mode is on again afterwards."""
    started = perf_counter()
    total, counted = 0.0, 0
    was_given_up = False
    _evaluate(module)
    with torch.no_grad():
        for step in range(feed.steps_per_epoch):
            if asked():
                was_given_up = True
                break
            batches = feed.step(step, rank=ranks.rank, world=ranks.world, micro_batch=micro_batch)
            total += ranks.sum(sum(float(module(batch)) for batch in batches))
            counted += feed.counted(step)
    module.train()
    return Evaluated(total / max(1, counted), counted, perf_counter() - started, was_given_up)


def _evaluate(module: torch.nn.Module) -> None:
    """Switch off dropout. Layers of bitsandbytes stay as they are: outside of training they lay out their weights anew
    on some CPUs, which takes long and changes their bytes.
    """
    module.eval()
    for each in module.modules():
        if type(each).__module__.startswith("bitsandbytes"):
            each.training = True
