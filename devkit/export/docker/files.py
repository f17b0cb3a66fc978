"""run.sh: starts the container on that machine, follows it, and starts it again when it leaves with 75."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from devkit import __version__
from devkit.errors import DevkitError
from devkit.export.quoting import fold_shell_command, format_comment_line, quote_compose, quote_shell
from devkit.export.task import TOKEN_FOLDER, TOKEN_PATH, USER_ID, Task, Volume, VolumeRole, build_rendezvous_variables
from devkit.render.files import Artifact
from devkit.render.templates import render_template
from devkit.solver.plan import Vendor

# The storage of a job on one machine: volumes of its engine, or folders of that machine.

_VOLUME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]+")
"""Source: RestrictedNamePattern in https://github.com/moby/moby/blob/master/daemon/names/names.go"""


@dataclass(frozen=True)
class DockerMount:
    """What stands at `path` inside. `source` is a volume's name, or a folder when it starts with a slash."""

    source: str
    path: str
    is_new: bool = False

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder of the machine."""
        return self.source.startswith("/")

    @property
    def option(self) -> str:
        """The value of --mount: fields of CSV.

        Source: https://docs.docker.com/engine/storage/volumes/#syntax
        """
        kind = "bind" if self.is_folder else "volume"
        return ",".join(_field(each) for each in (f"type={kind}", f"source={self.source}", f"target={self.path}"))


def build_mounts(task: Task) -> dict[VolumeRole, DockerMount]:
    """The storage by its role. Raises DevkitError for a source that is neither a folder nor a volume's name."""
    return {each.role: _mount(task, each) for each in task.volumes}


def build_token_mount(task: Task) -> DockerMount:
    """The volume that the hub token lies in."""
    return DockerMount(f"{task.name}-token", TOKEN_FOLDER, is_new=True)


def _mount(task: Task, volume: Volume) -> DockerMount:
    if not volume.source:
        # The models are the project's, and all else the job's own.
        name = task.project if volume.role is VolumeRole.MODELS else task.name
        return DockerMount(f"{name}-{volume.role}", volume.path, is_new=True)
    if not volume.source.startswith("/") and not _VOLUME.fullmatch(volume.source):
        raise DevkitError(
            f"--{volume.role} {volume.source!r} is neither a volume nor a folder of that machine",
            "Write it as docker volume ls shows it, or as a path that begins with a slash.",
        )
    return DockerMount(volume.source, volume.path)


def _field(text: str) -> str:
    if not any(char in text for char in ',"\n\r'):
        return text
    doubled = text.replace('"', '""')
    return f'"{doubled}"'


# What both files of this target say of the container, in the same order.


def build_docker_environment(task: Task) -> tuple[tuple[str, str], ...]:
    """The container's environment. Processes of one machine meet on its own address."""
    return (*task.environment, *build_rendezvous_variables(task, address="127.0.0.1", rank="0"))


def list_mounts(task: Task) -> tuple[DockerMount, ...]:
    """Outer paths before those inside of them."""
    token = (build_token_mount(task),) if task.needs_token else ()
    return tuple(sorted((*build_mounts(task).values(), *token), key=lambda each: each.path))


def list_device_numbers(task: Task) -> tuple[str, ...]:
    """The GPUs that the job takes where nobody names others: the first so many."""
    return tuple(str(number) for number in range(task.accelerator.count))


# compose.yml, and one overlay for each way in which an engine passes on GPUs.


def render_compose_files(task: Task, *, context: str, user: str) -> tuple[Artifact, ...]:
    """The files. Values stand in them as Compose reads them back, dollars doubled."""
    ways = _ways(task)
    mounts = list_mounts(task)
    text = render_template(
        "launchers/docker-compose.yml.j2",
        devkit_version=__version__,
        task=task,
        context=format_comment_line(context),
        ways=ways,
        user=user,
        owner=user or f"{USER_ID}:{USER_ID}",
        variables=build_docker_environment(task),
        mounts=mounts,
        volumes=[each for each in mounts if not each.is_folder],
        owned=[each for each in mounts if each.is_new],
        copies_project=build_mounts(task)[VolumeRole.DATA].is_new,
        compose=quote_compose,
    )
    overlays = (
        Artifact.from_text(
            f"compose.{way}.yml",
            render_template(
                "launchers/docker-gpu.yml.j2", devkit_version=__version__, way=way, devices=list_device_numbers(task)
            ),
        )
        for way in ways
    )
    return (Artifact.from_text("compose.yml", text), *overlays)


def _ways(task: Task) -> tuple[str, ...]:
    """The ways to a GPU, the usual one first; () for a job without."""
    if not task.accelerator.count:
        return ()
    return ("rocm",) if task.accelerator.vendor is Vendor.ROCM else ("nvidia", "cdi")


MAX_QUICK_RESTARTS = 5
"""So many starts in a row that are told to stop within a minute: then something stops it that will not cease."""


@dataclass(frozen=True)
class _Quoted:
    """A mount as the script names it."""

    volume: str
    mount: str
    path: str


def render_run_script(task: Task, *, context: str, user: str, project: str) -> Artifact:
    """The script, quoted for any POSIX shell. `project` is its folder from the script's, "" where that is not known."""
    mounts = build_mounts(task)
    data, kept = mounts[VolumeRole.DATA], mounts[VolumeRole.CHECKPOINTS]
    options = _options(task, user)
    inside = _inside(task)
    text = render_template(
        "launchers/docker-run.sh.j2",
        devkit_version=__version__,
        settings={"context": context},
        context=quote_shell([context]),
        user=quote_shell(["", "--user", user])[2:] if user else "",
        name=quote_shell([task.name]),
        image=quote_shell([task.image]),
        made=_made(task, options),
        gpus=task.accelerator.count,
        vendor=task.accelerator.vendor.value,
        modes=("rocm", "cpu") if task.accelerator.vendor is Vendor.ROCM else ("nvidia", "cdi", "cpu"),
        first_devices=",".join(list_device_numbers(task)),
        volumes=[_quoted(each) for role, each in mounts.items() if each.is_new and role is not VolumeRole.DATA],
        project=project,
        data=_quoted(data) if data.is_new else None,
        checkpoints=None if kept.is_folder else _quoted(kept),
        excluded=f" {quote_shell([f'--exclude=./{inside}'])}" if inside else "",
        fetched=quote_shell([inside or PurePosixPath(task.output).name]),
        token=_quoted(build_token_mount(task)) if task.needs_token else None,
        token_path=quote_shell([TOKEN_PATH]),
        options=options,
        command=fold_shell_command(task.command, indent=8),
        tries=MAX_QUICK_RESTARTS,
        said=format_comment_line,
    )
    return Artifact.from_text("run.sh", text, 0o755)


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
        *(["--env", f"{name}={value}"] for name, value in build_docker_environment(task)),
        *(["--mount", each.option] for each in list_mounts(task)),
    ]
    return [quote_shell(pair) for pair in pairs]


def _quoted(mount: DockerMount) -> _Quoted:
    return _Quoted(quote_shell([mount.source]), quote_shell([mount.option]), quote_shell([mount.path]))


def _inside(task: Task) -> str:
    """The output folder seen from the project; "" when it is elsewhere."""
    path, workspace = PurePosixPath(task.output), PurePosixPath(task.workspace)
    return str(path.relative_to(workspace)) if path.is_relative_to(workspace) and path != workspace else ""


def _made(task: Task, options: list[str]) -> str:
    """Tells containers of other settings apart."""
    whole = "\0".join([task.image, *options, *task.command])
    return hashlib.sha256(whole.encode()).hexdigest()[:12]
