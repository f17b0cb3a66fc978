"""From a project, its plan and its wishes to the task that every target writes down."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from devkit.errors import DevkitError
from devkit.estimate.cards import Verdict
from devkit.estimate.host import CORES_PER_GPU
from devkit.export.advice import refusal_of
from devkit.export.hardware import check_gpu, fitting_gpus
from devkit.export.job import JobSettings, checked, is_moving
from devkit.export.labels import checked_label
from devkit.export.launch import command_words, launcher_variables
from devkit.export.need import Need, Where, need_of
from devkit.export.pace import check_pace, pace_notes
from devkit.export.quantities import GIB, bytes_in, gibibytes, seconds_in
from devkit.export.storage import checked_output, volumes_for
from devkit.export.task import TOKEN_PATH, Accelerator, Task
from devkit.render.settings import Settings
from devkit.solver.model import Plan, Reason, Vendor
from devkit.text import human_bytes
from devkit.workload.finetune.settings import FinetuneSettings

SHM_BYTES = 8 * GIB
SHM_BYTES_PER_GPU = 4 * GIB
"""What the dev container has, too: torch's loader workers and NCCL use it, up to the limit."""
CPU_MEMORY_BYTES = 16 * GIB
"""Of each process, where nothing is known of the model."""


@dataclass(frozen=True)
class Exported:
    """A project as the exporters see it: its own settings, its plan, and what the job shall train."""

    project: Settings
    plan: Plan
    finetune: FinetuneSettings
    config: Mapping[str, Any] | None
    """The model's config.json; None where it is not known here."""
    is_local_model: bool = False
    """Whether the model is a folder of the project, and not one of the hub's."""
    project_bytes: int = 0
    """What of the project is known to go along: local data, and a local model."""


@dataclass(frozen=True)
class Made:
    """The task, what the estimate says of it, and message and hint where that is no."""

    task: Task
    need: Need | None
    refusal: tuple[str, str] | None = None


def task_of(exported: Exported, job: JobSettings) -> Made:
    """The task with everything decided. Raises DevkitError for wishes that no engine could carry out."""
    checked(job)
    check_gpu(exported.plan, job)
    finetune = exported.finetune
    where = _where(exported, job)
    _check_run(finetune, job, where)
    need = need_of(finetune, exported.config, where) if exported.config is not None else None
    time_s, grace_s = seconds_in(job.time, "--time"), seconds_in(job.grace, "--grace")
    check_pace(need, finetune, time_s=time_s)
    fitting: tuple[str, ...] = ()
    if exported.config is not None and need is not None and where.vendor is Vendor.NVIDIA:
        fitting = tuple(fitting_gpus(exported.plan, finetune, exported.config, where))
    task = replace(_task(exported, job, need, where), time_s=time_s, grace_s=grace_s, fitting_gpus=fitting)
    notes = (*_notes(task, job, need), *pace_notes(need, finetune, time_s=time_s, grace_s=grace_s))
    refusal = refusal_of(need, finetune, exported.config, where, fitting)
    return Made(replace(task, reasons=_reasons(task, job, need), notes=notes), need, refusal)


def _where(exported: Exported, job: JobSettings) -> Where:
    count = 0 if exported.plan.vendor is Vendor.CPU else job.gpus
    return Where(
        vendor=exported.plan.vendor if count else Vendor.CPU,
        gpu=job.gpu if count else "",
        processes=job.nodes * max(1, count),
        packages=frozenset(name for name, _ in exported.plan.packages) & {"bitsandbytes"},
    )


def _check_run(settings: FinetuneSettings, job: JobSettings, where: Where) -> None:
    """What the run itself would refuse once it is on the cluster, and queued for hours before."""
    if settings.batch < where.processes:
        raise DevkitError(
            f"{where.processes} processes on {job.nodes} x {max(1, job.gpus)} GPUs cannot share a batch of"
            f" {settings.batch} rows",
            f"Ask for at most {settings.batch} in all, or set batch = {where.processes} in the settings of the run.",
        )
    for name, path in (("model", settings.model), *(("data", each) for each in (*settings.data, *settings.eval_data))):
        if ".." in PurePosixPath(path).parts:
            raise DevkitError(
                f"{name} {path!r} leads out of the project, which is all that the job sees",
                "Copy it into the project, and name it from there.",
            )
    if job.spot and not settings.resume:
        raise DevkitError(
            "--spot with resume = false would begin anew each time the node is taken back",
            "Take resume = false out of the settings of the run.",
        )


def _task(exported: Exported, job: JobSettings, need: Need | None, where: Where) -> Task:
    project, finetune = exported.project, exported.finetune
    workspace = f"/workspaces/{project.slug}"
    output = checked_output(workspace, finetune.output.as_posix())
    count = 0 if where.vendor is Vendor.CPU else job.gpus
    per_node = max(1, count)
    card = need.card if need is not None else None
    volumes = volumes_for(
        job,
        need,
        workspace=workspace,
        output=output,
        keep=finetune.keep,
        project_bytes=exported.project_bytes,
        is_local=exported.is_local_model,
    )
    return Task(
        name=checked_label(job.name or project.slug, "--name"),
        project=project.slug,
        image=job.image,
        command=command_words(finetune, is_distributed=where.processes > 1),
        environment=_environment(job, is_distributed=where.processes > 1),
        workspace=workspace,
        output=output,
        nodes=job.nodes,
        accelerator=Accelerator(
            vendor=where.vendor, name=where.gpu, count=count, memory_bytes=card.memory_bytes if card is not None else 0
        ),
        cpus=job.cpus or CORES_PER_GPU * per_node,
        memory_bytes=_memory_bytes(job, need, where, per_node),
        shm_bytes=bytes_in(job.shm, "--shm") if job.shm else max(SHM_BYTES, SHM_BYTES_PER_GPU * count),
        volumes=volumes,
        time_s=0,
        grace_s=0,
        is_spot=job.spot,
        needs_token=not exported.is_local_model,
    )


def _environment(job: JobSettings, *, is_distributed: bool) -> tuple[tuple[str, str], ...]:
    launcher = launcher_variables(grace_s=seconds_in(job.grace, "--grace")) if is_distributed else ()
    given = tuple((text.partition("=")[0], text.partition("=")[2]) for text in job.env)
    return (("HF_TOKEN_PATH", TOKEN_PATH), *launcher, *given)


def _memory_bytes(job: JobSettings, need: Need | None, where: Where, processes: int) -> int:
    """Of one node: what each of its processes needs, in whole GiB. On a CPU the model itself lies in it, too."""
    if job.memory:
        return bytes_in(job.memory, "--memory")
    if need is None:
        return CPU_MEMORY_BYTES * processes
    model = need.estimate.reserved_peak_bytes.upper if where.vendor is Vendor.CPU else 0
    return gibibytes((need.host.memory_bytes + model) * processes) * GIB


def _reasons(task: Task, job: JobSettings, need: Need | None) -> tuple[Reason, ...]:
    asked = "asked for"
    by_estimate = "by the memory estimate: a process, its workers, and the largest file of the model for each GPU"
    if not task.accelerator.count:
        by_estimate = "by the memory estimate: the process, its workers, and all that training holds"
    memory = asked if job.memory else by_estimate if need is not None else "nothing is known of the model here"
    cpus = asked if job.cpus else f"{CORES_PER_GPU} for each GPU: half of them feed data"
    shm = asked if job.shm else "for loader workers and NCCL: a limit"
    shown = {
        "memory": (human_bytes(task.memory_bytes), memory),
        "cpus": (str(task.cpus), cpus),
        "shm": (human_bytes(task.shm_bytes), shm),
    }
    return tuple(Reason(name, value, because, "devkit estimate", "certain") for name, (value, because) in shown.items())


def _notes(task: Task, job: JobSettings, need: Need | None) -> Iterator[str]:
    if need is None:
        yield "the model's shape is not known here, so nothing says whether it fits: give its config.json"
    elif need.card is None and task.accelerator.count and task.fitting_gpus:
        yield f"no GPU is named with --gpu: the smallest that is sure to hold these settings is {task.fitting_gpus[0]}"
    elif need.card is None and task.accelerator.count:
        least = human_bytes(need.estimate.device_peak_bytes.upper)
        yield f"no GPU is named with --gpu, or nothing is known of its memory: these settings take up to {least}"
    elif need.card is not None and need.verdict is Verdict.TIGHT:
        upper, has = human_bytes(need.estimate.device_peak_bytes.upper), human_bytes(need.card.memory_bytes)
        yield f"tight: {human_bytes(need.peak_bytes)} are expected, at most {upper}, and {need.card.name} has {has}"
    if job.gpus and not task.accelerator.count:
        yield "the project's image is planned for the CPU: no GPU is asked for"
    if is_moving(task.image):
        yield f"{task.image} has no tag that stays: two nodes, or a later try, may get different images"
