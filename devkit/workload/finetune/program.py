"""One fine-tuning run from settings to adapter: what `devkit finetune` calls once its flags are read."""

import signal
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from devkit.estimate.settings import Method, Precision, Sharding
from devkit.workload.finetune import checkpoint, distributed, process, run_folder
from devkit.workload.finetune.checkpoint import (
    CheckpointState,
    SettingValue,
    TrainProgress,
    fingerprint_examples,
    select_resume_settings,
)
from devkit.workload.finetune.data.batches import BatchLoader, Example
from devkit.workload.finetune.data.dataset import (
    Dataset,
    build_dataset,
    limit_to_context_length,
    tokenize_once_per_node,
)
from devkit.workload.finetune.decisions import (
    BatchLayout,
    CorpusSize,
    Decisions,
    build_memory_estimator,
    choose_layout,
    decide,
)
from devkit.workload.finetune.distributed import ParallelModel, Ranks, list_decoder_layers, wrap_parallel
from devkit.workload.finetune.events import METRICS_FILE, Events, Listener, drop_events_after
from devkit.workload.finetune.loop import (
    FiniteGuard,
    ForwardBackward,
    ModelWithLoss,
    RunOutcome,
    TrainContext,
    TrainState,
    evaluate_loss,
    run_dry_step,
    run_training_loop,
)
from devkit.workload.finetune.memory import (
    DeviceMemory,
    detect_device_type,
    find_micro_batch,
    free_after_oom,
    is_out_of_memory,
    probe_hardware,
    read_device_memory,
    read_gpu_name,
)
from devkit.workload.finetune.model import adapters, attention, loading
from devkit.workload.finetune.model.adapters import resolve_targets, use_fused_lora_forward, write_adapter_metadata
from devkit.workload.finetune.model.attention import require_no_cross_attention
from devkit.workload.finetune.model.files import (
    BaseQuantization,
    LoadSettings,
    ModelFiles,
    WeightPlacement,
    inspect_model,
    is_packed_before_sharding,
)
from devkit.workload.finetune.model.hub import resolve_model_folder
from devkit.workload.finetune.optimizers import build_optimizer
from devkit.workload.finetune.run_folder import RunRecord, lock_run_folder
from devkit.workload.finetune.settings import FinetuneSettings, validate_finetune_settings
from devkit.workload.models import Model

# What a run is put together from: data, decisions, model, optimizer.


@dataclass(frozen=True)
class RunInputs:
    """What is known before the model is loaded. `settings` have the rows that the model can read."""

    settings: FinetuneSettings
    files: ModelFiles
    config: Any
    data: Dataset
    experts: loading.FusedExperts | None = None

    def notes(self, decisions: Decisions) -> tuple[str, ...]:
        """What a user should hear before training."""
        if self.experts is None or self.settings.method is Method.FULL:
            return self.data.notes
        is_quantised = BaseQuantization.from_method(self.settings.method) is not BaseQuantization.NONE
        cost = (self.experts.note(decisions.precision),) if is_quantised else ()
        return (*self.data.notes, *cost, self.experts.note_on_adapters())


def gather_inputs(settings: FinetuneSettings, together: Ranks, events: Events) -> RunInputs:
    """Model files and texts. The first process of a node looks first, so that a download is done once there."""
    folder = together.local_rank0_first(lambda: resolve_model_folder(settings.model))
    files, shape = together.on_all_or_fail(lambda: _looked_at(folder, settings))
    config = shape.config
    fitting = together.on_all_or_fail(lambda: limit_to_context_length(settings, config))
    data = tokenize_once_per_node(
        lambda: build_dataset(fitting, loading.load_tokenizer(folder), config, events), together
    )
    return RunInputs(fitting, files, config, data, loading.find_fused_experts(shape))


def _looked_at(folder: Path, settings: FinetuneSettings) -> tuple[ModelFiles, Model]:
    """The model's files, and the model without weights."""
    files = inspect_model(folder)
    shape = loading.build_meta_model(folder)
    if settings.method is not Method.FULL:
        # Refused now rather than after the weights are loaded.
        resolve_targets(shape, settings.targets)
    return files, shape


def make_decisions(material: RunInputs, together: Ranks) -> Decisions:
    """What the run does with this machine: the same for all processes, by the least memory that any of them has."""
    here = probe_hardware(together.device, world=together.world)
    hardware = replace(here, free_bytes=int(-together.largest(-here.free_bytes)))
    learned = material.data.learned
    return together.on_rank0_broadcast(
        lambda: decide(
            material.settings,
            hardware,
            traits=attention.read_attention_traits(material.config),
            corpus=CorpusSize(len(learned), sum(len(each.ids) for each in learned)),
            need=build_memory_estimator(material.files.config),
        )
    )


def build_loader(settings: FinetuneSettings, decisions: Decisions, examples: Sequence[Example]) -> BatchLoader:
    """The texts as the rows of a run."""
    return BatchLoader(
        examples,
        batch=settings.batch,
        sequence=settings.sequence,
        seed=settings.seed,
        pack=decisions.packing,
        layout=choose_layout(decisions.attention, pack=decisions.packing),
    )


def load_base_model(material: RunInputs, decisions: Decisions, together: Ranks) -> loading.LoadedBase:
    """The base model as it was decided, in all processes."""
    attention.register_varlen_attention()
    settings = material.settings
    reading = WeightPlacement.ONTO_DEVICE
    if is_broadcast_by_rank0(material, decisions):
        reading = WeightPlacement.MAPPED if together.is_rank0 else WeightPlacement.NOWHERE
    choices = LoadSettings(
        precision=decisions.precision,
        device=str(together.device),
        quantisation=BaseQuantization.from_method(settings.method),
        is_shared_out=is_sharded(decisions.sharding),
        reading=reading,
        attention=attention.ATTN_IMPLEMENTATION[decisions.attention],
    )
    return together.on_all_or_fail(lambda: loading.load_base_and_tokenizer(settings.model, choices))


def is_broadcast_by_rank0(material: RunInputs, decisions: Decisions) -> bool:
    """Whether the first process reads the weights, and gives the others theirs while they are shared out."""
    settings = material.settings
    is_packed = is_packed_before_sharding(material.files.quantised, settings.method, dora=settings.dora)
    return is_sharded(decisions.sharding) and not is_packed


def prepare_model(base: Model, settings: FinetuneSettings, decisions: Decisions) -> Model:
    """The base ready to be trained: with an adapter, or whole."""
    loading.prepare_for_training(base, checkpointing=decisions.checkpointing)
    if settings.method is Method.FULL:
        whole: Model = base.requires_grad_(requires_grad=True)
        return whole
    adapted = adapters.attach_adapter(base, settings, precision=decisions.adapter_precision)
    if not decisions.compile:
        # A compiler puts passes over memory together by itself.
        use_fused_lora_forward(adapted)
    return adapted


def build_grad_scaler(decisions: Decisions, device: torch.device) -> torch.amp.GradScaler | None:
    """What keeps small gradients from vanishing in fp16; None for other precisions."""
    if decisions.precision is not Precision.FP16:
        return None
    return torch.amp.GradScaler(device.type)


def is_sharded(sharding: Sharding) -> bool:
    """Whether processes hold parts of the model, so that none of them can compute alone."""
    return sharding in (Sharding.ZERO2, Sharding.ZERO3)


def require_packed_texts_isolated(shared: ParallelModel, decisions: Decisions, device: torch.device) -> None:
    """Raises DevkitError where texts that are to share a row see each other in this model."""
    layout = choose_layout(decisions.attention, pack=decisions.packing)
    if layout is not BatchLayout.PADDED:
        shared.call_gathered(lambda model: require_no_cross_attention(loading, decisions.attention, layout, device))


# A run put together in one process: what the loop works with, and what happens around it.


def can_recover_from_oom(device: torch.device) -> bool:
    """Whether a pass that is too large fails and can be made smaller. On CPUs the system ends the whole process."""
    return device.type != "cpu"


class Trainer:
    """Loads the model and holds everything that the run needs until it ends. `asked` is the loop's."""

    def __init__(
        self,
        material: RunInputs,
        decisions: Decisions,
        together: Ranks,
        events: Events,
        *,
        asked: Callable[[], RunOutcome | None],
    ) -> None:
        settings = self._settings = material.settings
        data = material.data
        self._decisions = decisions
        self._ranks = together
        self._events = events
        self._asked = asked
        self._base = load_base_model(material, decisions, together)
        # Saved with what was trained: a tokenizer without a template was given one when the first chat came.
        self._base.tokenizer.chat_template = data.chat_template
        self._identity = {
            "model": material.files.identity,
            "data": fingerprint_examples(data.learned),
        }
        self._model = prepare_model(self._base.model, settings, decisions)
        self._feed = build_loader(settings, decisions, data.learned)
        self._held_out = build_loader(settings, decisions, data.held_out) if data.held_out else None
        self._shared = self._share(is_handed_out=is_broadcast_by_rank0(material, decisions))
        self._checkpoint: Path | None = None
        self._tell_notes()

    def _share(self, *, is_handed_out: bool) -> ParallelModel:
        decisions, ranks = self._decisions, self._ranks
        module = ModelWithLoss(self._model, loss=decisions.loss, attention=decisions.attention, device=ranks.device)
        layers = list_decoder_layers(module)
        shared = wrap_parallel(
            module,
            sharding=decisions.sharding,
            method=self._settings.method,
            ranks=ranks,
            is_handed_out=is_handed_out,
        )
        require_packed_texts_isolated(shared, decisions, ranks.device)
        module.split(shared.call_gathered)
        self._is_split = module.is_split
        if decisions.compile:
            # Each layer by itself: one compilation serves them all. After the trials, whose shapes never come again.
            for layer in layers:
                layer.compile()
        return shared

    def _tell_notes(self) -> None:
        for text in self._feed.notes:
            self._events("note", text=text)
        if not self._is_split:
            self._events(
                "note", text="this model does more to its logits than is known here, so that they are made as a whole"
            )

    @cached_property
    def _state(self) -> CheckpointState:
        optimizer = build_optimizer(
            self._model,
            self._decisions.optimizer,
            learning_rate=self._decisions.learning_rate,
            weight_decay=self._settings.weight_decay,
            masters=self._decisions.training(self._settings, world=self._ranks.world).has_masters,
        )
        return CheckpointState(self._model, optimizer, build_grad_scaler(self._decisions, self._ranks.device))

    @cached_property
    def run(self) -> TrainContext:
        """What the loop works with."""
        state = self._state
        feed = self._feed
        return TrainContext(
            settings=self._settings,
            learning_rate=self._decisions.learning_rate,
            steps=self._settings.steps or max(1, round(self._settings.epochs * feed.steps_per_epoch)),
            passes=ForwardBackward(self._shared, self._ranks, is_sharded=self._is_sharded, asked=self._asked),
            parameters=[each for each in self._model.parameters() if each.requires_grad],
            optimizer=state.optimizer,
            scaler=state.scaler,
            guard=FiniteGuard(),
            feed=feed,
            evaluate=self._evaluate if self._held_out is not None else None,
            ranks=self._ranks,
            events=self._events,
            save=self._save,
            asked=self._asked,
        )

    @property
    def _is_sharded(self) -> bool:
        return is_sharded(self._decisions.sharding)

    @property
    def measured(self) -> DeviceMemory:
        """The peaks on this process's device."""
        return read_device_memory(self._ranks.device)

    def start(self) -> TrainState | None:
        """Where to begin: with the micro-batch that fits, and at the newest checkpoint. None where not a row fits."""
        micro_batch = self._fitting()
        if micro_batch == 0:
            return None
        checkpoint.require_checkpoint_space(
            self._settings.output, self._state, ranks=self._ranks, keep=self._settings.keep
        )
        position = self._resumed(micro_batch) if self._settings.resume else TrainState(micro_batch=micro_batch)
        run = self.run
        self._events(
            "start",
            step=position.step,
            steps=run.steps,
            rows=len(self._feed.rows),
            tokens_per_epoch=self._feed.tokens,
            world=self._ranks.world,
            micro_batch=position.micro_batch,
            trainable_parameters=sum(each.numel() for each in run.parameters),
        )
        return position

    def _fitting(self) -> int:
        """The micro-batch to begin with: the decided one, tried on GPUs with the largest pass that can come up."""
        size = min(self._decisions.micro_batch, len(self._feed.rows))
        if not can_recover_from_oom(self._ranks.device):
            return size
        run = self.run
        found = find_micro_batch(
            self._feed.build_largest_batch,
            lambda batch: run_dry_step(run.passes, run.optimizer, batch),
            start=size,
            ranks=self._ranks,
        )
        self._events("probe", micro_batch=found.micro_batch, refused=list(found.refused), **found.memory.fields())
        return found.micro_batch

    def _resumed(self, micro_batch: int) -> TrainState:
        settings = self._settings
        position = TrainState(micro_batch=micro_batch)
        found = checkpoint.find_newest_checkpoint(settings.output, settings=self._counting, ranks=self._ranks)
        if found is not None:
            progress = checkpoint.load_checkpoint(found, self._state)
            position.step = position.saved = progress.step
            position.tokens, position.seconds = progress.tokens, progress.seconds
            self.run.guard.skipped = progress.skipped
            self._checkpoint = found.path
            self._events("resumed", step=progress.step, path=found.path.name)
            for text in (*found.passed_over, *found.notes):
                self._events("note", text=text)
        if self._ranks.is_rank0:
            drop_events_after(settings.output / METRICS_FILE, position.step)
        return position

    @cached_property
    def _counting(self) -> dict[str, SettingValue]:
        decisions = self._decisions
        chosen: dict[str, SettingValue] = {
            "precision": decisions.precision,
            "adapter_precision": decisions.adapter_precision,
            "optimizer": decisions.optimizer,
            "learning_rate": decisions.learning_rate,
            "packing": decisions.packing,
            "steps": self.run.steps,
            **self._identity,
        }
        return select_resume_settings(self._settings, chosen)

    def _save(self, position: TrainState) -> None:
        progress = TrainProgress(
            step=position.step,
            tokens=position.tokens,
            skipped=self.run.guard.skipped,
            seconds=position.seconds,
        )
        saved = checkpoint.save_checkpoint(
            self._settings.output,
            self._state,
            progress,
            settings=self._counting,
            ranks=self._ranks,
            keep=self._settings.keep,
        )
        self._checkpoint = saved.path
        self._events(
            "checkpoint",
            step=position.step,
            path=saved.path.name,
            bytes=saved.bytes,
            seconds=round(saved.seconds, 3),
        )

    def _evaluate(self, position: TrainState) -> None:
        assert self._held_out is not None  # noqa: S101 - the loop is given this only then
        found = evaluate_loss(
            self._shared.module, self._held_out, self._ranks, micro_batch=position.micro_batch, asked=self._asked
        )
        if not found.was_given_up:
            self._events(
                "eval", step=position.step, loss=found.loss, counted=found.counted, seconds=round(found.seconds, 3)
            )

    def publish(self) -> Path | None:
        """Put the result where people look for it: the folder, None where no checkpoint could be made."""
        if self._checkpoint is None:
            return None
        is_adapter = self._state.weights_file == "adapter_model.safetensors"
        return run_folder.publish_result(
            self._settings.output, self._checkpoint, is_adapter=is_adapter, write_beside=self._write_beside
        )

    def _write_beside(self, folder: Path) -> None:
        if hasattr(self._model, "peft_config"):
            write_adapter_metadata(folder, self._base)
        else:
            self._base.tokenizer.save_pretrained(str(folder))
            if self._base.model.generation_config is not None:
                self._base.model.generation_config.save_pretrained(str(folder))


EXIT_CODES = {
    RunOutcome.DONE: 0,
    RunOutcome.NOT_FINITE: 1,
    RunOutcome.OUT_OF_MEMORY: 1,
    RunOutcome.INTERRUPTED: process.INTERRUPTED_EXIT_CODE,
    RunOutcome.PREEMPTED: process.PREEMPTED_EXIT_CODE,
}


def run_finetuning(settings: FinetuneSettings, *, listeners: tuple[Listener, ...] = (), dry_run: bool = False) -> int:
    """Train as `settings` say, and return the exit code. `listeners` hear the first process's events.

    With `dry_run` no weights are loaded and nothing is written: only decisions and estimate are told. Raises
    DevkitError for input that cannot be trained on, and Stopped for a signal that comes before the first step.
    """
    validate_finetune_settings(settings)
    with process.raise_on_signal(), distributed.join_process_group(detect_device_type()) as together:
        if not dry_run:
            return _claimed_and_run(settings, together, listeners)
        events = Events(None, listeners if together.is_rank0 else ())
        material = gather_inputs(settings, together, events)
        decisions = make_decisions(material, together)
        _tell(events, decisions, material.notes(decisions))
        return EXIT_CODES[RunOutcome.DONE]


def _claimed_and_run(settings: FinetuneSettings, together: Ranks, listeners: tuple[Listener, ...]) -> int:
    together.on_rank0_broadcast(lambda: run_folder.prepare_run_folder(settings.output, resume=settings.resume))
    record = RunRecord(settings, gpu=read_gpu_name(together.device), world=together.world)
    with lock_run_folder(settings.output, together), ExitStack() as training:
        try:
            return EXIT_CODES[_run(settings, together, training, listeners, record)]
        except process.StoppedBySignal as asked:
            together.leave(asked.signal)
            _tell_stopped(settings, together, listeners, record, _end_by(asked.signal))
            raise


def _run(
    settings: FinetuneSettings,
    together: Ranks,
    training: ExitStack,
    listeners: tuple[Listener, ...],
    record: RunRecord,
) -> RunOutcome:
    """Everything from the files to the adapter, in one of the run's processes.

    `training` is given what holds from the first step until this process leaves.
    """
    together.on_rank0_broadcast(record.begin)
    try:
        return _recorded(settings, together, training, listeners, record)
    except RuntimeError as error:
        if is_out_of_memory(error):
            return _out_of_memory(settings, together, listeners, record, error)
        _fail(record, together, error)
        raise
    except Exception as error:
        _fail(record, together, error)
        raise


def _tell_stopped(
    settings: FinetuneSettings, together: Ranks, listeners: tuple[Listener, ...], record: RunRecord, ended: RunOutcome
) -> None:
    """A signal came before the first step: there is nothing to save."""
    if together.is_rank0:
        record.stop(ended)
        _events(settings, together, listeners)("stopped", step=None, how=ended, saved=None)


def _fail(record: RunRecord, together: Ranks, error: Exception) -> None:
    if not together.is_rank0:
        return
    because = together.find_stop_signal()
    if because is None:
        record.fail(error)
    else:
        record.stop(_end_by(because))


def _recorded(
    settings: FinetuneSettings,
    together: Ranks,
    training: ExitStack,
    listeners: tuple[Listener, ...],
    record: RunRecord,
) -> RunOutcome:
    """The run, with what was decided and how it ended in its record."""
    events = _events(settings, together, listeners if together.is_rank0 else ())
    material = gather_inputs(settings, together, events)
    decisions = make_decisions(material, together)
    if together.is_rank0:
        record.decided(material.settings, decisions)
    _tell(events, decisions, material.notes(decisions))
    return _trained(material, decisions, together, training, events, record)


def _events(settings: FinetuneSettings, together: Ranks, listeners: tuple[Listener, ...]) -> Events:
    return Events(settings.output / METRICS_FILE if together.is_rank0 else None, listeners)


def _out_of_memory(
    settings: FinetuneSettings,
    together: Ranks,
    listeners: tuple[Listener, ...],
    record: RunRecord,
    error: BaseException,
) -> RunOutcome:
    """Memory ran out, not between steps, where it is answered: while the model was loaded, or in an exchange.

    The others wait for this process and find it gone: it tells, whichever it is, and they do not.
    """
    free_after_oom(error, together.device)
    events = _events(settings, together, listeners if together.claim_reporting() else ())
    memory = read_device_memory(together.device)
    who = {"process": together.rank} if together.world > 1 else {}
    events("stopped", step=None, how=RunOutcome.OUT_OF_MEMORY, saved=None, **who, **memory.fields())
    if together.is_rank0:
        record.stop(RunOutcome.OUT_OF_MEMORY)
    return RunOutcome.OUT_OF_MEMORY


def _trained(
    material: RunInputs,
    decisions: Decisions,
    together: Ranks,
    training: ExitStack,
    events: Events,
    record: RunRecord,
) -> RunOutcome:
    stop = process.DeferredSignals()
    job = Trainer(material, decisions, together, events, asked=lambda: _asked(stop, together))
    position = job.start()
    training.enter_context(stop)
    ended = RunOutcome.OUT_OF_MEMORY if position is None else run_training_loop(job.run, position)
    position = position or TrainState(micro_batch=0)
    result = together.on_rank0_broadcast(job.publish) if ended is RunOutcome.DONE else None
    if together.is_rank0:
        record.finish(ended, position, job.measured)
    events("end", how=ended, result=str(result) if result else None, **record.summary)
    return ended


def _tell(events: Events, decisions: Decisions, notes: tuple[str, ...]) -> None:
    for each in decisions.reasons:
        events("decision", name=each.name, value=each.value, because=each.because)
    estimate = decisions.estimate
    if estimate is not None:
        events(
            "estimate",
            allocated_peak_bytes=estimate.allocated_peak_bytes,
            reserved_peak_bytes=vars(estimate.reserved_peak_bytes),
            device_peak_bytes=vars(estimate.device_peak_bytes),
            terms=[{"name": term.name, "bytes": term.bytes} for term in estimate.terms],
        )
    for text in (*decisions.warnings, *notes):
        events("note", text=text)


def _asked(stop: process.DeferredSignals, together: Ranks) -> RunOutcome | None:
    asked = stop.agree_on_signal(together)
    return None if asked is None else _end_by(asked)


def _end_by(asked: signal.Signals) -> RunOutcome:
    return (
        RunOutcome.INTERRUPTED
        if process.exit_code_for_signal(asked) == process.INTERRUPTED_EXIT_CODE
        else RunOutcome.PREEMPTED
    )
