"""The task of a job, built from the project, its plan and the job's settings: every target writes it down."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from devkit.compat.gpus import find_amd_gpu, find_gpu
from devkit.errors import DevkitError
from devkit.estimate.memory import Fit, find_gpu_spec
from devkit.estimate.recommend import CORES_PER_GPU
from devkit.export.job_settings import JobSettings, has_mutable_tag, validate_job_settings
from devkit.export.sizing import (
    ResourceNeeds,
    RunHardware,
    estimate_needs,
    explain_misfit,
    find_fitting_gpus,
    list_duration_notes,
    validate_gpu,
)
from devkit.export.task import (
    COMPILE_CACHE,
    HUB_CACHE,
    REQUESTED,
    TOKEN_FOLDER,
    TOKEN_PATH,
    Accelerator,
    MountRole,
    Task,
    Volume,
    VolumeRole,
    build_node_command,
    build_torchrun_variables,
    wrap_command,
)
from devkit.export.values import GIB, parse_duration, parse_size, round_up_to_gib, validate_dns_label
from devkit.render.container.settings import ContainerSettings
from devkit.solver.plan import Plan, Reason, Vendor
from devkit.text import format_bytes
from devkit.workload.finetune.settings import FinetuneSettings

SHM_BYTES = 8 * GIB
SHM_BYTES_PER_GPU = 4 * GIB
"""As in the dev container: torch's loader workers and NCCL use it, up to the limit."""
CPU_MEMORY_BYTES = 16 * GIB
"""Memory of each process, where nothing is known of the model."""
MIN_VOLUME_BYTES = 10 * GIB
"""Size of new storage, where the estimate needs less or nothing is known."""
OWN_COMMAND_VOLUME_BYTES = 100 * GIB
"""Size of new storage for models and results of a command whose needs are unknown."""
HEADROOM = 1.2
"""A fifth beyond what is counted, for file system metadata, a tokenizer, metrics."""
CHECKPOINT_COPIES = 3
"""`devkit finetune` checks before the first step that its checkpoints fit: the weights and two states for each."""
NODE_LOCAL_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm", "/run", "/local")  # noqa: S108 - named to be refused
"""Folders that every node has for itself."""


@dataclass(frozen=True)
class ExportedProject:
    """A project as the exporters see it: its own settings, its plan, and the run to export.

    `finetune` is None where the job is a command of the user's own: nothing is estimated for it.
    """

    project: ContainerSettings
    plan: Plan
    finetune: FinetuneSettings | None
    config: Mapping[str, Any] | None
    """The model's config.json; None where it is not known here."""
    is_local_model: bool = False
    """True if the model is a folder of the project, false if it is the hub's."""
    project_bytes: int = 0
    """Size of the local data and of a local model."""
    hub_data: tuple[str, ...] = ()
    """Data sets of the hub: data that is not a file of the project and has a hub name."""


@dataclass(frozen=True)
class TaskAndEstimate:
    """The task, its estimated needs, and message and hint where the job does not fit."""

    task: Task
    needs: ResourceNeeds | None
    refusal: tuple[str, str] | None = None


def build_task(
    exported: ExportedProject, job: JobSettings, validate_name: Callable[[str, str], str] = validate_dns_label
) -> TaskAndEstimate:
    """Build the task with everything decided. Raises DevkitError for settings that no engine can run.

    `validate_name` returns a job's name that the target takes, given with its flag, or raises.
    """
    validate_job_settings(job)
    plan, finetune, config = exported.plan, exported.finetune, exported.config
    vendor = _choose_vendor(plan, job)
    count = 0 if vendor is Vendor.CPU else job.gpus
    hardware = RunHardware(
        vendor=vendor if count else Vendor.CPU,
        gpu=job.gpu if count else "",
        processes=job.nodes * max(1, count),
        packages=frozenset(plan.versions) & {"bitsandbytes"},
    )
    needs = None
    fitting: tuple[str, ...] = ()
    time_s, grace_s = parse_duration(job.time, "--time"), parse_duration(job.grace, "--set grace")
    if finetune is not None:
        _validate_run(finetune, job, hardware)
        _validate_hub_data(exported)
        needs = estimate_needs(finetune, config, hardware) if config is not None else None
        if config is not None and needs is not None and hardware.vendor is Vendor.NVIDIA:
            fitting = tuple(find_fitting_gpus(plan, finetune, config, hardware))
    accelerator = Accelerator(
        vendor=hardware.vendor, name=hardware.gpu, count=count, memory_bytes=_find_gpu_memory(hardware, needs)
    )
    slug = exported.project.slug
    workspace = f"/workspaces/{slug}"
    node_processes = int(job.processes) if job.processes.isdigit() else 0
    is_distributed = job.nodes * (node_processes or max(1, count)) > 1
    variables = tuple((text.partition("=")[0], text.partition("=")[2]) for text in job.env)
    output = resolve_output(workspace, finetune.output.as_posix() if finetune is not None else job.results)
    if finetune is None:
        variables = (("DEVKIT_OUTPUT", output), *variables)
        command = wrap_command(job.command, by_torchrun=bool(job.processes), has_devkit=not job.foreign_image)
    else:
        command = build_node_command(finetune, is_distributed=is_distributed)
    if job.foreign_image:
        variables = (("HF_HOME", HUB_CACHE), *variables)
    launcher = build_torchrun_variables(grace_s=grace_s) if is_distributed else ()
    task = Task(
        name=validate_name(job.name or slug, "--name"),
        project=slug,
        image=job.image,
        command=command,
        environment=(("HF_TOKEN_PATH", TOKEN_PATH), *launcher, *variables),
        workspace=workspace,
        output=output,
        nodes=job.nodes,
        accelerator=accelerator,
        cpus=job.cpus or CORES_PER_GPU * max(1, count),
        memory_bytes=_size_memory(job, needs, hardware, processes=max(1, count), is_own=finetune is None),
        shm_bytes=parse_size(job.shm, "--set shm") if job.shm else max(SHM_BYTES, SHM_BYTES_PER_GPU * count),
        volumes=(
            *plan_volumes(exported, job, needs, workspace=workspace, output=output),
            *plan_mounts(job, {workspace, output, HUB_CACHE, COMPILE_CACHE, TOKEN_FOLDER, "/dev/shm"}),  # noqa: S108
        ),
        time_s=time_s,
        grace_s=grace_s,
        is_spot=job.spot,
        needs_token=not exported.is_local_model,
        fitting_gpus=fitting,
        is_own_command=finetune is None,
        is_foreign_image=job.foreign_image,
        node_processes=node_processes,
        workdir=job.workdir,
    )
    notes, refusal = tuple(_list_notes(task, job, needs)), None
    if finetune is not None:
        notes += tuple(list_duration_notes(needs, grace_s=grace_s))
        refusal = explain_misfit(needs, finetune, config, hardware, fitting)
    return TaskAndEstimate(replace(task, reasons=_explain_sizes(task, job, needs), notes=notes), needs, refusal)


def _choose_vendor(plan: Plan, job: JobSettings) -> Vendor:
    """Choose the vendor of the GPUs: the plan's, which says nothing of a foreign image. Raises DevkitError."""
    if not job.foreign_image:
        validate_gpu(plan, job)
        return plan.vendor
    if find_amd_gpu(job.gpu) is not None:
        return Vendor.ROCM
    return Vendor.NVIDIA if plan.vendor is Vendor.CPU or find_gpu(job.gpu) is not None else plan.vendor


def _find_gpu_memory(hardware: RunHardware, needs: ResourceNeeds | None) -> int:
    """Return the memory of each GPU; 0 where it is unknown."""
    if needs is not None:
        return needs.gpu.memory_bytes if needs.gpu is not None else 0
    if not hardware.gpu or hardware.vendor is not Vendor.NVIDIA:
        return 0
    try:
        return find_gpu_spec(hardware.gpu).memory_bytes
    except DevkitError:
        return 0


def _validate_run(settings: FinetuneSettings, job: JobSettings, hardware: RunHardware) -> None:
    """Raise DevkitError for what the run would refuse on the cluster, after hours in a queue."""
    processes = hardware.processes
    if settings.batch < processes:
        raise DevkitError(
            f"{processes} processes on {job.nodes} x {max(1, job.gpus)} GPUs cannot share a batch of"
            f" {settings.batch} rows",
            f"Request at most {settings.batch} in all, or set batch = {processes} in the settings of the run.",
        )
    for name, path in (("model", settings.model), *(("data", each) for each in (*settings.data, *settings.eval_data))):
        if ".." in PurePosixPath(path).parts:
            raise DevkitError(
                f"{name} {path!r} is outside the project, but the job sees only the project",
                "Copy it into the project, and use that path.",
            )
    if job.spot and not settings.resume:
        raise DevkitError(
            "with resume = false, a spot job would start over each time the node is reclaimed",
            "Remove resume = false from the run's settings.",
        )


def _validate_hub_data(exported: ExportedProject) -> None:
    """Raise DevkitError for data of the hub that the image cannot read: the run would end at its start."""
    if exported.hub_data and exported.plan.versions and "datasets" not in exported.plan.versions:
        raise DevkitError(
            f"data {exported.hub_data[0]!r} is a data set on the hub, but the project's image does not have `datasets` to read it",
            "Add datasets to the project's requirements, run devkit update, and publish the image again;"
            " or download it into the project.",
        )


def resolve_output(workspace: str, output: str) -> str:
    """Return the output folder in the container, absolute. Raises DevkitError where its storage would hide something.

    `workspace` is the project's folder there; `output` may be relative to it.
    """
    path = PurePosixPath(workspace, output)
    if ".." in path.parts:
        raise DevkitError(
            f"the run's output {output!r} is outside the project, but the job sees only the project",
            'Name a folder in it, such as output = "tuned".',
        )
    for taken, content in ((workspace, "the project"), (HUB_CACHE, "the models"), (COMPILE_CACHE, "compiled kernels")):
        if path == PurePosixPath(taken) or path in PurePosixPath(taken).parents:
            raise DevkitError(
                f"the run's output {output!r} is where {content} would be, so its storage would hide them",
                'Name a separate folder, such as output = "tuned".',
            )
    if path == PurePosixPath(TOKEN_FOLDER) or PurePosixPath(TOKEN_FOLDER) in path.parents:
        raise DevkitError(f"the run's output {output!r} is where the hub token is stored", 'Such as output = "tuned".')
    return str(path)


def plan_volumes(
    exported: ExportedProject, job: JobSettings, needs: ResourceNeeds | None, *, workspace: str, output: str
) -> tuple[Volume, ...]:
    """Plan the storage of models, project and checkpoints. Raises DevkitError where it would be too small."""
    models = 0 if needs is None or exported.is_local_model else needs.hub_bytes
    checkpoints, content = 0, ""
    if needs is not None and exported.finetune is not None:
        keep = exported.finetune.keep
        one = max(needs.host.checkpoint_bytes, CHECKPOINT_COPIES * needs.result_bytes)
        checkpoints = (keep + 1) * one + needs.result_bytes
        size = format_bytes(needs.host.checkpoint_bytes)
        content = f"{keep} checkpoints of {size}, the one being written, and the result"
    return (
        _plan_volume(job, VolumeRole.MODELS, HUB_CACHE, models, "the model's weights"),
        _plan_volume(job, VolumeRole.DATA, workspace, exported.project_bytes, "the project, its data and models"),
        _plan_volume(job, VolumeRole.CHECKPOINTS, output, checkpoints, content),
    )


def plan_mounts(job: JobSettings, taken: set[str]) -> Iterator[Volume]:
    """Plan the storage that the user names with a path. Raises DevkitError for a path that would hide one of `taken`."""
    for text in job.mount:
        source, mark, folder = text.rpartition(":")
        path = str(PurePosixPath(folder))
        if not (source and mark) or not folder.startswith("/") or ".." in PurePosixPath(folder).parts:
            raise DevkitError(
                f"mount {text!r} does not specify storage and a path in the container",
                "Write it as SOURCE:/PATH, such as nas:/data.",
            )
        if hidden := sorted(each for each in taken if PurePosixPath(each).is_relative_to(path)):
            raise DevkitError(f"mount {text!r} would hide {hidden[0]}", "Give it its own path.")
        taken.add(path)
        yield Volume(role=MountRole.OWN, path=path, source=source, size_bytes=0, because=REQUESTED)


def _plan_volume(job: JobSettings, role: VolumeRole, path: str, min_bytes: int, content: str) -> Volume:
    source, requested = getattr(job, str(role)), getattr(job, f"{role}_size")
    # Several processes write one checkpoint, and all of them read it.
    folders = (PurePosixPath(source), *PurePosixPath(source).parents)
    if job.nodes > 1 and any(PurePosixPath(each) in folders for each in NODE_LOCAL_FOLDERS):
        raise DevkitError(
            f"--set {role} {source} is a separate folder on each of the {job.nodes} nodes",
            "Name a folder on a shared file system.",
        )
    padded_gib = round_up_to_gib(round(min_bytes * HEADROOM))
    if not requested:
        because = (
            f"{content}: {format_bytes(min_bytes)}" if min_bytes else "the minimum, because its content is unknown here"
        )
        size = max(MIN_VOLUME_BYTES, padded_gib * GIB)
        if job.command and role is not VolumeRole.DATA:
            because, size = f"a guess for your own command: --set {role}_size", OWN_COMMAND_VOLUME_BYTES
        return Volume(role=role, path=path, source=source, size_bytes=size, because=because)
    flag = f"--set {role}_size"
    size = parse_size(requested, flag)
    if size < min_bytes:
        raise DevkitError(
            f"{flag} {requested} is less than {content}: {format_bytes(min_bytes)}", f"Give {flag}={padded_gib}Gi."
        )
    return Volume(role=role, path=path, source=source, size_bytes=size, because=REQUESTED)


def _size_memory(
    job: JobSettings, needs: ResourceNeeds | None, hardware: RunHardware, *, processes: int, is_own: bool
) -> int:
    """Return the memory of one node, in whole GiB, for all its processes and a checkpoint, which rank 0 gathers.

    On a CPU the model is in it, too, and saving a checkpoint copies nothing.
    """
    if job.memory:
        return parse_size(job.memory, "--set memory")
    if is_own:
        return round_up_to_gib(max(CPU_MEMORY_BYTES, _find_gpu_memory(hardware, None))) * GIB * processes
    if needs is None:
        return CPU_MEMORY_BYTES * processes
    is_cpu = hardware.vendor is Vendor.CPU
    model = needs.estimate.reserved_peak_bytes.upper if is_cpu else 0
    saved = 0 if is_cpu else needs.host.checkpoint_bytes
    return round_up_to_gib((needs.host.memory_bytes + model) * processes + saved) * GIB


def _explain_sizes(task: Task, job: JobSettings, needs: ResourceNeeds | None) -> tuple[Reason, ...]:
    memory = (
        "from the memory estimate: a process, its workers, and the largest file of the model for each GPU; a checkpoint"
    )
    if task.is_own_command:
        memory = "devkit does not estimate your own command: this is as much as its GPUs have, and at least 16 GiB each"
    elif needs is None:
        memory = "the model's needs are unknown here"
    elif not task.accelerator.count:
        memory = "from the memory estimate: the process, its workers, and everything that training keeps in memory"
    rows = (
        ("memory", format_bytes(task.memory_bytes), job.memory, memory),
        ("cpus", str(task.cpus), job.cpus, f"{CORES_PER_GPU} for each GPU, half of which load data"),
        ("shm", format_bytes(task.shm_bytes), job.shm, "for loader workers and NCCL; this is a limit"),
    )
    return tuple(
        Reason(name, value, REQUESTED if requested else because, "devkit estimate", "certain")
        for name, value, requested, because in rows
    )


def _list_notes(task: Task, job: JobSettings, needs: ResourceNeeds | None) -> Iterator[str]:
    if task.is_own_command:
        yield "your own command has no estimate: memory and storage are guesses; set them with --set memory and --set models_size"
        if job.settings:
            yield f"the job runs the command, not devkit finetune with {job.settings}"
    elif needs is None:
        yield "the model's shape is unknown here, so devkit cannot check whether it fits: give its config.json"
    elif needs.gpu is None and task.accelerator.count and task.fitting_gpus:
        yield f"--gpu is not set: the smallest GPU guaranteed to fit these settings is {task.fitting_gpus[0]}"
    elif needs.gpu is None and task.accelerator.count:
        upper = format_bytes(needs.estimate.device_peak_bytes.upper)
        yield f"--gpu is not set, or its memory is unknown: these settings take up to {upper}"
    elif needs.gpu is not None and needs.verdict is Fit.TIGHT:
        upper, memory = format_bytes(needs.estimate.device_peak_bytes.upper), format_bytes(needs.gpu.memory_bytes)
        yield f"tight: {format_bytes(needs.peak_bytes)} expected, at most {upper}; {needs.gpu.name} has {memory}"
    if job.gpus and not task.accelerator.count:
        yield "the project's image is planned for the CPU, so no GPU is requested"
    if has_mutable_tag(task.image):
        yield f"{task.image} has a mutable tag, so two nodes, or a later attempt, may get different images"
