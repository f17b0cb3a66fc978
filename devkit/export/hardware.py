"""Whether the plan's torch computes on the GPU that the job asks for, and which GPUs hold the job."""

from collections.abc import Iterator, Mapping
from typing import Any

from devkit.compat.amd import find_amd_gpu
from devkit.compat.gpus import find_gpu
from devkit.compat.load import tables
from devkit.compat.rules import CodeSupport, has_kernels
from devkit.errors import DevkitError
from devkit.estimate.cards import OLDEST_MAJOR, Verdict, card_named
from devkit.estimate.settings import Precision
from devkit.export.job import JobSettings
from devkit.export.need import Where, need_of
from devkit.facts.values import ComputeCapability
from devkit.solver.model import Plan, Vendor
from devkit.workload.finetune.settings import FinetuneSettings

_REPLAN = "Plan for it, too: devkit init --gpu {gpu!r}, then build and publish the image anew."


def check_gpu(plan: Plan, job: JobSettings) -> None:
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


def fitting_gpus(plan: Plan, settings: FinetuneSettings, config: Mapping[str, Any], where: Where) -> Iterator[str]:
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
    for place, row in enumerate(tables().gpus.models):
        if row.kind != "datacenter" or row.capability.major < OLDEST_MAJOR or not _has_code(plan, row.capability):
            continue
        card = card_named(row.name, Precision.BF16)
        yield card.memory_bytes, place, card.name, card.lacks_bf16


def _holds(settings: FinetuneSettings, config: Mapping[str, Any], where: Where, gpu: str) -> bool:
    there = Where(vendor=where.vendor, gpu=gpu, processes=where.processes, packages=where.packages)
    try:
        need = need_of(settings, config, there)
    except DevkitError:
        return False  # What was asked for cannot work on that GPU at all.
    return need is not None and need.verdict is Verdict.FITS


def _has_code(plan: Plan, capability: ComputeCapability) -> bool:
    """Whether the wheel has kernels for it, or code that its driver compiles; True where the tables know no wheel."""
    minor = ".".join(plan.torch.split("+")[0].split(".")[:2])
    rows = [row for row in tables().torch.wheels.values() if (row.minor, row.variant) == (minor, plan.variant)]
    rows = [row for row in rows if row.machine in plan.architectures]
    return not rows or any(has_kernels(capability, row.sass, row.ptx) is not CodeSupport.NONE for row in rows)


def _whole(gpu: str) -> str:
    """The GPU that a MIG slice is a part of."""
    return gpu.partition(" MIG ")[0]
