"""What a run is put together from: data, decisions, model, optimizer."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from devkit.estimate.settings import Method, Precision, Sharding
from devkit.workload.finetune import adapters, attention_varlen, model, model_skeleton
from devkit.workload.finetune.adapters_quick import quicken
from devkit.workload.finetune.adapters_targets import targets_of
from devkit.workload.finetune.attention import layout_of
from devkit.workload.finetune.attention_apart import require_apart
from devkit.workload.finetune.batch import Example
from devkit.workload.finetune.decisions import Corpus, Decisions, decide
from devkit.workload.finetune.events import Events
from devkit.workload.finetune.feed import Feed
from devkit.workload.finetune.hub import model_folder
from devkit.workload.finetune.layout import Layout
from devkit.workload.finetune.model_choices import ModelChoices, Quantisation, Reading, is_shared_out_packed
from devkit.workload.finetune.model_files import ModelFiles, examined
from devkit.workload.finetune.program_data import Data, data_of, with_rows_that_fit
from devkit.workload.finetune.program_data_shared import together_made
from devkit.workload.finetune.program_hardware import hardware_here
from devkit.workload.finetune.program_need import need_of
from devkit.workload.finetune.ranks import Ranks
from devkit.workload.finetune.settings import FinetuneSettings
from devkit.workload.finetune.sharding import Shared


@dataclass(frozen=True)
class Material:
    """What is known before the model is loaded. `settings` have the rows that the model can read."""

    settings: FinetuneSettings
    files: ModelFiles
    config: Any
    data: Data
    experts: model_skeleton.Experts | None = None

    def notes(self, decisions: Decisions) -> tuple[str, ...]:
        """What a user should hear before training."""
        if self.experts is None or self.settings.method is Method.FULL:
            return self.data.notes
        is_quantised = Quantisation.of_method(self.settings.method) is not Quantisation.NONE
        cost = (self.experts.note(decisions.precision),) if is_quantised else ()
        return (*self.data.notes, *cost, self.experts.note_on_adapters())


def gathered(settings: FinetuneSettings, together: Ranks, events: Events) -> Material:
    """Model files and texts. The first process of a node looks first, so that a download is done once there."""
    folder = together.leading(lambda: model_folder(settings.model))
    files, shape = together.agreed(lambda: _looked_at(folder, settings))
    config = shape.config
    fitting = together.agreed(lambda: with_rows_that_fit(settings, config))
    data = together_made(lambda: data_of(fitting, model.load_tokenizer(folder), config, events), together)
    return Material(fitting, files, config, data, model_skeleton.fused_experts(shape))


def _looked_at(folder: Path, settings: FinetuneSettings) -> tuple[ModelFiles, model.Model]:
    """The model's files, and the model without weights."""
    files = examined(folder)
    shape = model_skeleton.skeleton(folder)
    if settings.method is not Method.FULL:
        # Refused now rather than after the weights are loaded.
        targets_of(shape, settings.targets)
    return files, shape


def decided(material: Material, together: Ranks) -> Decisions:
    """What the run does with this machine: the same for all processes, by the least memory that any of them has."""
    here = hardware_here(together.device, world=together.world)
    hardware = replace(here, free_bytes=int(-together.largest(-here.free_bytes)))
    learned = material.data.learned
    return together.shared(
        lambda: decide(
            material.settings,
            hardware,
            traits=attention_varlen.traits_of(material.config),
            corpus=Corpus(len(learned), sum(len(each.ids) for each in learned)),
            need=need_of(material.files.config),
        )
    )


def fed(settings: FinetuneSettings, decisions: Decisions, examples: Sequence[Example]) -> Feed:
    """The texts as the rows of a run."""
    return Feed(
        examples,
        batch=settings.batch,
        sequence=settings.sequence,
        seed=settings.seed,
        pack=decisions.packing,
        layout=layout_of(decisions.attention, pack=decisions.packing),
    )


def loaded(material: Material, decisions: Decisions, together: Ranks) -> model.Loaded:
    """The base model as it was decided, in all processes."""
    attention_varlen.register()
    settings = material.settings
    reading = Reading.ONTO_DEVICE
    if is_handed_out(material, decisions):
        reading = Reading.MAPPED if together.is_first else Reading.NOWHERE
    choices = ModelChoices(
        precision=decisions.precision,
        device=str(together.device),
        quantisation=Quantisation.of_method(settings.method),
        is_shared_out=is_sharded(decisions.sharding),
        reading=reading,
        attention=attention_varlen.IMPLEMENTATION[decisions.attention],
    )
    return together.agreed(lambda: model.load(settings.model, choices))


def is_handed_out(material: Material, decisions: Decisions) -> bool:
    """Whether the first process reads the weights, and gives the others theirs while they are shared out."""
    settings = material.settings
    is_packed = is_shared_out_packed(material.files.quantised, settings.method, dora=settings.dora)
    return is_sharded(decisions.sharding) and not is_packed


def prepared(base: model.Model, settings: FinetuneSettings, decisions: Decisions) -> model.Model:
    """The base ready to be trained: with an adapter, or whole."""
    model.prepare_for_training(base, checkpointing=decisions.checkpointing)
    if settings.method is Method.FULL:
        whole: model.Model = base.requires_grad_(requires_grad=True)
        return whole
    adapted = adapters.attach(base, settings, precision=decisions.adapter_precision)
    if not decisions.compile:
        # A compiler puts passes over memory together by itself.
        quicken(adapted)
    return adapted


def scaler_for(decisions: Decisions, device: torch.device) -> torch.amp.GradScaler | None:
    """What keeps small gradients from vanishing in fp16; None for other precisions."""
    if decisions.precision is not Precision.FP16:
        return None
    return torch.amp.GradScaler(device.type)


def is_sharded(sharding: Sharding) -> bool:
    """Whether processes hold parts of the model, so that none of them can compute alone."""
    return sharding in (Sharding.ZERO2, Sharding.ZERO3)


def require_texts_apart(shared: Shared, decisions: Decisions, device: torch.device) -> None:
    """Raises DevkitError where texts that are to share a row see each other in this model."""
    layout = layout_of(decisions.attention, pack=decisions.packing)
    if layout is not Layout.PADDED:
        shared.tried(lambda model: require_apart(model, decisions.attention, layout, device))
