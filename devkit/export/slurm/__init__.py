"""Slurm: a batch script for one node or several, in Apptainer, Pyxis or the cluster's own Python."""

import shlex
from collections.abc import Iterator

from devkit import __version__
from devkit.export.slurm.job_array import expand_sweep
from devkit.export.slurm.script import format_enroot_reference, list_queue_notes, locate_image_file, render_batch_script
from devkit.export.slurm.settings import ContainerRuntime, SlurmSettings, validate_slurm_settings
from devkit.export.targets import ExportContext, ExportTarget, TargetFiles
from devkit.export.task import Task
from devkit.render.files import Artifact
from devkit.render.templates import render_template

SCRIPT_FILE = "job.sbatch"
DEFINITION_FILE = "image.def"
BUILD_FILE = "build-image.sh"


def render_slurm(task: Task, settings: SlurmSettings, context: ExportContext) -> TargetFiles:
    """The batch script, and what makes the image's file. Raises DevkitError for what Slurm could not run."""
    validate_slurm_settings(settings)
    tasks = expand_sweep(settings.sweep)
    build = _build_command(task, settings, context)
    artifacts = [Artifact.from_text(SCRIPT_FILE, render_batch_script(task, settings, tasks, build=build), 0o755)]
    if settings.flavour is ContainerRuntime.APPTAINER:
        artifacts += _apptainer_files(task, settings)
    path = shlex.quote(f"{context.folder}/{SCRIPT_FILE}")
    steps = (*([build] if build else []), f"sbatch --test-only {path}", f"sbatch {path}", "squeue --me")
    return TargetFiles(tuple(artifacts), steps, tuple(_notes(task, settings)))


def _apptainer_files(task: Task, settings: SlurmSettings) -> list[Artifact]:
    values = {
        "devkit_version": __version__,
        "image": task.image,
        "image_file": locate_image_file(task, settings),
        "modules": list(settings.module),
        "project": task.project,
    }
    return [
        Artifact.from_text(DEFINITION_FILE, render_template("slurm/image.def.j2", **values)),
        Artifact.from_text(BUILD_FILE, render_template("slurm/build-image.sh.j2", **values), 0o755),
    ]


def _build_command(task: Task, settings: SlurmSettings, context: ExportContext) -> str:
    """What makes the image's file, "" where there is none to make."""
    if settings.flavour is ContainerRuntime.APPTAINER:
        return f"sh {shlex.quote(f'{context.folder}/{BUILD_FILE}')}"
    if settings.flavour is ContainerRuntime.PYXIS and settings.image_file:
        return f"enroot import --output {locate_image_file(task, settings)} {shlex.quote(f'docker://{format_enroot_reference(task.image)}')}"
    return ""


def _notes(task: Task, settings: SlurmSettings) -> Iterator[str]:
    yield from list_queue_notes(task, settings)
    if task.nodes > 1:
        yield "the folders for models, data and checkpoints must be the same on all nodes: a shared file system"
    if task.is_spot and not (settings.partition or settings.qos):
        yield "which nodes may be taken back is the site's own: name their --partition or --qos"
    if not settings.requeues:
        yield "a job that is preempted or out of time stays where it is: submit it again, and it goes on"


TARGET = ExportTarget(
    "slurm",
    "Slurm: batch scripts for one node or several, in a container or not, requeued when preempted.",
    SlurmSettings,
    render_slurm,
    needs_image=lambda settings: settings.flavour is not ContainerRuntime.NONE,
)
