"""SkyPilot: a task for clouds and clusters, run as a managed job that recovers after spot nodes are reclaimed.

Source: https://docs.skypilot.co/en/latest/reference/yaml-spec.html
"""

import re
import shlex
from dataclasses import dataclass
from typing import Annotated

from devkit.errors import DevkitError
from devkit.export.targets import ExportTarget, TargetFiles
from devkit.export.task import (
    TOKEN_FOLDER,
    TOKEN_PATH,
    Task,
    Volume,
    VolumeRole,
    build_rendezvous_variables,
    find_launcher_gpu,
)
from devkit.export.values import (
    fold_shell_command,
    format_comment_line,
    quote_yaml,
    render_yaml_block,
    round_up_to_gib,
)
from devkit.facts.settings import SettingInfo
from devkit.release import __version__
from devkit.render.files import Artifact
from devkit.render.templates import render_template

IMAGE_GIB = 40
"""The unpacked image and the system of the node."""
SIGKILL_AFTER_S = 30
"""Time from SIGTERM to SIGKILL. Source: sky/skylet/subprocess_daemon.py of 0.14."""
_INFRA = re.compile(r"[A-Za-z0-9*@._:/-]+")
_BUCKET = re.compile(r"(?:s3|gs|r2|cos|oci|nebius|cw|https)://[^\s]+")
_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?")
_CLUSTERS = ("kubernetes", "k8s", "ssh")


@dataclass(frozen=True, kw_only=True)
class SkypilotSettings:
    """The settings specific to this target. "" leaves the choice to SkyPilot, which takes the cheapest."""

    infra: Annotated[str, SettingInfo("Infrastructure, as SkyPilot names it.", example="aws/us-east-1")] = ""
    registry_user: Annotated[
        str,
        SettingInfo(
            "User for a private registry; pass the password with --secret SKYPILOT_DOCKER_PASSWORD.", has_flag=False
        ),
    ] = ""
    accelerator: Annotated[
        str, SettingInfo("SkyPilot's name for the GPU, if devkit does not know it.", has_flag=False)
    ] = ""


def render_skypilot(task: Task, settings: SkypilotSettings, folder: str) -> TargetFiles:
    """Render the files. Raises DevkitError for a GPU that SkyPilot has no name for, and for storage it cannot mount."""
    _validate(settings, task.nodes)
    token = " --secret HF_TOKEN" if task.needs_token else ""
    if settings.registry_user:
        token += " --secret SKYPILOT_DOCKER_PASSWORD"
    step = f"sky jobs launch{token} {shlex.quote(f'{folder}/task.yaml')}"
    notes = []
    if task.grace_s > SIGKILL_AFTER_S:
        notes.append(
            f"SkyPilot kills a job {SIGKILL_AFTER_S} s after SIGTERM, but sends no signal when a spot node is reclaimed; "
            "the run then resumes from its last checkpoint"
        )
    if task.nodes > 1 and not task.volume(VolumeRole.CHECKPOINTS).source:
        notes.append(
            "every node must see the checkpoints, but a bucket shows a file to other nodes only after its upload"
        )
    if _is_on_cluster(settings) and not all(each.source for each in task.volumes):
        notes.append(
            "new storage is a cloud bucket; on a cluster, specify volumes from sky volumes ls: --set checkpoints=NAME"
        )
    return TargetFiles((Artifact.from_text("task.yaml", _render_task(task, settings)),), (step,), tuple(notes))


def _validate(settings: SkypilotSettings, _nodes: int) -> None:
    if settings.infra and not _INFRA.fullmatch(settings.infra):
        raise DevkitError(f"--infra {settings.infra!r} is not valid", "Write it as aws, aws/us-east-1 or k8s/CONTEXT.")


def _render_task(task: Task, settings: SkypilotSettings) -> str:
    volumes = [each for each in task.volumes if each.source and not _BUCKET.fullmatch(each.source)]
    return render_template(
        "launchers/skypilot.yaml.j2",
        devkit_version=__version__,
        task=task,
        settings=settings,
        on_cluster=_is_on_cluster(settings),
        accelerators=_list_accelerators(task, settings),
        memory_gib=round_up_to_gib(task.memory_bytes),
        disk_gib=IMAGE_GIB + sum(round_up_to_gib(each.size_bytes) for each in task.volumes),
        mounts=[_build_file_mount(task, each) for each in task.volumes if each not in volumes],
        registry=task.image.partition("/")[0],
        volumes=[(each.path, _validate_volume(each), each.because) for each in volumes],
        run=render_yaml_block(_render_script(task), 2),
        yaml=quote_yaml,
        comment=format_comment_line,
    )


def _is_on_cluster(settings: SkypilotSettings) -> bool:
    return settings.infra.partition("/")[0].lower() in _CLUSTERS


def _list_accelerators(task: Task, settings: SkypilotSettings) -> tuple[str, ...]:
    """Return SkyPilot's names of all GPUs that fit; () for none."""
    accelerator = task.accelerator
    if not accelerator.count:
        return ()
    if settings.accelerator:
        return (settings.accelerator,)
    names = (accelerator.name,) if accelerator.name else task.fitting_gpus
    gpus = tuple(dict.fromkeys(each for name in names for each in find_launcher_gpu(name).skypilot))
    if gpus:
        return gpus
    if not accelerator.name:
        raise DevkitError("SkyPilot needs the name of a GPU to rent", "Name it: --gpu H100")
    raise DevkitError(
        f"SkyPilot does not offer {accelerator.name!r}, as far as devkit knows",
        "List SkyPilot's names with sky gpus list --all, and give one: --set accelerator=NAME",
    )


def _validate_volume(volume: Volume) -> str:
    """Return the name of storage that SkyPilot mounts as a volume. Raises DevkitError."""
    if not _NAME.fullmatch(volume.source):
        raise DevkitError(
            f"--set {volume.role} {volume.source!r} is neither a bucket nor a SkyPilot volume",
            "Write it as s3://BUCKET/FOLDER or gs://BUCKET/FOLDER, or as sky volumes ls shows it.",
        )
    return volume.source


def _build_file_mount(task: Task, volume: Volume) -> dict[str, object]:
    """Build one entry of file_mounts: `lines` are YAML below its path.

    Writes go through the node's disk, since a bucket mount only takes files that are written sequentially.
    Source: https://docs.skypilot.co/en/latest/reference/storage.html#storage-mounting-modes
    """
    mode = f"mode: {'MOUNT' if volume.role is VolumeRole.DATA else 'MOUNT_CACHED'}"
    lines: tuple[str, ...] = (f"source: {quote_yaml(volume.source)}", mode)
    because = volume.because
    if not volume.source and volume.role is VolumeRole.DATA:
        lines, because = (), "the project, copied to each node from the folder that you start from"
    elif not volume.source:
        lines = (f"name: {quote_yaml(task.name_new_volume(volume.role))}", mode, "persistent: true")
        because = f"a bucket that SkyPilot creates; {volume.because}"
    return {"path": volume.path, "lines": lines, "because": because}


def _render_script(task: Task) -> str:
    """Render the script of every node. It execs nothing: SkyPilot appends lines that wait for uploads."""
    address, rank = "127.0.0.1", "0"
    if task.nodes > 1:
        address, rank = '"$(printf \'%s\\n\' "$SKYPILOT_NODE_IPS" | head -n 1)"', '"$SKYPILOT_NODE_RANK"'
    return render_template(
        "launchers/skypilot.sh.j2",
        folder=shlex.quote(task.start_folder),
        token_folder=shlex.quote(TOKEN_FOLDER),
        token_path=shlex.quote(TOKEN_PATH),
        needs_token=task.needs_token,
        variables=build_rendezvous_variables(task, address=address, rank=rank),
        time_s=task.time_s,
        grace_s=task.grace_s,
        command=fold_shell_command(task.command, indent=2),
    )


TARGET = ExportTarget("skypilot", SkypilotSettings, render_skypilot, validate=_validate)
