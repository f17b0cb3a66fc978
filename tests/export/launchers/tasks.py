"""Tasks as the tests hand them to launchers, without a project or an estimate."""

from dataclasses import replace

from devkit.export.targets import TargetFiles
from devkit.export.task import HUB_CACHE, TOKEN_PATH, Accelerator, Task, Volume, VolumeRole, build_node_command
from devkit.solver.plan import Vendor
from devkit.workload.finetune.settings import FinetuneSettings

GIB = 1 << 30
WORKSPACE = "/workspaces/demo"
OUTPUT = f"{WORKSPACE}/finetuned"

NASTY = "a b'c\"d $HOME ${HOME} ${{ secrets.x }} {{ 7*7 }} {% raw %} `id` $(id) \\n # é \u2028 🙂 %s !x"
"""What some reader would take for something else."""


def volumes(**sources: str) -> tuple[Volume, ...]:
    """The three volumes; a source for each role that has one."""
    places = {
        VolumeRole.MODELS: (HUB_CACHE, 20),
        VolumeRole.DATA: (WORKSPACE, 10),
        VolumeRole.CHECKPOINTS: (OUTPUT, 30),
    }
    return tuple(
        Volume(
            role=role, path=path, source=sources.get(role.value, ""), size_bytes=gib * GIB, because="by the estimate"
        )
        for role, (path, gib) in places.items()
    )


def gpus(count: int = 1, name: str = "H100", vendor: Vendor = Vendor.NVIDIA) -> Accelerator:
    """The GPUs of each node."""
    return Accelerator(vendor=vendor, name=name, count=count, memory_bytes=0)


NO_GPU = gpus(0, "", Vendor.CPU)

ONE = Task(
    name="demo",
    project="demo",
    image="registry.example.org/me/demo:1",
    command=build_node_command(FinetuneSettings(model="org/model"), is_distributed=False),
    environment=(("HF_TOKEN_PATH", TOKEN_PATH),),
    workspace=WORKSPACE,
    output=OUTPUT,
    nodes=1,
    accelerator=gpus(),
    cpus=8,
    memory_bytes=48 * GIB,
    shm_bytes=8 * GIB,
    volumes=volumes(),
    time_s=86400,
    grace_s=120,
    is_spot=False,
    needs_token=True,
)
"""One GPU."""

TORCHRUN = build_node_command(FinetuneSettings(model="org/model"), is_distributed=True)
FOUR = replace(ONE, accelerator=gpus(4), command=TORCHRUN)
"""Four GPUs of one node."""
TWO_NODES = replace(FOUR, nodes=2)
CPU = replace(ONE, accelerator=NO_GPU, needs_token=False)
ROCM = replace(ONE, accelerator=gpus(2, "MI300X", Vendor.ROCM), command=TORCHRUN)
HOSTILE = replace(
    ONE,
    command=("devkit", "finetune", "--model", NASTY, "--output", "finetuned"),
    environment=(*ONE.environment, ("NASTY", NASTY)),
)
SPOT = replace(ONE, is_spot=True)
UNNAMED = replace(ONE, accelerator=gpus(2, ""), command=TORCHRUN, fitting_gpus=("NVIDIA L4", "NVIDIA A100 SXM4 80GB"))
"""Two GPUs of any kind that holds the job."""


def texts(made: TargetFiles) -> dict[str, str]:
    """The files by their path."""
    return {each.path: each.content.decode() for each in made.artifacts}
