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


@check("STO001")
def hub_cache_is_writable(facts: Facts) -> Iterator[Finding]:
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


@check("STO002")
def disk_space_suffices(facts: Facts) -> Iterator[Finding]:
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


@check("STO003")
def storage_is_not_on_windows_drive(facts: Facts) -> Iterator[Finding]:
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


@check("STO004")
def inodes_suffice(facts: Facts) -> Iterator[Finding]:
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


@check("STO005")
def hub_cache_outlives_container(facts: Facts) -> Iterator[Finding]:
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


@check("STO006", causes=("GPU029",))
def training_does_not_wait_for_data(facts: Facts) -> Iterator[Finding]:
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


@check("STO007")
def system_folders_can_be_read(facts: Facts) -> Iterator[Finding]:
    hidden = require(require_system(facts).hidden_folders)
    if hidden:
        verb = "is" if len(hidden) == 1 else "are"
        raise NotApplicable(f"{join_words(hidden)} {verb} empty or may not be read", is_lost=True)
    yield from ()
