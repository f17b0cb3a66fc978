"""Slurm: a batch script for one node or several, in Apptainer, Pyxis or the cluster's own Python."""

import shlex
from collections.abc import Iterator

from devkit import __version__
from devkit.export.slurm.containers import enroot_name
from devkit.export.slurm.gpus import queue_notes
from devkit.export.slurm.script import batch_script, image_file
from devkit.export.slurm.settings import Flavour, SlurmSettings, checked
from devkit.export.slurm.sweep import variants
from devkit.export.targets import Context, Rendered, Target
from devkit.export.task import Task
from devkit.render.artifact import Artifact
from devkit.render.resources import rendered

SCRIPT = "job.sbatch"
DEFINITION = "image.def"
BUILD = "build-image.sh"


def render(task: Task, settings: SlurmSettings, context: Context) -> Rendered:
    """The batch script, and what makes the image's file. Raises DevkitError for what Slurm could not run."""
    checked(settings)
    tasks = variants(settings.sweep)
    build = _build_command(task, settings, context)
    artifacts = [Artifact.text(SCRIPT, batch_script(task, settings, tasks, build=build), 0o755)]
    if settings.flavour is Flavour.APPTAINER:
        artifacts += _apptainer_files(task, settings)
    path = shlex.quote(f"{context.folder}/{SCRIPT}")
    steps = (*([build] if build else []), f"sbatch --test-only {path}", f"sbatch {path}", "squeue --me")
    return Rendered(tuple(artifacts), steps, tuple(_notes(task, settings)))


def _apptainer_files(task: Task, settings: SlurmSettings) -> list[Artifact]:
    values = {
        "devkit_version": __version__,
        "image": task.image,
        "image_file": image_file(task, settings),
        "modules": list(settings.module),
        "project": task.project,
    }
    return [
        Artifact.text(DEFINITION, rendered("slurm/image.def.j2", **values)),
        Artifact.text(BUILD, rendered("slurm/build-image.sh.j2", **values), 0o755),
    ]


def _build_command(task: Task, settings: SlurmSettings, context: Context) -> str:
    """What makes the image's file, "" where there is none to make."""
    if settings.flavour is Flavour.APPTAINER:
        return f"sh {shlex.quote(f'{context.folder}/{BUILD}')}"
    if settings.flavour is Flavour.PYXIS and settings.image_file:
        return (
            f"enroot import --output {image_file(task, settings)} {shlex.quote(f'docker://{enroot_name(task.image)}')}"
        )
    return ""


def _notes(task: Task, settings: SlurmSettings) -> Iterator[str]:
    yield from queue_notes(task, settings)
    if task.nodes > 1:
        yield "the folders for models, data and checkpoints must be the same on all nodes: a shared file system"
    if task.is_spot and not (settings.partition or settings.qos):
        yield "which nodes may be taken back is the site's own: name their --partition or --qos"
    if not settings.requeues:
        yield "a job that is preempted or out of time stays where it is: submit it again, and it goes on"


TARGET = Target(
    "slurm",
    "Slurm: batch scripts for one node or several, in a container or not, requeued when preempted.",
    SlurmSettings,
    render,
    needs_image=lambda settings: settings.flavour is not Flavour.NONE,
)
