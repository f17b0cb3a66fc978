"""run.sh: starts the container on that machine, follows it, and starts it again when it leaves with 75."""

import hashlib
from dataclasses import dataclass
from pathlib import PurePosixPath

from devkit import __version__
from devkit.export.docker.mounts import Mount, mounts_of, token_mount
from devkit.export.docker.options import all_mounts, device_numbers, variables_of
from devkit.export.quoting import folded_words, one_line, shell_words
from devkit.export.task import TOKEN_PATH, Role, Task
from devkit.render.artifact import Artifact
from devkit.render.resources import rendered
from devkit.solver.model import Vendor

TRIES = 5
"""So many starts in a row that are told to stop within a minute: then something stops it that will not cease."""


@dataclass(frozen=True)
class _Quoted:
    """A mount as the script names it."""

    volume: str
    mount: str
    path: str


def script_artifact(task: Task, *, context: str, user: str, project: str) -> Artifact:
    """The script, quoted for any POSIX shell. `project` is its folder from the script's, "" where that is not known."""
    mounts = mounts_of(task)
    data, kept = mounts[Role.DATA], mounts[Role.CHECKPOINTS]
    options = _options(task, user)
    inside = _inside(task)
    text = rendered(
        "launchers/docker-run.sh.j2",
        devkit_version=__version__,
        settings={"context": context},
        context=shell_words([context]),
        user=shell_words(["", "--user", user])[2:] if user else "",
        name=shell_words([task.name]),
        image=shell_words([task.image]),
        made=_made(task, options),
        gpus=task.accelerator.count,
        vendor=task.accelerator.vendor.value,
        modes=("rocm", "cpu") if task.accelerator.vendor is Vendor.ROCM else ("nvidia", "cdi", "cpu"),
        first_devices=",".join(device_numbers(task)),
        volumes=[_quoted(each) for role, each in mounts.items() if each.is_new and role is not Role.DATA],
        project=project,
        data=_quoted(data) if data.is_new else None,
        checkpoints=None if kept.is_folder else _quoted(kept),
        excluded=f" {shell_words([f'--exclude=./{inside}'])}" if inside else "",
        fetched=shell_words([inside or PurePosixPath(task.output).name]),
        token=_quoted(token_mount(task)) if task.needs_token else None,
        token_path=shell_words([TOKEN_PATH]),
        options=options,
        command=folded_words(task.command, indent=8),
        tries=TRIES,
        said=one_line,
    )
    return Artifact.text("run.sh", text, 0o755)


def _options(task: Task, user: str) -> list[str]:
    """Options of docker create, each with its value on a line."""
    pairs = [
        ["--init"],
        ["--workdir", task.workspace],
        ["--shm-size", str(task.shm_bytes)],
        ["--stop-signal", "SIGTERM"],
        ["--stop-timeout", str(task.grace_s)],
        ["--security-opt", "no-new-privileges:true"],
        *([["--user", user]] if user else []),
        *(["--env", f"{name}={value}"] for name, value in variables_of(task)),
        *(["--mount", each.option] for each in all_mounts(task)),
    ]
    return [shell_words(pair) for pair in pairs]


def _quoted(mount: Mount) -> _Quoted:
    return _Quoted(shell_words([mount.source]), shell_words([mount.option]), shell_words([mount.path]))


def _inside(task: Task) -> str:
    """The output folder seen from the project; "" when it is elsewhere."""
    path, workspace = PurePosixPath(task.output), PurePosixPath(task.workspace)
    return str(path.relative_to(workspace)) if path.is_relative_to(workspace) and path != workspace else ""


def _made(task: Task, options: list[str]) -> str:
    """Tells containers of other settings apart."""
    whole = "\0".join([task.image, *options, *task.command])
    return hashlib.sha256(whole.encode()).hexdigest()[:12]
