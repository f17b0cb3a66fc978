"""What a batch script makes of the job, by running it with programs that record how they are called."""

import re
from pathlib import Path

from devkit.export.slurm.settings import ContainerRuntime
from devkit.export.task import Task, VolumeRole
from tests.export.slurm.tasks import Login, script_of

from .seen import COMPILED, FIRST, TOKEN, Seen


def of_slurm(task: Task, scratch: Path, *, flavor: ContainerRuntime) -> Seen:
    """The first node's process, as apptainer, pyxis or the shell itself would start it."""
    login = Login(scratch)
    (login.home / f"devkit/{task.project}.sif").touch()
    (login.home / ".cache/huggingface").mkdir(parents=True)
    (login.home / ".cache/huggingface/token").touch()
    script = script_of(task, flavor=flavor)
    done = login.run(script, SLURM_JOB_NODELIST="n[1-2]")
    assert (done.returncode, done.stderr) == (0, "")
    read = {
        ContainerRuntime.APPTAINER: _by_apptainer,
        ContainerRuntime.SINGULARITY: _by_apptainer,
        ContainerRuntime.PYXIS: _by_pyxis,
        ContainerRuntime.NONE: _by_nobody,
    }[flavor]
    image, command, variables, mounts, folder = read(login, task)
    if task.nodes > 1:
        assert variables["PET_MASTER_ADDR"] == "first"
        variables["PET_MASTER_ADDR"] = FIRST
    signal, grace = re.search(r"^#SBATCH --signal=(\w+)@(\d+)$", script, re.MULTILINE).groups()
    gpus = re.search(r"^#SBATCH --gres=gpu:(?:[\w.]+:)?(\d+)$", script, re.MULTILINE)
    return Seen(
        image=image,
        command=tuple(command),
        environment=variables,
        gpus=int(gpus[1]) if gpus else 0,
        nodes=int(re.search(r"^#SBATCH --nodes=(\d+)$", script, re.MULTILINE)[1]),
        mounts=mounts,
        shm_bytes=None,
        stop=f"SIG{signal}",
        grace_s=int(grace),
        folder=folder,
    )


def _roles(login: Login, pairs: list[str]) -> dict[str, str]:
    """Path inside -> what for, by the folder outside."""
    known = {
        f"{login.home}/devkit/huggingface": VolumeRole.MODELS.value,
        f"{login.home}/devkit/compiled": COMPILED,
        f"{login.project}": VolumeRole.DATA.value,
        f"{login.home}/.cache/huggingface/token": TOKEN,
    }
    found = {}
    for pair in pairs:
        outside, inside = pair.removesuffix(":ro").split(":")
        found[inside] = known.get(outside, VolumeRole.CHECKPOINTS.value if outside.endswith("/tuned") else outside)
    return found


def _by_apptainer(login: Login, task: Task):
    words = (login.calls("apptainer") or login.calls("singularity"))[0]["words"]
    split = words.index("env")
    flags, rest = words[1:split], words[split + 1 :]
    variables = {}
    while "=" in rest[0]:
        name, _, value = rest.pop(0).partition("=")
        variables[name] = value
    binds = [flags[at + 1] for at, word in enumerate(flags) if word == "--bind"]
    assert flags[-1] == f"{login.home}/devkit/{task.project}.sif"
    return task.image, rest, variables, _roles(login, binds), flags[flags.index("--pwd") + 1]


def _by_pyxis(login: Login, task: Task):
    (srun,) = login.calls("srun")
    flags = dict(word.partition("=")[::2] for word in srun["words"] if word.startswith("--container"))
    call = _innermost(login)
    image = flags["--container-image"].replace("#", "/", 1)
    mounts = _roles(login, flags["--container-mounts"].split(","))
    return image, _command(call), _own_variables(call, task), mounts, flags["--container-workdir"]


def _by_nobody(login: Login, task: Task):
    """The cluster's own folders, by what they are for."""
    call = _innermost(login)
    home = f"{login.home}/devkit"
    known = {
        f"{home}/{task.project}/{Path(task.output).name}": "<checkpoints>",
        f"{home}/huggingface": "<models>",
        f"{login.home}/.cache/huggingface/token": "<the user's token>",
        str(login.project): "<the project>",
    }

    def named(text: str) -> str:
        for path, name in known.items():
            text = text.replace(path, name)
        return text

    variables = {name: named(value) for name, value in _own_variables(call, task).items()}
    return "", [named(word) for word in _command(call)], variables, {}, named(str(call["folder"]))


def _innermost(login: Login):
    """The first program that the first node starts."""
    return (login.calls("python") or login.calls("devkit"))[0]


def _command(call) -> tuple[str, ...]:
    return (call["name"], *call["words"])


def _own_variables(call, task: Task) -> dict[str, str]:
    """Those of the task and of the hub; a shell has many more."""
    names = {name for name, _ in task.environment}
    return {
        name: value for name, value in call["environment"].items() if name in names or name.startswith(("PET_", "HF_"))
    }
