"""The training loop: from a loaded base to the published result, step by step, and what may end a run."""

import hashlib
import math
import random
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

import torch

from devkit.estimate.settings import Method, Precision
from devkit.workload.device import DeviceMemory, free_after_oom, is_out_of_memory, read_device_memory, read_peak_fields
from devkit.workload.finetune.checkpoint import (
    CheckpointState,
    TrainProgress,
    TrainState,
    find_newest_checkpoint,
    fingerprint_examples,
    load_checkpoint,
    publish_result,
    require_checkpoint_space,
    save_checkpoint,
    select_resume_settings,
)
from devkit.workload.finetune.dataset import BatchLayout, BatchLoader, Dataset, Example, MicroBatch, choose_layout
from devkit.workload.finetune.decisions import Decisions
from devkit.workload.finetune.distributed import (
    ParallelModel,
    Ranks,
    compute_gradient_norm,
    list_decoder_layers,
    wrap_parallel,
)
from devkit.workload.finetune.events import METRICS_FILE, Events, drop_events_after
from devkit.workload.finetune.files import ADAPTER_WEIGHTS_FILE
from devkit.workload.finetune.forward import (
    ModelWithLoss,
    require_no_cross_attention,
    use_fused_lora_forward,
    use_lean_forward,
)
from devkit.workload.finetune.model import (
    LoadedBase,
    attach_adapter,
    prepare_for_training,
    trainable_parameters,
    write_adapter_metadata,
)
from devkit.workload.finetune.optimizers import (
    build_optimizer,
    clip_gradients,
    compute_learning_rate,
    set_learning_rate,
)
from devkit.workload.finetune.process import RunOutcome
from devkit.workload.finetune.settings import FinetuneSettings
from devkit.workload.models import Model

T = TypeVar("T")


MAX_CONSECUTIVE_SKIPS = 3
"""One bad batch is skipped; three in a row mean that the weights or the learning rate are beyond help."""

_NUMPY_SEEDS = 2**32


def prepare_model(base: Model, settings: FinetuneSettings, decisions: Decisions) -> Model:
    """Prepare the base for training: with an adapter, or whole."""
    prepare_for_training(base, checkpointing=decisions.checkpointing)
    if settings.method is Method.FULL:
        return base.requires_grad_(requires_grad=True)
    adapted = attach_adapter(base, settings, precision=decisions.adapter_precision)
    if not decisions.compile:
        # A compiler fuses the passes over memory by itself.
        use_fused_lora_forward(adapted)
        if not decisions.checkpointing:
            use_lean_forward(adapted)
    return adapted


def can_recover_from_oom(device: torch.device) -> bool:
    """Return True if running out of memory raises an error. On CPUs the system kills the whole process."""
    return device.type != "cpu"


class Trainer:
    """One rank's run, from the loaded base to the published result.

    `stop_requested` returns how the run is to end, None to go on.
    """

    def __init__(
        self,
        settings: FinetuneSettings,
        decisions: Decisions,
        data: Dataset,
        base: LoadedBase,
        ranks: Ranks,
        events: Events,
        *,
        stop_requested: Callable[[], RunOutcome | None],
    ) -> None:
        self._settings = settings
        self._decisions = decisions
        self._ranks = ranks
        self._events = events
        self._stop_requested = stop_requested
        self._base = base
        # Saved with the result: a tokenizer without a template was given one when the first chat came.
        base.tokenizer.chat_template = data.chat_template
        self._model = prepare_model(base.model, settings, decisions)
        self._loader = self._build_loader(data.train)
        self._eval_loader = self._build_loader(data.held_out) if data.held_out else None
        self._parallel = self._wrap_parallel()
        # After FSDP2 has replaced the parameters.
        self._parameters = trainable_parameters(self._model)
        self._trained = self._build_trained_state()
        self._passes = ForwardBackward(
            self._parallel, ranks, is_sharded=decisions.is_sharded, stop_requested=stop_requested
        )
        self._guard = FiniteGuard()
        self._steps = settings.steps or max(1, round(settings.epochs * self._loader.steps_per_epoch))
        self._resume_settings = select_resume_settings(
            settings,
            {
                "precision": decisions.precision,
                "adapter_precision": decisions.adapter_precision,
                "optimizer": decisions.optimizer,
                "learning_rate": decisions.learning_rate,
                "packing": decisions.packing,
                "steps": self._steps,
                "model": base.files.identity,
                "data": fingerprint_examples(data.train),
            },
        )
        self._checkpoint: Path | None = None
        self.state = TrainState(micro_batch=0)

    def _build_loader(self, examples: Sequence[Example]) -> BatchLoader:
        settings, decisions = self._settings, self._decisions
        return BatchLoader(
            examples,
            batch=settings.batch,
            sequence=settings.sequence,
            seed=settings.seed,
            pack=decisions.packing,
            layout=choose_layout(decisions.attention, pack=decisions.packing),
        )

    def _wrap_parallel(self) -> ParallelModel:
        decisions, ranks = self._decisions, self._ranks
        module = ModelWithLoss(self._model, loss=decisions.loss, attention=decisions.attention, device=ranks.device)
        layers = list_decoder_layers(module)
        parallel = wrap_parallel(
            module,
            sharding=decisions.sharding,
            method=self._settings.method,
            ranks=ranks,
            shard_size=self._settings.shard_size,
        )
        layout = self._loader.layout
        if layout is not BatchLayout.PADDED:
            parallel.call_gathered(
                lambda model: require_no_cross_attention(model, decisions.attention, layout, ranks.device)
            )
        module.split_head(parallel.call_gathered)
        if decisions.compile:
            # Each layer by itself: one compilation serves them all. After the trials, whose shapes never come again.
            for layer in layers:
                layer.compile()
        for text in self._loader.notes:
            self._events("note", text=text)
        if not module.is_split:
            text = "the output head of this model is not known here, so full logits are materialized"
            self._events("note", text=text)
        return parallel

    def _build_trained_state(self) -> CheckpointState:
        decisions = self._decisions
        optimizer = build_optimizer(
            self._model,
            decisions.optimizer,
            learning_rate=decisions.learning_rate,
            weight_decay=self._settings.weight_decay,
            masters=decisions.to_training_settings(self._settings, world=self._ranks.world_size).has_masters,
        )
        # The scaler keeps small gradients from vanishing in fp16.
        is_fp16 = decisions.precision is Precision.FP16
        return CheckpointState(
            self._model, optimizer, torch.amp.GradScaler(self._ranks.device.type) if is_fp16 else None
        )

    @property
    def peak_memory(self) -> DeviceMemory:
        """The peaks on this rank's device."""
        return read_device_memory(self._ranks.device)

    def start(self) -> bool:
        """Find the state to start from: the micro-batch that fits, the newest checkpoint. Returns False if nothing fits."""
        settings, state, loader = self._settings, self.state, self._loader
        state.micro_batch = self._find_micro_batch()
        if state.micro_batch == 0:
            return False
        require_checkpoint_space(settings.output, self._trained, ranks=self._ranks, keep=settings.keep)
        if settings.resume:
            self._resume()
        self._events(
            "start",
            step=state.step,
            steps=self._steps,
            rows=len(loader.rows),
            tokens_per_epoch=loader.token_count,
            world=self._ranks.world_size,
            micro_batch=state.micro_batch,
            trainable_parameters=sum(each.numel() for each in self._parameters),
        )
        return True

    def _find_micro_batch(self) -> int:
        """Return the micro-batch to start with: as decided, and tried on GPUs with the largest batch that can come."""
        size = min(self._decisions.micro_batch, len(self._loader.rows))
        if not can_recover_from_oom(self._ranks.device):
            return size
        rows = -(-min(self._settings.batch, len(self._loader.rows)) // self._ranks.world_size)

        def attempt(micro_batch: int) -> None:
            # A second pass, where there is one, has the gradients of the first beside its activations.
            batches = [self._loader.build_largest_batch(micro_batch)] * (2 if rows > micro_batch else 1)
            run_dry_step(self._passes, self._trained.optimizer, batches)

        found = find_micro_batch(attempt, start=size, ranks=self._ranks)
        memory = found.memory.to_event_fields()
        self._events("probe", micro_batch=found.micro_batch, refused=list(found.refused), **memory)
        return found.micro_batch

    def _resume(self) -> None:
        output, state = self._settings.output, self.state
        found = find_newest_checkpoint(output, settings=self._resume_settings, ranks=self._ranks)
        if found is not None:
            progress = load_checkpoint(found, self._trained)
            state.step = state.saved = progress.step
            state.tokens, state.seconds = progress.tokens, progress.seconds
            self._guard.skipped = progress.skipped
            self._checkpoint = found.path
            self._events("resumed", step=progress.step, path=found.path.name)
            for text in (*found.broken, *found.notes):
                self._events("note", text=text)
        if self._ranks.is_rank0:
            drop_events_after(output / METRICS_FILE, state.step)

    def run(self) -> RunOutcome:
        """Take steps to the last one. A checkpoint is left whenever the run ends well."""
        settings, state = self._settings, self.state
        timer = StepTimer(state, self._steps)
        while state.step < self._steps:
            outcome = self._stop_requested()
            if outcome is not None:
                return self._stop(outcome)
            try:
                verdict = self._take_step(timer)
            except StepAborted:
                continue
            except StepOutOfMemory:
                if self._halve_micro_batch():
                    continue
                return self._stop(RunOutcome.OUT_OF_MEMORY)
            if verdict is StepVerdict.STOP:
                return self._end_not_finite()
            is_last = state.step == self._steps
            if self._eval_loader is not None and (is_last or state.step % settings.eval_every == 0):
                self._evaluate(self._eval_loader)
            if is_last or state.step % settings.save_every == 0:
                self._save()
        # If the last weights are not finite, they are not to be resumed from, nor used.
        return RunOutcome.DONE if state.saved == state.step else self._end_not_finite()

    def _take_step(self, timer: "StepTimer") -> "StepVerdict":
        """Take one optimizer step. Raises StepAborted and StepOutOfMemory, on all ranks alike, if it was not taken."""
        settings, state, ranks = self._settings, self.state, self._ranks
        optimizer, scaler = self._trained.optimizer, self._trained.scaler
        started = perf_counter()
        seed_generators(seed=settings.seed, step=state.step, rank=ranks.rank)
        batches = self._load_step(state.step)
        waited_s = perf_counter() - started
        targets = max(1, self._loader.count_targets(state.step))
        scale = None if scaler is None else float(scaler.scale(torch.ones((), device=ranks.device)))
        optimizer.zero_grad(set_to_none=True)
        total = self._passes.accumulate_gradients(batches, (scale or 1.0) / targets)
        if scaler is not None:
            scaler.unscale_(optimizer)
        norm = compute_gradient_norm(self._parameters)
        if ranks.device.type != "cpu" and state.step + 1 < self._steps:
            # While the GPU works at this step.
            self._loader.prefetch(
                state.step + 1, rank=ranks.rank, world_size=ranks.world_size, micro_batch=state.micro_batch
            )
        # The CPU waits for the GPU here, once in a step.
        local_loss, gradient_norm = torch.stack([total, norm.to(total)]).tolist()
        loss = ranks.sum(local_loss) / targets
        verdict = self._guard.judge(ranks, loss=loss, gradient_norm=gradient_norm, scale=scale)
        learning_rate = compute_learning_rate(
            state.step,
            steps=self._steps,
            warmup=settings.warmup,
            schedule=settings.schedule,
            peak=self._decisions.learning_rate,
        )
        if verdict is StepVerdict.STEP:
            clip_gradients(self._parameters, norm, max_norm=settings.gradient_limit)
            set_learning_rate(optimizer, learning_rate)
            if scaler is not None:
                scaler.step(optimizer)
            else:
                optimizer.step()
        if scaler is not None:
            scaler.update()
        tokens = int(ranks.sum(sum(each.token_count for each in batches)))
        state.step += 1
        state.tokens += tokens
        metrics = {"loss": loss, "learning_rate": learning_rate, "gradient_norm": gradient_norm, "tokens": state.tokens}
        metrics |= timer.tick(state, tokens) | {"waited_s": round(waited_s, 6)} | read_peak_fields(ranks.device)
        self._events("step" if verdict is StepVerdict.STEP else "skipped", step=state.step, **metrics)
        return verdict

    def _load_step(self, step: int) -> list[MicroBatch]:
        """Return this rank's micro-batches of a step."""
        ranks = self._ranks
        return self._loader.load_step(
            step, rank=ranks.rank, world_size=ranks.world_size, micro_batch=self.state.micro_batch
        )

    def _evaluate(self, loader: BatchLoader) -> None:
        """Compute the mean loss of the held-out rows, each once. A signal ends it early, without a result."""
        module, ranks, state = self._parallel.module, self._ranks, self.state
        started = perf_counter()
        total, targets = 0.0, 0
        is_aborted = False
        module.eval()
        for each in module.modules():
            # In evaluation mode, bitsandbytes's layers change the layout of their weights on some CPUs, which takes
            # long and changes their bytes. They have no dropout.
            if type(each).__module__.startswith("bitsandbytes"):
                each.training = True
        with torch.no_grad():
            for step in range(loader.steps_per_epoch):
                if is_aborted := bool(self._stop_requested()):
                    break
                batches = loader.load_step(
                    step, rank=ranks.rank, world_size=ranks.world_size, micro_batch=state.micro_batch
                )
                total += ranks.sum(sum(float(module(batch)) for batch in batches))
                targets += loader.count_targets(step)
        module.train()
        if not is_aborted:
            seconds = round(perf_counter() - started, 3)
            self._events("eval", step=state.step, loss=total / max(1, targets), counted=targets, seconds=seconds)

    def _save(self) -> None:
        """Write a checkpoint, unless its weights are not to be resumed from."""
        state = self.state
        if not self._guard.may_save(self._ranks, self._parameters, self._compute_last_loss):
            return
        saved = save_checkpoint(
            self._settings.output,
            self._trained,
            TrainProgress(step=state.step, tokens=state.tokens, skipped=self._guard.skipped, seconds=state.seconds),
            settings=self._resume_settings,
            ranks=self._ranks,
            keep=self._settings.keep,
        )
        self._checkpoint, state.saved = saved.path, state.step
        seconds = round(saved.seconds, 3)
        self._events("checkpoint", step=state.step, path=saved.path.name, bytes=saved.bytes, seconds=seconds)

    def _compute_last_loss(self) -> float:
        """Return this rank's loss on the first pass of the last step that was taken; NaN if it cannot be computed."""
        step = self.state.step - 1 - self._guard.skipped_since_step
        if step < 0:
            return math.nan
        try:
            return float(self._passes.compute_loss(self._load_step(step)[0]))
        except StepOutOfMemory:
            return math.nan

    def _stop(self, outcome: RunOutcome) -> RunOutcome:
        state = self.state
        if state.saved != state.step:
            self._save()
        self._events("stopped", step=state.step, how=outcome, saved=state.saved)
        return outcome

    def _end_not_finite(self) -> RunOutcome:
        self._events("stopped", step=self.state.step, how=RunOutcome.NOT_FINITE, saved=self.state.saved)
        return RunOutcome.NOT_FINITE

    def _halve_micro_batch(self) -> bool:
        """Halve the micro-batch to retry the step, once; False if that was done or is impossible.

        The effective batch stays: there are more passes.
        """
        state = self.state
        can_halve = state.micro_batch > 1 and state.halved_at != state.step
        self._events(
            "out-of-memory",
            step=state.step + 1,
            micro_batch=state.micro_batch,
            next_micro_batch=state.micro_batch // 2 if can_halve else None,
            **self.peak_memory.to_event_fields(),
        )
        if can_halve:
            state.micro_batch //= 2
            state.halved_at = state.step
        return can_halve

    def publish(self) -> Path | None:
        """Publish the result of the newest checkpoint and return its folder; None if there is no checkpoint."""
        if self._checkpoint is None:
            return None
        is_adapter = self._trained.weights_file == ADAPTER_WEIGHTS_FILE
        return publish_result(
            self._settings.output, self._checkpoint, is_adapter=is_adapter, write_metadata=self._write_metadata
        )

    def _write_metadata(self, folder: Path) -> None:
        if hasattr(self._model, "peft_config"):
            write_adapter_metadata(folder, self._base)
        else:
            self._base.tokenizer.save_pretrained(str(folder))
            if self._base.model.generation_config is not None:
                self._base.model.generation_config.save_pretrained(str(folder))


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


class StepOutOfMemory(Exception):  # noqa: N818 - not an error: all ranks agreed on it, and the step can be repeated
    """Memory ran out on at least one rank; no optimizer step was taken."""


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


@dataclass(frozen=True)
class MicroBatchSearch:
    """The micro-batch that fits, with the memory at it. `refused` are those tried before, largest first.

    `micro_batch` is 0 if not even one row fits; `memory` is then that of the last attempt.
    """

    micro_batch: int
    memory: DeviceMemory
    refused: tuple[int, ...] = ()


def find_micro_batch(
    attempt: Callable[[int], None],
    *,
    start: int,
    ranks: Ranks,
) -> MicroBatchSearch:
    """Halve `start` until `attempt` with that micro-batch succeeds on every rank.

    `attempt` is one whole step, optimizer included, that leaves no trace. All ranks must call and agree, so that the
    effective batch stays the same one everywhere.
    """
    refused: list[int] = []
    size = start
    while size:
        if ranks.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(ranks.device)
        failed = False
        try:
            attempt(size)
        except StepOutOfMemory:
            failed = True
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            free_after_oom(error, ranks.device)
            failed = True
        memory = read_device_memory(ranks.device)
        if not ranks.any(failed):
            return MicroBatchSearch(size, memory, tuple(refused))
        refused.append(size)
        size //= 2
    return MicroBatchSearch(0, memory, tuple(refused))


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
