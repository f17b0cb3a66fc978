"""One fine-tuning run from settings to adapter: what `devkit finetune` calls once its flags are parsed."""

import signal
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from devkit.estimate.settings import Method, Precision
from devkit.workload.finetune.checkpoint import (
    CheckpointState,
    SettingValue,
    TrainProgress,
    find_newest_checkpoint,
    fingerprint_examples,
    load_checkpoint,
    require_checkpoint_space,
    save_checkpoint,
    select_resume_settings,
)
from devkit.workload.finetune.data.batches import BatchLayout, BatchLoader, Example, choose_layout
from devkit.workload.finetune.data.dataset import (
    Dataset,
    build_dataset,
    limit_to_context_length,
    tokenize_once_per_node,
)
from devkit.workload.finetune.decisions import Corpus, Decisions, build_memory_estimator, decide
from devkit.workload.finetune.distributed import (
    ParallelModel,
    Ranks,
    join_process_group,
    list_decoder_layers,
    wrap_parallel,
)
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
from devkit.workload.finetune.model.adapters import (
    attach_adapter,
    resolve_targets,
    trainable_parameters,
    use_fused_lora_forward,
    write_adapter_metadata,
)
from devkit.workload.finetune.model.attention import (
    ATTN_IMPLEMENTATION,
    read_attention_traits,
    register_varlen_attention,
    require_no_cross_attention,
)
from devkit.workload.finetune.model.files import (
    ADAPTER_WEIGHTS_FILE,
    BaseQuantization,
    LoadSettings,
    ModelFiles,
    WeightPlacement,
    inspect_model,
    is_packed_before_sharding,
)
from devkit.workload.finetune.model.hub import resolve_model_folder
from devkit.workload.finetune.model.loading import (
    FusedExperts,
    LoadedBase,
    Model,
    build_meta_model,
    find_fused_experts,
    load_base_and_tokenizer,
    load_tokenizer,
    prepare_for_training,
)
from devkit.workload.finetune.optimizers import build_optimizer
from devkit.workload.finetune.process import (
    INTERRUPTED_EXIT_CODE,
    DeferredSignals,
    StoppedBySignal,
    exit_code_for_signal,
    raise_on_signal,
)
from devkit.workload.finetune.run_folder import RunRecord, lock_run_folder, prepare_run_folder, publish_result
from devkit.workload.finetune.settings import FinetuneSettings, validate_finetune_settings
from devkit.workload.launch import PREEMPTED_EXIT_CODE

EXIT_CODES = {
    RunOutcome.DONE: 0,
    RunOutcome.NOT_FINITE: 1,
    RunOutcome.OUT_OF_MEMORY: 1,
    RunOutcome.INTERRUPTED: INTERRUPTED_EXIT_CODE,
    RunOutcome.PREEMPTED: PREEMPTED_EXIT_CODE,
}


def run_finetuning(settings: FinetuneSettings, *, listeners: tuple[Listener, ...] = (), dry_run: bool = False) -> int:
    """Train with `settings` and return the exit code. `listeners` get rank 0's events.

    With `dry_run` no weights are loaded and nothing is written: only decisions and estimate are emitted.

    Raises:
        DevkitError: the input cannot be trained on.
        StoppedBySignal: a signal came before the first step.
    """
    validate_finetune_settings(settings)
    with raise_on_signal(), join_process_group(detect_device_type()) as ranks:
        if dry_run:
            events = Events(None, listeners if ranks.is_rank0 else ())
            inputs = gather_inputs(settings, ranks, events)
            _emit_decisions(events, inputs, make_decisions(inputs, ranks))
            return EXIT_CODES[RunOutcome.DONE]
        with lock_run_folder(settings.output, ranks):
            ranks.on_rank0_broadcast(lambda: prepare_run_folder(settings.output, resume=settings.resume))
            return _RecordedRun(settings, ranks, listeners).execute()


class _RecordedRun:
    """A run on one rank, with its events in metrics.jsonl and its record in run.json."""

    def __init__(self, settings: FinetuneSettings, ranks: Ranks, listeners: tuple[Listener, ...]) -> None:
        self._settings = settings
        self._ranks = ranks
        self._listeners = listeners
        self._record = RunRecord(settings, gpu=read_gpu_name(ranks.device), world_size=ranks.world_size)

    def execute(self) -> int:
        """Run from the files to the adapter, and return the exit code."""
        # The signals are deferred from the first step on.
        with ExitStack() as deferral:
            try:
                self._ranks.on_rank0_broadcast(self._record.begin)
                try:
                    return EXIT_CODES[self._train(deferral)]
                except Exception as error:
                    if isinstance(error, RuntimeError) and is_out_of_memory(error):
                        return EXIT_CODES[self._end_out_of_memory(error)]
                    self._record_failure(error)
                    raise
            except StoppedBySignal as stop:
                # Before the first step: there is nothing to save.
                self._ranks.announce_stop(stop.signal)
                if self._ranks.is_rank0:
                    outcome = _outcome_of(stop.signal)
                    self._record.stop(outcome)
                    self._open_events(self._listeners)("stopped", step=None, how=outcome, saved=None)
                raise

    def _open_events(self, listeners: tuple[Listener, ...]) -> Events:
        return Events(self._settings.output / METRICS_FILE if self._ranks.is_rank0 else None, listeners)

    def _train(self, deferral: ExitStack) -> RunOutcome:
        ranks = self._ranks
        events = self._open_events(self._listeners if ranks.is_rank0 else ())
        inputs = gather_inputs(self._settings, ranks, events)
        decisions = make_decisions(inputs, ranks)
        if ranks.is_rank0:
            self._record.record_decisions(inputs.settings, decisions)
        _emit_decisions(events, inputs, decisions)
        signals = DeferredSignals()

        def stop_requested() -> RunOutcome | None:
            number = signals.agree_on_signal(ranks.max)
            return None if number is None else _outcome_of(number)

        trainer = Trainer(inputs, decisions, ranks, events, stop_requested=stop_requested)
        state = trainer.start()
        deferral.enter_context(signals)
        outcome = RunOutcome.OUT_OF_MEMORY if state is None else run_training_loop(trainer.context, state)
        result = ranks.on_rank0_broadcast(trainer.publish) if outcome is RunOutcome.DONE else None
        if ranks.is_rank0:
            self._record.finish(outcome, state or TrainState(micro_batch=0), trainer.peak_memory)
        events("end", how=outcome, result=str(result) if result else None, **self._record.summary)
        return outcome

    def _end_out_of_memory(self, error: BaseException) -> RunOutcome:
        """End a run whose memory ran out while the model was loaded, or in a collective, where no retry is possible.

        The other ranks wait for this one and find it gone: it reports, whichever it is, and they do not.
        """
        ranks = self._ranks
        free_after_oom(error, ranks.device)
        events = self._open_events(self._listeners if ranks.claim_reporting() else ())
        fields = read_device_memory(ranks.device).to_event_fields()
        process = {"process": ranks.rank} if ranks.world_size > 1 else {}
        events("stopped", step=None, how=RunOutcome.OUT_OF_MEMORY, saved=None, **process, **fields)
        if ranks.is_rank0:
            self._record.stop(RunOutcome.OUT_OF_MEMORY)
        return RunOutcome.OUT_OF_MEMORY

    def _record_failure(self, error: Exception) -> None:
        if not self._ranks.is_rank0:
            return
        number = self._ranks.find_stop_signal()
        if number is None:
            self._record.fail(error)
        else:
            self._record.stop(_outcome_of(number))


def _outcome_of(number: signal.Signals) -> RunOutcome:
    is_interrupt = exit_code_for_signal(number) == INTERRUPTED_EXIT_CODE
    return RunOutcome.INTERRUPTED if is_interrupt else RunOutcome.PREEMPTED


@dataclass(frozen=True)
class RunInputs:
    """Everything that is known before the model is loaded. `settings` have the final sequence length."""

    settings: FinetuneSettings
    files: ModelFiles
    config: Any
    data: Dataset
    experts: FusedExperts | None = None

    def notes(self, decisions: Decisions) -> tuple[str, ...]:
        """Return the notes for people before training."""
        if self.experts is None or self.settings.method is Method.FULL:
            return self.data.notes
        is_quantized = BaseQuantization.from_method(self.settings.method) is not BaseQuantization.NONE
        cost = (self.experts.note_on_quantization(decisions.precision),) if is_quantized else ()
        return (*self.data.notes, *cost, self.experts.note_on_adapters())


def gather_inputs(settings: FinetuneSettings, ranks: Ranks, events: Events) -> RunInputs:
    """Gather model files and data. Local rank 0 comes first, so that a download is done once per node."""
    folder = ranks.local_rank0_first(lambda: resolve_model_folder(settings.model))

    def inspect() -> tuple[ModelFiles, Model]:
        files = inspect_model(folder)
        model = build_meta_model(folder)
        if settings.method is not Method.FULL:
            # Fails now rather than after the weights are loaded.
            resolve_targets(model, settings.targets)
        return files, model

    files, model = ranks.on_all_or_fail(inspect)
    config = model.config
    limited = ranks.on_all_or_fail(lambda: limit_to_context_length(settings, config))
    data = tokenize_once_per_node(lambda: build_dataset(limited, load_tokenizer(folder), config, events), ranks)
    return RunInputs(limited, files, config, data, find_fused_experts(model))


def make_decisions(inputs: RunInputs, ranks: Ranks) -> Decisions:
    """Make the decisions, the same for all ranks, by the least memory that any of them has."""
    hardware = probe_hardware(ranks.device, world_size=ranks.world_size)
    hardware = replace(hardware, free_bytes=int(-ranks.max(-hardware.free_bytes)))
    train = inputs.data.train
    return ranks.on_rank0_broadcast(
        lambda: decide(
            inputs.settings,
            hardware,
            traits=read_attention_traits(inputs.config),
            corpus=Corpus([len(each.ids) for each in train]),
            estimator=build_memory_estimator(inputs.files.config),
        )
    )


def _emit_decisions(events: Events, inputs: RunInputs, decisions: Decisions) -> None:
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
    for text in (*decisions.warnings, *inputs.notes(decisions)):
        events("note", text=text)


def load_base_model(inputs: RunInputs, decisions: Decisions, ranks: Ranks) -> LoadedBase:
    """Load the base model as decided, on all ranks."""
    register_varlen_attention()
    settings = inputs.settings
    placement = WeightPlacement.ONTO_DEVICE
    if is_broadcast_by_rank0(inputs, decisions):
        placement = WeightPlacement.MAPPED if ranks.is_rank0 else WeightPlacement.NOWHERE
    load_settings = LoadSettings(
        precision=decisions.precision,
        device=str(ranks.device),
        quantisation=BaseQuantization.from_method(settings.method),
        is_sharded=decisions.is_sharded,
        placement=placement,
        attention=ATTN_IMPLEMENTATION[decisions.attention],
    )
    return ranks.on_all_or_fail(lambda: load_base_and_tokenizer(settings.model, load_settings))


def is_broadcast_by_rank0(inputs: RunInputs, decisions: Decisions) -> bool:
    """Return True if rank 0 reads the weights, and broadcasts them to the others while they are sharded."""
    settings = inputs.settings
    return decisions.is_sharded and not is_packed_before_sharding(
        inputs.files.quantised, settings.method, dora=settings.dora
    )


def prepare_model(base: Model, settings: FinetuneSettings, decisions: Decisions) -> Model:
    """Prepare the base for training: with an adapter, or whole."""
    prepare_for_training(base, checkpointing=decisions.checkpointing)
    if settings.method is Method.FULL:
        return base.requires_grad_(requires_grad=True)
    adapted = attach_adapter(base, settings, precision=decisions.adapter_precision)
    if not decisions.compile:
        # A compiler fuses the passes over memory by itself.
        use_fused_lora_forward(adapted)
    return adapted


def can_recover_from_oom(device: torch.device) -> bool:
    """Return True if running out of memory raises an error. On CPUs the system kills the whole process."""
    return device.type != "cpu"


class Trainer:
    """Everything on one rank that lives from loading the model to publishing the result.

    `stop_requested` is the loop's.
    """

    def __init__(
        self,
        inputs: RunInputs,
        decisions: Decisions,
        ranks: Ranks,
        events: Events,
        *,
        stop_requested: Callable[[], RunOutcome | None],
    ) -> None:
        self._settings = inputs.settings
        self._decisions = decisions
        self._ranks = ranks
        self._events = events
        self._stop_requested = stop_requested
        data = inputs.data
        self._base = load_base_model(inputs, decisions, ranks)
        # Saved with the result: a tokenizer without a template was given one when the first chat came.
        self._base.tokenizer.chat_template = data.chat_template
        self._identity = {"model": inputs.files.identity, "data": fingerprint_examples(data.train)}
        self._model = prepare_model(self._base.model, self._settings, decisions)
        self._loader = self._build_loader(data.train)
        self._eval_loader = self._build_loader(data.held_out) if data.held_out else None
        self._parallel = self._wrap_parallel(is_broadcast=is_broadcast_by_rank0(inputs, decisions))
        self._checkpoint: Path | None = None

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

    def _wrap_parallel(self, *, is_broadcast: bool) -> ParallelModel:
        decisions, ranks = self._decisions, self._ranks
        module = ModelWithLoss(self._model, loss=decisions.loss, attention=decisions.attention, device=ranks.device)
        layers = list_decoder_layers(module)
        parallel = wrap_parallel(
            module,
            sharding=decisions.sharding,
            method=self._settings.method,
            ranks=ranks,
            is_broadcast=is_broadcast,
        )
        layout = choose_layout(decisions.attention, pack=decisions.packing)
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

    @cached_property
    def _state(self) -> CheckpointState:
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

    @cached_property
    def context(self) -> TrainContext:
        """Everything that the training loop works with."""
        settings, state, loader = self._settings, self._state, self._loader
        return TrainContext(
            settings=settings,
            learning_rate=self._decisions.learning_rate,
            steps=settings.steps or max(1, round(settings.epochs * loader.steps_per_epoch)),
            passes=ForwardBackward(
                self._parallel,
                self._ranks,
                is_sharded=self._decisions.is_sharded,
                stop_requested=self._stop_requested,
            ),
            parameters=trainable_parameters(self._model),
            optimizer=state.optimizer,
            scaler=state.scaler,
            guard=FiniteGuard(),
            loader=loader,
            evaluate=self._evaluate if self._eval_loader is not None else None,
            ranks=self._ranks,
            events=self._events,
            save=self._save,
            stop_requested=self._stop_requested,
        )

    @property
    def peak_memory(self) -> DeviceMemory:
        """The peaks on this rank's device."""
        return read_device_memory(self._ranks.device)

    def start(self) -> TrainState | None:
        """Return the state to start from: the micro-batch that fits, and the newest checkpoint. None if nothing fits."""
        settings, loader = self._settings, self._loader
        micro_batch = self._find_micro_batch()
        if micro_batch == 0:
            return None
        require_checkpoint_space(settings.output, self._state, ranks=self._ranks, keep=settings.keep)
        state = TrainState(micro_batch=micro_batch)
        if settings.resume:
            self._resume(state)
        self._events(
            "start",
            step=state.step,
            steps=self.context.steps,
            rows=len(loader.rows),
            tokens_per_epoch=loader.token_count,
            world=self._ranks.world_size,
            micro_batch=state.micro_batch,
            trainable_parameters=sum(each.numel() for each in self.context.parameters),
        )
        return state

    def _find_micro_batch(self) -> int:
        """Return the micro-batch to start with: as decided, and tried on GPUs with the largest batch that can come."""
        size = min(self._decisions.micro_batch, len(self._loader.rows))
        if not can_recover_from_oom(self._ranks.device):
            return size
        context = self.context
        rows = -(-min(self._settings.batch, len(self._loader.rows)) // self._ranks.world_size)

        def attempt(micro_batch: int) -> None:
            # A second pass, where there is one, has the gradients of the first beside its activations.
            batches = [self._loader.build_largest_batch(micro_batch)] * (2 if rows > micro_batch else 1)
            run_dry_step(context.passes, context.optimizer, batches)

        found = find_micro_batch(attempt, start=size, ranks=self._ranks)
        memory = found.memory.to_event_fields()
        self._events("probe", micro_batch=found.micro_batch, refused=list(found.refused), **memory)
        return found.micro_batch

    def _resume(self, state: TrainState) -> None:
        output = self._settings.output
        found = find_newest_checkpoint(output, settings=self._resume_settings, ranks=self._ranks)
        if found is not None:
            progress = load_checkpoint(found, self._state)
            state.step = state.saved = progress.step
            state.tokens, state.seconds = progress.tokens, progress.seconds
            self.context.guard.skipped = progress.skipped
            self._checkpoint = found.path
            self._events("resumed", step=progress.step, path=found.path.name)
            for text in (*found.broken, *found.notes):
                self._events("note", text=text)
        if self._ranks.is_rank0:
            drop_events_after(output / METRICS_FILE, state.step)

    @cached_property
    def _resume_settings(self) -> dict[str, SettingValue]:
        decisions = self._decisions
        return select_resume_settings(
            self._settings,
            {
                "precision": decisions.precision,
                "adapter_precision": decisions.adapter_precision,
                "optimizer": decisions.optimizer,
                "learning_rate": decisions.learning_rate,
                "packing": decisions.packing,
                "steps": self.context.steps,
                **self._identity,
            },
        )

    def _save(self, state: TrainState) -> None:
        saved = save_checkpoint(
            self._settings.output,
            self._state,
            TrainProgress(
                step=state.step,
                tokens=state.tokens,
                skipped=self.context.guard.skipped,
                seconds=state.seconds,
            ),
            settings=self._resume_settings,
            ranks=self._ranks,
            keep=self._settings.keep,
        )
        self._checkpoint = saved.path
        seconds = round(saved.seconds, 3)
        self._events("checkpoint", step=state.step, path=saved.path.name, bytes=saved.bytes, seconds=seconds)

    def _evaluate(self, state: TrainState) -> None:
        assert self._eval_loader is not None  # noqa: S101 - the loop gets this method only then
        result = evaluate_loss(
            self._parallel.module,
            self._eval_loader,
            self._ranks,
            micro_batch=state.micro_batch,
            stop_requested=self._stop_requested,
        )
        if not result.is_aborted:
            seconds = round(result.seconds, 3)
            self._events("eval", step=state.step, loss=result.loss, counted=result.targets, seconds=seconds)

    def publish(self) -> Path | None:
        """Publish the result of the newest checkpoint and return its folder; None if there is no checkpoint."""
        if self._checkpoint is None:
            return None
        is_adapter = self._state.weights_file == ADAPTER_WEIGHTS_FILE
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
