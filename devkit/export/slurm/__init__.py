"""Slurm: a batch script for one node or several, in Apptainer, Pyxis or the cluster's own Python.

The script has #SBATCH options, the command, and the folders of the cluster.
Sources: https://slurm.schedmd.com/sbatch.html, https://apptainer.org/docs/user/main/definition_files.html,
https://github.com/NVIDIA/enroot/blob/master/doc/cmd/import.md
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import PurePosixPath

from devkit.errors import DevkitError
from devkit.export.slurm.settings import (
    ContainerRuntime,
    GpuRequestStyle,
    SlurmSettings,
    validate_job_name,
    validate_slurm_settings,
)
from devkit.export.targets import ExportTarget, TargetFiles
from devkit.export.task import (
    COMPILE_CACHE,
    HUB_CACHE,
    TOKEN_PATH,
    MountRole,
    Task,
    VolumeRole,
    build_rendezvous_variables,
    strip_launchers,
)
from devkit.export.values import GIB, fold_shell_command, format_comment_line, format_slurm_time
from devkit.release import __version__
from devkit.render.files import Artifact
from devkit.render.templates import render_template
from devkit.solver.plan import Vendor

ANY_GPU = "any"
SCRATCH_FOLDER = "${SCRATCH:-$HOME}"
"""Fast storage under the name that many sites give it; else home."""
_COMPILED_FOLDER = f'"{SCRATCH_FOLDER}/devkit/compiled"'
MAX_SIGNAL_NOTICE_S = 65535
"""The longest notice that --signal takes."""
MIB = 1 << 20
_GPU_FLAGS = {Vendor.NVIDIA: "--nv", Vendor.ROCM: "--rocm"}
"""Apptainer's options for GPUs. Source: https://apptainer.org/docs/user/main/gpu.html"""
_PASSED_VARIABLES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "SLURM_JOB_ID", "SLURM_NODEID")
_PASSED_TASK_VARIABLES = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_GPUS_ON_NODE", "SLURM_CPUS_PER_TASK")
"""Variables to pass into a clean environment. Slurm sets the job's GPUs in the first two.
Source: https://slurm.schedmd.com/gres.html#GPU_Management"""
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}|\$([A-Za-z_][A-Za-z0-9_]*)")
_ABSOLUTE = re.compile(r"/|~/|~$|\$")
_SPECIAL = re.compile(r'([\\"`$])')
_SEPARATORS = re.compile(r"[:,\x00-\x1f\x7f\u0085\u2028\u2029]")
"""Separators of folders in --bind and --container-mounts, and line breaks."""
_MEMORY_SIZE = re.compile(r"\b\d+ ?gi?b\b", re.IGNORECASE)
_NOISE = re.compile(
    r"\b(nvidia|amd|geforce|tesla|quadro|instinct|radeon|generation|edition|sxm\d?|pcie|nvl|gpu)\b", re.IGNORECASE
)


def render_batch_script(task: Task, settings: SlurmSettings, *, build: str) -> str:
    """Render job.sbatch. Raises DevkitError for what Slurm cannot run. `build` is the command that makes the image file."""
    is_inside = settings.flavor.is_container
    if is_inside:
        validate_mountable(task.output, "--output")
    if settings.srun_processes and (not task.is_own_command or "torchrun" in task.command):
        raise DevkitError(
            "srun_processes and torchrun would both start the processes",
            "It is only for your own command without --set processes: -- python train.py",
        )
    has_gpus, vendor = task.accelerator.count > 0, task.accelerator.vendor
    return render_template(
        "slurm/job.sbatch.j2",
        devkit_version=__version__,
        options=build_sbatch_options(task, settings),
        reasons=[
            format_comment_line(f"{each.field}: {each.value} ({each.because})")
            for each in task.reasons
            if each.field != "shm"
        ],
        flavor=str(settings.flavor),
        modules=list(settings.module),
        venv=quote_folder(settings.venv, "--set venv") if settings.venv else "",
        conda=f'"{settings.conda.replace("~/", "$HOME/", 1) if settings.conda[:2] == "~/" else settings.conda}"'
        if settings.conda
        else "",
        setup=list(settings.setup),
        storage=_list_storage(task, is_inside=is_inside),
        image=_quote_image(task, settings),
        image_is_file=bool(locate_image_file(task, settings)),
        build=escape_double_quoted(build),
        # The output folder within the project must exist to be mounted over.
        nested=escape_double_quoted(task.inner_output) if is_inside else "",
        start_folder=quote_word(task.start_folder) if is_inside or task.workdir else '"$data"',
        mounts=_list_mounts(task, settings),
        token_path=TOKEN_PATH if task.needs_token else "",
        variables=list(_list_variables(task, settings)),
        passed=[
            name
            for name in (*_PASSED_VARIABLES, *(_PASSED_TASK_VARIABLES if settings.srun_processes else ()))
            if has_gpus or not name.endswith("_DEVICES")
        ],
        gpu_flag=_GPU_FLAGS.get(vendor, "") if has_gpus else "",
        is_nvidia=has_gpus and vendor is Vendor.NVIDIA,
        is_own_command=task.is_own_command,
        needs_devkit=not is_inside and not task.is_own_command,
        tasks_per_node=_count_tasks(task, settings),
        command=fold_shell_command(quote_command(task, is_inside=is_inside), indent=4, quote=str),
        is_distributed=task.is_distributed,
        nodes=task.nodes,
        cpus=max(1, task.cpus // _count_tasks(task, settings)),
        grace_s=task.grace_s,
        requeues=settings.requeues,
    )


def _list_storage(task: Task, *, is_inside: bool) -> list[tuple[str, str]]:
    """List the shell variables with folders of the cluster."""
    output = PurePosixPath(task.output)
    folders = {
        VolumeRole.MODELS: f'"{SCRATCH_FOLDER}/devkit/huggingface"',
        VolumeRole.DATA: '"${SLURM_SUBMIT_DIR:-$PWD}"',
        VolumeRole.CHECKPOINTS: f'"{SCRATCH_FOLDER}/devkit/{escape_double_quoted(f"{task.project}/{output.name}")}"',
    }
    if task.is_own_command and not is_inside and task.inner_output:
        # Nothing is mounted: this is where the command writes by default.
        folders[VolumeRole.CHECKPOINTS] = f'"$data/{escape_double_quoted(task.inner_output)}"'
    sources = {role: task.volume(role).source for role in folders}
    named = {role: quote_folder(source, f"--set {role}") for role, source in sources.items() if source}
    return [*((str(role), place) for role, place in (folders | named).items()), ("compiled", _COMPILED_FOLDER)]


def _list_mounts(task: Task, settings: SlurmSettings) -> list[str]:
    """List FOLDER:PATH of all mounts, parent folders before those inside of them. Raises DevkitError."""
    own = sorted((each for each in task.volumes if each.role is MountRole.OWN), key=lambda each: each.path)
    if not settings.flavor.is_container:
        if own:
            raise DevkitError(
                f"mount needs a container, but --flavor {settings.flavor} does not use one",
                "Remove it: the job sees the cluster's folders under their own names.",
            )
        return []
    for each in own:
        validate_mountable(each.path, "mount")
    output = escape_double_quoted(task.output)
    return [
        *(f"$models:{HUB_CACHE}", f"$compiled:{COMPILE_CACHE}", f"$data:{task.workspace}", f"$checkpoints:{output}"),
        *(f"{quote_folder(each.source, 'mount')[1:-1]}:{escape_double_quoted(each.path)}" for each in own),
    ]


def build_sbatch_options(task: Task, settings: SlurmSettings) -> list[str]:
    """Build the #SBATCH options, one for each line. Raises DevkitError for a notice that is too long."""
    if task.grace_s > MAX_SIGNAL_NOTICE_S:
        raise DevkitError(
            f"--set grace of {task.grace_s} s is longer than Slurm's longest notice, {MAX_SIGNAL_NOTICE_S} s",
            "Give --set grace=18h.",
        )
    # Slurm's G and M are powers of two.
    mebibytes = -(-task.memory_bytes // MIB)
    memory = f"{task.memory_bytes // GIB}G" if task.memory_bytes % GIB == 0 else f"{mebibytes}M"
    gpus, count = [], task.accelerator.count
    if count:
        # https://slurm.schedmd.com/gres.html
        kind = choose_gpu_type(task, settings)
        option = "--gpus-per-node=" if settings.gpu_request is GpuRequestStyle.GPUS_PER_NODE else "--gres=gpu:"
        gpus = [f"{option}{kind}:{count}" if kind else f"{option}{count}"]
    options = [
        f"--job-name={task.name}",
        *(f"--{name}={getattr(settings, name)}" for name in ("account", "partition") if getattr(settings, name)),
        f"--nodes={task.nodes}",
        f"--ntasks-per-node={_count_tasks(task, settings)}",
        f"--cpus-per-task={max(1, task.cpus // _count_tasks(task, settings))}",
        f"--mem={memory}",
        *gpus,
        f"--time={format_slurm_time(task.time_s)}",
        f"--signal=TERM@{task.grace_s}",
        "--requeue" if settings.requeues else "--no-requeue",
        "--open-mode=append",
    ]
    has_log = any(each.startswith("--output=") for each in settings.sbatch)
    return [*options, *([] if has_log else ["--output=%x-%j.out"]), *settings.sbatch]


def choose_gpu_type(task: Task, settings: SlurmSettings) -> str:
    """Return the cluster's name of the GPU, "" for any: that of the settings, else the usual short form of its name.

    "A100 80GB" is a100 on most clusters. Raises DevkitError for a MIG slice, whose name is different at every site.
    """
    if settings.gpu_type:
        return "" if settings.gpu_type == ANY_GPU else settings.gpu_type
    name = task.accelerator.name
    if " mig " in f" {name.lower()} ":
        raise DevkitError(
            f"each site chooses Slurm's name for {name}", "List them with sinfo -o %G and set one: --set gpu_type=NAME."
        )
    return re.sub(r"[^a-z0-9]+", "", _NOISE.sub("", _MEMORY_SIZE.sub("", name)).lower())


def format_enroot_reference(image: str) -> str:
    """Format REGISTRY#NAME:TAG for enroot and Pyxis. Raises DevkitError for a digest, which that form lacks."""
    if "@" in image:
        raise DevkitError(f"--image {image} has a digest; enroot needs a tag", "Specify the image by tag.")
    first, slash, rest = image.partition("/")
    # Source: https://github.com/distribution/reference, splitDockerDomain
    is_registry = "." in first or ":" in first or first == "localhost"
    return f"{first}#{rest}" if slash and is_registry else image


def locate_image_file(task: Task, settings: SlurmSettings) -> str:
    """Return the path of the image file as a shell word; "" for Pyxis without one, which pulls from the registry."""
    if settings.image_file:
        return quote_folder(settings.image_file, "image_file")
    has_file = settings.flavor.has_image_file
    return f'"{SCRATCH_FOLDER}/devkit/{escape_double_quoted(task.project)}.sif"' if has_file else ""


def _quote_image(task: Task, settings: SlurmSettings) -> str:
    """Quote the image as its runtime names it; "" without one."""
    if settings.flavor is ContainerRuntime.NONE:
        return ""
    if file := locate_image_file(task, settings):
        return file
    return f'"{escape_double_quoted(format_enroot_reference(task.image))}"'


def _count_tasks(task: Task, settings: SlurmSettings) -> int:
    return task.processes_per_node if settings.srun_processes else 1


def quote_folder(text: str, flag: str) -> str:
    """Quote a folder as a double-quoted shell word that keeps variables such as $SCRATCH.

    Raises DevkitError for a folder that depends on where the job starts.
    """
    if not _ABSOLUTE.match(text):
        raise DevkitError(
            f"{flag} {text!r} is not an absolute path", "Write it as /scratch/me/models or $SCRATCH/models."
        )
    validate_mountable(text, flag)
    home, rest = "$HOME" if text[:1] == "~" else "", text.removeprefix("~")
    parts = []
    end = 0
    for variable in _VARIABLE.finditer(rest):
        parts += [escape_double_quoted(rest[end : variable.start()]), f"${{{variable[1] or variable[2]}}}"]
        end = variable.end()
    return f'"{home}{"".join([*parts, escape_double_quoted(rest[end:])])}"'


def validate_mountable(text: str, flag: str) -> None:
    """Raise DevkitError for a path that the options of Apptainer and Pyxis cannot hold."""
    separator = _SEPARATORS.search(text)
    if separator:
        raise DevkitError(
            f"{flag} {text!r} contains {separator[0]!r}, which separates folders in the options of Apptainer and Pyxis",
            "Rename the folder.",
        )


def escape_double_quoted(text: str) -> str:
    """Escape text for double quotes."""
    return _SPECIAL.sub(r"\\\1", text)


def quote_command(task: Task, *, is_inside: bool) -> tuple[str, ...]:
    """Quote the command. Outside a container the shell's `$checkpoints` replaces the output folder.

    A command of the user's own gets its signals from Slurm: outside the image nothing of devkit is required for it.
    """
    words = list(task.command if is_inside or not task.is_own_command else strip_launchers(task.command))
    tokens = [quote_word(word) for word in words]
    if not is_inside and not task.is_own_command:
        tokens[words.index("--output") + 1] = '"$checkpoints"'
    return tuple(tokens)


def quote_word(word: str) -> str:
    """Quote a word; with a comma, too, which looks like a separator in a bash array."""
    quoted = shlex.quote(word)
    return f"'{quoted}'" if quoted == word and "," in word else quoted


def _list_variables(task: Task, settings: SlurmSettings) -> Iterator[str]:
    """Yield NAME=VALUE words of the environment, in double quotes where the value is a shell variable."""
    variables = task.environment
    if settings.srun_processes and task.is_distributed:
        for name, value in (("RANK", "SLURM_PROCID"), ("LOCAL_RANK", "SLURM_LOCALID"), ("WORLD_SIZE", "SLURM_NTASKS")):
            yield f'"{name}=${value}"'
        yield from ('"MASTER_ADDR=$first"', '"MASTER_PORT=$port"')
    if settings.flavor.is_container:
        yield f"HOME={COMPILE_CACHE}/home"
    else:
        yield '"HF_HUB_CACHE=$models/hub"'
        yield '"HF_XET_CACHE=$models/xet"'
        yield '"TRITON_CACHE_DIR=$compiled/triton"'
        yield '"TORCHINDUCTOR_CACHE_DIR=$compiled/inductor"'
        if task.needs_token:
            yield '"HF_TOKEN_PATH=$token"'
        if task.is_own_command:
            yield '"DEVKIT_OUTPUT=$checkpoints"'
        moved = ("HF_TOKEN_PATH", "DEVKIT_OUTPUT", "HF_HOME")
        variables = tuple((name, value) for name, value in variables if name not in moved)
    yield from (quote_word(f"{name}={value}") for name, value in variables)
    if settings.srun_processes:
        return
    for name, value in build_rendezvous_variables(task, address="$first", rank="$SLURM_NODEID"):
        yield f'"{name}={"$port" if name == "PET_MASTER_PORT" else value}"'


SCRIPT_FILE = "job.sbatch"
BUILD_FILE = "build-image.sh"


def render_slurm(task: Task, settings: SlurmSettings, folder: str) -> TargetFiles:
    """Render the batch script, and what builds the image file. Raises DevkitError for what Slurm cannot run."""
    validate_slurm_settings(settings)
    image_file = locate_image_file(task, settings)
    build = ""
    builds = settings.flavor.has_image_file and bool(task.image)
    if builds:
        build = f"sh {shlex.quote(f'{folder}/{BUILD_FILE}')}"
    elif settings.flavor is ContainerRuntime.PYXIS and settings.image_file and task.image:
        source = shlex.quote(f"docker://{format_enroot_reference(task.image)}")
        build = f"enroot import --output {image_file} {source}"
    artifacts = [Artifact.from_text(SCRIPT_FILE, render_batch_script(task, settings, build=build), 0o755)]
    if builds:
        values = {
            "devkit_version": __version__,
            "image": task.image,
            "image_file": image_file,
            "modules": list(settings.module),
            "program": str(settings.flavor),
            "has_devkit": not task.is_foreign_image,
        }
        artifacts += [
            Artifact.from_text("image.def", render_template("slurm/image.def.j2", **values)),
            Artifact.from_text(BUILD_FILE, render_template("slurm/build-image.sh.j2", **values), 0o755),
        ]
    path = shlex.quote(f"{folder}/{SCRIPT_FILE}")
    steps = (*([build] if build else []), f"sbatch --test-only {path}", f"sbatch {path}", "squeue --me")
    notes = []
    if task.accelerator.count and not settings.gpu_type and (kind := choose_gpu_type(task, settings)):
        notes.append(
            f"the cluster is assumed to call the GPU {kind}: check with sinfo -o '%P %G', and pass a different name with --set gpu_type"
        )
    if task.nodes > 1:
        notes.append("the folders for models, data and checkpoints must be on a file system that all nodes share")
    if task.is_spot and not settings.partition:
        notes.append("the site decides which nodes may be reclaimed: set their --partition, or --sbatch=--qos=NAME")
    if not settings.requeues:
        notes.append("a preempted or timed-out job is not requeued: submit it again, and it resumes")
    return TargetFiles(tuple(artifacts), steps, tuple(notes))


TARGET = ExportTarget(
    "slurm",
    SlurmSettings,
    render_slurm,
    needs_image=lambda settings: settings.flavor is not ContainerRuntime.NONE and not settings.image_file,
    validate_name=validate_job_name,
    validate=lambda own, _: validate_slurm_settings(own),
)
