"""What the script asks of Slurm: the options in its #SBATCH lines.

Source: https://slurm.schedmd.com/sbatch.html
"""

from devkit.errors import DevkitError
from devkit.export.quantities import GIB, clock_time
from devkit.export.slurm.gpus import gpu_lines
from devkit.export.slurm.settings import SlurmSettings
from devkit.export.task import Task

MOST_NOTICE_S = 65535
"""Longest notice that --signal takes."""
MIB = 1 << 20
_ASKED = ("account", "partition", "qos", "constraint", "reservation")


def directives(task: Task, settings: SlurmSettings, *, tasks: int) -> list[str]:
    """The options, one for each line. `tasks` are those of the array, 0 for none. Raises DevkitError."""
    if task.grace_s > MOST_NOTICE_S:
        raise DevkitError(
            f"--grace of {task.grace_s} s is longer than Slurm's longest notice, {MOST_NOTICE_S} s", "Give --grace 18h."
        )
    return [
        f"--job-name={task.name}",
        *(f"--{name}={getattr(settings, name)}" for name in _ASKED if getattr(settings, name)),
        *_array(settings, tasks),
        f"--nodes={task.nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={task.cpus}",
        f"--mem={_memory(task.memory_bytes)}",
        *gpu_lines(task, settings),
        f"--time={clock_time(task.time_s)}",
        f"--signal=TERM@{task.grace_s}",
        "--requeue" if settings.requeues else "--no-requeue",
        f"--output={settings.log or ('%x-%A_%a.out' if tasks else '%x-%j.out')}",
        "--open-mode=append",
        *_mail(settings),
        *settings.sbatch,
    ]


def _array(settings: SlurmSettings, tasks: int) -> list[str]:
    if not tasks:
        return []
    limit = f"%{settings.at_once}" if settings.at_once is not None else ""
    return [f"--array=0-{tasks - 1}{limit}"]


def _memory(count: int) -> str:
    """Slurm's G and M are powers of two."""
    return f"{count // GIB}G" if count % GIB == 0 else f"{-(-count // MIB)}M"


def _mail(settings: SlurmSettings) -> list[str]:
    return [f"--mail-user={settings.mail}", "--mail-type=END,FAIL,REQUEUE"] if settings.mail else []
