"""One neutral record of what runs, read back from each output, and how two of them differ."""

from dataclasses import dataclass

from devkit.export.task import Task, build_rendezvous_variables

FIRST = "<the first node>"
COMPILED = "compiled kernels"
TOKEN = "the hub's token"
SHM = "shared memory"


@dataclass(frozen=True)
class Seen:
    """What an engine runs on the first of `nodes` machines. `gpus` are of each; `mounts` path -> what for.

    `command` are words for no shell. `shm_bytes` is None where the output does not say it. `stop` is the signal that
    asks the command to end, and `grace_s` how long it has then.
    """

    image: str
    command: tuple[str, ...]
    environment: dict[str, str]
    gpus: int
    nodes: int
    mounts: dict[str, str]
    shm_bytes: int | None
    stop: str
    grace_s: int | None
    folder: str

    def flat(self) -> dict[str, object]:
        """Each fact by a name of its own."""
        plain: dict[str, object] = {
            name: getattr(self, name) for name in ("image", "command", "gpus", "nodes", "stop", "grace_s", "folder")
        }
        plain[SHM] = self.shm_bytes
        plain |= {f"variable {name}": value for name, value in self.environment.items()}
        return plain | {f"mount {path}": role for path, role in self.mounts.items()}


def wanted(task: Task) -> Seen:
    """What every target has to say, from the task itself."""
    met = build_rendezvous_variables(task, address=FIRST if task.nodes > 1 else "127.0.0.1", rank="0")
    return Seen(
        image=task.image,
        command=task.command,
        environment={**dict(task.environment), **dict(met)},
        gpus=task.accelerator.count,
        nodes=task.nodes,
        mounts={volume.path: str(volume.role) for volume in task.volumes},
        shm_bytes=task.shm_bytes,
        stop="SIGTERM",
        grace_s=task.grace_s,
        folder=task.workspace,
    )


def differences(task: Task, seen: Seen) -> dict[str, object]:
    """What the output says otherwise, adds (its value) or lacks (None), by the name of the fact."""
    ours, theirs = wanted(task).flat(), seen.flat()
    return {
        name: theirs.get(name) for name in sorted({*ours, *theirs}) if ours.get(name, None) != theirs.get(name, None)
    }
