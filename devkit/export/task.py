"""A job with everything decided, independent of engines: targets write it down and decide nothing."""

from dataclasses import dataclass
from enum import StrEnum

from devkit.solver.plan import Reason, Vendor

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
    """Build torchrun's flags as variables; () for one process.

    Args:
        task: the task.
        address: the address of the first node.
        rank: the rank of this node.

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
