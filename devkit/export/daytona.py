"""Daytona: a snapshot of the same image, and a script that runs the job in a sandbox from it.

Source: https://www.daytona.io/docs/en/gpu-sandboxes, and Daytona's SDK for Python 0.226.
"""

import hashlib
import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated

from devkit import __version__
from devkit.errors import DevkitError
from devkit.export.launcher_gpus import find_launcher_gpu
from devkit.export.quantities import round_up_to_gib
from devkit.export.quoting import quote_shell
from devkit.export.targets import ExportContext, ExportTarget, TargetFiles, find_path_to_project
from devkit.export.task import TOKEN_PATH, Task, build_rendezvous_variables
from devkit.facts.settings import SettingInfo
from devkit.render.files import Artifact
from devkit.render.templates import render_template

SDK_VERSION = "0.226.1"
IMAGE_GIB = 30
MAX_QUICK_RESTARTS = 5
"""So many starts in a row that are told to stop within a minute end the script."""
_MOVING = frozenset({"latest", "lts", "stable"})
"""Tags that Daytona refuses. Source: https://www.daytona.io/docs/en/snapshots"""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]*")


@dataclass(frozen=True, kw_only=True)
class DaytonaSettings:
    """What only this target knows."""

    snapshot: Annotated[
        str, SettingInfo("Snapshot that is there, such as that of .devcontainer/daytona/snapshot.sh.")
    ] = ""
    hub_secret: Annotated[
        str, SettingInfo("Daytona's secret with the hub token, in place of HF_TOKEN of your shell.")
    ] = ""


def render_daytona(task: Task, settings: DaytonaSettings, context: ExportContext) -> TargetFiles:
    """The script. Raises DevkitError for what Daytona cannot run."""
    _check(task, settings)
    output = PurePosixPath(task.output)
    inside = output.is_relative_to(task.workspace) and str(output) != task.workspace
    text = render_template(
        "launchers/daytona.py.j2",
        devkit_version=__version__,
        sdk=SDK_VERSION,
        name=ascii(task.name),
        image=ascii("" if settings.snapshot else task.image),
        snapshot=ascii(settings.snapshot or f"{task.name}-{_made(task)}"),
        words=[ascii(word) for word in task.command],
        environment=[(ascii(name), ascii(value)) for name, value in _variables(task)],
        workspace=ascii(task.workspace),
        output=ascii(task.output),
        local=ascii(str(output.relative_to(task.workspace)) if inside else output.name),
        project=ascii(find_path_to_project(context.folder)),
        resources=_resources(task),
        is_spot=task.is_spot and task.accelerator.count > 0,
        time_s=task.time_s,
        grace_s=task.grace_s,
        tries=MAX_QUICK_RESTARTS,
        hub_secret=ascii(settings.hub_secret if task.needs_token else ""),
        token_path=ascii(TOKEN_PATH if task.needs_token else ""),
    )
    step = f"uv run {quote_shell([f'{context.folder}/run.py'])}"
    return TargetFiles((Artifact.from_text("run.py", text, 0o755),), (step,), _notes(task))


def _check(task: Task, settings: DaytonaSettings) -> None:
    if task.nodes > 1:
        raise DevkitError(
            f"a sandbox of Daytona's is one machine, and the job wants {task.nodes}",
            "Use kubernetes, slurm, skypilot or dstack for several, or --nodes 1.",
        )
    for volume in task.volumes:
        if volume.source:
            raise DevkitError(
                f"--{volume.role} cannot be a volume of Daytona's: no file can be renamed there, as saving does",
                f"Leave out --{volume.role}: run.py takes the project there, and brings the output back.",
            )
    for flag, text in (("--snapshot", settings.snapshot), ("--hub-secret", settings.hub_secret)):
        if text and not _NAME.fullmatch(text):
            raise DevkitError(f"{flag} {text!r} is no name", "See Daytona's dashboard.")
    tag = task.image.rpartition("/")[2].partition(":")[2]
    if not settings.snapshot and "@" not in task.image and (not tag or tag in _MOVING):
        raise DevkitError(
            f"Daytona takes no image whose tag moves: {task.image}", "Name a tag that stays: --image REGISTRY/NAME:1"
        )


def _variables(task: Task) -> tuple[tuple[str, str], ...]:
    return (*task.environment, *build_rendezvous_variables(task, address="127.0.0.1", rank="0"))


def _resources(task: Task) -> tuple[str, ...]:
    """Arguments of the SDK's Resources, GiB."""
    disk = IMAGE_GIB + sum(round_up_to_gib(each.size_bytes) for each in task.volumes)
    written = [f"cpu={task.cpus}", f"memory={round_up_to_gib(task.memory_bytes)}", f"disk={disk}"]
    wanted = task.accelerator
    if not wanted.count:
        return tuple(written)
    names = (wanted.name,) if wanted.name else task.fitting_gpus
    found = tuple(dict.fromkeys(each.daytona for each in map(find_launcher_gpu, names) if each.daytona))
    if wanted.name and not found:
        raise DevkitError(
            f"Daytona rents no GPU that devkit knows as {wanted.name!r}",
            "Its GPUs: H100, H200, B200, B300, RTX PRO 6000, RTX 4090, RTX 5090, MI355X.",
        )
    written.append(f"gpu={wanted.count}")
    if found:
        written.append(f"gpu_type=[{', '.join(f'GpuType({each!a})' for each in found)}]")
    return tuple(written)


def _made(task: Task) -> str:
    """Tells snapshots of other images and sizes apart."""
    return hashlib.sha256("\0".join((task.image, *_resources(task))).encode()).hexdigest()[:8]


def _notes(task: Task) -> tuple[str, ...]:
    notes = [
        "a GPU sandbox is deleted when it stops: run.py brings the output back first, and takes it along next time"
    ]
    if task.is_spot:
        notes.append("a spot sandbox goes without a word, and what was saved since the start with it")
    return tuple(notes)


TARGET = ExportTarget(
    "daytona",
    "Daytona: a snapshot of the same image, and a sandbox from it.",
    DaytonaSettings,
    render_daytona,
    needs_image=lambda settings: not settings.snapshot,
)
