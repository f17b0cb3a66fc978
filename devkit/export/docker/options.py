"""What both files of this target say of the container, in the same order."""

from devkit.export.docker.mounts import Mount, mounts_of, token_mount
from devkit.export.task import Task, rendezvous


def variables_of(task: Task) -> tuple[tuple[str, str], ...]:
    """The container's environment. Processes of one machine meet on its own address."""
    return (*task.environment, *rendezvous(task, address="127.0.0.1", rank="0"))


def all_mounts(task: Task) -> tuple[Mount, ...]:
    """Outer paths before those inside of them."""
    token = (token_mount(task),) if task.needs_token else ()
    return tuple(sorted((*mounts_of(task).values(), *token), key=lambda each: each.path))


def device_numbers(task: Task) -> tuple[str, ...]:
    """The GPUs that the job takes where nobody names others: the first so many."""
    return tuple(str(number) for number in range(task.accelerator.count))
