"""The training loop: what happens at each step, and what may end it."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from time import perf_counter
from typing import Any

import torch

from devkit.workload.finetune.events import Events
from devkit.workload.finetune.feed import Feed
from devkit.workload.finetune.finite import FiniteGuard, Verdict
from devkit.workload.finetune.micro_batch import OutOfMemory, peak_fields, read_memory
from devkit.workload.finetune.optimizers import learning_rate_at, set_learning_rate, shorten
from devkit.workload.finetune.randomness import seed_step
from devkit.workload.finetune.ranks import Ranks
from devkit.workload.finetune.settings import FinetuneSettings
from devkit.workload.finetune.sharding import gradient_norm
from devkit.workload.finetune.step import GivenUp, Passes


class End(StrEnum):
    """How a run ended."""

    DONE = "done"
    INTERRUPTED = "interrupted"
    PREEMPTED = "preempted"
    NOT_FINITE = "not-finite"
    OUT_OF_MEMORY = "out-of-memory"


@dataclass
class Position:
    """How far a run is. `step` counts steps done, skipped ones too, `tokens` those of all processes, without padding.

    `seconds` is over all parts of an interrupted run. `saved` is the step of the newest checkpoint, -1 for none.
    `halved_at` is the step that was last taken again in halves.
    """

    micro_batch: int
    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    saved: int = -1
    halved_at: int = -1


@dataclass(frozen=True, kw_only=True)
class Run:
    """Everything that a run has in hand. `save` writes a checkpoint, `asked` says whether somebody wants it to end."""

    settings: FinetuneSettings
    learning_rate: float
    steps: int
    passes: Passes
    parameters: list[torch.nn.Parameter]
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler | None
    guard: FiniteGuard
    feed: Feed
    evaluate: Callable[[Position], None] | None
    ranks: Ranks
    events: Events
    save: Callable[[Position], None]
    asked: Callable[[], End | None]


def train(run: Run, position: Position) -> End:
    """Take steps from `position` to the last, which it moves on. A checkpoint is left whenever it ends well."""
    pace = Pace(position, run.steps)
    while position.step < run.steps:
        asked = run.asked()
        if asked is not None:
            return _stopped(run, position, asked)
        try:
            verdict = _step(run, position, pace)
        except GivenUp:
            continue
        except OutOfMemory:
            if _halved(run, position):
                continue
            return _stopped(run, position, End.OUT_OF_MEMORY)
        if verdict is Verdict.STOP:
            run.events("stopped", step=position.step, how=End.NOT_FINITE, saved=position.saved)
            return End.NOT_FINITE
        _between_steps(run, position)
    if position.saved != position.step:
        # The last weights are such that nobody should go on from them, nor use them.
        run.events("stopped", step=position.step, how=End.NOT_FINITE, saved=position.saved)
        return End.NOT_FINITE
    return End.DONE


def _between_steps(run: Run, position: Position) -> None:
    is_last = position.step == run.steps
    if run.evaluate is not None and (is_last or position.step % run.settings.eval_every == 0):
        run.evaluate(position)
    if is_last or position.step % run.settings.save_every == 0:
        _save(run, position)


def _step(run: Run, position: Position, pace: "Pace") -> Verdict:
    """One optimizer step. Raises GivenUp and OutOfMemory, in all processes alike, when nothing of it was taken."""
    started = perf_counter()
    seed_step(seed=run.settings.seed, step=position.step, rank=run.ranks.rank)
    batches = run.feed.step(position.step, rank=run.ranks.rank, world=run.ranks.world, micro_batch=position.micro_batch)
    waited_s = perf_counter() - started
    counted = max(1, run.feed.counted(position.step))
    scale = _scale(run)
    run.optimizer.zero_grad(set_to_none=True)
    total = run.passes.gradients(batches, (scale or 1.0) / counted)
    if run.scaler is not None:
        run.scaler.unscale_(run.optimizer)
    norm = gradient_norm(run.parameters)
    _look_ahead(run, position)
    # A GPU is waited for here, once in a step.
    mine, length = torch.stack([total, norm.to(total)]).tolist()
    loss = run.ranks.sum(mine) / counted
    verdict = run.guard.judge(run.ranks, loss=loss, gradient_norm=length, scale=scale)
    rate = _rate(run, position.step)
    if verdict is Verdict.STEP:
        shorten(run.parameters, norm, limit=run.settings.gradient_limit)
        set_learning_rate(run.optimizer, rate)
        _move(run)
    if run.scaler is not None:
        run.scaler.update()
    tokens = int(run.ranks.sum(sum(each.tokens for each in batches)))
    position.step += 1
    position.tokens += tokens
    told = {"loss": loss, "learning_rate": rate, "gradient_norm": length, "tokens": position.tokens}
    told |= pace.tick(position, tokens) | {"waited_s": round(waited_s, 6)} | peak_fields(run.ranks.device)
    run.events("step" if verdict is Verdict.STEP else "skipped", step=position.step, **told)
    return verdict


def _look_ahead(run: Run, position: Position) -> None:
    """Have the next step's batches made while a GPU works at this one's."""
    if run.ranks.device.type != "cpu" and position.step + 1 < run.steps:
        run.feed.prepare(
            position.step + 1, rank=run.ranks.rank, world=run.ranks.world, micro_batch=position.micro_batch
        )


def _scale(run: Run) -> float | None:
    """What the loss is multiplied with in fp16; None without a scaler."""
    if run.scaler is None:
        return None
    return float(run.scaler.scale(torch.ones((), device=run.ranks.device)))


def _move(run: Run) -> None:
    if run.scaler is not None:
        run.scaler.step(run.optimizer)
    else:
        run.optimizer.step()


def _rate(run: Run, step: int) -> float:
    settings = run.settings
    return learning_rate_at(
        step, steps=run.steps, warmup=settings.warmup, schedule=settings.schedule, highest=run.learning_rate
    )


def _save(run: Run, position: Position) -> None:
    """Write a checkpoint, unless the weights are such that nobody should go on from them."""
    if not run.guard.may_save(run.ranks, run.parameters, lambda: _loss_again(run, position)):
        return
    run.save(position)
    position.saved = position.step


def _loss_again(run: Run, position: Position) -> float:
    """This process's loss on the first pass of the last step that was taken; not a number where it cannot be had."""
    step = position.step - 1 - run.guard.passed_over
    if step < 0:
        return math.nan
    batches = run.feed.step(step, rank=run.ranks.rank, world=run.ranks.world, micro_batch=position.micro_batch)
    try:
        return float(run.passes.loss(batches[0]))
    except OutOfMemory:
        return math.nan


def _stopped(run: Run, position: Position, how: End) -> End:
    if position.saved != position.step:
        _save(run, position)
    run.events("stopped", step=position.step, how=how, saved=position.saved)
    return how


def _halved(run: Run, position: Position) -> bool:
    """Have the step taken again in passes of half the size, once; False where that was done or cannot be.

    The effective batch stays: there are more passes.
    """
    memory = read_memory(run.ranks.device)
    may = position.micro_batch > 1 and position.halved_at != position.step
    run.events(
        "out-of-memory",
        step=position.step + 1,
        micro_batch=position.micro_batch,
        next_micro_batch=position.micro_batch // 2 if may else None,
        **memory.fields(),
    )
    if may:
        position.micro_batch //= 2
        position.halved_at = position.step
    return may


class Pace:
    """Times steps: tokens per second of the last one, and how long the rest will take at the pace so far."""

    def __init__(self, position: Position, steps: int) -> None:
        self._first = position.step
        self._steps = steps
        self._start = self._last = perf_counter()

    def tick(self, position: Position, tokens: int) -> dict[str, Any]:
        """The fields that a step's event has of time; adds the time since the last tick to `position`."""
        now = perf_counter()
        seconds, self._last = now - self._last, now
        position.seconds += seconds
        of_a_step = (now - self._start) / (position.step - self._first)
        return {
            "tokens_per_s": round(tokens / seconds, 1),
            "seconds": round(seconds, 6),
            "eta_s": round(of_a_step * (self._steps - position.step), 1),
        }
