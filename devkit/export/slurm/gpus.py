"""GPUs as Slurm asks for them: the cluster's own name of each, and which smaller ones would do, too."""

import re

from devkit.errors import DevkitError
from devkit.export.slurm.settings import GpuRequest, SlurmSettings
from devkit.export.task import Task
from devkit.text import listed

ANY = "any"
_SIZE = re.compile(r"\b\d+ ?gi?b\b", re.IGNORECASE)
_NOISE = re.compile(
    r"\b(nvidia|amd|geforce|tesla|quadro|instinct|radeon|generation|edition|sxm\d?|pcie|nvl|gpu)\b", re.IGNORECASE
)
_MOST_NAMED = 4


def gpu_type(task: Task, settings: SlurmSettings) -> str:
    """The cluster's name of the GPU, "" for any: what was said, else the usual short form of the GPU's name.

    "A100 80GB" is a100 nearly everywhere. Raises DevkitError for a MIG slice, whose name every site makes up.
    """
    if settings.gpu_type:
        return "" if settings.gpu_type == ANY else settings.gpu_type
    name = task.accelerator.name
    if " mig " in f" {name.lower()} ":
        raise DevkitError(
            f"Slurm's name of {name} is the site's own", "List them with sinfo -o %G, and give --gpu-type."
        )
    return re.sub(r"[^a-z0-9]+", "", _NOISE.sub("", _SIZE.sub("", name)).lower())


def gpu_lines(task: Task, settings: SlurmSettings) -> list[str]:
    """Options of sbatch that ask for the GPUs of each node; [] for none.

    Source: https://slurm.schedmd.com/gres.html
    """
    count = task.accelerator.count
    if not count:
        return []
    kind = gpu_type(task, settings)
    wanted = f"{kind}:{count}" if kind else f"{count}"
    if settings.gpu_request is GpuRequest.GPUS_PER_NODE:
        return [f"--gpus-per-node={wanted}"]
    return [f"--gres=gpu:{wanted}"]


def queue_notes(task: Task, settings: SlurmSettings) -> list[str]:
    """How the choice of the GPU may make the job wait, and what it takes less."""
    if not task.accelerator.count:
        return []
    notes = []
    kind = gpu_type(task, settings)
    if kind and not settings.gpu_type:
        notes.append(
            f"the cluster is taken to call the GPU {kind}: see sinfo -o '%P %G', and give --gpu-type for another name"
        )
    smaller = smaller_gpus(task)
    if smaller:
        notes.append(
            f"the job also fits on {listed(smaller, 'or')}, for which the queue may be shorter: "
            "sbatch --test-only says when a job would start"
        )
    return notes


def smaller_gpus(task: Task) -> tuple[str, ...]:
    """GPUs that hold the job with less memory than the one asked for; the first few."""
    fitting = list(task.fitting_gpus)
    asked = next((at for at, name in enumerate(fitting) if _same(name, task.accelerator.name)), len(fitting))
    return tuple(fitting[:asked][:_MOST_NAMED])


def _same(name: str, asked: str) -> bool:
    wanted = _plain(asked)
    return bool(wanted) and wanted in _plain(name)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "", _NOISE.sub("", name).lower())
