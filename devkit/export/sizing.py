"""What a job needs, by the memory estimate: whether its GPU holds it, memory of the node, and room on disks."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from devkit.compat.gpus import find_amd_gpu, find_gpu
from devkit.compat.rules import CodeSupport, check_gpu_code
from devkit.compat.version_tables import load_tables
from devkit.errors import DevkitError
from devkit.estimate.config import build_model_shape
from devkit.estimate.gpus import OLDEST_MAJOR, Fit, GpuSpec, find_gpu_spec
from devkit.estimate.memory import MemoryEstimate
from devkit.estimate.resources import HostRequirements, estimate_host, estimate_seconds
from devkit.estimate.settings import Method, Precision, Sharding, TrainingSettings
from devkit.estimate.shape import ModelShape
from devkit.estimate.training import estimate_training
from devkit.estimate.weights import count_adapter_parameters
from devkit.export.job_settings import JobSettings
from devkit.facts.values import ComputeCapability
from devkit.solver.plan import Plan, Vendor
from devkit.text import format_bytes, format_duration
from devkit.workload.finetune.decisions import AttentionTraits, CorpusSize, Decisions, DeviceKind, Hardware, decide
from devkit.workload.finetune.model.files import BaseQuantization, is_packed_before_sharding
from devkit.workload.finetune.settings import FinetuneSettings

UNLIMITED_BYTES = 1 << 50
"""What a run is planned for where no GPU is named: as if there were no end of memory, so that nothing is given up."""

_KINDS = {Vendor.NVIDIA: DeviceKind.CUDA, Vendor.ROCM: DeviceKind.ROCM, Vendor.CPU: DeviceKind.CPU}
_WEIGHTS = ("weights", "packed weights", "unquantised weights", "quantisation scales")
"""The estimate's terms for the base model."""


@dataclass(frozen=True, kw_only=True)
class RunHardware:
    """What a run computes on. `gpu` is a name, "" for any; `packages` are those of the image."""

    vendor: Vendor
    gpu: str
    processes: int
    packages: frozenset[str] = frozenset({"bitsandbytes"})


@dataclass(frozen=True, kw_only=True)
class ResourceNeeds:
    """What one process takes. `card` is None where no GPU is named, `verdict` with it."""

    shape: ModelShape
    training: TrainingSettings
    estimate: MemoryEstimate
    card: GpuSpec | None
    verdict: Fit | None
    host: HostRequirements
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


def estimate_needs(settings: FinetuneSettings, config: Mapping[str, Any], where: RunHardware) -> ResourceNeeds | None:
    """What the run takes of each GPU; None for a model whose shape the estimate does not know.

    The run's own choices are made for the GPU named, as `devkit finetune` would make them there. Raises DevkitError
    for a GPU that nobody knows, and for settings that cannot work on it.
    """
    try:
        shape = build_model_shape(config)
    except DevkitError:
        return None
    # The tables of memory and speed are those of NVIDIA's GPUs.
    card = None
    if where.gpu and where.vendor is Vendor.NVIDIA:
        card = find_gpu_spec(where.gpu, settings.precision or Precision.BF16)
    decisions = _decisions(settings, shape, where, card)
    training = decisions.training(settings, world=where.processes)
    estimate = decisions.estimate or estimate_training(shape, training)
    loading = _loading_bytes(shape, training, config) if where.vendor is not Vendor.CPU else 0
    is_full = settings.method is Method.FULL
    trained = shape.parameters if is_full else count_adapter_parameters(shape, training)
    precision = training.precision if is_full else training.adapter_precision
    return ResourceNeeds(
        shape=shape,
        training=training,
        estimate=estimate,
        card=card,
        verdict=_verdict(card, estimate, loading) if card is not None else None,
        host=estimate_host(shape, training),
        loading_bytes=loading,
        result_bytes=trained * precision.bytes,
        hub_bytes=shape.parameters * _bytes_in_files(config),
    )


def _loading_bytes(shape: ModelShape, training: TrainingSettings, config: Mapping[str, Any]) -> int:
    """The base on one GPU, before FSDP takes it apart; 0 where it is handed out in parts, or stays whole anyway."""
    is_packed = is_packed_before_sharding(BaseQuantization.from_config(config), training.method, dora=training.dora)
    if training.sharding not in (Sharding.ZERO2, Sharding.ZERO3) or not is_packed:
        return 0
    alone = estimate_training(shape, replace(training, world=1, sharding=Sharding.DDP))
    return sum(term.bytes for term in alone.terms if term.name in _WEIGHTS)


def _verdict(card: GpuSpec, estimate: MemoryEstimate, loading_bytes: int) -> Fit:
    return Fit.DOES_NOT_FIT if loading_bytes > card.memory_bytes else card.verdict(estimate)


def _bytes_in_files(config: Mapping[str, Any]) -> int:
    """Of one weight, as the model is published: what config.json says, else 16 bits. transformers renamed the key."""
    said = config.get("dtype", config.get("torch_dtype"))
    return 4 if said == "float32" else 2


def _decisions(settings: FinetuneSettings, shape: ModelShape, where: RunHardware, card: GpuSpec | None) -> Decisions:
    found = find_gpu(where.gpu) if where.gpu else None
    hardware = Hardware(
        kind=_KINDS[where.vendor],
        name=card.name if card is not None else where.gpu or "a GPU",
        free_bytes=card.memory_bytes if card is not None else UNLIMITED_BYTES,
        capability=found.capability if found is not None else None,
        has_bf16=where.vendor is not Vendor.NVIDIA or found is None,
        has_varlen=True,
        packages=where.packages,
        world=where.processes,
    )
    return decide(
        settings,
        hardware,
        traits=AttentionTraits(name=settings.model),
        corpus=CorpusSize(texts=1, tokens=settings.sequence),
        need=lambda training: estimate_training(shape, training),
    )


# A job that cannot fit: what it takes, what there is, and the nearest that would fit.

MAX_PROPOSALS = 3
_WORLDS = (2, 4, 8, 16, 32, 64)
_OF_ONE_NODE = 8
"""GPUs that a node has at most nearly everywhere: more are proposed as nodes."""


def explain_misfit(
    need: ResourceNeeds | None,
    settings: FinetuneSettings,
    config: Mapping[str, Any] | None,
    where: RunHardware,
    fitting: tuple[str, ...],
) -> tuple[str, str] | None:
    """Message and hint where the estimate says that the GPU asked for cannot hold the job; None where it can.

    `fitting` are GPUs that hold it as it is, the smallest first.
    """
    if need is None or config is None or need.card is None or need.verdict is not Fit.DOES_NOT_FIT:
        return None
    card = need.card
    is_loading = need.loading_bytes > card.memory_bytes
    why = ": each process loads the whole packed model before it is shared out" if is_loading else ""
    message = (
        f"the job does not fit: {format_bytes(need.peak_bytes)} on each {card.name},"
        f" which holds {format_bytes(card.memory_bytes)}{why}"
    )
    proposals = list(_proposals(settings, config, where))[:MAX_PROPOSALS]
    proposals += [f"--gpu '{fitting[0]}', the smallest that holds it as it is"] if fitting else []
    nearest = "; or ".join(proposals) or "a shorter sequence, a smaller model"
    return message, f"What fits: {nearest}. Or pass --force."


def _proposals(settings: FinetuneSettings, config: Mapping[str, Any], where: RunHardware) -> Iterator[str]:
    """Changes that make it fit: first how the work is shared out, then how the base is kept, then what is trained."""
    found = [each for words, changed in _changes(settings, where) for each in _if_fits(words, changed, config, where)]
    yield from found or _with_more_gpus(settings, config, where)
    if settings.method is Method.FULL:
        for method in (Method.LORA, Method.QLORA):
            adapter = replace(settings, method=method, optimizer=None)
            yield from _if_fits(f'an adapter, method = "{method}"', adapter, config, where)


def _with_more_gpus(settings: FinetuneSettings, config: Mapping[str, Any], where: RunHardware) -> Iterator[str]:
    """The fewest GPUs on which it fits, shared out; the run itself refuses more than the batch has rows."""
    shared = replace(settings, sharding=Sharding.ZERO3)
    for processes in (each for each in _WORLDS if each > where.processes):
        nodes, gpus = max(1, processes // _OF_ONE_NODE), min(processes, _OF_ONE_NODE)
        asked = f"--gpus {gpus}" if nodes == 1 else f"--nodes {nodes} --gpus {gpus}"
        words = f'{asked} with sharding = "zero3"'
        found = list(_if_fits(words, shared, config, replace(where, processes=processes)))
        if found:
            yield found[0]
            return


def _changes(settings: FinetuneSettings, where: RunHardware) -> Iterator[tuple[str, FinetuneSettings]]:
    """Settings of the run, as they stand in its file, that take less memory."""
    if where.processes > 1:
        for sharding in (Sharding.ZERO2, Sharding.ZERO3):
            yield f'sharding = "{sharding}"', replace(settings, sharding=sharding)
    if settings.method is Method.LORA:
        yield 'method = "qlora"', replace(settings, method=Method.QLORA)
        if where.processes > 1 and settings.sharding is None:
            both = replace(settings, method=Method.QLORA, sharding=Sharding.ZERO3)
            yield 'method = "qlora", sharding = "zero3"', both
    if settings.micro_batch not in (None, 1) or settings.checkpointing is False:
        yield "micro_batch and checkpointing left out", replace(settings, micro_batch=None, checkpointing=None)


def _if_fits(words: str, settings: FinetuneSettings, config: Mapping[str, Any], where: RunHardware) -> Iterator[str]:
    try:
        need = estimate_needs(settings, config, where)
    except DevkitError:
        return  # What cannot work together is no advice.
    if need is not None and need.verdict is Fit.FITS:
        yield f"{words} ({format_bytes(need.peak_bytes)} on each)"


# Whether the plan's torch computes on the GPU that the job asks for, and which GPUs hold the job.

_REPLAN = "Plan for it, too: devkit init --gpu {gpu!r}, then build and publish the image anew."


def validate_gpu(plan: Plan, job: JobSettings) -> None:
    """Raises DevkitError for GPUs that the image of this plan cannot compute on."""
    if plan.vendor is Vendor.CPU:
        if job.gpu or job.gpus > 1:
            asked = f"--gpu {job.gpu}" if job.gpu else f"--gpus {job.gpus}"
            raise DevkitError(
                f"{asked} asks for what this project's image cannot use: it is planned for the CPU",
                "Plan for a GPU first, such as: devkit init --gpu H100 --driver 580.95.05. Or leave the GPU out.",
            )
        return
    if not job.gpu:
        return
    if plan.vendor is Vendor.ROCM:
        if find_amd_gpu(job.gpu) is None:
            raise DevkitError(
                f"--gpu {job.gpu!r} is none of AMD's GPUs, which this project's image is planned for",
                "Name one, such as MI300X; or plan for NVIDIA's: devkit init --vendor nvidia.",
            )
        return
    found = find_gpu(_whole(job.gpu))
    if found is not None and not _has_code(plan, found.capability):
        raise DevkitError(
            f"torch {plan.torch} ({plan.variant}) in this project's image has no code for {job.gpu}"
            f" (compute capability {found.capability})",
            _REPLAN.format(gpu=job.gpu),
        )


def find_fitting_gpus(
    plan: Plan, settings: FinetuneSettings, config: Mapping[str, Any], where: RunHardware
) -> Iterator[str]:
    """Names of the data center GPUs by NVIDIA that hold the job, with the least memory first; the estimate is sure.

    What is chosen for a GPU, such as the micro-batch, is chosen for each of them.
    """
    fits: dict[tuple[int, bool], bool] = {}
    for memory, _, name, lacks_bf16 in sorted(_data_center_gpus(plan)):
        alike = (memory, lacks_bf16)
        if alike not in fits:
            fits[alike] = _holds(settings, config, where, name)
        if fits[alike]:
            yield name


def _data_center_gpus(plan: Plan) -> Iterator[tuple[int, int, str, bool]]:
    """Memory, place in the tables, name, and whether it lacks bf16. A GPU of two sizes counts with the smaller."""
    for place, row in enumerate(load_tables().gpus.models):
        if row.kind != "datacenter" or row.capability.major < OLDEST_MAJOR or not _has_code(plan, row.capability):
            continue
        card = find_gpu_spec(row.name, Precision.BF16)
        yield card.memory_bytes, place, card.name, card.lacks_bf16


def _holds(settings: FinetuneSettings, config: Mapping[str, Any], where: RunHardware, gpu: str) -> bool:
    there = RunHardware(vendor=where.vendor, gpu=gpu, processes=where.processes, packages=where.packages)
    try:
        need = estimate_needs(settings, config, there)
    except DevkitError:
        return False  # What was asked for cannot work on that GPU at all.
    return need is not None and need.verdict is Fit.FITS


def _has_code(plan: Plan, capability: ComputeCapability) -> bool:
    """Whether the wheel has kernels for it, or code that its driver compiles; True where the tables know no wheel."""
    minor = ".".join(plan.torch.split("+")[0].split(".")[:2])
    rows = [row for row in load_tables().torch.wheels.values() if (row.minor, row.variant) == (minor, plan.variant)]
    rows = [row for row in rows if row.machine in plan.architectures]
    return not rows or any(check_gpu_code(capability, row.sass, row.ptx) is not CodeSupport.NONE for row in rows)


def _whole(gpu: str) -> str:
    """The GPU that a MIG slice is a part of."""
    return gpu.partition(" MIG ")[0]


# Time: whether a run reaches its checkpoints within its limit, and writes one within the grace.

WRITE_BYTES_PER_S = 125 << 20
"""A plain network volume of a cloud, which is the least to expect.
Source: https://docs.aws.amazon.com/ebs/latest/userguide/general-purpose.html, the baseline of gp3."""


def estimate_step_seconds(need: ResourceNeeds | None, settings: FinetuneSettings) -> tuple[float, float] | None:
    """The shortest and the longest time of one optimizer step; None where model or GPU are not known.

    Its rows count as full: of short texts packed into rows that is so, apart they take less.
    """
    if need is None or need.card is None or need.card.flops is None:
        return None
    tokens = settings.batch * settings.sequence
    return estimate_seconds(tokens, need.shape, need.training, flops=need.card.flops)


def validate_checkpoint_interval(need: ResourceNeeds | None, settings: FinetuneSettings, *, time_s: int) -> None:
    """Raises DevkitError where not even the fastest run comes to its first checkpoint before the time is over."""
    pace = estimate_step_seconds(need, settings)
    if pace is None:
        return
    steps = min(settings.save_every, settings.steps or settings.save_every)
    fastest, slowest = (steps * each for each in pace)
    if fastest <= time_s:
        return
    within = int(time_s / 2 / pace[1])
    shorter = f"Set save_every = {within} in the settings of the run, or give" if within else "Give"
    raise DevkitError(
        f"a checkpoint every {steps} steps comes after {format_duration(fastest)} at the earliest, and --time ends the"
        f" run after {format_duration(time_s)}",
        f"{shorter} --time {_hours(2 * slowest)}.",
    )


def list_duration_notes(
    need: ResourceNeeds | None, settings: FinetuneSettings, *, time_s: int, grace_s: int
) -> Iterator[str]:
    """What may come too late, and what is lost then."""
    if need is not None:
        size = need.host.checkpoint_bytes
        write_s = size / WRITE_BYTES_PER_S
        if write_s > grace_s:
            yield (
                f"one checkpoint is {format_bytes(size)}: a plain network volume takes {format_duration(write_s)} for it,"
                f" and --grace is {format_duration(grace_s)}; what is not whole by then is lost back to the one before"
            )
    pace = estimate_step_seconds(need, settings)
    if pace is None:
        return
    if settings.save_every * pace[1] > time_s:
        yield (
            f"a checkpoint every {settings.save_every} steps may come only after"
            f" {format_duration(settings.save_every * pace[1])}: a smaller save_every loses less"
        )
    if settings.steps is not None and settings.steps * pace[0] > time_s:
        yield (
            f"{settings.steps} steps take {format_duration(settings.steps * pace[0])} at least, longer than --time: the"
            " same job goes on where it stopped when it is started again"
        )


def _hours(seconds: float) -> str:
    return f"{max(1, -(-int(seconds) // 3600))}h"
