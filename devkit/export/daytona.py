"""Daytona: a snapshot of the same image, and a script that runs the job in a sandbox from it.

Source: https://www.daytona.io/docs/en/gpu-sandboxes, and Daytona's SDK for Python 0.226.
"""

import hashlib
import re
import shlex
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated

from devkit.errors import DevkitError
from devkit.export.targets import (
    MAX_QUICK_RESTARTS,
    ExportTarget,
    TargetFiles,
    find_path_to_project,
    require_one_machine,
)
from devkit.export.task import TOKEN_PATH, Task, build_rendezvous_variables, find_launcher_gpu
from devkit.export.values import round_up_to_gib
from devkit.facts.settings import SettingInfo
from devkit.release import __version__
from devkit.render.files import Artifact
from devkit.render.templates import render_template

SDK_VERSION = "0.226.1"
IMAGE_GIB = 30
_MUTABLE_TAGS = frozenset({"latest", "lts", "stable"})
"""Tags that Daytona refuses. Source: https://www.daytona.io/docs/en/snapshots"""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]*")


@dataclass(frozen=True, kw_only=True)
class DaytonaSettings:
    """The settings specific to this target."""

    snapshot: Annotated[str, SettingInfo("Existing snapshot, for example from .devcontainer/daytona/snapshot.sh.")] = ""
    hub_secret: Annotated[str, SettingInfo("Daytona secret with the hub token, instead of your shell's HF_TOKEN.")] = ""


def render_daytona(task: Task, settings: DaytonaSettings, folder: str) -> TargetFiles:
    """Render the script. Raises DevkitError for what Daytona cannot run."""
    _validate_task(task, settings)
    variables = (*task.environment, *build_rendezvous_variables(task, address="127.0.0.1", rank="0"))
    resources = _build_resources(task)
    # Snapshots of other images and sizes get another name.
    digest = hashlib.sha256("\0".join((task.image, *resources)).encode()).hexdigest()[:8]
    text = render_template(
        "launchers/daytona.py.j2",
        devkit_version=__version__,
        sdk=SDK_VERSION,
        name=ascii(task.name),
        image=ascii("" if settings.snapshot else task.image),
        snapshot=ascii(settings.snapshot or f"{task.name}-{digest}"),
        words=[ascii(word) for word in task.command],
        environment=[(ascii(name), ascii(value)) for name, value in variables],
        workspace=ascii(task.workspace),
        workdir=ascii(task.start_folder),
        output=ascii(task.output),
        local=ascii(task.inner_output or PurePosixPath(task.output).name),
        project=ascii(find_path_to_project(folder)),
        resources=resources,
        is_spot=task.is_spot and task.accelerator.count > 0,
        time_s=task.time_s,
        grace_s=task.grace_s,
        tries=MAX_QUICK_RESTARTS,
        hub_secret=ascii(settings.hub_secret if task.needs_token else ""),
        token_path=ascii(TOKEN_PATH if task.needs_token else ""),
    )
    step = f"uv run {shlex.quote(f'{folder}/run.py')}"
    notes = [
        "a GPU sandbox is deleted when it stops, so run.py fetches the output first and uploads it at the next start"
    ]
    if task.is_spot:
        notes.append("a spot sandbox is reclaimed without notice, and everything saved since the start is lost")
    return TargetFiles((Artifact.from_text("run.py", text, 0o755),), (step,), tuple(notes))


def _validate(settings: DaytonaSettings, nodes: int) -> None:
    require_one_machine(nodes, "Daytona sandbox")
    for flag, text in (("--snapshot", settings.snapshot), ("--hub-secret", settings.hub_secret)):
        if text and not _NAME.fullmatch(text):
            raise DevkitError(f"{flag} {text!r} is not a valid name", "See Daytona's dashboard.")


def _validate_task(task: Task, settings: DaytonaSettings) -> None:
    _validate(settings, task.nodes)
    for volume in task.volumes:
        if volume.source:
            raise DevkitError(
                f"--set {volume.role} cannot be a Daytona volume: saving renames files, but Daytona volumes do not allow this",
                f"Leave out --{volume.role}: run.py uploads the project, and fetches the output.",
            )
    tag = task.image.rpartition("/")[2].partition(":")[2]
    if not settings.snapshot and "@" not in task.image and (not tag or tag in _MUTABLE_TAGS):
        raise DevkitError(
            f"Daytona rejects images with a mutable tag: {task.image}", "Use a fixed tag: --image REGISTRY/NAME:1"
        )


def _build_resources(task: Task) -> tuple[str, ...]:
    """Build the arguments of the SDK's Resources, in GiB."""
    disk = IMAGE_GIB + sum(round_up_to_gib(each.size_bytes) for each in task.volumes)
    arguments = [f"cpu={task.cpus}", f"memory={round_up_to_gib(task.memory_bytes)}", f"disk={disk}"]
    accelerator = task.accelerator
    if not accelerator.count:
        return tuple(arguments)
    gpus = [
        find_launcher_gpu(name).daytona for name in ((accelerator.name,) if accelerator.name else task.fitting_gpus)
    ]
    names = tuple(dict.fromkeys(filter(None, gpus)))
    if accelerator.name and not names:
        raise DevkitError(
            f"Daytona does not offer {accelerator.name!r}, as far as devkit knows",
            "Its GPUs: H100, H200, B200, B300, RTX PRO 6000, RTX 4090, RTX 5090, MI355X.",
        )
    arguments.append(f"gpu={accelerator.count}")
    if names:
        arguments.append(f"gpu_type=[{', '.join(f'GpuType({each!a})' for each in names)}]")
    return tuple(arguments)


TARGET = ExportTarget(
    "daytona", DaytonaSettings, render_daytona, needs_image=lambda settings: not settings.snapshot, validate=_validate
)
