"""The batch script of a task, for each of the flavours."""

import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

from devkit import __version__
from devkit.errors import DevkitError
from devkit.export.launch import EXIT_CODE_WRAPPER
from devkit.export.quantities import GIB, format_slurm_time
from devkit.export.quoting import format_comment_line
from devkit.export.slurm.job_array import ArrayTask
from devkit.export.slurm.settings import ContainerRuntime, GpuRequestStyle, SlurmSettings
from devkit.export.task import COMPILE_CACHE, HUB_CACHE, TOKEN_PATH, Task, VolumeRole, build_rendezvous_variables
from devkit.render.templates import render_template
from devkit.solver.plan import Vendor
from devkit.text import join_words

# Images as Apptainer and enroot name them.
#
# Sources: https://apptainer.org/docs/user/main/definition_files.html,
# https://github.com/NVIDIA/enroot/blob/master/doc/cmd/import.md


def format_enroot_reference(image: str) -> str:
    """REGISTRY#NAME:TAG, as enroot and Pyxis write it. Raises DevkitError for a digest, which their form lacks."""
    if "@" in image:
        raise DevkitError(f"--image {image} names a digest, for which enroot has no form", "Name the image by its tag.")
    first, slash, rest = image.partition("/")
    return f"{first}#{rest}" if slash and _is_registry(first) else image


def _is_registry(first: str) -> bool:
    """As Docker tells a registry from the first part of a name.

    Source: https://github.com/distribution/reference, splitDockerDomain
    """
    return "." in first or ":" in first or first == "localhost"


# Folders of the cluster in a script: variables such as $SCRATCH are kept, everything else stands for itself.

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}|\$([A-Za-z_][A-Za-z0-9_]*)")
_ROOTED = re.compile(r"/|~/|~$|\$")
_SPECIAL = re.compile(r'([\\"`$])')
_SEPARATORS = re.compile(r"[:,\x00-\x1f\x7f\u0085\u2028\u2029]")
"""What separates folders in --bind and --container-mounts, and what ends a line."""
SCRATCH_FOLDER = "${SCRATCH:-$HOME}"
"""Fast storage under the name that many sites give it; else home."""


def quote_folder(text: str, flag: str) -> str:
    """A folder as a double-quoted word of a shell. Raises DevkitError for one that depends on where the job starts."""
    if not _ROOTED.match(text):
        raise DevkitError(
            f"{flag} {text!r} is no folder from the root on", "Write it as /scratch/me/models or $SCRATCH/models."
        )
    validate_mountable(text, flag)
    home = "$HOME" if text[:1] == "~" else ""
    return f'"{home}{escape_keeping_variables(text.removeprefix("~"))}"'


def escape_keeping_variables(text: str) -> str:
    """Text as it stands between double quotes, its variables kept."""
    kept = []
    end = 0
    for found in _VARIABLE.finditer(text):
        kept += [_SPECIAL.sub(r"\\\1", text[end : found.start()]), f"${{{found[1] or found[2]}}}"]
        end = found.end()
    return "".join([*kept, _SPECIAL.sub(r"\\\1", text[end:])])


def escape_double_quoted(text: str) -> str:
    """Text as it stands between double quotes, every character for itself."""
    return _SPECIAL.sub(r"\\\1", text)


def validate_mountable(text: str, flag: str) -> None:
    """Raises DevkitError for a path that Apptainer and Pyxis cannot be told to mount."""
    found = _SEPARATORS.search(text)
    if found:
        raise DevkitError(
            f"{flag} {text!r} has {found[0]!r} in it, which separates folders in the options of Apptainer and Pyxis",
            "Rename the folder.",
        )


# GPUs as Slurm asks for them: the cluster's own name of each, and which smaller ones would do, too.

ANY_GPU = "any"
_SIZE = re.compile(r"\b\d+ ?gi?b\b", re.IGNORECASE)
_NOISE = re.compile(
    r"\b(nvidia|amd|geforce|tesla|quadro|instinct|radeon|generation|edition|sxm\d?|pcie|nvl|gpu)\b", re.IGNORECASE
)
_MOST_NAMED = 4


def choose_gpu_type(task: Task, settings: SlurmSettings) -> str:
    """The cluster's name of the GPU, "" for any: what was said, else the usual short form of the GPU's name.

    "A100 80GB" is a100 nearly everywhere. Raises DevkitError for a MIG slice, whose name every site makes up.
    """
    if settings.gpu_type:
        return "" if settings.gpu_type == ANY_GPU else settings.gpu_type
    name = task.accelerator.name
    if " mig " in f" {name.lower()} ":
        raise DevkitError(
            f"Slurm's name of {name} is the site's own", "List them with sinfo -o %G, and give --gpu-type."
        )
    return re.sub(r"[^a-z0-9]+", "", _NOISE.sub("", _SIZE.sub("", name)).lower())


def build_gpu_options(task: Task, settings: SlurmSettings) -> list[str]:
    """Options of sbatch that ask for the GPUs of each node; [] for none.

    Source: https://slurm.schedmd.com/gres.html
    """
    count = task.accelerator.count
    if not count:
        return []
    kind = choose_gpu_type(task, settings)
    wanted = f"{kind}:{count}" if kind else f"{count}"
    if settings.gpu_request is GpuRequestStyle.GPUS_PER_NODE:
        return [f"--gpus-per-node={wanted}"]
    return [f"--gres=gpu:{wanted}"]


def list_queue_notes(task: Task, settings: SlurmSettings) -> list[str]:
    """How the choice of the GPU may make the job wait, and what it takes less."""
    if not task.accelerator.count:
        return []
    notes = []
    kind = choose_gpu_type(task, settings)
    if kind and not settings.gpu_type:
        notes.append(
            f"the cluster is taken to call the GPU {kind}: see sinfo -o '%P %G', and give --gpu-type for another name"
        )
    smaller = find_smaller_gpus(task)
    if smaller:
        notes.append(
            f"the job also fits on {join_words(smaller, 'or')}, for which the queue may be shorter: "
            "sbatch --test-only says when a job would start"
        )
    return notes


def find_smaller_gpus(task: Task) -> tuple[str, ...]:
    """GPUs that hold the job with less memory than the one asked for; the first few."""
    fitting = list(task.fitting_gpus)
    asked = next((at for at, name in enumerate(fitting) if _same(name, task.accelerator.name)), len(fitting))
    return tuple(fitting[:asked][:_MOST_NAMED])


def _same(name: str, asked: str) -> bool:
    wanted = _plain(asked)
    return bool(wanted) and wanted in _plain(name)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "", _NOISE.sub("", name).lower())


# What the script asks of Slurm: the options in its #SBATCH lines.
#
# Source: https://slurm.schedmd.com/sbatch.html

MAX_SIGNAL_NOTICE_S = 65535
"""Longest notice that --signal takes."""
MIB = 1 << 20
_ASKED = ("account", "partition", "qos", "constraint", "reservation")


def build_sbatch_options(task: Task, settings: SlurmSettings, *, tasks: int) -> list[str]:
    """The options, one for each line. `tasks` are those of the array, 0 for none. Raises DevkitError."""
    if task.grace_s > MAX_SIGNAL_NOTICE_S:
        raise DevkitError(
            f"--grace of {task.grace_s} s is longer than Slurm's longest notice, {MAX_SIGNAL_NOTICE_S} s",
            "Give --grace 18h.",
        )
    return [
        f"--job-name={task.name}",
        *(f"--{name}={getattr(settings, name)}" for name in _ASKED if getattr(settings, name)),
        *_array(settings, tasks),
        f"--nodes={task.nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={task.cpus}",
        f"--mem={_memory(task.memory_bytes)}",
        *build_gpu_options(task, settings),
        f"--time={format_slurm_time(task.time_s)}",
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


# The job's command as words of a shell, with the output folder of this very task in it.

OUTPUT_VARIABLE = '"$output"'
RECORD_VARIABLE = '"$output/run.json"'
WRAPPER_VARIABLE = '"$keep"'
"""The shell's variables in the place of the task's folder, and of the long script that keeps the exit code."""


def quote_command(task: Task, *, is_moved: bool) -> tuple[str, ...]:
    """The command's words, quoted. `is_moved` puts the shell's `$output` in the place of the output folder."""
    words = list(task.command)
    tokens = [WRAPPER_VARIABLE if word == EXIT_CODE_WRAPPER else quote_word(word) for word in words]
    if not is_moved:
        return tuple(tokens)
    at = words.index("--output") + 1
    record = f"{words[at]}/run.json"
    tokens = [RECORD_VARIABLE if word == record else token for word, token in zip(words, tokens, strict=True)]
    tokens[at] = OUTPUT_VARIABLE
    return tuple(tokens)


def fold_tokens(tokens: Iterable[str], *, indent: int) -> str:
    """Tokens on lines of a shell: each long option with its value, and the words before the first together."""
    lines: list[str] = []
    for token in tokens:
        if not lines or token.startswith("--"):
            lines.append(token)
        else:
            lines[-1] += f" {token}"
    return f" \\\n{' ' * indent}".join(lines)


def quote_environment(pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    """NAME=VALUE words, each value for itself."""
    for name, value in pairs:
        yield quote_word(f"{name}={value}")


def quote_word(word: str) -> str:
    """A word for itself; in an array a comma looks as if it should separate."""
    plain = shlex.quote(word)
    return f"'{plain}'" if plain == word and "," in word else plain


_FLAGS = {Vendor.NVIDIA: "--nv", Vendor.ROCM: "--rocm"}
"""How Apptainer hands GPUs over. Source: https://apptainer.org/docs/user/main/gpu.html"""
_HIDDEN = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "SLURM_JOB_ID", "SLURM_NODEID")
"""What a clean environment would lose. Slurm says in the first two which GPUs are the job's.
Source: https://slurm.schedmd.com/gres.html#GPU_Management"""


def render_batch_script(task: Task, settings: SlurmSettings, variants: tuple[ArrayTask, ...], *, build: str) -> str:
    """The text of job.sbatch. `build` is the command that makes the image's file. Raises DevkitError."""
    is_inside = settings.flavour is not ContainerRuntime.NONE
    if is_inside:
        validate_mountable(task.output, "--output")
    is_moved = bool(variants) or not is_inside
    tokens = quote_command(task, is_moved=is_moved)
    return render_template(
        "slurm/job.sbatch.j2",
        devkit_version=__version__,
        options=build_sbatch_options(task, settings, tasks=len(variants)),
        reasons=[
            format_comment_line(f"{each.field}: {each.value} ({each.because})")
            for each in task.reasons
            if each.field != "shm"
        ],
        flavour=str(settings.flavour),
        modules=list(settings.module),
        venv=quote_folder(settings.venv, "--venv") if settings.venv else "",
        storage=_storage(task, settings),
        image=_image(task, settings),
        build=escape_double_quoted(build),
        nested=_nested(task) if is_inside else "",
        inside=escape_double_quoted(task.output),
        workspace=task.workspace,
        mounts=[f"${name}:{place}" for name, place in _mounts(task)] if is_inside else [],
        token_path=TOKEN_PATH if task.needs_token else "",
        variables=list(_variables(task, is_inside=is_inside)),
        passed=[name for name in _HIDDEN if task.accelerator.count or not name.endswith("_DEVICES")],
        gpu_flag=_FLAGS.get(task.accelerator.vendor, "") if task.accelerator.count else "",
        is_nvidia=bool(task.accelerator.count) and task.accelerator.vendor is Vendor.NVIDIA,
        variants=[(at, each.folder, " ".join(map(quote_word, each.flags))) for at, each in enumerate(variants)],
        keep=EXIT_CODE_WRAPPER if WRAPPER_VARIABLE in tokens else "",
        command=fold_tokens(tokens, indent=4),
        is_moved=is_moved,
        is_distributed=task.is_distributed,
        nodes=task.nodes,
        cpus=task.cpus,
        grace_s=task.grace_s,
        requeues=settings.requeues,
    )


def locate_image_file(task: Task, settings: SlurmSettings) -> str:
    """Where the image's file lies, as a word of a shell; "" for Pyxis without one, which asks the registry."""
    if settings.image_file:
        return quote_folder(settings.image_file, "--image-file")
    return (
        f'"{SCRATCH_FOLDER}/devkit/{escape_double_quoted(task.project)}.sif"'
        if settings.flavour is ContainerRuntime.APPTAINER
        else ""
    )


def _image(task: Task, settings: SlurmSettings) -> str:
    if settings.flavour is ContainerRuntime.NONE:
        return ""
    return locate_image_file(task, settings) or f'"{escape_double_quoted(format_enroot_reference(task.image))}"'


def _storage(task: Task, settings: SlurmSettings) -> list[tuple[str, str]]:
    """Shell variables with the folders: the job's own, or places under scratch that say whose they are."""
    own = PurePosixPath(task.output).name
    usual = {
        VolumeRole.MODELS: f'"{SCRATCH_FOLDER}/devkit/huggingface"',
        VolumeRole.DATA: '"${SLURM_SUBMIT_DIR:-$PWD}"',
        VolumeRole.CHECKPOINTS: f'"{SCRATCH_FOLDER}/devkit/{escape_double_quoted(task.project)}/{escape_double_quoted(own)}"',
    }
    found = []
    for role, default in usual.items():
        source = task.volume(role).source
        found.append((str(role), quote_folder(source, f"--{role}") if source else default))
    return [*found, ("compiled", f'"{SCRATCH_FOLDER}/devkit/compiled"')]


def _mounts(task: Task) -> Iterator[tuple[str, str]]:
    """Shell variable -> folder inside; what lies in another comes after it."""
    yield "models", HUB_CACHE
    yield "compiled", COMPILE_CACHE
    yield "data", task.workspace
    yield "checkpoints", escape_double_quoted(task.output)


def _nested(task: Task) -> str:
    """The output folder within the project, which must be there to be mounted over; "" where it lies elsewhere."""
    output = PurePosixPath(task.output)
    is_within = output.is_relative_to(task.workspace)
    return escape_double_quoted(output.relative_to(task.workspace).as_posix()) if is_within else ""


def _variables(task: Task, *, is_inside: bool) -> Iterator[str]:
    """NAME=VALUE words of the command's environment, in double quotes where the value comes from the shell."""
    if is_inside:
        yield f"HOME={COMPILE_CACHE}/home"
        yield from quote_environment(task.environment)
    else:
        yield '"HF_HUB_CACHE=$models/hub"'
        yield '"HF_XET_CACHE=$models/xet"'
        yield '"TRITON_CACHE_DIR=$compiled/triton"'
        yield '"TORCHINDUCTOR_CACHE_DIR=$compiled/inductor"'
        if task.needs_token:
            yield '"HF_TOKEN_PATH=$token"'
        yield from quote_environment(pair for pair in task.environment if pair != ("HF_TOKEN_PATH", TOKEN_PATH))
    for name, value in build_rendezvous_variables(task, address="$first", rank="$SLURM_NODEID"):
        yield f'"{name}={"$port" if name == "PET_MASTER_PORT" else value}"'
