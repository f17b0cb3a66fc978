"""Sizing of a job by the memory estimate: GPUs that can run it, memory, disks and time, and changes that make it fit."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from devkit.compat.gpus import find_amd_gpu, find_gpu
from devkit.compat.rules import CodeSupport, check_gpu_code
from devkit.compat.version_tables import load_tables
from devkit.errors import DevkitError
from devkit.estimate.config import build_model_shape
from devkit.estimate.memory import OLDEST_MAJOR, Fit, GpuSpec, MemoryEstimate, find_gpu_spec
from devkit.estimate.recommend import HostRequirements, estimate_host
from devkit.estimate.settings import Method, Sharding, TrainingSettings
from devkit.estimate.shape import ModelShape, count_adapter_parameters
from devkit.estimate.training import estimate_training
from devkit.export.job_settings import JobSettings
from devkit.facts.values import ComputeCapability
from devkit.solver.plan import Plan, Vendor
from devkit.text import format_bytes, format_duration
from devkit.workload.finetune.decisions import AttentionTraits, DeviceKind, Hardware, decide
from devkit.workload.finetune.files import BaseQuantization, is_packed_before_sharding
from devkit.workload.finetune.settings import FinetuneSettings

UNLIMITED_BYTES = 1 << 50
"""The GPU memory that a run is planned for where no GPU is named: nothing is given up for lack of it."""
WRITE_BYTES_PER_S = 125 << 20
"""The write speed of a plain network volume of a cloud, the slowest to expect.
Source: https://docs.aws.amazon.com/ebs/latest/userguide/general-purpose.html, the baseline of gp3."""
MAX_PROPOSALS = 3
_WORLD_SIZES = (2, 4, 8, 16, 32, 64)
_GPUS_PER_NODE = 8
"""The most GPUs that a node usually has: more are proposed as nodes."""
_DEVICE_KINDS = {Vendor.NVIDIA: DeviceKind.CUDA, Vendor.ROCM: DeviceKind.ROCM, Vendor.CPU: DeviceKind.CPU}
_WEIGHTS = ("weights", "packed weights", "unquantized weights", "quantization scales")
"""The estimate's terms for the base model."""


@dataclass(frozen=True, kw_only=True)
class RunHardware:
    """The hardware of a run. `gpu` is a name, "" for any; `packages` are those of the image."""

    vendor: Vendor
    gpu: str
    processes: int
    packages: frozenset[str] = frozenset({"bitsandbytes"})


@dataclass(frozen=True, kw_only=True)
class ResourceNeeds:
    """The resources that one process needs. `gpu` and `verdict` are None where no GPU is named."""

    shape: ModelShape
    training: TrainingSettings
    estimate: MemoryEstimate
    gpu: GpuSpec | None
    verdict: Fit | None
    host: HostRequirements
    loading_bytes: int
    """GPU memory of the whole base model before it is sharded, where each process loads it packed; else 0."""
    result_bytes: int
    """The trained weights alone: an adapter, or the model."""
    hub_bytes: int
    """The model's files as they are downloaded."""

    @property
    def peak_bytes(self) -> int:
        """The expected peak on each GPU."""
        return max(self.estimate.device_peak_bytes.point, self.loading_bytes)


def estimate_needs(
    settings: FinetuneSettings, config: Mapping[str, Any], hardware: RunHardware
) -> ResourceNeeds | None:
    """Estimate the resources of each process; None for a model whose shape the estimate does not know.

    Open settings are decided for the GPU named, as `devkit finetune` would decide them there. Raises DevkitError for
    an unknown GPU, and for settings that cannot work on it.
    """
    try:
        shape = build_model_shape(config)
    except DevkitError:
        return None
    # The tables of memory and speed are those of NVIDIA's GPUs.
    gpu = find_gpu_spec(hardware.gpu) if hardware.gpu and hardware.vendor is Vendor.NVIDIA else None
    model = find_gpu(hardware.gpu) if hardware.gpu else None
    device = Hardware(
        kind=_DEVICE_KINDS[hardware.vendor],
        name=gpu.name if gpu is not None else hardware.gpu or "a GPU",
        free_bytes=gpu.memory_bytes if gpu is not None else UNLIMITED_BYTES,
        capability=model.capability if model is not None else None,
        has_bf16=hardware.vendor is not Vendor.NVIDIA or model is None,
        has_varlen=True,
        packages=hardware.packages,
        world_size=hardware.processes,
    )
    decisions = decide(
        settings,
        device,
        traits=AttentionTraits(name=settings.model),
        lengths=[settings.sequence] * settings.batch,
        estimator=lambda training: estimate_training(shape, training),
    )
    training = decisions.to_training_settings(settings, world=hardware.processes)
    estimate = decisions.estimate or estimate_training(shape, training)
    loading_bytes = _estimate_loading(shape, training, config) if hardware.vendor is not Vendor.CPU else 0
    verdict = gpu.verdict(estimate) if gpu is not None else None
    if gpu is not None and loading_bytes > gpu.memory_bytes:
        verdict = Fit.DOES_NOT_FIT
    is_full = settings.method is Method.FULL
    trained = shape.parameters if is_full else count_adapter_parameters(shape, training)
    precision = training.precision if is_full else training.adapter_precision
    # Published models are in 16 bits unless config.json says otherwise; transformers renamed the key.
    bytes_in_files = 4 if config.get("dtype", config.get("torch_dtype")) == "float32" else 2
    return ResourceNeeds(
        shape=shape,
        training=training,
        estimate=estimate,
        gpu=gpu,
        verdict=verdict,
        host=estimate_host(shape, training),
        loading_bytes=loading_bytes,
        result_bytes=trained * precision.bytes,
        hub_bytes=shape.parameters * bytes_in_files,
    )


def _estimate_loading(shape: ModelShape, training: TrainingSettings, config: Mapping[str, Any]) -> int:
    """Return the bytes of the base on one GPU before FSDP shards it; 0 where it is loaded in shards, or not sharded."""
    is_packed = is_packed_before_sharding(BaseQuantization.from_config(config), training.method, dora=training.dora)
    if training.sharding not in (Sharding.ZERO2, Sharding.ZERO3) or not is_packed:
        return 0
    unsharded = estimate_training(shape, replace(training, world=1, sharding=Sharding.DDP))
    return sum(term.bytes for term in unsharded.terms if term.name in _WEIGHTS)


def validate_gpu(plan: Plan, job: JobSettings) -> None:
    """Raise DevkitError for GPUs that the image of this plan cannot use."""
    if plan.vendor is Vendor.CPU:
        if job.gpu or job.gpus > 1:
            flag = f"--gpu {job.gpu}" if job.gpu else f"--gpus {job.gpus}"
            raise DevkitError(
                f"{flag} cannot be used: this project's image is planned for the CPU",
                "Plan for a GPU first, such as: devkit init --gpu H100 --driver 580.95.05. Otherwise, remove the GPU.",
            )
        return
    if not job.gpu:
        return
    if plan.vendor is Vendor.ROCM:
        if find_amd_gpu(job.gpu) is None:
            raise DevkitError(
                f"--gpu {job.gpu!r} is not an AMD GPU, but this project's image is planned for AMD",
                "Name one, such as MI300X; or plan for NVIDIA GPUs: devkit init --vendor nvidia.",
            )
        return
    find_gpu_spec(job.gpu)
    gpu = find_gpu(job.gpu.partition(" MIG ")[0])
    if gpu is not None and not _has_gpu_code(plan, gpu.capability):
        raise DevkitError(
            f"torch {plan.torch} ({plan.variant}) in this project's image has no code for {job.gpu}"
            f" (compute capability {gpu.capability})",
            f"Add it to the plan: devkit init --gpu {job.gpu!r}, then build and publish the image again.",
        )


def _has_gpu_code(plan: Plan, capability: ComputeCapability) -> bool:
    """True if the wheel has kernels for it, or PTX that its driver compiles, and where the tables know no wheel."""
    minor = ".".join(plan.torch.split("+")[0].split(".")[:2])
    rows = [row for row in load_tables().torch.wheels.values() if (row.minor, row.variant) == (minor, plan.variant)]
    rows = [row for row in rows if row.machine in plan.architectures]
    return not rows or any(check_gpu_code(capability, row.sass, row.ptx) is not CodeSupport.NONE for row in rows)


def find_fitting_gpus(
    plan: Plan, settings: FinetuneSettings, config: Mapping[str, Any], hardware: RunHardware
) -> Iterator[str]:
    """Yield the names of NVIDIA's data center GPUs that are sure to hold the job, the least memory first.

    Open settings, such as the micro-batch, are decided for each GPU.
    """
    candidates = []
    for position, row in enumerate(load_tables().gpus.models):
        if row.kind == "datacenter" and row.capability.major >= OLDEST_MAJOR and _has_gpu_code(plan, row.capability):
            gpu = find_gpu_spec(row.name)  # of two memory sizes, the smaller
            candidates.append((gpu.memory_bytes, position, gpu.name, gpu.lacks_bf16))
    fits: dict[tuple[int, bool], bool] = {}
    for memory_bytes, _, name, lacks_bf16 in sorted(candidates):
        alike = (memory_bytes, lacks_bf16)
        if alike not in fits:
            fits[alike] = bool(_estimate_if_fits(settings, config, replace(hardware, gpu=name)))
        if fits[alike]:
            yield name


def _estimate_if_fits(
    settings: FinetuneSettings, config: Mapping[str, Any], hardware: RunHardware
) -> ResourceNeeds | None:
    """Estimate the needs; None where the job does not fit for sure, or the settings cannot work together."""
    try:
        needs = estimate_needs(settings, config, hardware)
    except DevkitError:
        return None
    return needs if needs is not None and needs.verdict is Fit.FITS else None


def explain_misfit(
    needs: ResourceNeeds | None,
    settings: FinetuneSettings,
    config: Mapping[str, Any] | None,
    hardware: RunHardware,
    fitting: tuple[str, ...],
) -> tuple[str, str] | None:
    """Return message and hint if the GPU named cannot hold the job, else None.

    `fitting` are GPUs that hold it as it is, the smallest first.
    """
    if needs is None or config is None or needs.gpu is None or needs.verdict is not Fit.DOES_NOT_FIT:
        return None
    gpu = needs.gpu
    is_loading = needs.loading_bytes > gpu.memory_bytes
    why = ": each process loads the whole packed model before sharding" if is_loading else ""
    message = (
        f"the job does not fit: {format_bytes(needs.peak_bytes)} on each {gpu.name}, "
        f"which has {format_bytes(gpu.memory_bytes)}{why}"
    )
    proposals = list(_propose_changes(settings, config, hardware))[:MAX_PROPOSALS]
    proposals += [f"--gpu '{fitting[0]}', the smallest that fits it unchanged"] if fitting else []
    nearest = "; or ".join(proposals) or "a shorter sequence, a smaller model"
    return message, f"These fit: {nearest}. Alternatively, pass --force."


def _propose_changes(settings: FinetuneSettings, config: Mapping[str, Any], hardware: RunHardware) -> Iterator[str]:
    """Yield changes that make it fit: sharding, quantization, less per pass; else more GPUs; then another method."""
    is_distributed = hardware.processes > 1
    changes: dict[str, FinetuneSettings] = {}
    if is_distributed:
        for sharding in (Sharding.ZERO2, Sharding.ZERO3):
            changes[f'sharding = "{sharding}"'] = replace(settings, sharding=sharding)
    if settings.method is Method.LORA:
        changes['method = "qlora"'] = replace(settings, method=Method.QLORA)
        if is_distributed and settings.sharding is None:
            both = replace(settings, method=Method.QLORA, sharding=Sharding.ZERO3)
            changes['method = "qlora", sharding = "zero3"'] = both
    if settings.micro_batch not in (None, 1) or settings.checkpointing is False:
        smaller = replace(settings, micro_batch=None, checkpointing=None)
        changes["micro_batch and checkpointing left out"] = smaller
    fitting = {text: _estimate_if_fits(changed, config, hardware) for text, changed in changes.items()}
    if not any(fitting.values()):
        # The run itself refuses more processes than the batch has rows.
        sharded = replace(settings, sharding=Sharding.ZERO3)
        for processes in (each for each in _WORLD_SIZES if each > hardware.processes):
            nodes, gpus = max(1, processes // _GPUS_PER_NODE), min(processes, _GPUS_PER_NODE)
            flags = f"--gpus {gpus}" if nodes == 1 else f"--nodes {nodes} --gpus {gpus}"
            needs = _estimate_if_fits(sharded, config, replace(hardware, processes=processes))
            if needs:
                fitting[f'{flags} with sharding = "zero3"'] = needs
                break
    if settings.method is Method.FULL:
        for method in (Method.LORA, Method.QLORA):
            adapter = replace(settings, method=method, optimizer=None)
            fitting[f'an adapter, method = "{method}"'] = _estimate_if_fits(adapter, config, hardware)
    yield from (f"{text} ({format_bytes(needs.peak_bytes)} on each)" for text, needs in fitting.items() if needs)


def list_duration_notes(needs: ResourceNeeds | None, *, grace_s: int) -> Iterator[str]:
    """Yield a note on a checkpoint that takes longer to write than the grace period."""
    if needs is None:
        return
    size = needs.host.checkpoint_bytes
    write_s = size / WRITE_BYTES_PER_S
    if write_s > grace_s:
        yield (
            f"one checkpoint is {format_bytes(size)}: a plain network volume takes {format_duration(write_s)} to "
            f"write it, but --set grace is {format_duration(grace_s)}; if a save is not complete by then, it is "
            "lost and the run resumes from the previous checkpoint"
        )
