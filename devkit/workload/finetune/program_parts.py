"""What a run is put together from: data, decisions, model, optimizer."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from transformers import AutoConfig

from devkit.errors import DevkitError
from devkit.estimate.settings import Method, Precision, Sharding
from devkit.workload.finetune import adapters, attention_varlen, model
from devkit.workload.finetune.attention import layout_of
from devkit.workload.finetune.batch import Example
from devkit.workload.finetune.decisions import Corpus, Decisions, decide
from devkit.workload.finetune.feed import Feed
from devkit.workload.finetune.hub import model_folder
from devkit.workload.finetune.model_choices import ModelChoices, Quantisation
from devkit.workload.finetune.model_files import ModelFiles, examined
from devkit.workload.finetune.program_data import examples_of
from devkit.workload.finetune.program_hardware import hardware_here
from devkit.workload.finetune.program_need import need_of
from devkit.workload.finetune.ranks import Ranks
from devkit.workload.finetune.settings import FinetuneSettings


@dataclass(frozen=True)
class Material:
    """What is known before the model is loaded: its files, the texts to learn from and those to evaluate on."""

    files: ModelFiles
    examples: Sequence[Example]
    held_out: Sequence[Example]
    notes: tuple[str, ...]


def gathered(settings: FinetuneSettings, together: Ranks) -> Material:
    """Model files and texts. The first process looks first, so that a download is done once."""
    folder = together.shared(lambda: model_folder(settings.model))
    files = examined(folder)
    data = examples_of(settings.data, model.load_tokenizer(folder), settings)
    if settings.eval_data:
        return Material(
            files, data.examples, examples_of(settings.eval_data, data.tokenizer, settings).examples, data.notes
        )
    learned, held_out = _divided(data.examples, settings)
    return Material(files, learned, held_out, data.notes)


def _divided(examples: Sequence[Example], settings: FinetuneSettings) -> tuple[Sequence[Example], Sequence[Example]]:
    """The texts without the share that is held out, spread evenly over the data, and that share."""
    wanted = round(len(examples) * settings.eval_share)
    if settings.eval_share > 0 and (wanted == 0 or wanted == len(examples)):
        raise DevkitError(
            f"--eval-share {settings.eval_share:g} of {len(examples)} texts leaves nothing on one side",
            "Give more texts, or --eval-data.",
        )
    chosen = {index * len(examples) // wanted for index in range(wanted)} if wanted else set()
    learned = [each for index, each in enumerate(examples) if index not in chosen]
    return learned, [examples[index] for index in sorted(chosen)]


def decided(settings: FinetuneSettings, material: Material, together: Ranks) -> Decisions:
    """What the run does with this machine: the same for all processes, by the least memory that any of them has."""
    here = hardware_here(together.device, world=together.world)
    hardware = replace(here, free_bytes=int(-together.largest(-here.free_bytes)))
    config = AutoConfig.from_pretrained(str(material.files.folder), local_files_only=True, trust_remote_code=False)
    tokens = sum(len(each.ids) for each in material.examples)
    return together.shared(
        lambda: decide(
            settings,
            hardware,
            traits=attention_varlen.traits_of(config),
            corpus=Corpus(len(material.examples), tokens),
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


def loaded(settings: FinetuneSettings, decisions: Decisions, device: torch.device) -> model.Loaded:
    """The base model as it was decided."""
    attention_varlen.register()
    choices = ModelChoices(
        precision=decisions.precision,
        device=str(device),
        quantisation=Quantisation.of_method(settings.method),
        attention=attention_varlen.IMPLEMENTATION[decisions.attention],
    )
    return model.load(settings.model, choices)


def prepared(base: model.Model, settings: FinetuneSettings, decisions: Decisions) -> model.Model:
    """The base ready to be trained: with an adapter, or whole."""
    model.prepare_for_training(base, checkpointing=decisions.checkpointing)
    if settings.method is Method.FULL:
        whole: model.Model = base.requires_grad_(requires_grad=True)
        return whole
    return adapters.attach(base, settings, precision=decisions.adapter_precision)


def scaler_for(decisions: Decisions, device: torch.device) -> torch.amp.GradScaler | None:
    """What keeps small gradients from vanishing in fp16; None for other precisions."""
    if decisions.precision is not Precision.FP16:
        return None
    return torch.amp.GradScaler(device.type)


def is_sharded(sharding: Sharding) -> bool:
    """Whether processes hold parts of the model, so that none of them can compute alone."""
    return sharding in (Sharding.ZERO2, Sharding.ZERO3)


def compile_layers(module: torch.nn.Module) -> None:
    """Compile each decoder layer by itself: one compilation serves them all, and what lies between stays as it is."""
    kinds = {name for each in module.modules() for name in getattr(each, "_no_split_modules", None) or ()}
    for each in module.modules():
        if type(each).__name__ in kinds:
            each.compile()
