"""Checks of a container's privileges: user, mounts, shared memory, engine socket, and the project's policy."""

import re
from collections.abc import Iterator
from shlex import quote

from devkit.doctor.checks.project.containers import (
    ProjectContainer,
    build_file_finding,
    build_setting_finding,
    find_gpu_evidence,
    find_torch_evidence,
    format_location,
    require_project,
    require_project_containers,
)
from devkit.doctor.checks.project.images import CudaTag
from devkit.doctor.fixes import find_host_side
from devkit.doctor.model import (
    Confidence,
    Finding,
    Fix,
    Location,
    NotApplicable,
    Repair,
    RepairKind,
    Severity,
    Side,
    check,
)
from devkit.doctor.preconditions import (
    is_in_container,
    is_local_engine,
    require,
    require_container_engine,
    require_host,
    require_system,
)
from devkit.doctor.thresholds import SHARED_MEMORY_BYTES
from devkit.facts.model import Engine, EngineKind, Facts, Setting
from devkit.facts.project import Policy
from devkit.facts.values import Unknown
from devkit.text import format_bytes, join_words

_ENGINE_SOCKETS = ("/var/run/docker.sock", "/run/docker.sock", "/run/podman/podman.sock", "//var/run/docker.sock")

SHM_SIZE = "8gb"

_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}

_UBUNTU_WITH_USER = re.compile(
    r"(?:^|/)ubuntu:(?:23\.04|23\.10|24|25|26)|(?:^|/)ubuntu:(?:noble|oracular|plucky|questing)"
)

_ROOT_IMAGES = re.compile(
    r"^(?:docker\.io/)?(?:library/)?(?:python|debian|ubuntu):|(?:^|/)(?:nvidia/cuda|pytorch/pytorch):"
)

_ROOT = ("root", "0")


@check("PRJ014")
def ipc_namespace_is_private(facts: Facts) -> Iterator[Finding]:
    for container in require_project_containers(facts):
        for setting in container.settings("ipc"):
            if setting.value == "host":
                yield build_setting_finding(
                    setting,
                    Severity.WARNING,
                    "the container shares the host's IPC namespace, which GPU work on one machine does not need",
                    Fix(
                        "Give it shared memory of its own: shm_size, or --shm-size.",
                        where=Side.PROJECT,
                    ),
                )


@check("PRJ015")
def container_is_not_privileged(facts: Facts) -> Iterator[Finding]:
    for container in require_project_containers(facts):
        for setting in container.settings("privileged", "pid", "security_opt"):
            problem = {
                (
                    "privileged",
                    "true",
                ): "the container is privileged: it owns the whole host, which a GPU does not need",
                ("pid", "host"): "the container sees and can end every process of the host",
                ("security_opt", "seccomp=unconfined"): "the container may make every system call",
                ("security_opt", "seccomp:unconfined"): "the container may make every system call",
            }.get((setting.name, setting.value.lower()))
            if problem is not None:
                is_debugging = setting.name == "security_opt"
                yield build_setting_finding(
                    setting,
                    Severity.NOTE if is_debugging else Severity.WARNING,
                    problem + (", which only debuggers of old engines need" if is_debugging else ""),
                    Fix(
                        "Leave it out; a GPU needs --gpus or a reservation alone.",
                        where=Side.PROJECT,
                    ),
                )


@check("PRJ016")
def engine_socket_is_not_mounted(facts: Facts) -> Iterator[Finding]:
    for container in require_project_containers(facts):
        for mount in container.mounts:
            if mount.source.endswith(("docker.sock", "podman.sock")) or mount.target in _ENGINE_SOCKETS:
                yield build_setting_finding(
                    Setting("mount", f"{mount.source}:{mount.target}", mount.path, mount.line),
                    Severity.WARNING,
                    "the engine's socket is in the container: whatever runs there is root on the host",
                    Fix("Leave the mount out, and start other containers from the host.", where=Side.PROJECT),
                )
        for feature in container.dev.features if container.dev else ():
            if "docker-outside-of-docker" in feature.name:
                yield build_setting_finding(
                    feature,
                    Severity.NOTE,
                    "a Feature mounts the engine's socket: whatever runs in the container is root on the host",
                    Fix("Leave the Feature out, unless the work in there is with containers.", where=Side.PROJECT),
                )


@check("PRJ019")
def mounts_belong_to_user(facts: Facts) -> Iterator[Finding]:
    for container in require_project_containers(facts):
        for mount in container.mounts:
            if mount.kind == "volume" and mount.source and _becomes_roots(container, mount.target):
                user = container.user.value if container.user else "root"
                yield build_setting_finding(
                    Setting("volume", f"{mount.source}:{mount.target}", mount.path, mount.line),
                    Severity.WARNING,
                    f"volume {mount.source} at {mount.target} will belong to root, and {user} cannot write there",
                    Fix(
                        "Make the folder in the Dockerfile, and give it to the user, before the volume covers it.",
                        (f"RUN install --directory --owner={quote(user)} {quote(mount.target)}",),
                        where=Side.IMAGE,
                        docs="https://docs.docker.com/engine/storage/volumes/",
                    ),
                    Confidence.LIKELY,
                )
            elif (
                mount.kind == "bind"
                and ("cache" in mount.target.lower() or "huggingface" in mount.target.lower())
                and not is_in_container(facts)
            ):
                is_roots = mount.owner_uid == 0 and not require(require_system(facts).is_root)
                if mount.exists is False or is_roots:
                    below = re.sub(r"^(\$\{localEnv:HOME\}|\$\{HOME\}|\$HOME|~)/", "", mount.source)
                    source = quote(below) if below == mount.source else f'"$HOME"/{quote(below)}'
                    is_missing = mount.exists is False
                    yield build_setting_finding(
                        Setting("bind", f"{mount.source}:{mount.target}", mount.path, mount.line),
                        Severity.WARNING,
                        f"{mount.source} "
                        + ("does not exist: the engine makes it as root, or refuses" if is_missing else "is root's"),
                        Fix(
                            "Make the folder before the container starts, as yourself."
                            if is_missing
                            else "Take the folder back.",
                            (f"mkdir -p {source}" if is_missing else f'sudo chown -R "$(id -u):$(id -g)" {source}',),
                            root=not is_missing,
                        ),
                        Confidence.LIKELY,
                    )


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
def shared_memory_is_sized(facts: Facts) -> Iterator[Finding]:
    for container in require_project_containers(facts):
        wants = find_torch_evidence(container)
        if not container.is_started_by_files or wants is None or container.setting("ipc") is not None:
            continue
        size = container.setting("shm_size")
        stated = None if size is None else _parse_size(size.value)
        if size is not None and (stated is None or stated >= SHARED_MEMORY_BYTES.value):
            continue
        place = Location(size.path, size.line) if size is not None else container.location
        has = "the engine's 64 MiB" if stated is None else format_bytes(stated)
        yield build_file_finding(
            place,
            Severity.WARNING,
            f"{container.name} leaves shared memory at {has}, too little for PyTorch's loader workers",
            Fix(
                f"Set shm_size: {SHM_SIZE}, or --shm-size={SHM_SIZE} in runArgs: a limit, not a reservation.",
                where=Side.PROJECT,
                repairs=_size_repairs(container),
            ),
            evidence=(
                f"shm_size: {size.value if size else 'not set'}",
                f"{format_location(wants.path, wants.line)}: {wants.value if isinstance(wants, Setting) else wants.name}",
            ),
            confidence=Confidence.LIKELY,
        )


def _parse_size(text: str) -> int | None:
    """A size as engines read it; None for one that a variable decides."""
    text = text.strip().lower().removesuffix("b").removesuffix("i")
    digits, unit = (text[:-1], text[-1]) if text[-1:] in _UNITS and text[-1:] else (text, "")
    try:
        return int(float(digits) * _UNITS[unit])
    except ValueError:
        return None


def _size_repairs(container: ProjectContainer) -> tuple[Repair, ...]:
    if container.dev is None or container.is_compose or container.setting("shm_size"):
        return ()
    return (Repair(RepairKind.SET, container.dev.path, ("runArgs", "-"), f'"--shm-size={SHM_SIZE}"'),)


@check("PRJ028")
def user_can_take_host_ids(facts: Facts) -> Iterator[Finding]:
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
            clashes = user.uid == "1000"
            yield build_file_finding(
                Location(path, user.line),
                Severity.ERROR if clashes else Severity.WARNING,
                f"{image.value} already has a user with id 1000, so {user.name} "
                + ("cannot be made: the build stops" if clashes else "gets another, and cannot take over the host's"),
                Fix(
                    "Remove the user ubuntu first.",
                    ("RUN userdel --remove ubuntu",),
                    where=Side.IMAGE,
                    docs="https://github.com/microsoft/vscode-remote-release/issues/10030",
                ),
                evidence=(f"{format_location(path, user.line)}: useradd {user.name} {user.uid}".rstrip(), image.value),
            )


@check("PRJ037", causes=("CON013",))
def user_may_write_workspace(facts: Facts) -> Iterator[Finding]:
    require_host(facts)
    engine = require_container_engine(facts)
    if engine.kind is not EngineKind.DOCKER or engine.is_rootless or not is_local_engine(engine):
        raise NotApplicable("the engine maps users, or does not share this file system")
    storage = require(facts.storage)
    folder = next((one for one in storage.directories if one.purpose == "workspace"), None)
    if folder is None or folder.owner_uid < 0 or storage.uid < 0:
        raise NotApplicable("the workspace's owner is not known")
    if folder.is_world_writable is True:
        return
    for container in require_project_containers(facts):
        user = container.user
        if container.dev is None or user is None or not _mounts_workspace(container):
            continue
        if container.build is not None and any("uid" in argument.name.lower() for argument in container.build.args):
            continue  # who starts the build gives the number
        name = user.value.partition(":")[0]
        made = next((one.uid for stage in container.stages for one in stage.users if one.name == name), "")
        number = name if name.isdigit() else made
        switch = container.setting("updateRemoteUserUID")
        is_changed = not name.isdigit() and storage.uid != 0 and (switch is None or switch.value.lower() != "false")
        uid = str(storage.uid) if is_changed else number
        # An unknown number is any but root's.
        if name in _ROOT or "$" in f"{name}{number}" or uid == str(folder.owner_uid) or (not uid and folder.owner_uid):
            continue
        yield build_setting_finding(
            user,
            Severity.WARNING,
            f"user {name} of the container{f' ({uid})' if uid else ''} cannot write to the workspace, which belongs to"
            f" {'root' if folder.owner_uid == 0 else folder.owner_uid}",
            _give_workspace(facts, uid=uid, owner_uid=folder.owner_uid),
            Confidence.LIKELY,
        )


def _mounts_workspace(container: ProjectContainer) -> bool:
    if container.is_compose:
        return any(mount.kind == "bind" and mount.source.rstrip("/") in (".", "..") for mount in container.mounts)
    return container.dev is not None and all(key.name != "workspaceMount" for key in container.dev.keys)


def _give_workspace(facts: Facts, *, uid: str, owner_uid: int) -> Fix:
    if owner_uid == 0 and uid:
        return Fix(
            "In the project's folder on the host, give it to the number that the container's user will have.",
            (f"sudo chown -R {uid} .",),
            where=find_host_side(facts),
            root=True,
        )
    name, value = ("remoteUser", '"root"') if owner_uid == 0 else ("updateRemoteUserUID", "true")
    return Fix(
        "Root is this host's only user: name root in the container, too, or work in a folder of the container's user."
        if owner_uid == 0
        else "Let the dev container tool give your number to the container's user, by its name.",
        (f'"{name}": {value}',),
        where=Side.PROJECT,
        docs="https://containers.dev/implementors/json_reference/",
    )


def is_root_image(image: str) -> bool:
    """Say if an image is known to run as root."""
    return _ROOT_IMAGES.search(image) is not None


@check("PRJ029")
def container_is_not_root(facts: Facts) -> Iterator[Finding]:
    for container in require_project_containers(facts):
        image, user = container.image, container.user
        if image is None or not find_gpu_evidence(container) or not is_root_image(image.value):
            continue
        if user is None or user.value in ("root", "0"):
            place = Location(user.path, user.line) if user else Location(image.path, image.line)
            named = user.value if user else "not set"
            yield build_file_finding(
                place,
                Severity.NOTE,
                f"{container.name} works as root, so what it writes into the workspace belongs to root",
                Fix(
                    "Make a user in the Dockerfile, and name it with USER.",
                    where=Side.IMAGE,
                    docs="https://code.visualstudio.com/remote/advancedcontainers/add-nonroot-user",
                ),
                evidence=(
                    f"{format_location(image.path, image.line)}: {image.value}",
                    f"user: {named}",
                ),
            )


@check("PRJ030")
def podman_keeps_user_ids(facts: Facts) -> Iterator[Finding]:
    if is_in_container(facts) or not isinstance(facts.engine, Engine):
        raise NotApplicable("there is no engine on this side")
    if facts.engine.kind is not EngineKind.PODMAN or not facts.engine.is_rootless:
        raise NotApplicable("the engine is not rootless Podman")
    for container in require_project_containers(facts):
        if container.dev is None or container.is_compose or container.setting("userns") is not None:
            continue
        yield Finding(
            Severity.NOTE,
            f"{container.dev.path} lacks --userns=keep-id, which rootless Podman needs and older tools do not add",
            Fix(
                'Add "--userns=keep-id" to runArgs, and name the user with containerUser.',
                where=Side.PROJECT,
                docs="https://code.visualstudio.com/remote/advancedcontainers/docker-options#_podman",
            ),
            subject=container.dev.path,
            evidence=(f"{container.dev.path}: no userns", "the engine is rootless Podman"),
            confidence=Confidence.POSSIBLE,
            location=container.location,
        )


@check("PRJ032")
def containers_follow_policy(facts: Facts) -> Iterator[Finding]:
    project = require_project(facts)
    policy = require(project.policy)
    if policy is None:
        raise NotApplicable("devkit.toml sets no policy")
    named: list[Setting | None] = []
    for dockerfile in project.dockerfiles:
        stages = {stage.name for stage in dockerfile.stages if stage.name}
        froms = (stage for stage in dockerfile.stages if stage.image not in stages)
        named += [Setting("FROM", stage.image, dockerfile.path, stage.line) for stage in froms]
    named += [service.image for service in project.services if service.build is None]
    named += [one.image for one in project.dev_containers]
    for image in dict.fromkeys(each for each in named if each is not None and "$" not in each.value):
        if not policy.allows_image(image.value):
            mirrored = policy.resolve_mirror(image.value)
            instead = f"Take it as {mirrored}." if policy.allows_image(mirrored) else "Take an image from one of these."
            yield _policy_finding(
                image, f"{image.value} is not of an allowed registry: {join_words(policy.registries, 'or')}", instead
            )
    of_images = (
        install for dockerfile in project.dockerfiles for stage in dockerfile.stages for install in stage.installs
    )
    of_editors = (install for dev in project.dev_containers for install in dev.installs)
    for install in (*of_images, *of_editors, *project.installs):
        for url in install.indexes:
            if not policy.allows_index(url):
                place = Setting("index", url, install.path, install.line)
                says = f"packages come from {url}, which policy.indexes does not allow"
                yield _policy_finding(place, says, f"Take them from {join_words(policy.indexes, 'or')}.")
    for container in require_project_containers(facts):
        yield from _check_privileges(container, policy)
        yield from _check_labels(container, policy)


def _policy_finding(place: Setting, message: str, summary: str) -> Finding:
    at = format_location(place.path, place.line)
    return Finding(
        Severity.ERROR,
        message,
        Fix(summary, where=Side.PROJECT),
        subject=at,
        evidence=(f"{at}: {place.name} {place.value}".rstrip(), "devkit.toml: [policy]"),
        location=Location(place.path, place.line),
    )


def _check_privileges(container: ProjectContainer, policy: Policy) -> Iterator[Finding]:
    privileged = container.setting("privileged")
    if not policy.allow_privileged and privileged is not None and privileged.value.lower() == "true":
        yield _policy_finding(
            privileged, f"{container.name} is privileged, which the policy forbids", "Leave `privileged` out."
        )
    user, image = container.user, container.image
    if policy.allow_root:
        return
    if user is not None and user.value in _ROOT:
        yield _policy_finding(user, f"{container.name} works as root, which the policy forbids", "Name another user.")
    elif user is None and image is not None and is_root_image(image.value):
        yield _policy_finding(
            image,
            f"{container.name} names no user, so it works as root, which the policy forbids",
            "Make a user in the Dockerfile, and name it with USER.",
        )


def _check_labels(container: ProjectContainer, policy: Policy) -> Iterator[Finding]:
    if container.dockerfile is None or not container.stages:
        return
    labels: dict[str, str] = {}
    for stage in container.stages:
        if isinstance(stage.labels, Unknown):
            return
        labels |= {label.name: label.value for label in stage.labels}
    missing = [(name, value) for name, value in policy.required_labels if labels.get(name) != value]
    if missing:
        place = Setting("FROM", "", container.dockerfile.path, container.stages[-1].line)
        wanted = join_words(f"{name}={value}" for name, value in missing)
        yield _policy_finding(
            place, f"the image lacks labels that the policy asks for: {wanted}", "Add them with LABEL."
        )
