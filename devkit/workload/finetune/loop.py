"""The training loop: what happens at each step, and what may end it."""

import hashlib
import math
import random
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from time import perf_counter
from typing import Any, TypeAlias, TypeVar

import torch

from devkit.estimate.settings import Attention, Loss
from devkit.workload.finetune.data.batches import BatchLoader, MicroBatch
from devkit.workload.finetune.distributed import ParallelModel, Ranks, compute_gradient_norm
from devkit.workload.finetune.events import Events
from devkit.workload.finetune.memory import (
    StepOutOfMemory,
    free_after_oom,
    is_out_of_memory,
    read_device_memory,
    read_peak_fields,
)
from devkit.workload.finetune.model.attention import build_model_inputs
from devkit.workload.finetune.model.loss import (
    OutputHead,
    compute_loss,
    get_output_head,
    head_matches_model,
    select_targets,
)
from devkit.workload.finetune.optimizers import clip_gradients, compute_learning_rate, set_learning_rate
from devkit.workload.finetune.settings import FinetuneSettings
from devkit.workload.models import Model

# The loss on texts that are not learned from.


@dataclass(frozen=True)
class EvalResult:
    """The mean loss over the counted tokens; `was_given_up` where a signal was obeyed before the end."""

    loss: float
    counted: int
    seconds: float
    was_given_up: bool = False


def evaluate_loss(
    module: torch.nn.Module, feed: BatchLoader, ranks: Ranks, *, micro_batch: int, asked: Callable[[], object]
) -> EvalResult:
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
    return EvalResult(total / max(1, counted), counted, perf_counter() - started, was_given_up)


def _evaluate(module: torch.nn.Module) -> None:
    """Switch off dropout. Layers of bitsandbytes stay as they are: outside of training they lay out their weights anew
    on some CPUs, which takes long and changes their bytes.
    """
    module.eval()
    for each in module.modules():
        if type(each).__module__.startswith("bitsandbytes"):
            each.training = True


# What happens when a loss or a gradient is not a number.

MAX_CONSECUTIVE_SKIPS = 3
"""One bad batch is skipped; three in a row mean that the weights or the learning rate are beyond help."""


class StepVerdict(StrEnum):
    """What to do with the gradients of this step."""

    STEP = "step"
    SKIP = "skip"
    STOP = "stop"


class FiniteGuard:
    """Keeps non-finite gradients out of the weights, and non-finite weights out of the checkpoints.

    `skipped` counts over the whole run, `in_a_row` since the last step that was taken; `passed_over` counts since then
    those too with which a scaler looked for its size.
    """

    def __init__(self, *, skipped: int = 0, most_in_a_row: int = MAX_CONSECUTIVE_SKIPS) -> None:
        self.skipped = skipped
        self.in_a_row = 0
        self.passed_over = 0
        self._most = most_in_a_row

    def judge(self, ranks: Ranks, *, loss: float, gradient_norm: float, scale: float | None = None) -> StepVerdict:
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
            return StepVerdict.STEP
        self.passed_over += 1
        if worst == 1:
            return StepVerdict.SKIP
        self.skipped += 1
        self.in_a_row += 1
        return StepVerdict.STOP if self.in_a_row >= self._most else StepVerdict.SKIP

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


# Random numbers that depend on the step alone, so that no generator's state has to be saved or restored.
#
# Each optimizer step starts all generators anew, from the run's seed, the step and the process. A resumed run therefore
# draws what the uninterrupted one would have drawn, and a step that was given up half-way leaves no trace: its
# accumulated passes drew from generators that the step's repetition sets again.

_NUMPY_SEEDS = 2**32


def seed_generators(*, seed: int, step: int, rank: int) -> None:
    """Set the generators of Python, torch (CPU and GPUs) and, where it is imported, numpy for one optimizer step."""
    drawn = derive_step_seed(seed=seed, step=step, rank=rank)
    random.seed(drawn)
    torch.manual_seed(drawn)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(drawn % _NUMPY_SEEDS)


def derive_step_seed(*, seed: int, step: int, rank: int) -> int:
    """A number below 2^63 in which neighbouring steps, seeds and processes have nothing in common."""
    digest = hashlib.sha256(f"{seed} {step} {rank}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


# One optimizer step's passes: forward and backward over its micro-batches, added up, agreed on by all processes.

T = TypeVar("T")

ModelTrial: TypeAlias = Callable[[Model], object]
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
        self.is_split = tried(lambda _: head_matches_model(self._head(), self._base()))

    def _base(self) -> Model:
        model: Model = self.model
        return model.get_base_model() if hasattr(model, "get_base_model") else model

    def _head(self) -> OutputHead:
        return get_output_head(self._base())

    def forward(self, given: MicroBatch | ModelTrial) -> Any:  # noqa: ANN401 - whatever a trial finds
        """The loss of a micro-batch, shape []; or what a trial finds, since only here are shared-out weights whole."""
        return self.compute_micro_batch_loss(given) if isinstance(given, MicroBatch) else given(self.model)

    def compute_micro_batch_loss(self, batch: MicroBatch) -> torch.Tensor:
        """Shape []."""
        inputs = build_model_inputs(batch, self.attention, self.device)
        places, targets = select_targets(batch.labels, self.device)
        if not self.is_split:
            logits = _chosen(self._base()(**inputs).logits, places)
            return torch.nn.functional.cross_entropy(logits.float(), targets, reduction="sum")
        states = _chosen(self._base().get_decoder()(**inputs).last_hidden_state, places)
        return compute_loss(self._head(), states, targets, self.loss)


def _chosen(values: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """The counted positions' of `values`, [rows, tokens, width], as [counted, width]."""
    return values.reshape(-1, values.shape[-1]).index_select(0, places)


class StepAborted(Exception):  # noqa: N818 - no error: a signal was obeyed between two passes
    """Somebody asked for the run to end; nothing of the step was taken."""


class ForwardBackward:
    """Forward and backward over a step's micro-batches. All processes have equally many, and agree before each.

    Where one ran out of memory, all of them give the step up before gradients travel: nobody waits for one that
    failed. FSDP2's processes need each other within every pass; there the error is left to end the run.
    """

    def __init__(self, shared: ParallelModel, ranks: Ranks, *, is_sharded: bool, asked: Callable[[], object]) -> None:
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
                raise StepAborted
            with self._shared.no_sync():
                loss = self._agreed(lambda batch=batch: self._shared.module(batch))  # type: ignore[misc]
                self._agreed(lambda loss=loss: (loss * factor * self._shared.factor).backward())  # type: ignore[misc]
            total += loss.detach()
        if not alone:
            self._shared.all_reduce_gradients()
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
            raise StepOutOfMemory
        return result

    def _noted(self, error: RuntimeError) -> bool:
        if not self._can_retry or not is_out_of_memory(error):
            raise error
        free_after_oom(error, self._ranks.device)
        return True


def run_dry_step(passes: ForwardBackward, optimizer: torch.optim.Optimizer, batch: MicroBatch) -> None:
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


class RunOutcome(StrEnum):
    """How a run ended."""

    DONE = "done"
    INTERRUPTED = "interrupted"
    PREEMPTED = "preempted"
    NOT_FINITE = "not-finite"
    OUT_OF_MEMORY = "out-of-memory"


@dataclass
class TrainState:
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
class TrainContext:
    """Everything that a run has in hand. `save` writes a checkpoint, `asked` says whether somebody wants it to end."""

    settings: FinetuneSettings
    learning_rate: float
    steps: int
    passes: ForwardBackward
    parameters: list[torch.nn.Parameter]
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler | None
    guard: FiniteGuard
    feed: BatchLoader
    evaluate: Callable[[TrainState], None] | None
    ranks: Ranks
    events: Events
    save: Callable[[TrainState], None]
    asked: Callable[[], RunOutcome | None]


def run_training_loop(run: TrainContext, position: TrainState) -> RunOutcome:
    """Take steps from `position` to the last, which it moves on. A checkpoint is left whenever it ends well."""
    pace = StepTimer(position, run.steps)
    while position.step < run.steps:
        asked = run.asked()
        if asked is not None:
            return _stopped(run, position, asked)
        try:
            verdict = _step(run, position, pace)
        except StepAborted:
            continue
        except StepOutOfMemory:
            if _halved(run, position):
                continue
            return _stopped(run, position, RunOutcome.OUT_OF_MEMORY)
        if verdict is StepVerdict.STOP:
            run.events("stopped", step=position.step, how=RunOutcome.NOT_FINITE, saved=position.saved)
            return RunOutcome.NOT_FINITE
        _between_steps(run, position)
    if position.saved != position.step:
        # The last weights are such that nobody should go on from them, nor use them.
        run.events("stopped", step=position.step, how=RunOutcome.NOT_FINITE, saved=position.saved)
        return RunOutcome.NOT_FINITE
    return RunOutcome.DONE


def _between_steps(run: TrainContext, position: TrainState) -> None:
    is_last = position.step == run.steps
    if run.evaluate is not None and (is_last or position.step % run.settings.eval_every == 0):
        run.evaluate(position)
    if is_last or position.step % run.settings.save_every == 0:
        _save(run, position)


def _step(run: TrainContext, position: TrainState, pace: "StepTimer") -> StepVerdict:
    """One optimizer step. Raises GivenUp and OutOfMemory, in all processes alike, when nothing of it was taken."""
    started = perf_counter()
    seed_generators(seed=run.settings.seed, step=position.step, rank=run.ranks.rank)
    batches = run.feed.step(position.step, rank=run.ranks.rank, world=run.ranks.world, micro_batch=position.micro_batch)
    waited_s = perf_counter() - started
    counted = max(1, run.feed.counted(position.step))
    scale = _scale(run)
    run.optimizer.zero_grad(set_to_none=True)
    total = run.passes.gradients(batches, (scale or 1.0) / counted)
    if run.scaler is not None:
        run.scaler.unscale_(run.optimizer)
    norm = compute_gradient_norm(run.parameters)
    _look_ahead(run, position)
    # A GPU is waited for here, once in a step.
    mine, length = torch.stack([total, norm.to(total)]).tolist()
    loss = run.ranks.sum(mine) / counted
    verdict = run.guard.judge(run.ranks, loss=loss, gradient_norm=length, scale=scale)
    rate = _rate(run, position.step)
    if verdict is StepVerdict.STEP:
        clip_gradients(run.parameters, norm, limit=run.settings.gradient_limit)
        set_learning_rate(run.optimizer, rate)
        _move(run)
    if run.scaler is not None:
        run.scaler.update()
    tokens = int(run.ranks.sum(sum(each.tokens for each in batches)))
    position.step += 1
    position.tokens += tokens
    told = {"loss": loss, "learning_rate": rate, "gradient_norm": length, "tokens": position.tokens}
    told |= pace.tick(position, tokens) | {"waited_s": round(waited_s, 6)} | read_peak_fields(run.ranks.device)
    run.events("step" if verdict is StepVerdict.STEP else "skipped", step=position.step, **told)
    return verdict


def _look_ahead(run: TrainContext, position: TrainState) -> None:
    """Have the next step's batches made while a GPU works at this one's."""
    if run.ranks.device.type != "cpu" and position.step + 1 < run.steps:
        run.feed.prefetch(
            position.step + 1, rank=run.ranks.rank, world=run.ranks.world, micro_batch=position.micro_batch
        )


def _scale(run: TrainContext) -> float | None:
    """What the loss is multiplied with in fp16; None without a scaler."""
    if run.scaler is None:
        return None
    return float(run.scaler.scale(torch.ones((), device=run.ranks.device)))


def _move(run: TrainContext) -> None:
    if run.scaler is not None:
        run.scaler.step(run.optimizer)
    else:
        run.optimizer.step()


def _rate(run: TrainContext, step: int) -> float:
    settings = run.settings
    return compute_learning_rate(
        step, steps=run.steps, warmup=settings.warmup, schedule=settings.schedule, highest=run.learning_rate
    )


def _save(run: TrainContext, position: TrainState) -> None:
    """Write a checkpoint, unless the weights are such that nobody should go on from them."""
    if not run.guard.may_save(run.ranks, run.parameters, lambda: _loss_again(run, position)):
        return
    run.save(position)
    position.saved = position.step


def _loss_again(run: TrainContext, position: TrainState) -> float:
    """This process's loss on the first pass of the last step that was taken; not a number where it cannot be had."""
    step = position.step - 1 - run.guard.passed_over
    if step < 0:
        return math.nan
    batches = run.feed.step(step, rank=run.ranks.rank, world=run.ranks.world, micro_batch=position.micro_batch)
    try:
        return float(run.passes.loss(batches[0]))
    except StepOutOfMemory:
        return math.nan


def _stopped(run: TrainContext, position: TrainState, how: RunOutcome) -> RunOutcome:
    if position.saved != position.step:
        _save(run, position)
    run.events("stopped", step=position.step, how=how, saved=position.saved)
    return how


def _halved(run: TrainContext, position: TrainState) -> bool:
    """Have the step taken again in passes of half the size, once; False where that was done or cannot be.

    The effective batch stays: there are more passes.
    """
    memory = read_device_memory(run.ranks.device)
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


class StepTimer:
    """Times steps: tokens per second of the last one, and how long the rest will take at the pace so far."""

    def __init__(self, position: TrainState, steps: int) -> None:
        self._first = position.step
        self._steps = steps
        self._start = self._last = perf_counter()

    def tick(self, position: TrainState, tokens: int) -> dict[str, Any]:
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
