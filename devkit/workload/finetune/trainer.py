"""The trainer: transformers' Trainer from a loaded base to the published result, and what may end a run."""

import hashlib
import math
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partialmethod
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

import torch
import transformers
from transformers.integrations import get_reporting_integration_callbacks

from devkit.estimate.settings import Attention, Method, Precision
from devkit.text import to_one_line
from devkit.workload.device import free_after_oom, is_out_of_memory, read_device_memory, read_peak_fields
from devkit.workload.environment import hide_module
from devkit.workload.finetune.checkpoint import (
    MANIFEST_FILE,
    OPTIMIZER_FILE,
    TRAINER_STATE_FILE,
    CheckpointState,
    FoundCheckpoint,
    TrainProgress,
    find_newest_checkpoint,
    fingerprint_examples,
    load_checkpoint,
    require_checkpoint_space,
    save_checkpoint,
    select_resume_settings,
)
from devkit.workload.finetune.dataset import BatchLoader, Dataset, Example, MicroBatch
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
from devkit.workload.finetune.forward import ModelWithLoss, require_no_cross_attention
from devkit.workload.finetune.live_page import PAGE_FILE
from devkit.workload.finetune.model import (
    LoadedBase,
    attach_adapter,
    prepare_for_training,
    trainable_parameters,
    write_adapter_metadata,
)
from devkit.workload.finetune.optimizers import build_optimizer, compute_learning_rate
from devkit.workload.finetune.process import RunOutcome
from devkit.workload.finetune.run_folder import publish_result
from devkit.workload.finetune.settings import FinetuneSettings
from devkit.workload.models import Model
from devkit.workload.patches import patch

try:
    # Trainer imports it where it is installed: 90 MiB of pandas and Arrow, for readers that are not used here.
    with hide_module("datasets"):
        import transformers.trainer
except ImportError:
    # transformers 4 has looked for it already, and takes it for granted.
    import transformers.trainer

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
        # A compiler fuses the passes over memory automatically.
        patch(adapted, loss=False, lean=not decisions.checkpointing)
    return adapted


class StopRun(Exception):  # noqa: N818 - not an error: all ranks agreed on it
    """The run ends before its last step, on all ranks alike; the weights are those after the last whole step."""

    def __init__(self, outcome: RunOutcome) -> None:
        self.outcome = outcome
        super().__init__(outcome)


def list_arguments(settings: FinetuneSettings, decisions: Decisions, ranks: Ranks, *, steps: int) -> dict[str, Any]:
    """List the decisions as Trainer's arguments take them. Norms are clipped by the callback that judges them."""
    return {
        "output_dir": str(settings.output),
        "max_steps": steps,
        "per_device_train_batch_size": decisions.micro_batch,
        "learning_rate": decisions.learning_rate,
        "weight_decay": settings.weight_decay,
        "max_grad_norm": 0.0,
        "seed": settings.seed % _NUMPY_SEEDS,
        "use_cpu": ranks.device.type == "cpu",
        "save_strategy": "steps",
        "save_steps": settings.save_every,
        "eval_strategy": "steps" if settings.eval_data or settings.eval_share else "no",
        "eval_steps": settings.eval_every,
        "logging_strategy": "no",
        "logging_nan_inf_filter": False,
        "report_to": "none",
        "run_name": settings.output.name,
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "ignore_data_skip": True,
    }


@dataclass(frozen=True)
class RunContext:
    """The context that every trainer of a run gets. `stop_requested` returns how the run is to end, None to go on."""

    settings: FinetuneSettings
    decisions: Decisions
    data: Dataset
    base: LoadedBase
    ranks: Ranks
    events: Events
    stop_requested: Callable[[], RunOutcome | None]
    trackers: tuple[str, ...] = ()


class RunTrainer(transformers.Trainer):  # type: ignore[misc] # transformers has no types here
    """transformers' Trainer with our checkpoints, our events, and what a run must survive, whatever takes its steps.

    A subclass sets `_step_metrics` in `training_step`: the summed loss `total` over `targets`, `tokens`, and the loss
    `scale`.
    """

    control: transformers.TrainerControl
    rows: Sequence[Any]
    """What is trained on, packed or not."""

    def __init__(self, run: RunContext, *, model: Model, steps: int, **given: Any) -> None:  # noqa: ANN401 - Trainer's
        settings, decisions, base = run.settings, run.decisions, run.base
        self._settings, self._decisions, self._base = settings, decisions, base
        self._ranks, self._events, self._stop_requested = run.ranks, run.events, run.stop_requested
        self._trackers = run.trackers
        # Saved with the result: a tokenizer without a template was given one when the first chat came.
        base.tokenizer.chat_template = run.data.chat_template
        self._parameters = trainable_parameters(model)
        optimizer = build_optimizer(
            model,
            decisions.optimizer,
            learning_rate=decisions.learning_rate,
            weight_decay=settings.weight_decay,
            masters=decisions.to_training_settings(settings, world=run.ranks.world_size).has_masters,
        )
        # The scaler keeps small gradients from vanishing in fp16.
        scaler = torch.amp.GradScaler(run.ranks.device.type) if decisions.precision is Precision.FP16 else None
        self._trained = CheckpointState(model, optimizer, scaler)
        self._guard = FiniteGuard()
        self._steps = steps

        def factor(step: int) -> float:
            return compute_learning_rate(step, steps=steps, warmup=settings.warmup, schedule=settings.schedule)

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
                "data": fingerprint_examples(run.data.train),
            },
        )
        self._checkpoint: Path | None = None
        self._found: FoundCheckpoint | None = None
        self._step_metrics: dict[str, Any] = {}
        self.micro_batch = decisions.micro_batch
        self.progress = TrainProgress(step=0)
        self._saved_step = -1
        reset_accelerate(run.ranks)
        use_cache = model.config.use_cache
        super().__init__(
            model=model,
            optimizers=(optimizer, StepSchedule(optimizer, factor)),
            callbacks=[StepCallback(self)],
            **given,
        )
        # It is saved with whole models, and Trainer turns it off.
        model.config.use_cache = use_cache
        self.remove_callback(transformers.PrinterCallback)

    def start(self) -> None:
        """Find the state to start from: the newest checkpoint, if any."""
        settings = self._settings
        if self._ranks.device.type == "cuda":
            # The peaks are those of the steps, and not of loading.
            torch.cuda.reset_peak_memory_stats(self._ranks.device)
        require_checkpoint_space(settings.output, self._trained, ranks=self._ranks, keep=settings.keep)
        if settings.resume:
            self._found = found = find_newest_checkpoint(
                settings.output, settings=self._resume_settings, ranks=self._ranks
            )
            if found is not None:
                self.progress = replace(found.manifest.progress)
                self._guard.skipped = self.progress.skipped
                self._checkpoint, self._saved_step = found.path, self.progress.step
                self._events("resumed", step=self._saved_step, path=found.path.name)
                for text in (*found.broken, *found.notes):
                    self._events("note", text=text)
            if self._ranks.is_rank0:
                drop_events_after(settings.output / METRICS_FILE, self.progress.step)
        self._events(
            "start",
            step=self.progress.step,
            steps=self._steps,
            rows=len(self.rows),
            tokens_per_epoch=sum(row.length for row in self.rows),
            world=self._ranks.world_size,
            micro_batch=self.micro_batch,
            trainable_parameters=sum(each.numel() for each in self._parameters),
            page=str(settings.output / PAGE_FILE),
        )

    def _compute_last_loss(self) -> float:
        """Return the loss of the last step's data, computed again; NaN if it cannot be."""
        return math.nan

    def log_numbers(self, numbers: Mapping[str, float]) -> None:
        self.callback_handler.on_log(self.args, self.state, self.control, dict(numbers))

    def run(self) -> RunOutcome:
        """Train to the last step. A checkpoint is left whenever the run ends well."""
        if self._ranks.is_rank0:
            for name in self._trackers:
                self.add_callback(TrackerCallback(name, get_reporting_integration_callbacks(name)[0]))
        try:
            self.train(resume_from_checkpoint=str(self._found.path) if self._found else None)
        except StopRun as stop:
            self.model.zero_grad(set_to_none=True)
            self.callback_handler.on_train_end(self.args, self.state, self.control)
            return self._stop(stop.outcome)
        # If the last weights are not finite, they are not to be resumed from, nor used.
        is_saved = self._saved_step == self.progress.step
        return RunOutcome.DONE if is_saved else self._stop(RunOutcome.NOT_FINITE)

    def _stop(self, outcome: RunOutcome) -> RunOutcome:
        step = self.progress.step
        if self._saved_step != step and outcome is not RunOutcome.NOT_FINITE:
            self._save_checkpoint(self.model)
        self._events("stopped", step=step, how=outcome, saved=self._saved_step)
        return outcome

    # Trainer's hooks, in the order in which a run reaches them.

    def _move_model_to_device(self, model: Model, device: torch.device) -> None:
        """Leave the model where it was loaded to, or sharded."""

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Model | None = None) -> None:
        """Leave the weights to `_load_optimizer_and_scheduler`: a checkpoint is read once, and checked as a whole."""

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if self._found is not None:
            load_checkpoint(self._found, self._trained)

    def _load_scaler(self, checkpoint: str | None) -> None:
        """Nothing is left to load: the checkpoint holds the scaler."""

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Nothing is left to load: generators are seeded for each step."""

    def floating_point_ops(self, inputs: object) -> int:
        """Return 0: nothing here reports it."""
        return 0

    def judge_gradients(self) -> None:
        """Clip the gradients of a step, or drop those that are not finite; all ranks alike."""
        ranks, metrics, optimizer = self._ranks, self._step_metrics, self._trained.optimizer
        if self._trained.scaler is not None:
            # accelerate knows no scaler, as its own comes with autocast: gradients that overflowed are dropped below.
            self._trained.scaler.unscale_(optimizer)
            self._trained.scaler.update()
        norm = compute_gradient_norm(self._parameters)
        # The CPU waits for the GPU here, once in a step.
        local_loss, gradient_norm = torch.stack([metrics["total"], norm.to(metrics["total"])]).tolist()
        loss = ranks.sum(local_loss) / metrics["targets"]
        verdict = self._guard.judge(ranks, loss=loss, gradient_norm=gradient_norm, scale=metrics["scale"])
        if verdict is not StepVerdict.STEP:
            # No optimizer changes a weight that has no gradient.
            optimizer.zero_grad(set_to_none=True)
        elif self._settings.gradient_limit > 0:
            torch.nn.utils.clip_grads_with_norm_(self._parameters, self._settings.gradient_limit, norm)
        learning_rate = optimizer.param_groups[0]["lr"]
        metrics |= {
            "verdict": verdict,
            "reported": {"loss": loss, "learning_rate": learning_rate, "gradient_norm": gradient_norm},
        }

    def _raise_on_stop(self) -> None:
        """Raise StopRun, on all ranks alike, if a signal requests the end of the run."""
        if (outcome := self._stop_requested()) is not None:
            raise StopRun(outcome)

    def start_clock(self) -> None:
        """Start the clock at the first step that this process takes."""
        self._first, self._started_s = self.progress.step, perf_counter()
        self._ticked_s = self._started_s

    def _tick(self, tokens: int) -> dict[str, float]:
        """Return the timing of a step: its tokens per second, and how long the rest takes at the average pace."""
        now, progress = perf_counter(), self.progress
        seconds, self._ticked_s = now - self._ticked_s, now
        progress.seconds += seconds
        left_s = (now - self._started_s) / (progress.step - self._first) * (self._steps - progress.step)
        return {"tokens_per_s": round(tokens / seconds, 1), "seconds": round(seconds, 6), "eta_s": round(left_s, 1)}

    def report_step(self) -> None:
        """Emit the event of the step that has ended. Raises StopRun if too many were not finite."""
        ranks, metrics, progress = self._ranks, self._step_metrics, self.progress
        tokens = int(ranks.sum(metrics["tokens"]))
        progress.step = self.state.global_step
        progress.tokens += tokens
        verdict = metrics["verdict"]
        fields = metrics["reported"] | {"tokens": progress.tokens} | self._tick(tokens)
        fields |= {"waited_s": metrics["waited_s"]} | read_peak_fields(ranks.device)
        self._events("step" if verdict is StepVerdict.STEP else "skipped", step=progress.step, **fields)
        if verdict is StepVerdict.STEP:
            self.log_numbers(fields)
        if verdict is StepVerdict.STOP:
            raise StopRun(RunOutcome.NOT_FINITE)

    def _get_grad_norm(self, model: Model, grad_norm: object = None) -> object:
        """Return no norm here: the caller computes that of all ranks once, where it is checked."""
        return grad_norm

    def _save_checkpoint(self, model: Model, trial: object = None) -> None:
        """Write a checkpoint, unless its weights are not to be resumed from."""
        progress = self.progress
        if not self._guard.may_save(self._ranks, self._parameters, self._compute_last_loss):
            return
        started_s = perf_counter()
        path, size = save_checkpoint(
            self._settings.output,
            self._trained,
            replace(progress, skipped=self._guard.skipped),
            settings=self._resume_settings,
            ranks=self._ranks,
            keep=self._settings.keep,
            write_state=lambda path: self.state.save_to_json(str(path)),
        )
        self._checkpoint, self._saved_step = path, progress.step
        seconds = round(perf_counter() - started_s, 3)
        self._events("checkpoint", step=progress.step, path=path.name, bytes=size, seconds=seconds)

    def publish(self) -> Path:
        """Publish the result of the newest checkpoint and return its folder."""
        assert self._checkpoint is not None  # noqa: S101 - a run that is done has saved its last step
        is_adapter = self._trained.weights_file == ADAPTER_WEIGHTS_FILE
        return publish_result(
            self._settings.output,
            self._checkpoint,
            is_adapter=is_adapter,
            write_metadata=self._write_metadata,
            left_out=(MANIFEST_FILE, OPTIMIZER_FILE, TRAINER_STATE_FILE),
        )

    def _write_metadata(self, folder: Path) -> None:
        if hasattr(self._trained.model, "peft_config"):
            write_adapter_metadata(folder, self._base)
        else:
            self._base.tokenizer.save_pretrained(str(folder))
            if generation := getattr(self._base.model, "generation_config", None):
                generation.save_pretrained(str(folder))


def build_loader(examples: Sequence[Example], settings: FinetuneSettings, decisions: Decisions) -> BatchLoader:
    """Build what deals the rows of supervised fine-tuning to its steps."""
    return BatchLoader(
        examples,
        batch=settings.batch,
        sequence=settings.sequence,
        seed=settings.seed,
        pack=decisions.packing,
        flat=decisions.attention is Attention.VARLEN or decisions.packing,
    )


def count_steps(settings: FinetuneSettings, steps_per_epoch: float) -> int:
    """Count the optimizer steps of a run."""
    return settings.steps or max(1, round(settings.epochs * steps_per_epoch))


class FinetuneTrainer(RunTrainer):
    """Supervised fine-tuning: the Trainer with our loss and our rows.

    Its loop, its callbacks and its optimizer hooks are as everywhere. What it hands to `training_step` is one whole
    effective batch: only so can a pass that runs out of memory be repeated in halves, with the same gradient.
    """

    def __init__(self, run: RunContext) -> None:
        settings, decisions, data, ranks = run.settings, run.decisions, run.data, run.ranks
        model = prepare_model(run.base.model, settings, decisions)
        self._loader = build_loader(data.train, settings, decisions)
        self.rows = self._loader.rows
        self._eval_loader = build_loader(data.held_out, settings, decisions) if data.held_out else None
        # FSDP2 replaces the parameters, which the optimizer gets.
        self._parallel = self._wrap_parallel(run, model)
        steps = count_steps(settings, self._loader.steps_per_epoch)
        super().__init__(
            run,
            model=model,
            steps=steps,
            args=transformers.TrainingArguments(**list_arguments(settings, decisions, ranks, steps=steps)),
            train_dataset=self.rows,
            eval_dataset=self._eval_loader.rows if self._eval_loader else None,
        )

    def _wrap_parallel(self, run: RunContext, model: Model) -> ParallelModel:
        decisions, ranks = run.decisions, run.ranks
        module = ModelWithLoss(model, attention=decisions.attention, device=ranks.device)
        layers = list_decoder_layers(module)
        parallel = wrap_parallel(module, sharding=decisions.sharding, ranks=ranks)
        if self._loader.flat:
            parallel.call_gathered(lambda model: require_no_cross_attention(model, decisions.attention, ranks.device))
        module.split_head(parallel.call_gathered)
        if decisions.compile:
            # Each layer separately: one compilation serves them all. After the trial, whose shape never comes again.
            for layer in layers:
                layer.compile()
        for text in self._loader.notes:
            run.events("note", text=text)
        if not module.is_split:
            run.events("note", text="this model's output head is unknown, so full logits are materialized")
        return parallel

    def get_train_dataloader(self) -> "StepNumbers":
        """Return the numbers of the steps that are still to be taken: the rows of a step follow from its number."""
        return StepNumbers(self)

    def _wrap_model(self, model: Model, *_: object, **__: object) -> torch.nn.Module:
        """Return the model with its loss, which holds shards already, or reduces gradients once a step."""
        return self._parallel.module

    def get_batch_samples(
        self, epoch_iterator: Iterator[int], num_batches: int, device: torch.device
    ) -> tuple[list[int], None]:
        """Return the number of the next step. Its targets are counted over all ranks, where its loss is divided."""
        return list(islice(epoch_iterator, num_batches)), None

    def training_step(self, model: torch.nn.Module, inputs: int, num_items_in_batch: object = None) -> torch.Tensor:
        """Accumulate the gradients of step `inputs` over its passes, and return the summed loss of this rank.

        Raises StopRun for a signal, and for a step that does not fit even row by row.
        """
        started_s = perf_counter()
        ranks, loader, scaler = self._ranks, self._loader, self._trained.scaler
        targets = max(1, loader.count_targets(inputs))
        scale = None if scaler is None else float(scaler.scale(torch.ones((), device=ranks.device)))
        while True:
            self._raise_on_stop()
            seed_generators(seed=self._settings.seed, step=inputs, rank=ranks.rank)
            batches = self._load_step(loader, inputs)
            waited_s = perf_counter() - started_s
            model.zero_grad(set_to_none=True)
            try:
                total = self._accumulate_gradients(batches, (scale or 1.0) / targets)
                break
            except StepOutOfMemory:
                if not self._halve_micro_batch():
                    raise StopRun(RunOutcome.OUT_OF_MEMORY) from None
        self._step_metrics = {
            "total": total,
            "targets": targets,
            "scale": scale,
            "tokens": sum(each.token_count for each in batches),
            "waited_s": round(waited_s, 6),
        }
        return total

    def _accumulate_gradients(self, batches: Sequence[MicroBatch], factor: float) -> torch.Tensor:
        """Accumulate the gradients of `factor` times the summed loss, and return this rank's loss without the factor.

        The loss, shape [], in fp32, is on the device: the CPU does not wait for a busy GPU. All ranks have equally many
        passes. Raises StepOutOfMemory and StopRun on all ranks alike.
        """
        total = torch.zeros((), device=self._ranks.device, dtype=torch.float32)
        for number, batch in enumerate(batches, start=1):
            if number > 1:
                self._raise_on_stop()
            loss = self._on_all_ranks(lambda batch=batch: self._parallel.module(batch))  # type: ignore[misc]
            self._on_all_ranks(lambda loss=loss: (loss * factor * self._parallel.factor).backward())  # type: ignore[misc]
            total += loss.detach()
        self._parallel.all_reduce_gradients()
        return total

    def _on_all_ranks(self, half: Callable[[], T]) -> T:
        """Return the result of one half of a pass, once it succeeded on every rank.

        If one ran out of memory, all of them abort the step before gradients are reduced: none waits for one that failed.
        FSDP2's ranks need each other within every pass; there the error is left to end the run.
        """
        failed = False
        try:
            result = half()
        except RuntimeError as error:
            if self._decisions.is_sharded or not is_out_of_memory(error):
                raise
            failed = True
            free_after_oom(error, self._ranks.device)
        if self._ranks.any(failed):
            raise StepOutOfMemory
        return result

    def evaluate(self, *_: object, **__: object) -> dict[str, float]:
        """Compute the mean loss of the held-out rows, each once. A signal ends it early, without a result."""
        loader, module, ranks = self._eval_loader, self._parallel.module, self._ranks
        assert loader is not None  # noqa: S101 - Trainer evaluates only with rows to evaluate on
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
                batches = self._load_step(loader, step)
                total += ranks.sum(sum(float(module(batch)) for batch in batches))
                targets += loader.count_targets(step)
        module.train()
        metrics = {} if is_aborted else {"eval_loss": total / max(1, targets)}
        if metrics:
            seconds = round(perf_counter() - started, 3)
            self._events("eval", step=self.progress.step, loss=metrics["eval_loss"], counted=targets, seconds=seconds)
            self.log_numbers(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _load_step(self, loader: BatchLoader, step: int) -> list[MicroBatch]:
        ranks = self._ranks
        return loader.load_step(step, rank=ranks.rank, world_size=ranks.world_size, micro_batch=self.micro_batch)

    def _compute_last_loss(self) -> float:
        """Return this rank's loss on the first pass of the last step that was taken; NaN if it cannot be computed."""
        step = self.progress.step - 1 - self._guard.skipped_since_step
        if step < 0:
            return math.nan
        try:
            with torch.no_grad():
                return float(self._on_all_ranks(lambda: self._parallel.module(self._load_step(self._loader, step)[0])))
        except StepOutOfMemory:
            return math.nan

    def _halve_micro_batch(self) -> bool:
        """Halve the micro-batch to retry the step; False for a single row. The effective batch stays: there are more passes."""
        can_halve = self.micro_batch > 1
        self._events(
            "out-of-memory",
            step=self.progress.step + 1,
            micro_batch=self.micro_batch,
            next_micro_batch=self.micro_batch // 2 if can_halve else None,
            **read_device_memory(self._ranks.device).to_event_fields(),
        )
        if can_halve:
            self.micro_batch //= 2
        return can_halve


class StepNumbers:
    """The numbers of a run's steps, from the one at which it starts."""

    def __init__(self, trainer: RunTrainer) -> None:
        self._trainer = trainer
        self.dataset = trainer.train_dataset

    def __len__(self) -> int:
        return int(self._trainer.args.max_steps)

    def __iter__(self) -> Iterator[int]:
        return iter(range(self._trainer.state.global_step, self._trainer.args.max_steps))


class StepSchedule(torch.optim.lr_scheduler.LambdaLR):
    """A schedule that depends only on the step number: skipped steps count, and resuming needs no state."""

    def go_to(self, step: int) -> None:
        self.last_epoch = step
        for group, peak, factor in zip(self.optimizer.param_groups, self.base_lrs, self.lr_lambdas, strict=True):
            group["lr"] = peak * factor(step)


class StepCallback(transformers.TrainerCallback):  # type: ignore[misc]
    """Callbacks around the optimizer's step: its learning rate, its gradients' judgment, its event."""

    def __init__(self, trainer: RunTrainer) -> None:
        self._trainer = trainer

    def on_train_begin(self, _: Any, state: Any, *__: Any, **___: Any) -> None:  # noqa: ANN401 - of transformers
        self._trainer.start_clock()

    def on_step_begin(self, _: Any, state: Any, *__: Any, lr_scheduler: Any, **___: Any) -> None:  # noqa: ANN401
        lr_scheduler.go_to(state.global_step)

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:  # noqa: ANN401
        self._trainer.judge_gradients()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ANN401
        """Report the step. The last one is evaluated whatever its number: transformers 4 leaves it out."""
        self._trainer.report_step()
        if state.global_step >= state.max_steps and args.eval_strategy != "no":
            control.should_evaluate = True


class TrackerCallback(transformers.TrainerCallback):  # type: ignore[misc]
    """A tracker's own callback of transformers. If it fails, it ends, and the run goes on: metrics.jsonl has the numbers."""

    def __init__(self, name: str, build: Callable[[], Any]) -> None:
        self._name = name
        self._build: Callable[[], Any] | None = build
        self._tracker: Any = None

    def _call(self, event: str, *given: Any, **named: Any) -> None:  # noqa: ANN401 - of transformers
        if self._build is None:
            return
        try:
            self._tracker = self._tracker or self._build()
            getattr(self._tracker, event)(*given, **named)
        except Exception as error:  # noqa: BLE001 - whatever a tracker raises
            sys.stderr.write(f"note: reporting to {self._name} stopped: {to_one_line(str(error))}\n")
            self._build = None

    on_train_begin = partialmethod(_call, "on_train_begin")
    on_log = partialmethod(_call, "on_log")
    on_train_end = partialmethod(_call, "on_train_end")


def reset_accelerate(ranks: Ranks) -> None:
    """Have accelerate see the ranks as they are now: it keeps its first sight of them for the life of a process."""
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    threads = torch.get_num_threads()
    if ranks.world_size > 1:
        from accelerate import PartialState

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            PartialState(cpu=ranks.device.type == "cpu")
        # It sets as many threads as the machine has cores, which other processes share.
        torch.set_num_threads(threads)


class StepOutOfMemory(Exception):  # noqa: N818 - not an error: all ranks agreed on it, and the step can be repeated
    """Memory ran out on at least one rank; no optimizer step was taken."""


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

    def __init__(self) -> None:
        self.skipped = 0
        self.in_a_row = 0
        self.skipped_since_step = 0

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
        return StepVerdict.STOP if self.in_a_row >= MAX_CONSECUTIVE_SKIPS else StepVerdict.SKIP

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
    """Seed the generators of Python, numpy and torch (CPU and GPUs) for one optimizer step.

    A resumed run therefore draws the random numbers of an uninterrupted one, without a saved state, and an aborted step
    leaves no trace: its repetition seeds the generators again.
    """
    # Neighboring steps, seeds and ranks have nothing in common.
    digest = hashlib.sha256(f"{seed} {step} {rank}".encode()).digest()
    transformers.set_seed(int.from_bytes(digest[:4], "big"))
