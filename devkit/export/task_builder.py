"""From a project, its plan and its wishes to the task that every target writes down."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from devkit.errors import DevkitError
from devkit.estimate.gpus import Fit
from devkit.estimate.resources import CORES_PER_GPU
from devkit.export.job_settings import JobSettings, has_mutable_tag, validate_dns_label, validate_job_settings
from devkit.export.launch import build_node_command, build_torchrun_variables
from devkit.export.quantities import GIB, parse_duration, parse_size, round_up_to_gib
from devkit.export.sizing import (
    ResourceNeeds,
    RunHardware,
    estimate_needs,
    explain_misfit,
    find_fitting_gpus,
    list_duration_notes,
    validate_checkpoint_interval,
    validate_gpu,
)
from devkit.export.task import COMPILE_CACHE, HUB_CACHE, TOKEN_FOLDER, TOKEN_PATH, Accelerator, Task, Volume, VolumeRole
from devkit.render.container.settings import ContainerSettings
from devkit.solver.plan import Plan, Reason, Vendor
from devkit.text import format_bytes
from devkit.workload.finetune.settings import FinetuneSettings

# The storage of a job: models, the project with its data, checkpoints; and how large each must be.

MIN_VOLUME_BYTES = 10 * GIB
"""Of new storage, where the estimate asks for less or nothing is known."""
HEADROOM = 1.2
"""For file systems' own books, a tokenizer, metrics: a fifth beyond what is counted."""
CHECKPOINT_COPIES = 3
"""`devkit finetune` asks for room for its checkpoints before the first step: the weights and two numbers for each."""
NODE_LOCAL_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm", "/run", "/local")  # noqa: S108 - named to be refused
"""Folders that every node has for itself."""


def resolve_output(workspace: str, output: str) -> str:
    """The output folder inside the container, absolute. Raises DevkitError where its storage would hide something."""
    path = PurePosixPath(workspace, output)
    if ".." in path.parts:
        raise DevkitError(
            f"the run's output {output!r} leads out of the project, which is all that the job sees",
            'Name a folder in it, such as output = "tuned".',
        )
    for taken, what in ((workspace, "the project"), (HUB_CACHE, "the models"), (COMPILE_CACHE, "compiled kernels")):
        if path == PurePosixPath(taken) or path in PurePosixPath(taken).parents:
            raise DevkitError(
                f"the run's output {output!r} is where {what} would be: storage for it would hide them",
                'Name a folder of its own, such as output = "tuned".',
            )
    if path == PurePosixPath(TOKEN_FOLDER) or PurePosixPath(TOKEN_FOLDER) in path.parents:
        raise DevkitError(f"the run's output {output!r} is where the hub's token lies", 'Such as output = "tuned".')
    return str(path)


def plan_volumes(
    job: JobSettings,
    need: ResourceNeeds | None,
    *,
    workspace: str,
    output: str,
    keep: int,
    project_bytes: int,
    is_local: bool,
) -> tuple[Volume, ...]:
    """Raises DevkitError for storage that could not hold what goes there.

    `keep` is how many checkpoints stay, `project_bytes` what of the project is known to go along; a model that
    `is_local` lies in the project.
    """
    models = 0 if need is None or is_local else need.hub_bytes
    return (
        _volume(job, VolumeRole.MODELS, HUB_CACHE, models, "the model's weights"),
        _volume(job, VolumeRole.DATA, workspace, project_bytes, "the project, its data and models"),
        _volume(job, VolumeRole.CHECKPOINTS, output, _output_bytes(need, keep), _output_words(need, keep)),
    )


def _output_bytes(need: ResourceNeeds | None, keep: int) -> int:
    """Checkpoints that stay and the one being written, and the result beside them."""
    if need is None:
        return 0
    one = max(need.host.checkpoint_bytes, CHECKPOINT_COPIES * need.result_bytes)
    return (keep + 1) * one + need.result_bytes


def _output_words(need: ResourceNeeds | None, keep: int) -> str:
    size = format_bytes(need.host.checkpoint_bytes) if need is not None else ""
    return f"{keep} checkpoints of {size}, the one being written, and the result" if need is not None else ""


def _volume(job: JobSettings, role: VolumeRole, path: str, least_bytes: int, holds: str) -> Volume:
    source, asked = getattr(job, str(role)), getattr(job, f"{role}_size")
    flag = f"--{role}-size"
    _check_shared(source, f"--{role}", job.nodes)
    if asked:
        size = parse_size(asked, flag)
        if size < least_bytes:
            raise DevkitError(
                f"{flag} {asked} is less than {holds}: {format_bytes(least_bytes)}",
                f"Give {flag} {round_up_to_gib(round(least_bytes * HEADROOM))}Gi.",
            )
        return Volume(role=role, path=path, source=source, size_bytes=size, because="asked for")
    size = max(MIN_VOLUME_BYTES, round_up_to_gib(round(least_bytes * HEADROOM)) * GIB)
    because = (
        f"{holds}: {format_bytes(least_bytes)}" if least_bytes else "at least; nothing is known of what goes there"
    )
    return Volume(role=role, path=path, source=source, size_bytes=size, because=because)


def _check_shared(source: str, flag: str, nodes: int) -> None:
    """Several processes write one checkpoint, and all of them read it again."""
    path = PurePosixPath(source)
    own = next((each for each in NODE_LOCAL_FOLDERS if PurePosixPath(each) in (path, *path.parents)), None)
    if nodes > 1 and own is not None:
        raise DevkitError(
            f"{flag} {source} is a folder that each of the {nodes} nodes has for itself",
            "Name one on a file system that all of them share.",
        )


SHM_BYTES = 8 * GIB
SHM_BYTES_PER_GPU = 4 * GIB
"""What the dev container has, too: torch's loader workers and NCCL use it, up to the limit."""
CPU_MEMORY_BYTES = 16 * GIB
"""Of each process, where nothing is known of the model."""


@dataclass(frozen=True)
class ExportedProject:
    """A project as the exporters see it: its own settings, its plan, and what the job shall train."""

    project: ContainerSettings
    plan: Plan
    finetune: FinetuneSettings
    config: Mapping[str, Any] | None
    """The model's config.json; None where it is not known here."""
    is_local_model: bool = False
    """Whether the model is a folder of the project, and not one of the hub's."""
    project_bytes: int = 0
    """What of the project is known to go along: local data, and a local model."""


@dataclass(frozen=True)
class TaskAndEstimate:
    """The task, what the estimate says of it, and message and hint where that is no."""

    task: Task
    need: ResourceNeeds | None
    refusal: tuple[str, str] | None = None


def build_task(exported: ExportedProject, job: JobSettings) -> TaskAndEstimate:
    """The task with everything decided. Raises DevkitError for wishes that no engine could carry out."""
    validate_job_settings(job)
    validate_gpu(exported.plan, job)
    finetune = exported.finetune
    where = _where(exported, job)
    _check_run(finetune, job, where)
    need = estimate_needs(finetune, exported.config, where) if exported.config is not None else None
    time_s, grace_s = parse_duration(job.time, "--time"), parse_duration(job.grace, "--grace")
    validate_checkpoint_interval(need, finetune, time_s=time_s)
    fitting: tuple[str, ...] = ()
    if exported.config is not None and need is not None and where.vendor is Vendor.NVIDIA:
        fitting = tuple(find_fitting_gpus(exported.plan, finetune, exported.config, where))
    task = replace(_task(exported, job, need, where), time_s=time_s, grace_s=grace_s, fitting_gpus=fitting)
    notes = (*_notes(task, job, need), *list_duration_notes(need, finetune, time_s=time_s, grace_s=grace_s))
    refusal = explain_misfit(need, finetune, exported.config, where, fitting)
    return TaskAndEstimate(replace(task, reasons=_reasons(task, job, need), notes=notes), need, refusal)


def _where(exported: ExportedProject, job: JobSettings) -> RunHardware:
    count = 0 if exported.plan.vendor is Vendor.CPU else job.gpus
    return RunHardware(
        vendor=exported.plan.vendor if count else Vendor.CPU,
        gpu=job.gpu if count else "",
        processes=job.nodes * max(1, count),
        packages=frozenset(name for name, _ in exported.plan.packages) & {"bitsandbytes"},
    )


def _check_run(settings: FinetuneSettings, job: JobSettings, where: RunHardware) -> None:
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


def _task(exported: ExportedProject, job: JobSettings, need: ResourceNeeds | None, where: RunHardware) -> Task:
    project, finetune = exported.project, exported.finetune
    workspace = f"/workspaces/{project.slug}"
    output = resolve_output(workspace, finetune.output.as_posix())
    count = 0 if where.vendor is Vendor.CPU else job.gpus
    per_node = max(1, count)
    card = need.card if need is not None else None
    volumes = plan_volumes(
        job,
        need,
        workspace=workspace,
        output=output,
        keep=finetune.keep,
        project_bytes=exported.project_bytes,
        is_local=exported.is_local_model,
    )
    return Task(
        name=validate_dns_label(job.name or project.slug, "--name"),
        project=project.slug,
        image=job.image,
        command=build_node_command(finetune, is_distributed=where.processes > 1),
        environment=_environment(job, is_distributed=where.processes > 1),
        workspace=workspace,
        output=output,
        nodes=job.nodes,
        accelerator=Accelerator(
            vendor=where.vendor, name=where.gpu, count=count, memory_bytes=card.memory_bytes if card is not None else 0
        ),
        cpus=job.cpus or CORES_PER_GPU * per_node,
        memory_bytes=_memory_bytes(job, need, where, per_node),
        shm_bytes=parse_size(job.shm, "--shm") if job.shm else max(SHM_BYTES, SHM_BYTES_PER_GPU * count),
        volumes=volumes,
        time_s=0,
        grace_s=0,
        is_spot=job.spot,
        needs_token=not exported.is_local_model,
    )


def _environment(job: JobSettings, *, is_distributed: bool) -> tuple[tuple[str, str], ...]:
    launcher = build_torchrun_variables(grace_s=parse_duration(job.grace, "--grace")) if is_distributed else ()
    given = tuple((text.partition("=")[0], text.partition("=")[2]) for text in job.env)
    return (("HF_TOKEN_PATH", TOKEN_PATH), *launcher, *given)


def _memory_bytes(job: JobSettings, need: ResourceNeeds | None, where: RunHardware, processes: int) -> int:
    """Of one node: what each of its processes needs, in whole GiB. On a CPU the model itself lies in it, too."""
    if job.memory:
        return parse_size(job.memory, "--memory")
    if need is None:
        return CPU_MEMORY_BYTES * processes
    model = need.estimate.reserved_peak_bytes.upper if where.vendor is Vendor.CPU else 0
    return round_up_to_gib((need.host.memory_bytes + model) * processes) * GIB


def _reasons(task: Task, job: JobSettings, need: ResourceNeeds | None) -> tuple[Reason, ...]:
    asked = "asked for"
    by_estimate = "by the memory estimate: a process, its workers, and the largest file of the model for each GPU"
    if not task.accelerator.count:
        by_estimate = "by the memory estimate: the process, its workers, and all that training holds"
    memory = asked if job.memory else by_estimate if need is not None else "nothing is known of the model here"
    cpus = asked if job.cpus else f"{CORES_PER_GPU} for each GPU: half of them feed data"
    shm = asked if job.shm else "for loader workers and NCCL: a limit"
    shown = {
        "memory": (format_bytes(task.memory_bytes), memory),
        "cpus": (str(task.cpus), cpus),
        "shm": (format_bytes(task.shm_bytes), shm),
    }
    return tuple(Reason(name, value, because, "devkit estimate", "certain") for name, (value, because) in shown.items())


def _notes(task: Task, job: JobSettings, need: ResourceNeeds | None) -> Iterator[str]:
    if need is None:
        yield "the model's shape is not known here, so nothing says whether it fits: give its config.json"
    elif need.card is None and task.accelerator.count and task.fitting_gpus:
        yield f"no GPU is named with --gpu: the smallest that is sure to hold these settings is {task.fitting_gpus[0]}"
    elif need.card is None and task.accelerator.count:
        least = format_bytes(need.estimate.device_peak_bytes.upper)
        yield f"no GPU is named with --gpu, or nothing is known of its memory: these settings take up to {least}"
    elif need.card is not None and need.verdict is Fit.TIGHT:
        upper, has = format_bytes(need.estimate.device_peak_bytes.upper), format_bytes(need.card.memory_bytes)
        yield f"tight: {format_bytes(need.peak_bytes)} are expected, at most {upper}, and {need.card.name} has {has}"
    if job.gpus and not task.accelerator.count:
        yield "the project's image is planned for the CPU: no GPU is asked for"
    if has_mutable_tag(task.image):
        yield f"{task.image} has no tag that stays: two nodes, or a later try, may get different images"
