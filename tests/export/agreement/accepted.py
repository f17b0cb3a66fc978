"""Where outputs differ from the task, and why each time. What is not listed here must be the same."""

from collections.abc import Callable

from devkit.export.task import Task

from .seen import COMPILED, TOKEN

Accepted = tuple[object | Callable[[object, Task], bool], str]
"""What the output says in place of the task's, or whether it may say that; and the reason."""

TORCHRUN = (
    *("PET_MASTER_ADDR", "PET_MASTER_PORT", "PET_NNODES", "PET_NODE_RANK", "PET_NPROC_PER_NODE"),
    *("PET_SHUTDOWN_TIMEOUT", "PET_SIGNALS_TO_HANDLE"),
)
OF_ONE_PROCESS = {"PET_MASTER_PORT": "29500", "PET_NNODES": "1", "PET_NODE_RANK": "0", "PET_NPROC_PER_NODE": "1"}
PATHS = ("/opt/cache/huggingface", "/workspaces/tide-tables", "/workspaces/tide-tables/tuned")


def _every_process(value: object, task: Task) -> bool:
    return value == str(task.processes)


def _output_elsewhere(value: object, task: Task) -> bool:
    return (
        isinstance(value, tuple)
        and tuple("tuned" if word == "<checkpoints>" else word for word in value) == task.command
    )


_TOKEN = (TOKEN, "the file that HF_TOKEN_PATH names; where it comes from is the engine's own")
_COMPILED = (COMPILED, "compiled kernels outlive a start there, or have room at least")
_OF_A_POD = {"mount /home/dev/.config/huggingface": _TOKEN, "mount /opt/cache/compile": _COMPILED}
_ALONE = "torchrun's own variables do nothing without torchrun"
_MASTER = "the controller names the first pod of several and of one"
_OF_SLURM: dict[str, Accepted] = {
    "mount /home/dev/.config/huggingface/token": _TOKEN,
    "mount /opt/cache/compile": _COMPILED,
    "shared memory": (None, "the node's own /dev/shm, which no script sets; the request for memory holds it"),
    "variable PET_MASTER_PORT": ("20012", "by the job's number: two jobs may share a node"),
}
_OF_APPTAINER: dict[str, Accepted] = {
    **_OF_SLURM,
    "variable HOME": ("/opt/cache/compile/home", "the user's home is not mounted, the image's is read-only"),
    "variable SLURM_JOB_ID": ("12", "what Slurm says of the job passes through"),
    "variable SLURM_NODEID": ("0", "the same"),
}
_OF_EDITORS = "an editor attaches to the dev container, and people start training by hand"
_BESIDE = "no volumes: the script copies the project there and the output back"

ACCEPTED: dict[str, dict[str, Accepted]] = {
    "dev container": {
        "image": ("built from the Dockerfile here", "the published image is built from the same one"),
        "command": (("sleep", "infinity"), _OF_EDITORS),
        "grace_s": (None, "nobody schedules it: the engine's 10 s"),
        "mount /opt/cache/compile": _COMPILED,
        "mount /workspaces/tide-tables/tuned": (None, "the output lies in the project, which is mounted"),
        **{f"variable {name}": (None, _OF_EDITORS) for name in ("NCCL_DEBUG", "SAID")},
        **{f"variable {name}": (None, _OF_EDITORS) for name in TORCHRUN},
    },
    "docker": {"mount /home/dev/.config/huggingface": _TOKEN},
    "job": {**_OF_A_POD, "variable PET_MASTER_ADDR": ("localhost", "another word for this node")},
    "jobset": {**_OF_A_POD, "variable PET_MASTER_ADDR": ("localhost", "another word for this node")},
    "rayjob": {
        **_OF_A_POD,
        "variable PET_MASTER_ADDR": ("tide-tables-head", "its script finds it"),
        "variable PET_NODE_RANK": ("0", _ALONE),
        "variable RAY_LOG_TO_STDERR": ("1", "Ray's own: the log is the pod's"),
        "mount /etc/devkit": ("nodes", "its script"),
    },
    "trainjob": {
        **_OF_A_POD,
        "variable PET_MASTER_ADDR": ("tide-tables-node-0-0.tide-tables", _MASTER),
        **{f"variable {name}": (value, _ALONE) for name, value in OF_ONE_PROCESS.items()},
    },
    "pytorchjob": {
        **_OF_A_POD,
        "variable PET_MASTER_ADDR": ("tide-tables-master-0", _MASTER),
        **{f"variable {name}": (value, _ALONE) for name, value in OF_ONE_PROCESS.items()},
        "variable MASTER_ADDR": ("tide-tables-master-0", "its operator's; torchrun sets its own for its processes"),
        "variable MASTER_PORT": ("29500", "the same"),
        "variable RANK": ("0", "the same; a single process meets nobody"),
        "variable LOCAL_RANK": ("0", "its operator leaves it out, and a single process wants all or none"),
        "variable WORLD_SIZE": (_every_process, "the same"),
        "variable PYTHONUNBUFFERED": ("0", "its operator's, which to Python is the same as 1"),
    },
    "slurm, apptainer": _OF_APPTAINER,
    "slurm, singularity": _OF_APPTAINER,
    "slurm, pyxis": _OF_SLURM,
    "slurm, none": {
        "image": ("", "the cluster's own Python"),
        "folder": ("<the project>", "the cluster's own folders, without a container to mount them in"),
        "command": (_output_elsewhere, "the same but for the folder after --output"),
        **{f"mount {path}": (None, "the cluster's own folders") for path in PATHS},
        "variable HF_HUB_CACHE": ("<models>/hub", "the image says it elsewhere"),
        "variable HF_XET_CACHE": ("<models>/xet", "the image says it elsewhere"),
        "variable HF_TOKEN_PATH": ("<the user's token>", "the cluster's own folders"),
        "shared memory": _OF_SLURM["shared memory"],
        "variable PET_MASTER_PORT": _OF_SLURM["variable PET_MASTER_PORT"],
    },
    "skypilot": {},
    "daytona": {
        **{f"mount {path}": (None, _BESIDE) for path in PATHS},
        "shared memory": (None, "Daytona's sandboxes take no size"),
    },
}
