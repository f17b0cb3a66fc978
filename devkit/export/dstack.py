"""dstack: a task, and a development environment with the same image, GPUs and storage.

Source: https://dstack.ai/docs/reference/dstack.yml/task/
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from devkit.errors import DevkitError
from devkit.estimate.gpus import find_gpu_spec
from devkit.estimate.settings import Precision
from devkit.export.launcher_gpus import find_launcher_gpu, is_mig_slice
from devkit.export.quoting import fold_shell_command, format_comment_line, quote_shell, quote_yaml, render_yaml_block
from devkit.export.targets import ExportContext, ExportTarget, TargetFiles, find_path_to_project
from devkit.export.task import TOKEN_FOLDER, TOKEN_PATH, Task, Volume, VolumeRole, build_rendezvous_variables
from devkit.export.values import GIB, round_up_to_gib
from devkit.facts.settings import SettingInfo
from devkit.release import __version__
from devkit.render.files import DEVCONTAINER_FOLDER, Artifact
from devkit.render.templates import render_template
from devkit.solver.plan import Vendor

SIGKILL_AFTER_S = 10
"""Time from the interrupt to the kill by dstack's runner: killDelay in
https://github.com/dstackai/dstack/blob/master/runner/internal/runner/executor/executor.go. `stop_duration` is the
server's timeout for the whole node."""
INSTANCE_FOLDER = "/var/lib/devkit"
"""The folder of storage without a name on an instance."""
IMAGE_GIB = 40
IGNORE_FILE = ".dstackignore"
"""Names files of the project that are not uploaded. Source: https://dstack.ai/docs/concepts/tasks/#files"""
_NAME = re.compile(r"[a-z][a-z0-9-]{1,40}")
"""Source: validate_dstack_resource_name in dstack/_internal/core/services of 0.22."""
_LONGEST_IDLE = "2h"
_VENDORS = {Vendor.NVIDIA: "nvidia", Vendor.ROCM: "amd", Vendor.CPU: ""}


class DstackEditor(StrEnum):
    """An editor that dstack prepares an environment for. Source: https://dstack.ai/docs/reference/dstack.yml/dev-environment/"""

    VSCODE = "vscode"
    CURSOR = "cursor"
    WINDSURF = "windsurf"
    ZED = "zed"


@dataclass(frozen=True, kw_only=True)
class DstackSettings:
    """The settings of this target alone. With `backend` and `region`, new storage is a network volume there."""

    ide: Annotated[DstackEditor, SettingInfo("Editor of the development environment.")] = DstackEditor.VSCODE
    backend: Annotated[str, SettingInfo("Cloud of new volumes, such as aws, gcp or runpod.")] = ""
    region: Annotated[str, SettingInfo("Region of new volumes.")] = ""
    hub_secret: Annotated[
        str, SettingInfo("dstack's secret with the hub token, instead of HF_TOKEN of your shell.")
    ] = ""
    registry_user: Annotated[str, SettingInfo("User of a private registry.")] = ""
    registry_secret: Annotated[str, SettingInfo("dstack's secret with that user's password.")] = ""


def render_dstack(task: Task, settings: DstackSettings, context: ExportContext) -> TargetFiles:
    """Render the files. Raises DevkitError for names that dstack does not take."""
    _validate(task, settings)
    volumes = [
        _build_mount(task, settings, each) for each in task.volumes if each.source or each.role is not VolumeRole.DATA
    ]
    project = ""
    if not task.volume(VolumeRole.DATA).source:
        project = find_path_to_project(context.folder)
        if not project:
            raise DevkitError(
                f"dstack copies the project from the folder of its file, and {context.folder} is outside of it",
                "Write into the project, or name the storage of the project: --data",
            )
    values = {
        "devkit_version": __version__,
        "task": task,
        "settings": settings,
        "environment": _build_environment(task, settings),
        "gpu": _build_gpu(task),
        "memory_gib": round_up_to_gib(task.memory_bytes),
        "shm_gib": task.shm_bytes / GIB,
        "disk_gib": IMAGE_GIB + sum(round_up_to_gib(each.size_bytes) for each in task.volumes),
        "volumes": volumes,
        "project": project,
        "idle": _LONGEST_IDLE,
        "yaml": quote_yaml,
        "comment": format_comment_line,
        "run": render_yaml_block(_render_script(task), 4),
    }
    files = [
        Artifact.from_text("task.dstack.yml", render_template("launchers/dstack-task.yml.j2", **values)),
        Artifact.from_text("dev.dstack.yml", render_template("launchers/dstack-dev.yml.j2", **values)),
    ]
    new = [_render_volume(task, settings, each) for each in task.volumes if _is_new(each, settings)]
    notes = []
    if task.grace_s > SIGKILL_AFTER_S:
        notes.append(
            f"dstack kills {SIGKILL_AFTER_S} s after it interrupts a run, whatever stop_duration says: a save that takes longer"
            " is lost, and the run resumes from the checkpoint before"
        )
    checkpoints = task.volume(VolumeRole.CHECKPOINTS).source
    if task.nodes > 1 and not checkpoints.startswith("/"):
        notes.append(
            "every node must see the checkpoints: name a folder that all instances share, --checkpoints /mnt/X"
        )
    elif not checkpoints and not settings.backend:
        notes.append(
            "checkpoints are deleted with the instance: name a volume, --checkpoints, or --backend and --region of one"
        )
    paths = [*(each.path for each in new), "task.dstack.yml"]
    steps = tuple(f"dstack apply -f {quote_shell([f'{context.folder}/{path}'])}" for path in paths)
    lines: tuple[tuple[str, str], ...] = ()
    if project:
        # The wheel of devkit in it is larger than all that a server takes, and the image has it already.
        lines = ((IGNORE_FILE, f"/{DEVCONTAINER_FOLDER}/"),)
        notes.append(
            "a server takes 2 MiB of the project, unless its DSTACK_SERVER_CODE_UPLOAD_LIMIT says otherwise: what the job"
            f" does not read belongs into {IGNORE_FILE}, large data into storage: --data"
        )
    return TargetFiles((*files, *new), steps, tuple(notes), lines)


def _validate(task: Task, settings: DstackSettings) -> None:
    if not _NAME.fullmatch(task.name):
        raise DevkitError(
            f"--name {task.name!r} is no name for dstack: a letter, then 1 to 40 of a-z, 0-9 and hyphens",
            "Give another: --name",
        )
    if bool(settings.backend) != bool(settings.region):
        raise DevkitError("a new volume needs --backend and --region", "Give both, or neither.")
    for flag, text in (("--backend", settings.backend), ("--region", settings.region)):
        if text and not re.fullmatch(r"[a-z][a-z0-9-]*", text):
            raise DevkitError(f"{flag} {text!r} is no name", "See dstack offer.")
    if bool(settings.registry_user) != bool(settings.registry_secret):
        raise DevkitError("a private registry needs --registry-user and --registry-secret", "Give both, or neither.")
    if settings.registry_secret and not re.fullmatch(r"[A-Za-z0-9_-]+", settings.registry_secret):
        raise DevkitError(f"--registry-secret {settings.registry_secret!r} is no name", "See dstack secret list.")
    if settings.hub_secret and not re.fullmatch(r"[A-Za-z0-9_-]+", settings.hub_secret):
        raise DevkitError(f"--hub-secret {settings.hub_secret!r} is no name", "See dstack secret list.")


def _build_environment(task: Task, settings: DstackSettings) -> list[str]:
    """Build NAME=VALUE, in which a doubled dollar is a dollar, and the token by its name alone.

    Source: dstack/_internal/utils/interpolator.py of 0.22.
    """
    if any("\n" in value for _, value in task.environment):
        raise DevkitError("dstack takes no variable of several lines", "Leave it out: --env")
    variables = [f"{name}={value.replace('$', '$$')}" for name, value in task.environment]
    if not task.needs_token:
        return variables
    secret = settings.hub_secret
    return [*variables, f"HF_TOKEN=${{{{ secrets.{secret} }}}}" if secret else "HF_TOKEN"]


def _build_gpu(task: Task) -> tuple[tuple[str, str], ...]:
    """Build the keys and values of resources.gpu; () for none."""
    accelerator = task.accelerator
    if not accelerator.count:
        return ()
    keys = [("vendor", _VENDORS[accelerator.vendor])]
    if accelerator.name:
        gpu = find_launcher_gpu(accelerator.name)
        if not gpu.dstack:
            kind = (
                "parts of GPUs" if is_mig_slice(accelerator.name) else f"GPU that devkit knows as {accelerator.name!r}"
            )
            raise DevkitError(f"dstack rents no {kind}", "See its names with dstack offer, and name one: --gpu")
        keys += [("name", gpu.dstack), *([("memory", f"{gpu.gib}GB")] if gpu.gib else [])]
    elif task.fitting_gpus:
        # The least that holds the job, in memory that programs can use: data sheets give a little more.
        least = find_gpu_spec(task.fitting_gpus[0], Precision.BF16).memory_bytes // GIB
        keys.append(("memory", f"{least}GB.."))
    return (*keys, ("count", str(accelerator.count)))


def _is_new(volume: Volume, settings: DstackSettings) -> bool:
    return bool(settings.backend) and not volume.source and volume.role is not VolumeRole.DATA


def _build_mount(task: Task, settings: DstackSettings, volume: Volume) -> tuple[str, str, str, str]:
    """Build the key, the source, the path in the container, and the reason."""
    if volume.source.startswith("/"):
        if ".." in volume.source.split("/"):
            raise DevkitError(f"--{volume.role} {volume.source!r} contains `..`", "Write it without `..`.")
        return "instance_path", volume.source, volume.path, "a folder of the instance"
    if volume.source or _is_new(volume, settings):
        return "name", _volume_name(task, volume), volume.path, "a network volume"
    folder = f"{INSTANCE_FOLDER}/{task.name_new_volume(volume.role)}"
    return "instance_path", folder, volume.path, "a folder of the instance, deleted with it"


def _volume_name(task: Task, volume: Volume) -> str:
    name = volume.source or task.name_new_volume(volume.role)
    if not _NAME.fullmatch(name):
        raise DevkitError(
            f"--{volume.role} {name!r} is no volume of dstack's: a letter, then 1 to 40 of a-z, 0-9 and hyphens",
            "Write it as dstack volume list shows it, or as a folder of the instance: /mnt/FOLDER.",
        )
    return name


def _render_volume(task: Task, settings: DstackSettings, volume: Volume) -> Artifact:
    text = render_template(
        "launchers/dstack-volume.yml.j2",
        devkit_version=__version__,
        name=_volume_name(task, volume),
        backend=quote_yaml(settings.backend),
        region=quote_yaml(settings.region),
        size_gib=round_up_to_gib(volume.size_bytes),
        because=format_comment_line(volume.because),
    )
    return Artifact.from_text(f"volume-{volume.role}.dstack.yml", text)


def _render_script(task: Task) -> str:
    """Render the script of every node. It execs the command, which so gets the terminal's interrupt itself."""
    address, rank = "127.0.0.1", "0"
    if task.nodes > 1:
        address, rank = '"$DSTACK_MASTER_NODE_IP"', '"$DSTACK_NODE_RANK"'
    return render_template(
        "launchers/dstack.sh.j2",
        folder=quote_shell([task.start_folder]),
        token_folder=quote_shell([TOKEN_FOLDER]),
        token_path=quote_shell([TOKEN_PATH]),
        needs_token=task.needs_token,
        variables=build_rendezvous_variables(task, address=address, rank=rank),
        command=fold_shell_command(task.command, indent=2),
    )


TARGET = ExportTarget("dstack", DstackSettings, render_dstack)
