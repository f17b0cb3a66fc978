"""A job with everything decided, in nobody's dialect: every target writes this down, and none decides anything."""

from dataclasses import dataclass
from enum import StrEnum

from devkit.solver.plan import Reason, Vendor

HUB_CACHE = "/opt/cache/huggingface"
COMPILE_CACHE = "/opt/cache/compile"
TOKEN_FOLDER = "/home/dev/.config/huggingface"  # noqa: S105 - a folder
TOKEN_PATH = f"{TOKEN_FOLDER}/token"
"""Where the dev container keeps them, too: the same image finds the same things everywhere."""

USER_ID = 1000
"""The image's user `dev` has it unless the image is built for another."""

RENDEZVOUS_PORT = 29500
"""torchrun's own default. Source: https://docs.pytorch.org/docs/stable/elastic/run.html"""


class VolumeRole(StrEnum):
    """What storage is for."""

    MODELS = "models"
    DATA = "data"
    CHECKPOINTS = "checkpoints"


@dataclass(frozen=True, kw_only=True)
class Volume:
    """Storage that outlives the job. `source` is the engine's name for it, "" for one to be made with `size_bytes`."""

    role: VolumeRole
    path: str
    source: str
    size_bytes: int
    because: str


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """The GPUs of one node: whose, which (its name, "" for any), how many, and what it holds (0: not known)."""

    vendor: Vendor
    name: str
    count: int
    memory_bytes: int


@dataclass(frozen=True, kw_only=True)
class Task:
    """One command on `nodes` machines, each with the same image, GPUs, memory and storage.

    `command` are words for no shell: what one node runs, and the same on every node and every engine. For several
    processes it is torchrun, whose own flags come from PET_* variables that each target fills (`rendezvous`).
    `environment` is the same everywhere. `output` is the output folder inside, absolute. `needs_token` is whether the
    hub is asked for models or data. `fitting_gpus` are GPUs that hold the job as it is, the one with the least memory
    first; () where the model's shape is not known.
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
    reasons: tuple[Reason, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def processes(self) -> int:
        """Processes of the whole job: one for each GPU, one for each node without."""
        return self.nodes * max(1, self.accelerator.count)

    @property
    def is_distributed(self) -> bool:
        """Whether several processes work together."""
        return self.processes > 1

    def volume(self, role: VolumeRole) -> Volume:
        """The storage for that."""
        return next(each for each in self.volumes if each.role is role)


def build_rendezvous_variables(task: Task, *, address: str, rank: str) -> tuple[tuple[str, str], ...]:
    """torchrun's flags as its variables; () for one process. `address` and `rank` are the first node's and this one's.

    Source: torch.distributed.argparse_util reads PET_* for each flag.
    """
    if not task.is_distributed:
        return ()
    return (
        ("PET_NNODES", str(task.nodes)),
        ("PET_NPROC_PER_NODE", str(max(1, task.accelerator.count))),
        ("PET_NODE_RANK", rank),
        ("PET_MASTER_ADDR", address),
        ("PET_MASTER_PORT", str(RENDEZVOUS_PORT)),
    )
