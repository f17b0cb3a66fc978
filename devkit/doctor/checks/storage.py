"""Checks of the folders for models, images and projects: writable, large and fast enough."""

from collections.abc import Iterator

from devkit.doctor.danger import is_free_to_take
from devkit.doctor.model import NotApplicable, Severity, check
from devkit.doctor.preconditions import (
    has_nvidia_gpu,
    is_in_container,
    is_in_wsl,
    require,
    require_nvidia_gpu,
    skip_if,
)
from devkit.doctor.problems import Problem, problem
from devkit.doctor.thresholds import (
    ENGINE_FREE_BYTES,
    FREE_FILES,
    FULL_BYTES,
    FULL_FILES,
    HUB_FREE_BYTES,
    WINDOWS_DRIVE_BYTES,
)
from devkit.facts.engine import Engine, EngineKind
from devkit.facts.machine import Container, Directory
from devkit.facts.model import Facts
from devkit.facts.values import Unknown
from devkit.text import format_bytes, join_words

_HUB_CACHE = "hub cache"
_ENGINE_DATA = "engine data"
_WORKSPACE = "workspace"
_WINDOWS_DRIVE = "Windows drive"
_TEMPORARY = "temporary"
_NO_FILE_SYSTEMS_FOR_LAYERS = (
    *("nfs", "nfs4", "cifs", "smb3", "vfat", "exfat", "ntfs", "ntfs3", "fuseblk", "fuse.sshfs", "lustre", "gpfs", "9p"),
)
"""Without user ids, extended attributes or overlay mounts. Source: Docker, "Select a storage driver"; podman(1), NFS."""
_OVERLAYS = ("overlay", "fuse.fuse-overlayfs", "aufs")
_WINDOWS_FILE_SYSTEMS = ("9p", "drvfs", "v9fs")


_NEEDED_BYTES = {_HUB_CACHE: HUB_FREE_BYTES, _ENGINE_DATA: ENGINE_FREE_BYTES, _WINDOWS_DRIVE: WINDOWS_DRIVE_BYTES}


@check("STO001")
def hub_cache_is_writable(facts: Facts) -> Iterator[Problem]:
    caches = [directory for directory in require(facts.storage).directories if directory.purpose == _HUB_CACHE]
    skip_if(not caches, "no hub cache is set: HOME and HF_HOME are missing")
    user = require(facts.storage).uid
    for cache in caches:
        if cache.is_writable:
            continue
        if cache.exists and not isinstance(facts.hub, Unknown) and facts.hub.is_offline:
            raise NotApplicable("the hub is in offline mode: models come only from the cache")
        owner = f"owned by user {cache.owner_uid}" if cache.owner_uid >= 0 else "not there yet"
        name = "not-writable" if is_free_to_take(cache, facts) else "of-others"
        name = "read-only" if cache.is_read_only is True else name
        evidence = (f"{cache.path}: {owner}; this user is {user}",)
        yield problem(name, path=cache.path, owner=owner, evidence=evidence)


def _list_judged(facts: Facts) -> tuple[Directory, ...]:
    """The directories that will be written to here; the engine's only where it is on this file system."""
    engine = facts.engine
    here = isinstance(engine, Engine) and engine.kind is not EngineKind.DOCKER_DESKTOP and not is_in_container(facts)
    return tuple(
        directory
        for directory in require(facts.storage).directories
        if directory.purpose != _ENGINE_DATA or (here and directory.exists)
    )


@check("STO002", causes=("ENG017",))
def disk_space_suffices(facts: Facts) -> Iterator[Problem]:
    needs_space = has_nvidia_gpu(facts) is True
    for directory in _list_judged(facts):
        free_bytes, path = directory.free_bytes, directory.path
        wanted = _NEEDED_BYTES.get(directory.purpose, FULL_BYTES) if needs_space else FULL_BYTES
        if isinstance(free_bytes, Unknown) or free_bytes >= wanted:
            continue
        free, place = format_bytes(free_bytes), directory.file_system or "its file system"
        yield problem(
            "little-space",
            free=free,
            purpose=directory.purpose,
            path=path,
            evidence=(f"{path} on {place}: {free} free; {format_bytes(wanted)} wanted",),
            severity=Severity.ERROR if free_bytes < FULL_BYTES else Severity.WARNING,
        )


@check("STO003")
def storage_is_not_on_windows_drive(facts: Facts) -> Iterator[Problem]:
    skip_if(not is_in_wsl(facts), "this is not WSL")
    for directory in require(facts.storage).directories:
        if directory.file_system not in _WINDOWS_FILE_SYSTEMS:
            continue
        path, evidence = directory.path, (f"{directory.path}: file system {directory.file_system}",)
        if directory.purpose == _HUB_CACHE:
            yield problem("hub-cache", path=path, evidence=evidence)
        elif directory.purpose == _WORKSPACE:
            yield problem("workspace", path=path, evidence=evidence)


@check("STO004")
def inodes_suffice(facts: Facts) -> Iterator[Problem]:
    wanted = FREE_FILES if has_nvidia_gpu(facts) is True else FULL_FILES
    for directory in _list_judged(facts):
        free, path = directory.free_files, directory.path
        limit = wanted if directory.purpose == _ENGINE_DATA else FULL_FILES
        if isinstance(free, Unknown) or free >= limit:
            continue
        yield problem(
            "few-inodes",
            free=free,
            purpose=directory.purpose,
            path=path,
            evidence=(f"{path}: {free} inodes free; {limit} wanted", "`df -i` shows them"),
            severity=Severity.ERROR if free < FULL_FILES else Severity.WARNING,
        )


@check("STO005")
def hub_cache_outlives_container(facts: Facts) -> Iterator[Problem]:
    skip_if(not is_in_container(facts), "this is not a container")
    if isinstance(facts.container, Container) and facts.container.kind in ("lxc", "flatpak"):
        raise NotApplicable("this container keeps its files")
    directories = require(facts.storage).directories
    works_in_mount = any(one.purpose == _WORKSPACE and one.file_system not in ("", *_OVERLAYS) for one in directories)
    for cache in directories:
        if cache.purpose == _HUB_CACHE and cache.is_writable and cache.file_system in _OVERLAYS:
            yield problem(
                "in-layer",
                path=cache.path,
                evidence=(f"{cache.path}: file system {cache.file_system}",),
                severity=Severity.WARNING if works_in_mount else Severity.NOTE,
            )


@check("STO007")
def system_folders_can_be_read(facts: Facts) -> Iterator[Problem]:
    hidden = require(require(facts.system).hidden_folders)
    if hidden:
        verb = "is" if len(hidden) == 1 else "are"
        raise NotApplicable(f"{join_words(hidden)} {verb} empty or not readable", is_lost=True)
    yield from ()


@check("STO008", require_nvidia_gpu)
def folders_hold_what_runs_there(facts: Facts) -> Iterator[Problem]:
    for directory in _list_judged(facts):
        path, purpose = directory.path, directory.purpose
        options = "" if directory.allows_programs is not False else ", mounted noexec"
        evidence = (f"{path} on {directory.file_system or 'an unknown file system'}{options}",)
        if purpose == _TEMPORARY and not directory.exists:
            yield problem("no-temporary-folder", path=path, evidence=(f"{path}: not there",))
        elif purpose == _TEMPORARY and not directory.is_writable:
            yield problem("temporary-folder-closed", path=path, evidence=evidence)
        elif purpose == _ENGINE_DATA and directory.file_system in _NO_FILE_SYSTEMS_FOR_LAYERS:
            yield problem("no-layers", path=path, system=directory.file_system, evidence=evidence)
        elif purpose in (_ENGINE_DATA, _WORKSPACE) and directory.allows_programs is False:
            yield problem("no-programs", path=path, purpose=purpose, evidence=evidence)
