"""What a job needs, by the memory estimate: whether its GPU holds it, memory of the node, and room on disks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from devkit.compat.gpus import find_gpu
from devkit.errors import DevkitError
from devkit.estimate.cards import Card, Verdict, card_named
from devkit.estimate.config import shape_of_config
from devkit.estimate.host import HostNeeds, host_needs
from devkit.estimate.model import MemoryEstimate
from devkit.estimate.settings import Precision, TrainingSettings
from devkit.estimate.shape import ModelShape
from devkit.estimate.training import estimate_training
from devkit.solver.model import Vendor
from devkit.workload.finetune.attention import Traits
from devkit.workload.finetune.decisions import Corpus, Decisions, Hardware, Kind, decide
from devkit.workload.finetune.settings import FinetuneSettings

MOST_FREE_BYTES = 1 << 50
"""What a run is planned for where no GPU is named: as if there were no end of memory, so that nothing is given up."""

_KINDS = {Vendor.NVIDIA: Kind.CUDA, Vendor.ROCM: Kind.ROCM, Vendor.CPU: Kind.CPU}


@dataclass(frozen=True, kw_only=True)
class Need:
    """What one process takes. `card` is None where no GPU is named, `verdict` with it."""

    shape: ModelShape
    training: TrainingSettings
    estimate: MemoryEstimate
    card: Card | None
    verdict: Verdict | None
    host: HostNeeds


def need_of(
    settings: FinetuneSettings, config: Mapping[str, Any], *, vendor: Vendor, gpu: str, processes: int
) -> Need | None:
    """What the run takes of each GPU; None for a model whose shape the estimate does not know.

    The run's own choices are made for the GPU named, as `devkit finetune` would make them there. Raises DevkitError
    for a GPU that nobody knows, and for settings that cannot work on it.
    """
    try:
        shape = shape_of_config(config)
    except DevkitError:
        return None
    card = card_named(gpu, settings.precision or Precision.BF16) if gpu else None
    decisions = _decisions(settings, shape, vendor=vendor, gpu=gpu, card=card, processes=processes)
    training = decisions.training(settings, world=processes)
    estimate = decisions.estimate or estimate_training(shape, training)
    return Need(
        shape=shape,
        training=training,
        estimate=estimate,
        card=card,
        verdict=card.verdict(estimate) if card is not None else None,
        host=host_needs(shape, training),
    )


def _decisions(
    settings: FinetuneSettings, shape: ModelShape, *, vendor: Vendor, gpu: str, card: Card | None, processes: int
) -> Decisions:
    found = find_gpu(gpu) if gpu else None
    hardware = Hardware(
        kind=_KINDS[vendor],
        name=card.name if card is not None else "a GPU",
        free_bytes=card.memory_bytes if card is not None else MOST_FREE_BYTES,
        capability=found.capability if found is not None else None,
        has_bf16=vendor is not Vendor.NVIDIA or found is None,
        has_varlen=True,
        packages=frozenset({"bitsandbytes"}),
        world=processes,
    )
    return decide(
        settings,
        hardware,
        traits=Traits(name=settings.model),
        corpus=Corpus(texts=1, tokens=settings.sequence),
        need=lambda training: estimate_training(shape, training),
    )
