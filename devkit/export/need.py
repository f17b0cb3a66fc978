"""What a job needs, by the memory estimate: whether its GPU holds it, memory of the node, and room on disks."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from devkit.compat.gpus import find_gpu
from devkit.errors import DevkitError
from devkit.estimate.adapters import adapter_parameters
from devkit.estimate.cards import Card, Verdict, card_named
from devkit.estimate.config import shape_of_config
from devkit.estimate.host import HostNeeds, host_needs
from devkit.estimate.model import MemoryEstimate
from devkit.estimate.settings import Method, Precision, Sharding, TrainingSettings
from devkit.estimate.shape import ModelShape
from devkit.estimate.training import estimate_training
from devkit.solver.model import Vendor
from devkit.workload.finetune.attention import Traits
from devkit.workload.finetune.decisions import Corpus, Decisions, Hardware, Kind, decide
from devkit.workload.finetune.model_choices import Quantisation, is_shared_out_packed
from devkit.workload.finetune.settings import FinetuneSettings

MOST_FREE_BYTES = 1 << 50
"""What a run is planned for where no GPU is named: as if there were no end of memory, so that nothing is given up."""

_KINDS = {Vendor.NVIDIA: Kind.CUDA, Vendor.ROCM: Kind.ROCM, Vendor.CPU: Kind.CPU}
_WEIGHTS = ("weights", "packed weights", "unquantised weights", "quantisation scales")
"""The estimate's terms for the base model."""


@dataclass(frozen=True, kw_only=True)
class Where:
    """What a run computes on. `gpu` is a name, "" for any; `packages` are those of the image."""

    vendor: Vendor
    gpu: str
    processes: int
    packages: frozenset[str] = frozenset({"bitsandbytes"})


@dataclass(frozen=True, kw_only=True)
class Need:
    """What one process takes. `card` is None where no GPU is named, `verdict` with it."""

    shape: ModelShape
    training: TrainingSettings
    estimate: MemoryEstimate
    card: Card | None
    verdict: Verdict | None
    host: HostNeeds
    loading_bytes: int
    """What the base takes of a GPU before it is shared out, where it is read packed and so by each process; else 0."""
    result_bytes: int
    """The trained weights alone: an adapter, or the model."""
    hub_bytes: int
    """The model's files as they are downloaded."""

    @property
    def peak_bytes(self) -> int:
        """What is expected at the peak on each GPU."""
        return max(self.estimate.device_peak_bytes.point, self.loading_bytes)


def need_of(settings: FinetuneSettings, config: Mapping[str, Any], where: Where) -> Need | None:
    """What the run takes of each GPU; None for a model whose shape the estimate does not know.

    The run's own choices are made for the GPU named, as `devkit finetune` would make them there. Raises DevkitError
    for a GPU that nobody knows, and for settings that cannot work on it.
    """
    try:
        shape = shape_of_config(config)
    except DevkitError:
        return None
    # The tables of memory and speed are those of NVIDIA's GPUs.
    card = None
    if where.gpu and where.vendor is Vendor.NVIDIA:
        card = card_named(where.gpu, settings.precision or Precision.BF16)
    decisions = _decisions(settings, shape, where, card)
    training = decisions.training(settings, world=where.processes)
    estimate = decisions.estimate or estimate_training(shape, training)
    loading = _loading_bytes(shape, training, config) if where.vendor is not Vendor.CPU else 0
    is_full = settings.method is Method.FULL
    trained = shape.parameters if is_full else adapter_parameters(shape, training)
    precision = training.precision if is_full else training.adapter_precision
    return Need(
        shape=shape,
        training=training,
        estimate=estimate,
        card=card,
        verdict=_verdict(card, estimate, loading) if card is not None else None,
        host=host_needs(shape, training),
        loading_bytes=loading,
        result_bytes=trained * precision.bytes,
        hub_bytes=shape.parameters * _bytes_in_files(config),
    )


def _loading_bytes(shape: ModelShape, training: TrainingSettings, config: Mapping[str, Any]) -> int:
    """The base on one GPU, before FSDP takes it apart; 0 where it is handed out in parts, or stays whole anyway."""
    is_packed = is_shared_out_packed(Quantisation.in_files(config), training.method, dora=training.dora)
    if training.sharding not in (Sharding.ZERO2, Sharding.ZERO3) or not is_packed:
        return 0
    alone = estimate_training(shape, replace(training, world=1, sharding=Sharding.DDP))
    return sum(term.bytes for term in alone.terms if term.name in _WEIGHTS)


def _verdict(card: Card, estimate: MemoryEstimate, loading_bytes: int) -> Verdict:
    return Verdict.DOES_NOT_FIT if loading_bytes > card.memory_bytes else card.verdict(estimate)


def _bytes_in_files(config: Mapping[str, Any]) -> int:
    """Of one weight, as the model is published: what config.json says, else 16 bits. transformers renamed the key."""
    said = config.get("dtype", config.get("torch_dtype"))
    return 4 if said == "float32" else 2


def _decisions(settings: FinetuneSettings, shape: ModelShape, where: Where, card: Card | None) -> Decisions:
    found = find_gpu(where.gpu) if where.gpu else None
    hardware = Hardware(
        kind=_KINDS[where.vendor],
        name=card.name if card is not None else where.gpu or "a GPU",
        free_bytes=card.memory_bytes if card is not None else MOST_FREE_BYTES,
        capability=found.capability if found is not None else None,
        has_bf16=where.vendor is not Vendor.NVIDIA or found is None,
        has_varlen=True,
        packages=where.packages,
        world=where.processes,
    )
    return decide(
        settings,
        hardware,
        traits=Traits(name=settings.model),
        corpus=Corpus(texts=1, tokens=settings.sequence),
        need=lambda training: estimate_training(shape, training),
    )
