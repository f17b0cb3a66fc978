"""A job with everything decided, independent of engines: targets write it down and decide nothing.

Its command keeps the exit code of `devkit finetune`, also through torchrun. Each launcher spells GPUs and memory sizes in
its own way.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import cache
from pathlib import PurePosixPath

from devkit.compat.gpus import find_amd_gpu, find_gpu
from devkit.errors import DevkitError
from devkit.estimate.memory import find_gpu_spec
from devkit.facts.decode import decode_fields
from devkit.facts.settings import format_setting
from devkit.formats.documents import load
from devkit.solver.plan import Reason, Vendor
from devkit.workload.finetune.settings import FinetuneSettings

HUB_CACHE = "/opt/cache/huggingface"
COMPILE_CACHE = "/opt/cache/compile"
TOKEN_FOLDER = "/home/dev/.config/huggingface"  # noqa: S105 - a folder
TOKEN_PATH = f"{TOKEN_FOLDER}/token"
"""The paths of the dev container, so that the same image finds the same things everywhere."""

REQUESTED = "requested"
"""The reason of a value that the user gave."""

USER_ID = 1000
"""The id of the image's user `dev`, unless the image is built for another."""

RENDEZVOUS_PORT = 29500
"""torchrun's own default. Source: https://docs.pytorch.org/docs/stable/elastic/run.html"""


class VolumeRole(StrEnum):
    """The use of a volume."""

    MODELS = "models"
    DATA = "data"
    CHECKPOINTS = "checkpoints"


class MountRole(StrEnum):
    """The use of other storage, at a path of the user's own: a task may have several of it."""

    OWN = "mount"


@dataclass(frozen=True, kw_only=True)
class Volume:
    """Storage that outlives the job. `source` is the engine's name of it, "" for new storage of `size_bytes`."""

    role: StrEnum
    path: str
    source: str
    size_bytes: int
    because: str


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """The GPUs of one node: vendor, name ("" for any), number, and the memory of each (0: unknown)."""

    vendor: Vendor
    name: str
    count: int
    memory_bytes: int


@dataclass(frozen=True, kw_only=True)
class Task:
    """One command on `nodes` machines, each with the same image, GPUs, memory and storage.

    `command` is an argument list, the same on every node and engine. For several processes it is torchrun, whose own
    flags come from PET_* variables that each target fills in (`build_rendezvous_variables`). `environment` is the
    same everywhere. `output` is the absolute output folder in the container. `needs_token` is true if models or data
    come from the hub. `fitting_gpus` are GPUs that hold the job as it is, the least memory first; () where the
    model's shape is unknown. `is_own_command` is true for one other than devkit finetune, and
    `is_foreign_image` for an image without devkit, its folders and its user. `workdir` is where it starts, "" for
    `workspace`. `node_processes` are those that torchrun starts on a node, 0 for one for each GPU.
    """

    name: str
    project: str
    image: str
    command: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    workspace: str
    output: str
    nodes: int
    accelerator: Accelerator
    cpus: int
    memory_bytes: int
    shm_bytes: int
    volumes: tuple[Volume, ...]
    time_s: int
    grace_s: int
    is_spot: bool
    needs_token: bool
    fitting_gpus: tuple[str, ...] = ()
    is_own_command: bool = False
    is_foreign_image: bool = False
    node_processes: int = 0
    workdir: str = ""
    reasons: tuple[Reason, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def processes(self) -> int:
        """The world size."""
        return self.nodes * self.processes_per_node

    @property
    def processes_per_node(self) -> int:
        """One process for each GPU, or one without GPUs, unless `node_processes` says otherwise."""
        return self.node_processes or max(1, self.accelerator.count)

    @property
    def start_folder(self) -> str:
        """The folder in which the command starts."""
        return self.workdir or self.workspace

    @property
    def is_distributed(self) -> bool:
        """True for several processes."""
        return self.processes > 1

    @property
    def inner_output(self) -> str:
        """The output folder relative to the workspace, "" where it is outside."""
        output = PurePosixPath(self.output)
        return str(output.relative_to(self.workspace)) if output.is_relative_to(self.workspace) else ""

    @property
    def min_cpus(self) -> int:
        """The cores to request from a launcher: the requested number, else half of what keeps the loaders fast.

        Clouds sell single GPUs with four cores, such as g6.xlarge, which train as well.
        """
        requested = next((each.because for each in self.reasons if each.field == "cpus"), REQUESTED) == REQUESTED
        return self.cpus if requested else max(1, self.cpus // 2)

    def volume(self, role: StrEnum) -> Volume:
        """Return the volume of that role."""
        return next(each for each in self.volumes if each.role is role)

    def name_new_volume(self, role: StrEnum) -> str:
        """Name new storage: models are shared by the project's jobs, everything else is the job's own."""
        return f"{self.project if role is VolumeRole.MODELS else self.name}-{role}"


def build_rendezvous_variables(task: Task, *, address: str, rank: str) -> tuple[tuple[str, str], ...]:
    """Build torchrun's flags as variables; () for one process. `address` is that of the first node, `rank` this node's.

    Source: torch.distributed.argparse_util reads PET_* for each flag.
    """
    if not task.is_distributed:
        return ()
    return (
        ("PET_NNODES", str(task.nodes)),
        ("PET_NPROC_PER_NODE", str(task.processes_per_node)),
        ("PET_NODE_RANK", rank),
        ("PET_MASTER_ADDR", address),
        ("PET_MASTER_PORT", str(RENDEZVOUS_PORT)),
    )


FORWARDED_SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"
"""Signals that torchrun forwards: by default, SIGUSR1 would end it.
Source: https://docs.pytorch.org/docs/stable/elastic/run.html"""

TORCHRUN = ("torchrun", "--no-python")
LAUNCHER = ("devkit", "launch")
"""Runs a command with its signals and exit code, in an image with devkit, whose Python is not the project's."""


def build_finetune_command(settings: FinetuneSettings) -> tuple[str, ...]:
    """Build `devkit finetune` with every setting that differs from its default, in the settings' order."""
    flags: list[str] = []
    for field in fields(settings):
        value = getattr(settings, field.name)
        if value == field.default and field.name != "output":
            continue
        flags += format_setting(FinetuneSettings, field.name, value)
    return ("devkit", "finetune", *flags)


def build_node_command(settings: FinetuneSettings, *, is_distributed: bool) -> tuple[str, ...]:
    """Build the command of one node."""
    if not is_distributed:
        return build_finetune_command(settings)
    return (*LAUNCHER, *TORCHRUN, *build_finetune_command(settings))


def wrap_command(command: tuple[str, ...], *, by_torchrun: bool, has_devkit: bool) -> tuple[str, ...]:
    """Wrap a command of the user's own: in torchrun where that is requested, and in the launcher where the image has it.

    Behind torchrun every process has its own launcher, which records the exit code that torchrun loses.
    """
    launcher = LAUNCHER if has_devkit else ()
    return (*launcher, *TORCHRUN, *launcher, *command) if by_torchrun else (*launcher, *command)


def strip_launchers(command: tuple[str, ...]) -> tuple[str, ...]:
    """Return a wrapped command as it runs where there is no devkit."""
    words = command[len(LAUNCHER) :] if command[: len(LAUNCHER)] == LAUNCHER else command
    if words[: len(TORCHRUN)] == TORCHRUN:
        return (*TORCHRUN, *strip_launchers(words[len(TORCHRUN) :]))
    return words


def build_torchrun_variables(*, grace_s: int) -> tuple[tuple[str, str], ...]:
    """Build torchrun's settings that are the same on every node, as variables: a release without the flag ignores them.

    `grace_s` is how long torchrun waits for its processes, which save meanwhile, before it kills them. The default of
    30 s is too short for the checkpoint of a large model.
    Source: https://github.com/pytorch/pytorch/pull/172596, https://github.com/pytorch/pytorch/issues/154849
    """
    return (("PET_SIGNALS_TO_HANDLE", FORWARDED_SIGNALS), ("PET_SHUTDOWN_TIMEOUT", str(grace_s)))


_SIZE = re.compile(r"\b(\d+) ?gi?b\b", re.IGNORECASE)


@dataclass(frozen=True)
class LauncherGpu:
    """The names of one GPU at each launcher; () and "" where it has none.

    `skypilot` are all names under which clouds offer it.
    """

    skypilot: tuple[str, ...] = ()
    daytona: str = ""


def find_launcher_gpu(name: str) -> LauncherGpu:
    """Find the launchers' names of a GPU, as people or estimates name it; only () and "" for one that is not rented."""
    amd = find_amd_gpu(name)
    if amd is not None:
        return load_launcher_gpus().get(amd.name, LauncherGpu())
    try:
        gpu = find_gpu_spec(name)
    except DevkitError:
        return LauncherGpu()
    found, size = find_gpu(gpu.name), _SIZE.search(gpu.name)
    if found is None or found.model is None or " mig " in f" {gpu.name.lower()} ":
        return LauncherGpu()
    rows, key = load_launcher_gpus(), found.model.id
    return rows.get(f"{key}@{size[1]}" if size else key) or rows.get(key, LauncherGpu())


@cache
def load_launcher_gpus() -> Mapping[str, LauncherGpu]:
    """Return the rows by id or name; "v100-pcie@32" is the GPU of that row with another memory size."""
    rows = load("devkit.export", "launcher_gpus")
    return {key: LauncherGpu(**decode_fields(row, LauncherGpu)) for key, row in rows.items()}
