"""From a project, its plan and its wishes to the task that every target writes down."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from devkit.errors import DevkitError
from devkit.estimate.host import CORES_PER_GPU
from devkit.export.job import JobSettings, checked
from devkit.export.labels import checked_label
from devkit.export.launch import command_words, launcher_variables
from devkit.export.need import Need, need_of
from devkit.export.quantities import GIB, bytes_in, gibibytes, seconds_in
from devkit.export.storage import volumes_for
from devkit.export.task import TOKEN_PATH, Accelerator, Task
from devkit.render.settings import Settings
from devkit.solver.model import Plan, Reason, Vendor
from devkit.text import human_bytes
from devkit.workload.finetune.settings import FinetuneSettings

SHM_BYTES = 8 * GIB
"""What the dev container has, too: torch's loader workers and NCCL use it, up to the limit."""
CPU_MEMORY_BYTES = 16 * GIB
"""Where nothing is known of the model."""


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


def task_of(exported: Exported, job: JobSettings) -> tuple[Task, Need | None]:
    """The task, and what the estimate says of it. Raises DevkitError for wishes that no engine could carry out."""
    checked(job)
    project, finetune = exported.project, exported.finetune
    accelerator_count = 0 if exported.plan.vendor is Vendor.CPU else job.gpus
    processes = job.nodes * max(1, accelerator_count)
    need = None
    if exported.config is not None:
        vendor = exported.plan.vendor if accelerator_count else Vendor.CPU
        need = need_of(finetune, exported.config, vendor=vendor, gpu=job.gpu, processes=processes)
    workspace = f"/workspaces/{project.slug}"
    output = _inside(workspace, finetune.output.as_posix())
    task = Task(
        name=checked_label(job.name or project.slug, "--name"),
        project=project.slug,
        image=_image(job.image),
        command=command_words(finetune, is_distributed=processes > 1),
        environment=_environment(job, is_distributed=processes > 1),
        workspace=workspace,
        output=output,
        nodes=job.nodes,
        accelerator=_accelerator(exported.plan.vendor, job, accelerator_count, need),
        cpus=job.cpus or CORES_PER_GPU * max(1, accelerator_count),
        memory_bytes=_memory_bytes(job, need, max(1, accelerator_count)),
        shm_bytes=bytes_in(job.shm, "--shm") if job.shm else SHM_BYTES * max(1, accelerator_count // 2),
        volumes=volumes_for(job, need, workspace=workspace, output=output),
        time_s=seconds_in(job.time, "--time"),
        grace_s=seconds_in(job.grace, "--grace"),
        is_spot=job.spot,
        needs_token=not exported.is_local_model,
    )
    return replace(task, reasons=_reasons(task, job, need), notes=_notes(task, job, need)), need


def _image(image: str) -> str:
    if image and (any(char.isspace() or char in "\"'`$\\" for char in image) or image.startswith("-")):
        raise DevkitError(f"--image {image!r} is no name of an image", "Write it as REGISTRY/NAME:TAG.")
    return image


def _inside(workspace: str, path: str) -> str:
    return path if PurePosixPath(path).is_absolute() else f"{workspace}/{path}"


def _environment(job: JobSettings, *, is_distributed: bool) -> tuple[tuple[str, str], ...]:
    launcher = launcher_variables(grace_s=seconds_in(job.grace, "--grace")) if is_distributed else ()
    given = tuple((text.partition("=")[0], text.partition("=")[2]) for text in job.env)
    return (("HF_TOKEN_PATH", TOKEN_PATH), *launcher, *given)


def _accelerator(vendor: Vendor, job: JobSettings, count: int, need: Need | None) -> Accelerator:
    card = need.card if need is not None else None
    memory = card.memory_bytes if card is not None else 0
    return Accelerator(vendor=vendor, name=job.gpu, count=count, memory_bytes=memory)


def _memory_bytes(job: JobSettings, need: Need | None, processes: int) -> int:
    """Of one node: what each of its processes needs, in whole GiB."""
    if job.memory:
        return bytes_in(job.memory, "--memory")
    if need is None:
        return CPU_MEMORY_BYTES * processes
    return gibibytes(need.host.memory_bytes * processes) * GIB


def _reasons(task: Task, job: JobSettings, need: Need | None) -> tuple[Reason, ...]:
    asked = "asked for"
    by_estimate = "by the memory estimate: a process, its workers, and the largest file of the model for each GPU"
    memory = asked if job.memory else by_estimate if need is not None else "nothing is known of the model here"
    cpus = asked if job.cpus else f"{CORES_PER_GPU} for each GPU: half of them feed data"
    shown = {
        "memory": (human_bytes(task.memory_bytes), memory),
        "cpus": (str(task.cpus), cpus),
        "shm": (
            human_bytes(task.shm_bytes),
            asked if job.shm else "for loader workers and NCCL: a limit",
        ),
    }
    return tuple(Reason(name, value, because, "devkit estimate", "certain") for name, (value, because) in shown.items())


def _notes(task: Task, job: JobSettings, need: Need | None) -> tuple[str, ...]:
    notes = []
    if need is None:
        notes.append("the model's shape is not known here, so nothing says whether it fits: give its config.json")
    elif need.card is None and task.accelerator.count:
        least = human_bytes(need.estimate.device_peak_bytes.upper)
        notes.append(f"no GPU is named with --gpu: each must have {least} for these settings")
    if job.data == "":
        notes.append(f"the project with its data is expected at {task.workspace}: copy it there before the first run")
    return tuple(notes)
