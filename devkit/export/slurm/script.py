"""The batch script of a task, for each of the flavours."""

from collections.abc import Iterator
from pathlib import PurePosixPath

from devkit import __version__
from devkit.export.launch import KEEP_CODE
from devkit.export.quoting import one_line
from devkit.export.slurm.containers import enroot_name
from devkit.export.slurm.directives import directives
from devkit.export.slurm.folders import SCRATCH, folder, literal, require_mountable
from devkit.export.slurm.settings import Flavour, SlurmSettings
from devkit.export.slurm.sweep import Variant
from devkit.export.slurm.words import KEEP, command_tokens, environment_tokens, folded, quoted
from devkit.export.task import COMPILE_CACHE, HUB_CACHE, TOKEN_PATH, Role, Task, rendezvous
from devkit.render.resources import rendered
from devkit.solver.model import Vendor

_FLAGS = {Vendor.NVIDIA: "--nv", Vendor.ROCM: "--rocm"}
"""How Apptainer hands GPUs over. Source: https://apptainer.org/docs/user/main/gpu.html"""
_HIDDEN = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "SLURM_JOB_ID", "SLURM_NODEID")
"""What a clean environment would lose. Slurm says in the first two which GPUs are the job's.
Source: https://slurm.schedmd.com/gres.html#GPU_Management"""


def batch_script(task: Task, settings: SlurmSettings, variants: tuple[Variant, ...], *, build: str) -> str:
    """The text of job.sbatch. `build` is the command that makes the image's file. Raises DevkitError."""
    is_inside = settings.flavour is not Flavour.NONE
    if is_inside:
        require_mountable(task.output, "--output")
    is_moved = bool(variants) or not is_inside
    tokens = command_tokens(task, is_moved=is_moved)
    return rendered(
        "slurm/job.sbatch.j2",
        devkit_version=__version__,
        options=directives(task, settings, tasks=len(variants)),
        reasons=[
            one_line(f"{each.field}: {each.value} ({each.because})") for each in task.reasons if each.field != "shm"
        ],
        flavour=str(settings.flavour),
        modules=list(settings.module),
        venv=folder(settings.venv, "--venv") if settings.venv else "",
        storage=_storage(task, settings),
        image=_image(task, settings),
        build=literal(build),
        nested=_nested(task) if is_inside else "",
        inside=literal(task.output),
        workspace=task.workspace,
        mounts=[f"${name}:{place}" for name, place in _mounts(task)] if is_inside else [],
        token_path=TOKEN_PATH if task.needs_token else "",
        variables=list(_variables(task, is_inside=is_inside)),
        passed=[name for name in _HIDDEN if task.accelerator.count or not name.endswith("_DEVICES")],
        gpu_flag=_FLAGS.get(task.accelerator.vendor, "") if task.accelerator.count else "",
        is_nvidia=bool(task.accelerator.count) and task.accelerator.vendor is Vendor.NVIDIA,
        variants=[(at, each.folder, " ".join(map(quoted, each.flags))) for at, each in enumerate(variants)],
        keep=KEEP_CODE if KEEP in tokens else "",
        command=folded(tokens, indent=4),
        is_moved=is_moved,
        is_distributed=task.is_distributed,
        nodes=task.nodes,
        cpus=task.cpus,
        grace_s=task.grace_s,
        requeues=settings.requeues,
    )


def image_file(task: Task, settings: SlurmSettings) -> str:
    """Where the image's file lies, as a word of a shell; "" for Pyxis without one, which asks the registry."""
    if settings.image_file:
        return folder(settings.image_file, "--image-file")
    return f'"{SCRATCH}/devkit/{literal(task.project)}.sif"' if settings.flavour is Flavour.APPTAINER else ""


def _image(task: Task, settings: SlurmSettings) -> str:
    if settings.flavour is Flavour.NONE:
        return ""
    return image_file(task, settings) or f'"{literal(enroot_name(task.image))}"'


def _storage(task: Task, settings: SlurmSettings) -> list[tuple[str, str]]:
    """Shell variables with the folders: the job's own, or places under scratch that say whose they are."""
    own = PurePosixPath(task.output).name
    usual = {
        Role.MODELS: f'"{SCRATCH}/devkit/huggingface"',
        Role.DATA: '"${SLURM_SUBMIT_DIR:-$PWD}"',
        Role.CHECKPOINTS: f'"{SCRATCH}/devkit/{literal(task.project)}/{literal(own)}"',
    }
    found = []
    for role, default in usual.items():
        source = task.volume(role).source
        found.append((str(role), folder(source, f"--{role}") if source else default))
    return [*found, ("compiled", f'"{SCRATCH}/devkit/compiled"')]


def _mounts(task: Task) -> Iterator[tuple[str, str]]:
    """Shell variable -> folder inside; what lies in another comes after it."""
    yield "models", HUB_CACHE
    yield "compiled", COMPILE_CACHE
    yield "data", task.workspace
    yield "checkpoints", literal(task.output)


def _nested(task: Task) -> str:
    """The output folder within the project, which must be there to be mounted over; "" where it lies elsewhere."""
    output = PurePosixPath(task.output)
    is_within = output.is_relative_to(task.workspace)
    return literal(output.relative_to(task.workspace).as_posix()) if is_within else ""


def _variables(task: Task, *, is_inside: bool) -> Iterator[str]:
    """NAME=VALUE words of the command's environment, in double quotes where the value comes from the shell."""
    if is_inside:
        yield f"HOME={COMPILE_CACHE}/home"
        yield from environment_tokens(task.environment)
    else:
        yield '"HF_HUB_CACHE=$models/hub"'
        yield '"HF_XET_CACHE=$models/xet"'
        yield '"TRITON_CACHE_DIR=$compiled/triton"'
        yield '"TORCHINDUCTOR_CACHE_DIR=$compiled/inductor"'
        if task.needs_token:
            yield '"HF_TOKEN_PATH=$token"'
        yield from environment_tokens(pair for pair in task.environment if pair != ("HF_TOKEN_PATH", TOKEN_PATH))
    for name, value in rendezvous(task, address="$first", rank="$SLURM_NODEID"):
        yield f'"{name}={"$port" if name == "PET_MASTER_PORT" else value}"'
