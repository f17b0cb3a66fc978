"""Slurm: a batch script for one node or several, in Apptainer, Pyxis or the cluster's own Python."""

import shlex

from devkit.export.slurm.script import format_enroot_reference, list_gpu_notes, locate_image_file, render_batch_script
from devkit.export.slurm.settings import ContainerRuntime, SlurmSettings, validate_job_name, validate_slurm_settings
from devkit.export.targets import ExportContext, ExportTarget, TargetFiles
from devkit.export.task import Task
from devkit.release import __version__
from devkit.render.files import Artifact
from devkit.render.templates import render_template

SCRIPT_FILE = "job.sbatch"
BUILD_FILE = "build-image.sh"


def render_slurm(task: Task, settings: SlurmSettings, context: ExportContext) -> TargetFiles:
    """Render the batch script, and what builds the image file. Raises DevkitError for what Slurm cannot run."""
    validate_slurm_settings(settings)
    image_file = locate_image_file(task, settings)
    build = ""
    builds = settings.flavor.has_image_file and bool(task.image)
    if builds:
        build = f"sh {shlex.quote(f'{context.folder}/{BUILD_FILE}')}"
    elif settings.flavor is ContainerRuntime.PYXIS and settings.image_file and task.image:
        source = shlex.quote(f"docker://{format_enroot_reference(task.image)}")
        build = f"enroot import --output {image_file} {source}"
    artifacts = [Artifact.from_text(SCRIPT_FILE, render_batch_script(task, settings, build=build), 0o755)]
    if builds:
        values = {
            "devkit_version": __version__,
            "image": task.image,
            "image_file": image_file,
            "modules": list(settings.module),
            "program": str(settings.flavor),
            "has_devkit": not task.is_foreign_image,
        }
        artifacts += [
            Artifact.from_text("image.def", render_template("slurm/image.def.j2", **values)),
            Artifact.from_text(BUILD_FILE, render_template("slurm/build-image.sh.j2", **values), 0o755),
        ]
    path = shlex.quote(f"{context.folder}/{SCRIPT_FILE}")
    steps = (*([build] if build else []), f"sbatch --test-only {path}", f"sbatch {path}", "squeue --me")
    notes = list_gpu_notes(task, settings)
    if task.nodes > 1:
        notes.append("the folders for models, data and checkpoints must be on a file system that all nodes share")
    if task.is_spot and not settings.partition:
        notes.append("the site decides which nodes may be reclaimed: set their --partition, or --sbatch=--qos=NAME")
    if not settings.requeues:
        notes.append("a preempted or timed-out job is not requeued: submit it again, and it resumes")
    return TargetFiles(tuple(artifacts), steps, tuple(notes))


TARGET = ExportTarget(
    "slurm",
    SlurmSettings,
    render_slurm,
    needs_image=lambda settings: settings.flavor is not ContainerRuntime.NONE and not settings.image_file,
    validate_name=validate_job_name,
    validate=lambda own, _: validate_slurm_settings(own),
)
