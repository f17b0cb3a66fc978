"""One fine-tuning run from settings to adapter: what `devkit finetune` calls once its flags are parsed."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from devkit.estimate.settings import Method, Objective
from devkit.workload.device import (
    choose_device,
    free_after_oom,
    is_out_of_memory,
    probe_hardware,
    read_device_memory,
)
from devkit.workload.finetune.dataset import (
    Dataset,
    TokenizedRecords,
    build_dataset,
    limit_to_context_length,
    tokenize_records,
)
from devkit.workload.finetune.decisions import Decisions, build_memory_estimator, decide
from devkit.workload.finetune.distributed import Ranks, join_process_group
from devkit.workload.finetune.events import METRICS_FILE, Events, Listener
from devkit.workload.finetune.files import (
    BaseQuantization,
    LoadSettings,
    ModelFiles,
    inspect_model,
    is_packed_before_sharding,
    resolve_model_folder,
)
from devkit.workload.finetune.forward import ATTN_IMPLEMENTATION, read_attention_traits, register_varlen_attention
from devkit.workload.finetune.live_page import LivePage
from devkit.workload.finetune.model import (
    FusedExperts,
    LoadedBase,
    build_meta_model,
    find_fused_experts,
    load_base_and_tokenizer,
    load_tokenizer,
    resolve_targets,
)
from devkit.workload.finetune.process import (
    DeferredSignals,
    RunOutcome,
    StoppedBySignal,
    raise_on_signal,
)
from devkit.workload.finetune.run_folder import RunRecord, lock_run_folder, prepare_run_folder
from devkit.workload.finetune.settings import FinetuneSettings, validate_finetune_settings
from devkit.workload.finetune.trainer import FinetuneTrainer, RunContext, RunTrainer, build_loader, count_steps
from devkit.workload.models import Model


def run_finetuning(
    settings: FinetuneSettings,
    *,
    listeners: tuple[Listener, ...] = (),
    trackers: tuple[str, ...] = (),
    dry_run: bool = False,
) -> int:
    """Train with `settings` and return the exit code. `listeners` get rank 0's events, trackers of these names its numbers.

    With `dry_run` no weights are loaded and nothing is written: only decisions and estimate are emitted.

    Raises:
        DevkitError: the input cannot be trained on.
        StoppedBySignal: a signal came before the first step.
    """
    validate_finetune_settings(settings)
    group = join_process_group(choose_device().kind, timeout_s=settings.timeout)
    with raise_on_signal(), group as ranks:
        if dry_run:
            events = Events(None, listeners if ranks.is_rank0 else ())
            inputs = gather_inputs(settings, ranks, events)
            decisions = make_decisions(inputs, ranks)
            rows, steps = len(inputs.data.train), len(inputs.data.train) / settings.batch
            if settings.objective is Objective.SFT:
                loader = build_loader(inputs.data.train, inputs.settings, decisions)
                rows, steps = len(loader.rows), loader.steps_per_epoch
            events("plan", steps=count_steps(settings, steps), rows=rows, output=str(settings.output))
            _emit_decisions(events, inputs, decisions)
            return RunOutcome.DONE.exit_code
        with lock_run_folder(settings.output, ranks):
            ranks.on_rank0_broadcast(lambda: prepare_run_folder(settings.output, resume=settings.resume))
            return _RecordedRun(settings, ranks, listeners, trackers).execute()


class _RecordedRun:
    """A run on one rank, with its events in metrics.jsonl and its record in run.json."""

    def __init__(
        self, settings: FinetuneSettings, ranks: Ranks, listeners: tuple[Listener, ...], trackers: tuple[str, ...]
    ) -> None:
        self._settings = settings
        self._ranks = ranks
        self._listeners: tuple[Listener, ...] = (*listeners, LivePage(settings.output))
        self._trackers = trackers
        gpu = torch.cuda.get_device_name(ranks.device) if ranks.device.type == "cuda" else None
        self._record = RunRecord(settings, gpu=gpu, world_size=ranks.world_size)

    def execute(self) -> int:
        """Run from the files to the adapter, and return the exit code."""
        # The signals are deferred from the first step on.
        with ExitStack() as deferral:
            try:
                self._ranks.on_rank0_broadcast(self._record.begin)
                try:
                    return self._train(deferral).exit_code
                except Exception as error:
                    if isinstance(error, RuntimeError) and is_out_of_memory(error):
                        return self._end_out_of_memory(error).exit_code
                    (self._record.fail if self._ranks.is_rank0 else self._record.fail_for_rank0)(error)
                    raise
            except StoppedBySignal as stop:
                # Before the first step: there is nothing to save.
                if self._ranks.is_rank0:
                    outcome = RunOutcome.from_signal(stop.signal)
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
            return None if number is None else RunOutcome.from_signal(number)

        base = load_base_model(inputs, decisions, ranks)
        run = RunContext(inputs.settings, decisions, inputs.data, base, ranks, events, stop_requested, self._trackers)
        trainer: RunTrainer
        if inputs.settings.objective is Objective.SFT:
            trainer = FinetuneTrainer(run)
        else:
            from devkit.workload.finetune.objectives import TRAINERS

            trainer = TRAINERS[inputs.settings.objective](
                run, load_reference=lambda: load_base_model(inputs, decisions, ranks).model
            )
        trainer.start()
        deferral.enter_context(signals)
        outcome = trainer.run()
        result = ranks.on_rank0_broadcast(trainer.publish) if outcome is RunOutcome.DONE else None
        if ranks.is_rank0:
            memory = read_device_memory(ranks.device)
            self._record.finish(outcome, trainer.progress, memory, micro_batch=trainer.micro_batch)
        objective = inputs.settings.objective
        named = {} if objective is Objective.SFT else {"objective": objective}
        events("end", how=outcome, result=str(result) if result else None, **named, **self._record.summary)
        return outcome

    def _end_out_of_memory(self, error: BaseException) -> RunOutcome:
        """End a run whose memory ran out while the model was loaded, or in a collective, where no retry is possible.

        The other ranks wait for this one and find it gone: it reports the cause, whichever it is.
        """
        ranks = self._ranks
        free_after_oom(error, ranks.device)
        events = self._open_events(self._listeners)
        fields = read_device_memory(ranks.device).to_event_fields()
        process = {"process": ranks.rank} if ranks.world_size > 1 else {}
        events("stopped", step=None, how=RunOutcome.OUT_OF_MEMORY, saved=None, **process, **fields)
        if ranks.is_rank0:
            self._record.stop(RunOutcome.OUT_OF_MEMORY)
        return RunOutcome.OUT_OF_MEMORY


@dataclass(frozen=True)
class RunInputs:
    """Everything that is known before the model is loaded. `settings` have the final sequence length."""

    settings: FinetuneSettings
    files: ModelFiles
    config: Any
    data: Dataset
    experts: FusedExperts | None = None


def gather_inputs(settings: FinetuneSettings, ranks: Ranks, events: Events) -> RunInputs:
    """Gather model files and data. The hub's library has one rank of a node download while the others wait."""
    folder = ranks.on_all_or_fail(lambda: resolve_model_folder(settings.model))

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
    tokenize: Callable[..., TokenizedRecords] = tokenize_records
    if settings.objective is not Objective.SFT:
        from devkit.workload.finetune.objectives import tokenize_pairs, tokenize_prompts

        of_prompts = partial(tokenize_prompts, new_tokens=settings.max_new_tokens)
        tokenize = tokenize_pairs if settings.objective.is_paired else of_prompts
    data = ranks.on_all_or_fail(lambda: build_dataset(limited, load_tokenizer(folder), config, events, tokenize))
    return RunInputs(limited, files, config, data, find_fused_experts(model))


def make_decisions(inputs: RunInputs, ranks: Ranks) -> Decisions:
    """Make the decisions, the same for all ranks, by the least memory that any of them has."""
    hardware = probe_hardware(ranks.device, world_size=ranks.world_size)
    hardware = replace(hardware, free_bytes=int(-ranks.max(-hardware.free_bytes)))
    copies = inputs.settings.generations if inputs.settings.objective is Objective.GRPO else 1
    lengths = [each.length for each in inputs.data.train for _ in range(copies)]
    return ranks.on_rank0_broadcast(
        lambda: decide(
            inputs.settings,
            hardware,
            traits=read_attention_traits(inputs.config),
            lengths=lengths,
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
    for text in (*decisions.warnings, *inputs.data.notes):
        events("note", text=text)
    if inputs.experts is not None and inputs.settings.method is not Method.FULL:
        events("note", text=inputs.experts.describe(decisions.precision))


def load_base_model(inputs: RunInputs, decisions: Decisions, ranks: Ranks) -> LoadedBase:
    """Load the base model as decided, on all ranks."""
    register_varlen_attention()
    settings = inputs.settings
    load_settings = LoadSettings(
        precision=decisions.precision,
        device=str(ranks.device),
        quantization=BaseQuantization.from_method(settings.method),
        scores=settings.objective is Objective.REWARD,
        is_sharded=decisions.is_sharded,
        # Every rank maps the same pages of a file, and none reads more onto its device than a layer at a time.
        is_mapped=decisions.is_sharded
        and not is_packed_before_sharding(inputs.files.quantized, settings.method, dora=settings.dora),
        attention=ATTN_IMPLEMENTATION[decisions.attention],
    )
    with torch.random.fork_rng(enabled=load_settings.scores):
        if load_settings.scores:
            torch.manual_seed(settings.seed)
        return ranks.on_all_or_fail(lambda: load_base_and_tokenizer(settings.model, load_settings))
