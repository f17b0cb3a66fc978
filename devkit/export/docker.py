"""One machine over a Docker context: a script that runs the container, and resumes it after exit code 75."""

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
from devkit.export.task import TOKEN_FOLDER, TOKEN_PATH, Task, Volume, VolumeRole, build_rendezvous_variables
from devkit.export.values import fold_shell_command, format_comment_line
from devkit.facts.settings import SettingInfo
from devkit.release import __version__
from devkit.render.files import Artifact
from devkit.render.templates import render_template
from devkit.solver.plan import Vendor
from devkit.text import format_bytes

_CONTEXT = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.+-]+")
"""Source: restrictedNamePattern in https://github.com/docker/cli/blob/master/cli/context/store/store.go"""
_USER = re.compile(r"[a-z_0-9][a-z0-9_-]*(?::[a-z_0-9][a-z0-9_-]*)?")
_VOLUME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]+")
"""Source: RestrictedNamePattern in https://github.com/moby/moby/blob/master/daemon/names/names.go"""


@dataclass(frozen=True, kw_only=True)
class DockerContextSettings:
    """The settings specific to this target."""

    context: Annotated[str, SettingInfo("Docker context of the machine, as listed by docker context ls.")] = ""
    user: Annotated[
        str, SettingInfo("User in the container, instead of the image's user.", example="1000:1000", has_flag=False)
    ] = ""


@dataclass(frozen=True)
class DockerMount:
    """A volume or a bind mount at `path`. `source` is a volume's name, or a folder if it starts with a slash."""

    source: str
    path: str
    is_new: bool = False

    @property
    def is_folder(self) -> bool:
        """True for a folder of the machine."""
        return self.source.startswith("/")

    @property
    def option(self) -> str:
        """The value of --mount: CSV fields.

        Source: https://docs.docker.com/engine/storage/volumes/#syntax
        """
        kind = "bind" if self.is_folder else "volume"
        fields = (f"type={kind}", f"source={self.source}", f"target={self.path}")
        quoted = (
            '"' + each.replace('"', '""') + '"' if any(char in each for char in ',"\n\r') else each for each in fields
        )
        return ",".join(quoted)


def render_docker(task: Task, settings: DockerContextSettings, folder: str) -> TargetFiles:
    """Render run.sh. Raises DevkitError for a task of several nodes."""
    _validate(settings, task.nodes)
    size, cores = format_bytes(task.memory_bytes), task.cpus
    notes = [f"no limit is set there; the machine needs {size} of memory and {cores} cores for this job"]
    if task.is_spot:
        notes.append("the job does not restart automatically on a reclaimed machine: start run.sh on a new one")
    script = _render_run_script(task, settings, find_path_to_project(folder))
    step = f"sh {shlex.quote(f'{folder}/run.sh')}"
    return TargetFiles((script,), (step,), tuple(notes))


def _validate(settings: DockerContextSettings, nodes: int) -> None:
    require_one_machine(nodes, "Docker context")
    if settings.context and not _CONTEXT.fullmatch(settings.context):
        raise DevkitError(f"--context {settings.context!r} is not a context name", "See docker context ls.")
    if settings.user and not _USER.fullmatch(settings.user):
        raise DevkitError(f"--set user={settings.user} is not a user", "Write it as UID:GID.")


def _render_run_script(task: Task, settings: DockerContextSettings, project: str) -> Artifact:
    """Render run.sh, which starts the container, follows it, and restarts it after exit code 75. POSIX sh.

    `project` is the path from the script to the project, "" where that is unknown.
    """
    mounts = {each.role: _build_mount(task, each) for each in task.volumes}
    data, checkpoints = mounts[VolumeRole.DATA], mounts[VolumeRole.CHECKPOINTS]
    new = [mount for role, mount in mounts.items() if mount.is_new and role is not VolumeRole.DATA]
    options = _build_create_options(task, settings.user)
    digest = hashlib.sha256("\0".join([task.image, *options, *task.command]).encode()).hexdigest()[:12]
    inside = task.inner_output
    text = render_template(
        "launchers/docker-run.sh.j2",
        devkit_version=__version__,
        settings={"context": settings.context},
        context=shlex.quote(settings.context),
        user=f" --user {shlex.quote(settings.user)}" if settings.user else "",
        name=shlex.quote(task.name),
        image=shlex.quote(task.image),
        digest=digest,
        gpus=task.accelerator.count,
        vendor=task.accelerator.vendor.value,
        modes=("rocm", "cpu") if task.accelerator.vendor is Vendor.ROCM else ("nvidia", "cdi", "cpu"),
        first_devices=",".join(map(str, range(task.accelerator.count))),
        volumes=[_quote_mount(each) for each in new],
        project=project,
        data=_quote_mount(data) if data.is_new else None,
        checkpoints=None if checkpoints.is_folder else _quote_mount(checkpoints),
        excluded=f" {shlex.quote(f'--exclude=./{inside}')}" if inside else "",
        fetched=shlex.quote(inside or PurePosixPath(task.output).name),
        token=_quote_mount(_build_token_mount(task)) if task.needs_token else None,
        token_path=shlex.quote(TOKEN_PATH),
        options=options,
        command=fold_shell_command(task.command, indent=8),
        tries=MAX_QUICK_RESTARTS,
        comment=format_comment_line,
    )
    return Artifact.from_text("run.sh", text, 0o755)


def _build_create_options(task: Task, user: str) -> list[str]:
    """Build the options of docker create, each with its value."""
    # All processes are on one machine.
    environment = (*task.environment, *build_rendezvous_variables(task, address="127.0.0.1", rank="0"))
    mounts = [
        *(_build_mount(task, each) for each in task.volumes),
        *([_build_token_mount(task)] if task.needs_token else []),
    ]
    pairs = [
        ["--init"],
        ["--workdir", task.start_folder],
        ["--shm-size", str(task.shm_bytes)],
        ["--stop-signal", "SIGTERM"],
        ["--stop-timeout", str(task.grace_s)],
        ["--security-opt", "no-new-privileges:true"],
        *([["--user", user]] if user else []),
        *(["--env", f"{name}={value}"] for name, value in environment),
        # Parent paths first.
        *(["--mount", each.option] for each in sorted(mounts, key=lambda each: each.path)),
    ]
    return [shlex.join(pair) for pair in pairs]


def _build_mount(task: Task, volume: Volume) -> DockerMount:
    if not volume.source:
        return DockerMount(task.name_new_volume(volume.role), volume.path, is_new=True)
    if not volume.source.startswith("/") and not _VOLUME.fullmatch(volume.source):
        raise DevkitError(
            f"--set {volume.role} {volume.source!r} is neither a volume nor a folder on that machine",
            "Write the name that docker volume ls shows, or a path that begins with a slash.",
        )
    return DockerMount(volume.source, volume.path)


def _build_token_mount(task: Task) -> DockerMount:
    return DockerMount(f"{task.name}-token", TOKEN_FOLDER, is_new=True)


def _quote_mount(mount: DockerMount) -> dict[str, str]:
    """Quote a mount for the script."""
    parts = {"volume": mount.source, "mount": mount.option, "path": mount.path}
    return {name: shlex.quote(text) for name, text in parts.items()}


TARGET = ExportTarget("docker", DockerContextSettings, render_docker, validate=_validate)
