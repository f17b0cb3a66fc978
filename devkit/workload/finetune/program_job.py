"""A run put together in one process: what the loop works with, and what happens around it."""

from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import torch

from devkit.workload.finetune import checkpoint, program_output, program_parts
from devkit.workload.finetune.adapters_saved import write_beside
from devkit.workload.finetune.checkpoint_settings import fingerprint_of_data, settings_that_count
from devkit.workload.finetune.checkpoint_state import RunState
from devkit.workload.finetune.decisions import Decisions
from devkit.workload.finetune.evaluation import evaluated
from devkit.workload.finetune.events import METRICS_FILE, Events, forget_after
from devkit.workload.finetune.finite import FiniteGuard
from devkit.workload.finetune.loop import End, Position, Run
from devkit.workload.finetune.manifest import Progress, Value
from devkit.workload.finetune.micro_batch import Memory, probed, read_memory
from devkit.workload.finetune.optimizers import optimizer_for
from devkit.workload.finetune.program_parts import Material
from devkit.workload.finetune.ranks import Ranks
from devkit.workload.finetune.sharding import Shared, decoder_layers, share
from devkit.workload.finetune.step import ModelWithLoss, Passes, attempted


def is_tried_out(device: torch.device) -> bool:
    """Whether a pass that is too large fails and can be made smaller. On CPUs the system ends the whole process."""
    return device.type != "cpu"


class Job:
    """Loads the model and holds everything that the run needs until it ends. `asked` is the loop's."""

    def __init__(
        self,
        material: Material,
        decisions: Decisions,
        together: Ranks,
        events: Events,
        *,
        asked: Callable[[], End | None],
    ) -> None:
        settings = self._settings = material.settings
        data = material.data
        self._decisions = decisions
        self._ranks = together
        self._events = events
        self._asked = asked
        self._base = program_parts.loaded(material, decisions, together)
        # Saved with what was trained: a tokenizer without a template was given one when the first chat came.
        self._base.tokenizer.chat_template = data.chat_template
        self._identity = {
            "model": material.files.identity,
            "data": fingerprint_of_data(data.learned),
        }
        self._model = program_parts.prepared(self._base.model, settings, decisions)
        self._feed = program_parts.fed(settings, decisions, data.learned)
        self._held_out = program_parts.fed(settings, decisions, data.held_out) if data.held_out else None
        self._shared = self._share(is_handed_out=program_parts.is_handed_out(material, decisions))
        self._checkpoint: Path | None = None
        self._tell_notes()

    def _share(self, *, is_handed_out: bool) -> Shared:
        decisions, ranks = self._decisions, self._ranks
        module = ModelWithLoss(self._model, loss=decisions.loss, attention=decisions.attention, device=ranks.device)
        layers = decoder_layers(module)
        shared = share(
            module,
            sharding=decisions.sharding,
            method=self._settings.method,
            ranks=ranks,
            is_handed_out=is_handed_out,
        )
        program_parts.require_texts_apart(shared, decisions, ranks.device)
        module.split(shared.tried)
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
    def _state(self) -> RunState:
        optimizer = optimizer_for(
            self._model,
            self._decisions.optimizer,
            learning_rate=self._decisions.learning_rate,
            weight_decay=self._settings.weight_decay,
            masters=self._decisions.training(self._settings, world=self._ranks.world).has_masters,
        )
        return RunState(self._model, optimizer, program_parts.scaler_for(self._decisions, self._ranks.device))

    @cached_property
    def run(self) -> Run:
        """What the loop works with."""
        state = self._state
        feed = self._feed
        return Run(
            settings=self._settings,
            learning_rate=self._decisions.learning_rate,
            steps=self._settings.steps or max(1, round(self._settings.epochs * feed.steps_per_epoch)),
            passes=Passes(self._shared, self._ranks, is_sharded=self._is_sharded, asked=self._asked),
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
        return program_parts.is_sharded(self._decisions.sharding)

    @property
    def measured(self) -> Memory:
        """The peaks on this process's device."""
        return read_memory(self._ranks.device)

    def start(self) -> Position | None:
        """Where to begin: with the micro-batch that fits, and at the newest checkpoint. None where not a row fits."""
        micro_batch = self._fitting()
        if micro_batch == 0:
            return None
        checkpoint.check_room(self._settings.output, self._state, ranks=self._ranks, keep=self._settings.keep)
        position = self._resumed(micro_batch) if self._settings.resume else Position(micro_batch=micro_batch)
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
        if not is_tried_out(self._ranks.device):
            return size
        run = self.run
        found = probed(
            self._feed.worst_case,
            lambda batch: attempted(run.passes, run.optimizer, batch),
            start=size,
            ranks=self._ranks,
        )
        self._events("probe", micro_batch=found.micro_batch, refused=list(found.refused), **found.memory.fields())
        return found.micro_batch

    def _resumed(self, micro_batch: int) -> Position:
        settings = self._settings
        position = Position(micro_batch=micro_batch)
        found = checkpoint.newest(settings.output, settings=self._counting, ranks=self._ranks)
        if found is not None:
            progress = checkpoint.load(found, self._state)
            position.step = position.saved = progress.step
            position.tokens, position.seconds = progress.tokens, progress.seconds
            self.run.guard.skipped = progress.skipped
            self._checkpoint = found.path
            self._events("resumed", step=progress.step, path=found.path.name)
            for text in (*found.passed_over, *found.notes):
                self._events("note", text=text)
        if self._ranks.is_first:
            forget_after(settings.output / METRICS_FILE, position.step)
        return position

    @cached_property
    def _counting(self) -> dict[str, Value]:
        decisions = self._decisions
        chosen: dict[str, Value] = {
            "precision": decisions.precision,
            "adapter_precision": decisions.adapter_precision,
            "optimizer": decisions.optimizer,
            "learning_rate": decisions.learning_rate,
            "packing": decisions.packing,
            "steps": self.run.steps,
            **self._identity,
        }
        return settings_that_count(self._settings, chosen)

    def _save(self, position: Position) -> None:
        progress = Progress(
            step=position.step,
            tokens=position.tokens,
            skipped=self.run.guard.skipped,
            seconds=position.seconds,
        )
        saved = checkpoint.save(
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

    def _evaluate(self, position: Position) -> None:
        assert self._held_out is not None  # noqa: S101 - the loop is given this only then
        found = evaluated(
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
        return program_output.publish(
            self._settings.output, self._checkpoint, is_adapter=is_adapter, write_beside=self._write_beside
        )

    def _write_beside(self, folder: Path) -> None:
        if hasattr(self._model, "peft_config"):
            write_beside(folder, self._base)
        else:
            self._base.tokenizer.save_pretrained(str(folder))
            if self._base.model.generation_config is not None:
                self._base.model.generation_config.save_pretrained(str(folder))
