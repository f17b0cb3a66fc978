"""The training loop: forward and backward passes, the optimizer step, evaluation, and what may end a run."""

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

T = TypeVar("T")

ModelTrial: TypeAlias = Callable[[Model], object]
"""Something that is found out about a model by using it."""

MAX_CONSECUTIVE_SKIPS = 3
"""One bad batch is skipped; three in a row mean that the weights or the learning rate are beyond help."""

_NUMPY_SEEDS = 2**32


class RunOutcome(StrEnum):
    """The outcome of a run."""

    DONE = "done"
    INTERRUPTED = "interrupted"
    PREEMPTED = "preempted"
    NOT_FINITE = "not-finite"
    OUT_OF_MEMORY = "out-of-memory"


@dataclass
class TrainState:
    """The state of a run. `step` counts steps done, skipped ones too, `tokens` those of all ranks, without padding.

    `seconds` is over all parts of an interrupted run. `saved` is the step of the newest checkpoint, -1 for none.
    `halved_at` is the step that was last retried with half the micro-batch.
    """

    micro_batch: int
    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    saved: int = -1
    halved_at: int = -1


@dataclass(frozen=True, kw_only=True)
class TrainContext:
    """Everything that the loop works with. `save` writes a checkpoint, `stop_requested` returns how to end, or None."""

    settings: FinetuneSettings
    learning_rate: float
    steps: int
    passes: "ForwardBackward"
    parameters: list[torch.nn.Parameter]
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler | None
    guard: "FiniteGuard"
    loader: BatchLoader
    evaluate: Callable[[TrainState], None] | None
    ranks: Ranks
    events: Events
    save: Callable[[TrainState], None]
    stop_requested: Callable[[], RunOutcome | None]

    def load_step(self, step: int, micro_batch: int) -> list[MicroBatch]:
        """Return this rank's micro-batches of a step."""
        ranks = self.ranks
        return self.loader.load_step(step, rank=ranks.rank, world_size=ranks.world_size, micro_batch=micro_batch)


def run_training_loop(run: TrainContext, state: TrainState) -> RunOutcome:
    """Take steps from `state` to the last, and advance it. A checkpoint is left whenever the run ends well."""
    timer = StepTimer(state, run.steps)
    while state.step < run.steps:
        outcome = run.stop_requested()
        if outcome is not None:
            return _stop(run, state, outcome)
        try:
            verdict = _take_step(run, state, timer)
        except StepAborted:
            continue
        except StepOutOfMemory:
            if _halve_micro_batch(run, state):
                continue
            return _stop(run, state, RunOutcome.OUT_OF_MEMORY)
        if verdict is StepVerdict.STOP:
            run.events("stopped", step=state.step, how=RunOutcome.NOT_FINITE, saved=state.saved)
            return RunOutcome.NOT_FINITE
        is_last = state.step == run.steps
        if run.evaluate is not None and (is_last or state.step % run.settings.eval_every == 0):
            run.evaluate(state)
        if is_last or state.step % run.settings.save_every == 0:
            _save(run, state)
    if state.saved != state.step:
        # The last weights are not finite: they are not to be resumed from, nor used.
        run.events("stopped", step=state.step, how=RunOutcome.NOT_FINITE, saved=state.saved)
        return RunOutcome.NOT_FINITE
    return RunOutcome.DONE


def _take_step(run: TrainContext, state: TrainState, timer: "StepTimer") -> "StepVerdict":
    """Take one optimizer step. Raises StepAborted and StepOutOfMemory, on all ranks alike, if it was not taken."""
    started = perf_counter()
    seed_generators(seed=run.settings.seed, step=state.step, rank=run.ranks.rank)
    batches = run.load_step(state.step, state.micro_batch)
    waited_s = perf_counter() - started
    targets = max(1, run.loader.count_targets(state.step))
    scale = None
    if run.scaler is not None:
        scale = float(run.scaler.scale(torch.ones((), device=run.ranks.device)))
    run.optimizer.zero_grad(set_to_none=True)
    total = run.passes.accumulate_gradients(batches, (scale or 1.0) / targets)
    if run.scaler is not None:
        run.scaler.unscale_(run.optimizer)
    norm = compute_gradient_norm(run.parameters)
    if run.ranks.device.type != "cpu" and state.step + 1 < run.steps:
        # While the GPU works at this step.
        run.loader.prefetch(
            state.step + 1, rank=run.ranks.rank, world_size=run.ranks.world_size, micro_batch=state.micro_batch
        )
    # The CPU waits for the GPU here, once in a step.
    local_loss, gradient_norm = torch.stack([total, norm.to(total)]).tolist()
    loss = run.ranks.sum(local_loss) / targets
    verdict = run.guard.judge(run.ranks, loss=loss, gradient_norm=gradient_norm, scale=scale)
    settings = run.settings
    learning_rate = compute_learning_rate(
        state.step, steps=run.steps, warmup=settings.warmup, schedule=settings.schedule, peak=run.learning_rate
    )
    if verdict is StepVerdict.STEP:
        clip_gradients(run.parameters, norm, max_norm=settings.gradient_limit)
        set_learning_rate(run.optimizer, learning_rate)
        if run.scaler is not None:
            run.scaler.step(run.optimizer)
        else:
            run.optimizer.step()
    if run.scaler is not None:
        run.scaler.update()
    tokens = int(run.ranks.sum(sum(each.token_count for each in batches)))
    state.step += 1
    state.tokens += tokens
    metrics = {"loss": loss, "learning_rate": learning_rate, "gradient_norm": gradient_norm, "tokens": state.tokens}
    metrics |= timer.tick(state, tokens) | {"waited_s": round(waited_s, 6)} | read_peak_fields(run.ranks.device)
    run.events("step" if verdict is StepVerdict.STEP else "skipped", step=state.step, **metrics)
    return verdict


def _save(run: TrainContext, state: TrainState) -> None:
    """Write a checkpoint, unless its weights are not to be resumed from."""

    def loss_of_last_step() -> float:
        """Return this rank's loss on the first pass of the last step that was taken; NaN if it cannot be computed."""
        step = state.step - 1 - run.guard.skipped_since_step
        if step < 0:
            return math.nan
        try:
            return float(run.passes.compute_loss(run.load_step(step, state.micro_batch)[0]))
        except StepOutOfMemory:
            return math.nan

    if run.guard.may_save(run.ranks, run.parameters, loss_of_last_step):
        run.save(state)
        state.saved = state.step


def _stop(run: TrainContext, state: TrainState, outcome: RunOutcome) -> RunOutcome:
    if state.saved != state.step:
        _save(run, state)
    run.events("stopped", step=state.step, how=outcome, saved=state.saved)
    return outcome


def _halve_micro_batch(run: TrainContext, state: TrainState) -> bool:
    """Halve the micro-batch to retry the step, once; False if that was done or is impossible.

    The effective batch stays: there are more passes.
    """
    memory = read_device_memory(run.ranks.device)
    can_halve = state.micro_batch > 1 and state.halved_at != state.step
    run.events(
        "out-of-memory",
        step=state.step + 1,
        micro_batch=state.micro_batch,
        next_micro_batch=state.micro_batch // 2 if can_halve else None,
        **memory.to_event_fields(),
    )
    if can_halve:
        state.micro_batch //= 2
        state.halved_at = state.step
    return can_halve


class StepTimer:
    """A timer of steps: tokens per second of the last one, and how long the rest will take at the average pace."""

    def __init__(self, state: TrainState, steps: int) -> None:
        self._first = state.step
        self._steps = steps
        self._start = self._last = perf_counter()

    def tick(self, state: TrainState, tokens: int) -> dict[str, Any]:
        """Return the timing fields of a step's event, and add the time since the last tick to `state`."""
        now = perf_counter()
        seconds, self._last = now - self._last, now
        state.seconds += seconds
        seconds_per_step = (now - self._start) / (state.step - self._first)
        return {
            "tokens_per_s": round(tokens / seconds, 1),
            "seconds": round(seconds, 6),
            "eta_s": round(seconds_per_step * (self._steps - state.step), 1),
        }


class ModelWithLoss(torch.nn.Module):
    """The model with its loss: the module that is wrapped for several ranks, so that the output head is inside.

    `is_split` is True if decoder and head are called separately; see `split_head`.
    """

    def __init__(self, model: Model, *, loss: Loss, attention: Attention, device: torch.device) -> None:
        super().__init__()
        self.model = model
        self.attention = attention
        self.device = device
        self.loss = loss
        self.is_split = False
        self.train()

    def split_head(self, call_gathered: Callable[[Callable[[Model], bool]], bool]) -> None:
        """From now on call decoder and head separately, if they give the model's own logits.

        Otherwise full logits are materialized. `call_gathered` is that of the ParallelModel.
        """
        self.is_split = call_gathered(lambda _: head_matches_model(self._head(), self._base()))

    def _base(self) -> Model:
        model: Model = self.model
        return model.get_base_model() if hasattr(model, "get_base_model") else model

    def _head(self) -> OutputHead:
        return get_output_head(self._base())

    def forward(self, given: MicroBatch | ModelTrial) -> Any:  # noqa: ANN401 - whatever a trial returns
        """Return the loss of a micro-batch, shape []; or a trial's result: only here are sharded weights gathered."""
        return self.compute_micro_batch_loss(given) if isinstance(given, MicroBatch) else given(self.model)

    def compute_micro_batch_loss(self, batch: MicroBatch) -> torch.Tensor:
        """Return the summed loss of the batch's targets, shape [], in fp32."""
        inputs = build_model_inputs(batch, self.attention, self.device)
        positions, targets = select_targets(batch.labels, self.device)
        if not self.is_split:
            logits = _select(self._base()(**inputs).logits, positions)
            return torch.nn.functional.cross_entropy(logits.float(), targets, reduction="sum")
        states = _select(self._base().get_decoder()(**inputs).last_hidden_state, positions)
        return compute_loss(self._head(), states, targets, self.loss)


def _select(values: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Select positions of `values`, [rows, tokens, width], as [targets, width]."""
    return values.reshape(-1, values.shape[-1]).index_select(0, positions)


class StepAborted(Exception):  # noqa: N818 - not an error: a signal was handled between two passes
    """A signal requests the end of the run; no optimizer step was taken."""


class ForwardBackward:
    """Forward and backward passes over a step's micro-batches. All ranks have equally many, and agree before each.

    If one ran out of memory, all of them abort the step before gradients are reduced: none waits for one that failed.
    FSDP2's ranks need each other within every pass; there the error is left to end the run.
    """

    def __init__(
        self, parallel: ParallelModel, ranks: Ranks, *, is_sharded: bool, stop_requested: Callable[[], object]
    ) -> None:
        self._parallel = parallel
        self._ranks = ranks
        self._stop_requested = stop_requested
        self._can_retry = not is_sharded

    def accumulate_gradients(
        self, batches: Sequence[MicroBatch], factor: float, *, is_local: bool = False
    ) -> torch.Tensor:
        """Accumulate the gradients of `factor` times the summed loss, and return this rank's loss without the factor.

        The loss, shape [], in fp32, is on the device: the CPU does not wait for a busy GPU. With `is_local` gradients
        are not reduced. Raises StepOutOfMemory and StepAborted on all ranks alike.
        """
        total = torch.zeros((), device=self._ranks.device, dtype=torch.float32)
        for number, batch in enumerate(batches, start=1):
            if number > 1 and self._stop_requested():
                raise StepAborted
            with self._parallel.no_sync():
                loss = self._on_all_ranks(lambda batch=batch: self._parallel.module(batch))  # type: ignore[misc]
                self._on_all_ranks(lambda loss=loss: (loss * factor * self._parallel.factor).backward())  # type: ignore[misc]
            total += loss.detach()
        if not is_local:
            self._parallel.all_reduce_gradients()
        return total

    def compute_loss(self, batch: MicroBatch) -> torch.Tensor:
        """Return the summed loss of one pass, shape [], without gradients. Raises StepOutOfMemory on all ranks alike."""
        with torch.no_grad():
            loss: torch.Tensor = self._on_all_ranks(lambda: self._parallel.module(batch))
        return loss

    def _on_all_ranks(self, half: Callable[[], T]) -> T:
        """Return the result of one half of a pass, once it succeeded on every rank."""
        failed = False
        try:
            result = half()
        except RuntimeError as error:
            if not self._can_retry or not is_out_of_memory(error):
                raise
            failed = True
            free_after_oom(error, self._ranks.device)
        if self._ranks.any(failed):
            raise StepOutOfMemory
        return result


def run_dry_step(passes: ForwardBackward, optimizer: torch.optim.Optimizer, batches: Sequence[MicroBatch]) -> None:
    """Run one whole step on `batches` that leaves no trace but the memory that it took at its peak."""
    targets = sum(each.target_count for each in batches)
    try:
        passes.accumulate_gradients(batches, 1.0 / max(1, targets), is_local=True)
        for group in optimizer.param_groups:
            group["lr"] = 0.0
            for parameter in group["params"]:
                if parameter.grad is not None:
                    # At rate 0 a NaN in the gradient would still spoil the weight.
                    parameter.grad.zero_()
        optimizer.step()
    finally:
        optimizer.zero_grad(set_to_none=True)
        optimizer.state.clear()


class StepVerdict(StrEnum):
    """The verdict on the gradients of a step."""

    STEP = "step"
    SKIP = "skip"
    STOP = "stop"


class FiniteGuard:
    """A guard that keeps non-finite gradients out of the weights, and non-finite weights out of the checkpoints.

    `skipped` counts over the whole run, `in_a_row` since the last step that was taken; `skipped_since_step` counts
    since then also the steps by which a GradScaler searched for its scale.
    """

    def __init__(self, *, skipped: int = 0, max_in_a_row: int = MAX_CONSECUTIVE_SKIPS) -> None:
        self.skipped = skipped
        self.in_a_row = 0
        self.skipped_since_step = 0
        self._max_in_a_row = max_in_a_row

    def judge(self, ranks: Ranks, *, loss: float, gradient_norm: float, scale: float | None = None) -> StepVerdict:
        """Judge the gradients of a step, the same on every rank; all ranks must call.

        `scale` is that of a GradScaler (fp16), else None. A gradient that overflows while it is above 1 is how the
        scaler finds its scale: skipped, but no fault.
        """
        is_finite = math.isfinite(loss) and math.isfinite(gradient_norm)
        is_searching = scale is not None and scale > 1 and math.isfinite(loss)
        worst = ranks.max(0.0 if is_finite else 1.0 if is_searching else 2.0)
        if worst == 0:
            self.in_a_row = self.skipped_since_step = 0
            return StepVerdict.STEP
        self.skipped_since_step += 1
        if worst == 1:
            return StepVerdict.SKIP
        self.skipped += 1
        self.in_a_row += 1
        return StepVerdict.STOP if self.in_a_row >= self._max_in_a_row else StepVerdict.SKIP

    def may_save(self, ranks: Ranks, weights: Iterable[torch.Tensor], loss_again: Callable[[], float]) -> bool:
        """Return True if these weights may be saved to resume from; all ranks must call.

        A step may break the weights although its own loss and gradient were finite: that shows only in the next loss.
        If that was not finite, `loss_again`, the loss on the data of the last step, tells if the weights are at fault
        or the data.
        """
        local = (each.to_local() if hasattr(each, "to_local") else each for each in weights)
        if ranks.any(not all(bool(torch.isfinite(each).all()) for each in local)):
            return False
        return self.in_a_row == 0 or not ranks.any(not math.isfinite(loss_again()))


@dataclass(frozen=True)
class EvalResult:
    """The mean loss over all targets; `is_aborted` is True if a signal ended the evaluation early."""

    loss: float
    targets: int
    seconds: float
    is_aborted: bool = False


def evaluate_loss(
    module: torch.nn.Module,
    loader: BatchLoader,
    ranks: Ranks,
    *,
    micro_batch: int,
    stop_requested: Callable[[], object],
) -> EvalResult:
    """Compute the loss on all rows of `loader`, each once; all ranks must call. Training mode is restored."""
    started = perf_counter()
    total, targets = 0.0, 0
    is_aborted = False
    module.eval()
    for each in module.modules():
        # In evaluation mode, bitsandbytes's layers change the layout of their weights on some CPUs, which takes long
        # and changes their bytes. They have no dropout.
        if type(each).__module__.startswith("bitsandbytes"):
            each.training = True
    with torch.no_grad():
        for step in range(loader.steps_per_epoch):
            if stop_requested():
                is_aborted = True
                break
            batches = loader.load_step(step, rank=ranks.rank, world_size=ranks.world_size, micro_batch=micro_batch)
            total += ranks.sum(sum(float(module(batch)) for batch in batches))
            targets += loader.count_targets(step)
    module.train()
    return EvalResult(total / max(1, targets), targets, perf_counter() - started, is_aborted)


def seed_generators(*, seed: int, step: int, rank: int) -> None:
    """Seed the generators of Python, torch (CPU and GPUs) and, if it is imported, numpy for one optimizer step.

    A resumed run therefore draws the random numbers of an uninterrupted one, without a saved state, and an aborted step
    leaves no trace: its repetition seeds the generators again.
    """
    step_seed = derive_step_seed(seed=seed, step=step, rank=rank)
    random.seed(step_seed)
    torch.manual_seed(step_seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(step_seed % _NUMPY_SEEDS)


def derive_step_seed(*, seed: int, step: int, rank: int) -> int:
    """Return a seed below 2^63 in which neighboring steps, seeds and ranks have nothing in common."""
    digest = hashlib.sha256(f"{seed} {step} {rank}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
