"""LoRA and DoRA adapters on a base: attached for training, and counted."""

import torch

from devkit.estimate.settings import Precision
from devkit.workload.finetune.adapters_targets import targets_of
from devkit.workload.finetune.model import DTYPES, Model
from devkit.workload.finetune.settings import FinetuneSettings
from devkit.workload.tuners import LoraConfig, attaching, get_peft_model


def attach(base: Model, settings: FinetuneSettings, *, precision: Precision) -> Model:
    """A fresh trainable adapter on the layers that `settings.targets` name, its weights kept in `precision`.

    Changes `base` in place and freezes its weights. The adapter is drawn from `settings.seed` alone, so every process
    of a run has the same. Raises DevkitError for a target that the model does not have.
    """
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=targets_of(base, settings.targets),
        use_dora=settings.dora,
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=_devices_of(base)):
        torch.manual_seed(settings.seed)
        with attaching(base):
            model = get_peft_model(base, config, autocast_adapter_dtype=False)
    for parameter in trainable(model):
        parameter.data = parameter.data.to(DTYPES[precision])
    return model


def trainable(model: Model) -> list[torch.nn.Parameter]:
    """The parameters that training changes, in the model's order."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def trainable_count(model: Model) -> int:
    """How many numbers training changes."""
    return sum(parameter.numel() for parameter in trainable(model))


def _devices_of(model: Model) -> list[torch.device]:
    return list({parameter.device for parameter in model.parameters() if parameter.device.type == "cuda"})
