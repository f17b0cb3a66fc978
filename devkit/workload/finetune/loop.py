"""The training loop: what happens at each step, and what may end it."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from time import perf_counter

import torch

from devkit.workload.finetune.events import Events
from devkit.workload.finetune.feed import Feed
from devkit.workload.finetune.optimizers import learning_rate_at, limit_gradient, set_learning_rate
from devkit.workload.finetune.ranks import Ranks
from devkit.workload.finetune.settings import FinetuneSettings
from devkit.workload.finetune.step import Trained, gradients_of


class End(StrEnum):
    """How a run ended."""

    DONE = "done"
    INTERRUPTED = "interrupted"
    PREEMPTED = "preempted"
    NOT_FINITE = "not-finite"
    OUT_OF_MEMORY = "out-of-memory"


@dataclass
class Position:
    """How far a run is. `step` counts steps taken, `tokens` those of all processes, padding left out."""

    step: int = 0
    tokens: int = 0
    first_loss: float | None = None
    last_loss: float | None = None


@dataclass(frozen=True, kw_only=True)
class Run:
    """Everything that a run has in hand. `save` writes a checkpoint of a position, `asked` says who wants it to end."""

    settings: FinetuneSettings
    learning_rate: float
    steps: int
    micro_batch: int
    trained: Trained
    optimizer: torch.optim.Optimizer
    feed: Feed
    ranks: Ranks
    events: Events
    save: Callable[[Position], None]
    asked: Callable[[], End | None]


def train(run: Run, position: Position) -> End:
    """Take steps from `position` to the last, which it moves on. Checkpoints on the way and at the end."""
    run.trained.train()
    clock = Clock(position.step, run.steps)
    saved = position.step
    ended = End.DONE
    while position.step < run.steps:
        rate = rate_of(run, position.step)
        started = perf_counter()
        batches = run.feed.step(position.step, rank=run.ranks.rank, world=run.ranks.world, micro_batch=run.micro_batch)
        waited_s = perf_counter() - started
        counted = run.ranks.sum(sum(each.counted for each in batches))
        tokens = int(run.ranks.sum(sum(each.tokens for each in batches)))
        run.optimizer.zero_grad(set_to_none=True)
        passes = gradients_of(run.trained, batches, device=run.ranks.device, scale=run.ranks.world / max(1.0, counted))
        loss = run.ranks.sum(passes.loss) / max(1.0, counted)
        norm = limit_gradient(run.trained.parameters(), run.settings.gradient_limit)
        set_learning_rate(run.optimizer, rate)
        run.optimizer.step()
        position.step += 1
        position.tokens += tokens
        position.last_loss = loss
        position.first_loss = loss if position.first_loss is None else position.first_loss
        run.events(
            "step",
            step=position.step,
            loss=loss,
            learning_rate=rate,
            gradient_norm=norm,
            tokens=position.tokens,
            **clock.tick(position.step, tokens),
            waited_s=round(waited_s, 6),
        )
        wish = run.asked()
        if wish is not None:
            ended = wish
            break
        if position.step % run.settings.save_every == 0:
            run.save(position)
            saved = position.step
    if position.step > saved or position.step == 0:
        run.save(position)
    return ended


def rate_of(run: Run, step: int) -> float:
    """The learning rate of `step`."""
    return learning_rate_at(
        step,
        steps=run.steps,
        warmup=run.settings.warmup,
        schedule=run.settings.schedule,
        highest=run.learning_rate,
    )


class Clock:
    """Times steps: tokens per second of the last one, and how long the rest will take at the pace so far."""

    def __init__(self, step: int, steps: int) -> None:
        self._first = step
        self._steps = steps
        self._start = self._last = perf_counter()

    def tick(self, step: int, tokens: int) -> dict[str, float]:
        """The fields that a step's event has of time."""
        now = perf_counter()
        seconds, self._last = now - self._last, now
        pace = (now - self._start) / (step - self._first)
        return {
            "tokens_per_s": round(tokens / seconds, 1),
            "seconds": round(seconds, 6),
            "eta_s": round(pace * (self._steps - step), 1),
        }
