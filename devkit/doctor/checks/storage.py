"""Checks of the folders for models, images and projects: writable, large and fast enough."""

from collections.abc import Iterator
from shlex import quote

from devkit.doctor.gpus import format_run_utilization
from devkit.doctor.model import Confidence, Finding, Fix, NotApplicable, Severity, Side, check
from devkit.doctor.preconditions import (
    has_nvidia_gpu,
    is_in_container,
    is_in_wsl,
    require,
    require_gpu_run,
    require_system,
)
from devkit.doctor.thresholds import (
    ENGINE_FREE_BYTES,
    FREE_FILES,
    FULL_BYTES,
    FULL_FILES,
    HUB_FREE_BYTES,
    WAITING_FOR_DATA_PERCENT,
    WINDOWS_DRIVE_BYTES,
)
from devkit.doctor.wheels import find_workload_side
from devkit.facts.model import Directory, Engine, EngineKind, Facts
from devkit.facts.values import Unknown
from devkit.text import format_bytes, join_words

_HUB_CACHE = "hub cache"

_ENGINE_DATA = "engine data"

_WORKSPACE = "workspace"

_WINDOWS_DRIVE = "Windows drive"

_OVERLAYS = ("overlay", "fuse.fuse-overlayfs", "aufs")

_WINDOWS_FILE_SYSTEMS = ("9p", "drvfs", "v9fs")


def _directories(facts: Facts) -> tuple[Directory, ...]:
    return require(facts.storage).directories


_NEEDED_BYTES = {_HUB_CACHE: HUB_FREE_BYTES, _ENGINE_DATA: ENGINE_FREE_BYTES, _WINDOWS_DRIVE: WINDOWS_DRIVE_BYTES}


@check("STO001", "The hub cache is writable")
def hub_cache_is_writable(facts: Facts) -> Iterator[Finding]:
    """The folder where huggingface_hub keeps models belongs to this user.

    Why it matters: Docker creates missing mount sources and new volumes as root; the first download then fails with
    "Permission denied".
    How it is seen: whether this user may write to the cache, or to the folder that it would be made in.
    Source: bmaltais/kohya_ss issue 1143; jamiepine/voicebox issue 542.
    """
    caches = [directory for directory in _directories(facts) if directory.purpose == _HUB_CACHE]
    if not caches:
        raise NotApplicable("no hub cache is set: HOME and HF_HOME are missing")
    for cache in caches:
        if not cache.is_writable:
            owner = f"owned by user {cache.owner_uid}" if cache.owner_uid >= 0 else "not there yet"
            yield Finding(
                Severity.ERROR,
                f"the hub cache {cache.path} is not writable, so no model can be downloaded",
                Fix(
                    "Give the folder to your user; in an image, create and chown it before it becomes a volume. Or set"
                    " HF_HOME to a folder of your own.",
                    (f"sudo mkdir -p {quote(cache.path)}", f'sudo chown -R "$(id -u):$(id -g)" {quote(cache.path)}'),
                    where=find_workload_side(facts),
                    root=True,
                ),
                subject=cache.path,
                evidence=(f"{cache.path}: {owner}; this user is {require(facts.storage).uid}",),
            )


def _list_judged(facts: Facts) -> tuple[Directory, ...]:
    """The directories that will be written to here; the engine's only where it is on this file system."""
    engine = facts.engine
    here = isinstance(engine, Engine) and engine.kind is not EngineKind.DOCKER_DESKTOP and not is_in_container(facts)
    return tuple(
        directory
        for directory in _directories(facts)
        if directory.purpose != _ENGINE_DATA or (here and directory.exists)
    )


def _free_space(facts: Facts, directory: Directory) -> Fix:
    if directory.purpose == _ENGINE_DATA:
        return Fix(
            "Remove images and build cache that nothing uses, or move data-root to a larger disk.",
            ("docker system df", "docker builder prune --force", "docker image prune --force"),
            where=find_workload_side(facts),
        )
    if directory.purpose == _WINDOWS_DRIVE:
        return Fix(
            "Free space on the drive of Windows: the guest's own disk is a file there that grows, whatever df says in"
            " here. Or move the distribution to another drive.",
            ("wsl.exe --shutdown", "wsl.exe --manage <distribution> --move <folder>"),
            where=Side.WINDOWS,
            docs="https://learn.microsoft.com/en-us/windows/wsl/disk-space",
        )
    if directory.purpose == _HUB_CACHE:
        return Fix(
            "Delete models that you no longer need, or set HF_HOME to a folder on a larger disk.",
            ("hf cache ls || hf cache scan",),
            where=find_workload_side(facts),
        )
    return Fix(
        "Free some space.",
        (f"du -xh --max-depth=1 {quote(directory.path)} | sort -h | tail",),
        where=find_workload_side(facts),
    )


@check("STO002", "Disk space suffices for images and models")
def disk_space_suffices(facts: Facts) -> Iterator[Finding]:
    """The file systems of the engine, the hub cache and the project have space left.

    Why it matters: an image with torch and CUDA takes well over ten gibibytes while it is built, and a model of eight
    billion parameters sixteen. Running full in the middle leaves half-written files.
    How it is seen: free bytes for this user. Without a GPU only a file system that is all but full is reported.
    Source: sizes of torch wheels and of models in safetensors; thresholds are devkit's own.
    """
    needs_space = has_nvidia_gpu(facts) is True
    for directory in _list_judged(facts):
        if isinstance(directory.free_bytes, Unknown):
            continue
        wanted = _NEEDED_BYTES.get(directory.purpose, FULL_BYTES) if needs_space else FULL_BYTES
        if directory.free_bytes < wanted.value:
            yield Finding(
                Severity.ERROR if directory.free_bytes < FULL_BYTES.value else Severity.WARNING,
                f"only {format_bytes(directory.free_bytes)} free for the {directory.purpose} ({directory.path})",
                _free_space(facts, directory),
                subject=directory.path,
                evidence=(
                    f"{directory.path} on {directory.file_system or 'its file system'}:"
                    f" {format_bytes(directory.free_bytes)} free; {format_bytes(wanted.value)} wanted",
                ),
            )


@check("STO003", "Project and hub cache are not on a Windows drive")
def storage_is_not_on_windows_drive(facts: Facts) -> Iterator[Finding]:
    """In WSL the project and the hub cache are on the guest's own disk, not on a drive of Windows.

    Why it matters: files under /mnt/c cross a protocol that is many times slower, which shows when weights load, when
    packages install, and in file watchers.
    How it is seen: the type of the file system: 9p or drvfs.
    Source: Microsoft Learn, "Working across Windows and Linux file systems".
    """
    if not is_in_wsl(facts):
        raise NotApplicable("this is not WSL")
    for directory in _directories(facts):
        if directory.file_system in _WINDOWS_FILE_SYSTEMS and directory.purpose in (_HUB_CACHE, "workspace"):
            yield Finding(
                Severity.WARNING,
                f"the {directory.purpose} {directory.path} is on a Windows drive, which is slow from WSL",
                Fix(
                    "Move it to the guest's own disk, such as your home folder in WSL.",
                    ("cp -a . ~/project",)
                    if directory.purpose == "workspace"
                    else ('export HF_HOME="$HOME/.cache/huggingface"',),
                    where=Side.WSL,
                ),
                subject=directory.path,
                evidence=(f"{directory.path}: file system {directory.file_system}",),
            )


@check("STO004", "Inodes suffice for images and models")
def inodes_suffice(facts: Facts) -> Iterator[Finding]:
    """The file systems of the engine, the hub cache and the project have inodes left.

    Why it matters: images of Python stacks hold a hundred thousand files and more. A file system whose inodes are used
    up says "no space left on device" while df still shows gibibytes.
    How it is seen: free inodes, where a file system counts them; Btrfs, XFS in part, and 9p make them as they go.
    Source: ext4, mke2fs, "bytes-per-inode"; Docker, "Prune unused Docker objects".
    """
    wanted = FREE_FILES if has_nvidia_gpu(facts) is True else FULL_FILES
    for directory in _list_judged(facts):
        free = directory.free_files
        limit = wanted if directory.purpose == _ENGINE_DATA else FULL_FILES
        if isinstance(free, Unknown) or free >= limit.value:
            continue
        yield Finding(
            Severity.ERROR if free < FULL_FILES.value else Severity.WARNING,
            f"only {free} more files fit on the file system of the {directory.purpose} ({directory.path})",
            _free_space(facts, directory),
            subject=directory.path,
            evidence=(f"{directory.path}: {free} inodes free; {limit.value} wanted", "`df -i` shows them"),
        )


@check("STO005", "The hub cache outlives the container")
def hub_cache_outlives_container(facts: Facts) -> Iterator[Finding]:
    """In a dev container the hub cache is on a volume, not in the container's own layer.

    Why it matters: the layer goes with the container. Each rebuild downloads the models again, and until then they fill
    the engine's disk through a copying file system.
    How it is seen: the type of the file system under the cache, beside a workspace that is mounted. Where nothing is
    mounted, as in a batch job, this only explains.
    Source: Docker, "Volumes"; Hugging Face, "Environment variables", HF_HOME.
    """
    if not is_in_container(facts):
        raise NotApplicable("this is not the inside of a container")
    directories = _directories(facts)
    works_in_mount = any(one.purpose == _WORKSPACE and one.file_system not in ("", *_OVERLAYS) for one in directories)
    for cache in directories:
        if cache.purpose == _HUB_CACHE and cache.is_writable and cache.file_system in _OVERLAYS:
            yield Finding(
                Severity.WARNING if works_in_mount else Severity.NOTE,
                f"the hub cache {cache.path} is in the container's own layer: a rebuild downloads every model again",
                Fix(
                    "Mount a named volume, and point HF_HOME to it. `devkit init` writes it so.",
                    ('"mounts": ["source=hub-cache,target=/cache,type=volume"]', "HF_HOME=/cache/huggingface"),
                    where=Side.PROJECT,
                ),
                subject=cache.path,
                evidence=(f"{cache.path}: file system {cache.file_system}",),
                confidence=Confidence.LIKELY,
            )


@check("STO006", "Training does not wait for its data", causes=("GPU029",))
def training_does_not_wait_for_data(facts: Facts) -> Iterator[Finding]:
    """The next batch is ready when a step ends.

    Why it matters: the GPU is idle while a step waits.
    How it is seen: with --run DIR, the time in which each step waited for its batch, as part of the step; the median
    over the run without its first steps.
    Source: PyTorch, Performance Tuning Guide, "Enable asynchronous data loading and augmentation".
    """
    run = require_gpu_run(facts)
    waited = require(run.waiting_percent)
    if waited >= WAITING_FOR_DATA_PERCENT.value:
        step = f" of {run.step_ms} ms" if isinstance(run.step_ms, int) else ""
        yield Finding(
            Severity.WARNING,
            f"training waits for its data in {waited} % of each step",
            Fix(
                "Keep the data on a fast local disk, tokenize it once before the run, and give the container more"
                " processor cores.",
                where=Side.PROJECT,
            ),
            evidence=(f"median over {run.steps} steps{step}: {waited} % waiting", *format_run_utilization(run)),
            confidence=Confidence.LIKELY,
        )


@check("STO007", "The system's folders can be read")
def system_folders_can_be_read(facts: Facts) -> Iterator[Finding]:
    """/proc, /sys, /dev, /etc and /var hold something, so that what is not found there does not exist.

    Why it matters: a faulty driver or engine leaves no trace in a folder that is hidden, and would pass for none.
    How it is seen: a listing of each folder. An empty one makes the verdict incomplete.
    Source: Filesystem Hierarchy Standard 3.0.
    """
    hidden = require(require_system(facts).hidden_folders)
    if hidden:
        verb = "is" if len(hidden) == 1 else "are"
        raise NotApplicable(f"{join_words(hidden)} {verb} empty or may not be read", is_lost=True)
    yield from ()
