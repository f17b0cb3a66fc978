"""Checks of a container's privileges: user, mounts, shared memory and the engine's socket."""

import re
from collections.abc import Iterator

from devkit.doctor.checks.project.containers import (
    ProjectContainer,
    find_gpu_evidence,
    find_torch_evidence,
    require_project_containers,
)
from devkit.doctor.checks.project.images import CudaTag
from devkit.doctor.model import Location, NotApplicable, Repair, RepairKind, Severity, check, cite
from devkit.doctor.preconditions import (
    is_in_container,
    is_local_engine,
    require,
    require_container_engine,
    require_host,
)
from devkit.doctor.problems import Problem, problem
from devkit.doctor.thresholds import SHARED_MEMORY_BYTES
from devkit.facts.engine import Engine, EngineKind
from devkit.facts.model import Facts
from devkit.facts.project import Mount, Setting
from devkit.facts.runs import Trials
from devkit.text import format_bytes

_ENGINE_SOCKETS = ("/var/run/docker.sock", "/run/docker.sock", "/run/podman/podman.sock", "//var/run/docker.sock")
SHM_SIZE = "8gb"
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"\s*(\d*\.?\d+)\s*([kmgt]?)i?b?\s*", re.IGNORECASE)
_UBUNTU_WITH_USER = re.compile(
    r"(?:^|/)ubuntu:(?:23\.04|23\.10|24|25|26)|(?:^|/)ubuntu:(?:noble|oracular|plucky|questing)"
)
_ROOT_IMAGES = re.compile(
    r"^(?:docker\.io/)?(?:library/)?(?:python|debian|ubuntu):|(?:^|/)(?:nvidia/cuda|pytorch/pytorch):"
)
_ROOT = ("root", "0")
_PRIVILEGES = {
    ("privileged", "true"): "privileged",
    ("pid", "host"): "host-processes",
    ("security_opt", "seccomp=unconfined"): "every-system-call",
    ("security_opt", "seccomp:unconfined"): "every-system-call",
}
"""Settings that give a container more than a GPU needs, with the row of each."""


@check("PRJ014")
def ipc_namespace_is_private(facts: Facts) -> Iterator[Problem]:
    for container in require_project_containers(facts):
        for setting in container.settings("ipc"):
            if setting.value == "host":
                yield problem("host-ipc", found_at=setting)


@check("PRJ015")
def container_is_not_privileged(facts: Facts) -> Iterator[Problem]:
    for container in require_project_containers(facts):
        for setting in container.settings("privileged", "pid", "security_opt"):
            name = _PRIVILEGES.get((setting.name, setting.value.lower()))
            if name is not None:
                yield problem(name, found_at=setting)


@check("PRJ016")
def engine_socket_is_not_mounted(facts: Facts) -> Iterator[Problem]:
    for container in require_project_containers(facts):
        for mount in container.mounts:
            if mount.source.endswith(("docker.sock", "podman.sock")) or mount.target in _ENGINE_SOCKETS:
                yield problem("mount", found_at=_cite_mount("mount", mount))
        for feature in container.dev.features if container.dev else ():
            if "docker-outside-of-docker" in feature.name:
                yield problem("feature", found_at=feature)


@check("PRJ019")
def mounts_belong_to_user(facts: Facts) -> Iterator[Problem]:
    for container in require_project_containers(facts):
        for mount in container.mounts:
            is_kept = mount.kind == "volume" and mount.source and not mount.is_read_only
            if is_kept and _becomes_roots(container, mount.target):
                user = container.user.value if container.user else "root"
                place = _cite_mount("volume", mount)
                yield problem("volume", found_at=place, source=mount.source, target=mount.target, user=user)
            elif (
                mount.kind == "bind"
                and ("cache" in mount.target.lower() or "huggingface" in mount.target.lower())
                and not is_in_container(facts)
            ):
                is_roots = mount.owner_uid == 0 and not require(require(facts.system).is_root)
                # Root, who is the user where nobody says otherwise, may write to it, too.
                is_minor = mount.exists is False and (container.user is None or container.user.value in _ROOT)
                if mount.exists is False or is_roots:
                    below = re.sub(r"^(\$\{localEnv:HOME\}|\$\{HOME\}|\$HOME|~)/", "", mount.source)
                    yield problem(
                        "missing-source" if mount.exists is False else "source-of-root",
                        severity=Severity.NOTE if is_minor else None,
                        found_at=_cite_mount("bind", mount),
                        source=mount.source,
                        folder=below,
                        in_home="no" if below == mount.source else "yes",
                    )


def _cite_mount(name: str, mount: Mount) -> Setting:
    return Setting(name, f"{mount.source}:{mount.target}", mount.path, mount.line)


def _becomes_roots(container: ProjectContainer, target: str) -> bool:
    """Say if a new volume there becomes root's, for a user that the files name; only a Dockerfile can tell."""
    user = container.user
    if user is None or user.value in ("root", "0", "") or "$" in user.value or "$" in target or not container.stages:
        return False
    given = {folder for stage in container.stages for folder in stage.folders}
    above = target.rstrip("/")
    home = f"/home/{user.value}"
    return not any(above == folder or above.startswith(f"{folder}/") for folder in given) and above != home


@check("PRJ020")
def shared_memory_is_sized(facts: Facts) -> Iterator[Problem]:
    for container in require_project_containers(facts):
        wants = find_torch_evidence(container)
        if not container.is_started_by_files or wants is None or container.setting("ipc") is not None:
            continue
        size = container.setting("shm_size")
        # As engines read it; nothing for one that a variable decides.
        found = None if size is None else _SIZE.fullmatch(size.value)
        stated = int(float(found[1]) * _UNITS[found[2].lower()]) if found else None
        if size is not None and (stated is None or stated >= SHARED_MEMORY_BYTES):
            continue
        place = Location(size.path, size.line) if size is not None else container.location
        repairs: tuple[Repair, ...] = ()
        if container.dev is not None and not container.is_compose and size is None:
            repairs = (Repair(RepairKind.SET, container.dev.path, ("runArgs", "-"), f'"--shm-size={SHM_SIZE}"'),)
        shows = wants.value if isinstance(wants, Setting) else wants.name
        yield problem(
            "too-small",
            found_at=place,
            evidence=(f"shm_size: {size.value if size else 'not set'}", cite(wants, shows)),
            repairs=repairs,
            container=container.name,
            has="the engine's 64 MiB" if stated is None else format_bytes(stated),
            size=SHM_SIZE,
        )


@check("PRJ028")
def user_can_take_host_ids(facts: Facts) -> Iterator[Problem]:
    for container in require_project_containers(facts):
        image = container.image
        tag = CudaTag.of(image.value) if image else None
        is_new = bool(image and _UBUNTU_WITH_USER.search(image.value)) or bool(tag and tag.system >= "ubuntu23.04")
        users = [(stage, user) for stage in container.stages for user in stage.users]
        if image is None or not is_new or any(stage.removes_users for stage in container.stages):
            continue
        taken = [user for _, user in users if user.name not in ("ubuntu", "root") and user.uid in ("", "1000")]
        path = container.dockerfile.path if container.dockerfile else image.path
        for user in taken[:1]:
            place = Location(path, user.line)
            name = "taken-id" if user.uid == "1000" else "other-id"
            evidence = (cite(place, f"useradd {user.name} {user.uid}".rstrip()), image.value)
            yield problem(name, found_at=place, evidence=evidence, image=image.value, user=user.name)


@check("PRJ037", require_host, causes=("CON013",))
def user_may_write_workspace(facts: Facts) -> Iterator[Problem]:
    engine = require_container_engine(facts)
    if engine.kind is not EngineKind.DOCKER or engine.is_rootless or not is_local_engine(engine):
        raise NotApplicable("the engine maps users, or does not share this file system")
    storage = require(facts.storage)
    folder = next((one for one in storage.directories if one.purpose == "workspace"), None)
    if folder is None or folder.owner_uid < 0 or storage.uid < 0:
        raise NotApplicable("the workspace's owner is not known")
    if folder.is_world_writable is True:
        return
    trials = facts.trials.tried if isinstance(facts.trials, Trials) else ()
    absent = {each.arguments[-1] for each in trials if each.code and each.arguments[:2] == ("run", "--user")}
    for container in require_project_containers(facts):
        user = container.user
        if container.dev is None or user is None:
            continue
        by_compose = any(one.kind == "bind" and one.source.rstrip("/") in (".", "..") for one in container.mounts)
        by_tool = all(key.name != "workspaceMount" for key in container.dev.keys)
        if not (by_compose if container.is_compose else by_tool):
            continue
        if container.build is not None and any("uid" in argument.name.lower() for argument in container.build.args):
            continue  # who starts the build gives the number
        name = user.value.partition(":")[0]
        if name in absent:
            continue
        made = next((one.uid for stage in container.stages for one in stage.users if one.name == name), "")
        number = name if name.isdigit() else made
        switch = container.setting("updateRemoteUserUID")
        is_changed = not name.isdigit() and storage.uid != 0 and (switch is None or switch.value.lower() != "false")
        uid = str(storage.uid) if is_changed else number
        # An unknown number is any but root's.
        if name in _ROOT or "$" in f"{name}{number}" or uid == str(folder.owner_uid) or (not uid and folder.owner_uid):
            continue
        yield problem(
            "not-writable",
            found_at=user,
            name=f"{name} of the container ({uid})" if uid else f"{name} of the container",
            owner=folder.owner_uid or "root",
            owner_is="root" if folder.owner_uid == 0 else "other",
            number=uid,
        )


@check("PRJ029")
def container_is_not_root(facts: Facts) -> Iterator[Problem]:
    for container in require_project_containers(facts):
        image, user = container.image, container.user
        if image is None or not find_gpu_evidence(container) or not _ROOT_IMAGES.search(image.value):
            continue
        if user is None or user.value in ("root", "0"):
            place = Location(user.path, user.line) if user else Location(image.path, image.line)
            named = user.value if user else "not set"
            evidence = (cite(image, image.value), f"user: {named}")
            yield problem("root", found_at=place, evidence=evidence, container=container.name)


@check("PRJ030")
def podman_keeps_user_ids(facts: Facts) -> Iterator[Problem]:
    if is_in_container(facts) or not isinstance(facts.engine, Engine):
        raise NotApplicable("no engine is installed here")
    if facts.engine.kind is not EngineKind.PODMAN or not facts.engine.is_rootless:
        raise NotApplicable("the engine is not rootless Podman")
    for container in require_project_containers(facts):
        if container.dev is None or container.is_compose or container.setting("userns") is not None:
            continue
        path, evidence = container.dev.path, (f"{container.dev.path}: no userns", "the engine is rootless Podman")
        yield problem("no-keep-id", found_at=container.location, subject=path, evidence=evidence, path=path)
