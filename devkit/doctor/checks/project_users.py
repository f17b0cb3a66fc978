"""Checks of the user that a container works as."""

import re
from collections.abc import Iterator

from devkit.doctor.applies import is_in_container
from devkit.doctor.checks.project_images import CudaTag
from devkit.doctor.checks.project_units import placed, units_of, wants_gpu
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
from devkit.facts.model import Engine, EngineKind, Facts

_UBUNTU_WITH_USER = re.compile(
    r"(?:^|/)ubuntu:(?:23\.04|23\.10|24|25|26)|(?:^|/)ubuntu:(?:noble|oracular|plucky|questing)"
)
_ROOT_IMAGES = re.compile(
    r"^(?:docker\.io/)?(?:library/)?(?:python|debian|ubuntu):|(?:^|/)(?:nvidia/cuda|pytorch/pytorch):"
)


def begins_as_root(image: str) -> bool:
    """Whether an image is known to have root for its user."""
    return _ROOT_IMAGES.search(image) is not None


@check(
    "PRJ028",
    "The container's user can have the ids of the host's",
    covers=("J08",),
    symptoms=(
        "useradd: UID 1000 is not unique",
        "EACCES: permission denied, open '/workspaces/project/file'",
        "updateRemoteUserUID does nothing",
    ),
)
def user_can_have_host_ids(facts: Facts) -> Iterator[Finding]:
    """On Ubuntu 23.04 and later the image removes or reuses the user ubuntu, who has the ids that it needs itself.

    Why it matters: these images have a user `ubuntu` with id 1000. Another user gets 1001, and the editor cannot
    change that to the host's 1000, which is taken, and says nothing: files in the workspace are then somebody else's.
    How it is seen: such a base image, a useradd, and neither userdel nor usermod.
    Source: microsoft/vscode-remote-release issues 10030 and 9007; jupyterhub/repo2docker issue 1346.
    """
    for unit in units_of(facts):
        image = unit.image
        tag = CudaTag.of(image.value) if image else None
        is_new = bool(image and _UBUNTU_WITH_USER.search(image.value)) or bool(tag and tag.system >= "ubuntu23.04")
        users = [(stage, user) for stage in unit.stages for user in stage.users]
        if image is None or not is_new or any(stage.removes_users for stage in unit.stages):
            continue
        taken = [user for _, user in users if user.name not in ("ubuntu", "root") and user.uid in ("", "1000")]
        path = unit.dockerfile.path if unit.dockerfile else image.path
        for user in taken[:1]:
            clashes = user.uid == "1000"
            yield Finding(
                Severity.ERROR if clashes else Severity.WARNING,
                f"{image.value} already has a user with id 1000, so {user.name} "
                + ("cannot be made: the build stops" if clashes else "gets another, and cannot take over the host's"),
                Fix(
                    "Remove the user ubuntu first.",
                    ("RUN userdel --remove ubuntu",),
                    where=Side.IMAGE,
                    docs="https://github.com/microsoft/vscode-remote-release/issues/10030",
                ),
                subject=placed(path, user.line),
                evidence=(f"{placed(path, user.line)}: useradd {user.name} {user.uid}".rstrip(), image.value),
                location=Location(path, user.line),
            )


@check(
    "PRJ029",
    "The container does not work as root",
    symptoms=("files in the workspace belong to root", "running pip as the root user"),
)
def container_is_not_root(facts: Facts) -> Iterator[Finding]:
    """The image or devcontainer.json names a user other than root.

    Why it matters: with an ordinary Docker what root writes into the workspace belongs to root on the host, too: files
    that you cannot edit, and a checkout that git refuses.
    How it is seen: a base image whose user is root, and no USER, user, containerUser or remoteUser.
    Source: Visual Studio Code, "Add a non-root user to a container"; Docker, "Dockerfile best practices", USER.
    """
    for unit in units_of(facts):
        image, user = unit.image, unit.user
        if image is None or not wants_gpu(unit) or not begins_as_root(image.value):
            continue
        if user is None or user.value in ("root", "0"):
            place = Location(user.path, user.line) if user else Location(image.path, image.line)
            named = user.value if user else "not set"
            yield Finding(
                Severity.NOTE,
                f"{unit.name} works as root, so what it writes into the workspace belongs to root",
                Fix(
                    "Make a user in the Dockerfile, and name it with USER.",
                    where=Side.IMAGE,
                    docs="https://code.visualstudio.com/remote/advancedcontainers/add-nonroot-user",
                ),
                subject=placed(place.path, place.line),
                evidence=(
                    f"{placed(image.path, image.line)}: {image.value}",
                    f"user: {named}",
                ),
                location=place,
            )


@check(
    "PRJ030",
    "Rootless Podman keeps the user's ids",
    covers=("J11",),
    symptoms=(
        "mkdir: cannot create directory '/root': Permission denied",
        "Cannot create /root/.vscode-server",
    ),
)
def podman_keeps_ids(facts: Facts) -> Iterator[Finding]:
    """A dev container for rootless Podman maps the user to the same id inside.

    Why it matters: without --userns=keep-id your files belong to root in the container, and the editor's server may be
    put into /root, where the container's user cannot write. Current dev container tools add the option themselves.
    How it is seen: rootless Podman, a devcontainer.json without Compose, and no userns in runArgs.
    Source: microsoft/vscode-remote-release issues 9656 and 4443; devcontainers/cli pull request 985.
    """
    if is_in_container(facts) or not isinstance(facts.engine, Engine):
        raise NotApplicable("there is no engine on this side")
    if facts.engine.kind is not EngineKind.PODMAN or not facts.engine.is_rootless:
        raise NotApplicable("the engine is not rootless Podman")
    for unit in units_of(facts):
        if unit.dev is None or unit.is_compose or unit.setting("userns") is not None:
            continue
        words = [argument.text for argument in unit.dev.run_args]
        has_blank = any("…" in word or '"' in word for word in words)
        value = ", ".join(f'"{word}"' for word in (*words, "--userns=keep-id"))
        yield Finding(
            Severity.NOTE,
            f"{unit.dev.path} lacks --userns=keep-id, which rootless Podman needs and older tools do not add",
            Fix(
                'Add "--userns=keep-id" to runArgs, and name the user with containerUser.',
                where=Side.PROJECT,
                docs="https://code.visualstudio.com/remote/advancedcontainers/docker-options#_podman",
                repairs=() if has_blank else (Repair(RepairKind.SET, unit.dev.path, ("runArgs",), f"[{value}]"),),
            ),
            subject=unit.dev.path,
            evidence=(f"{unit.dev.path}: no userns", "the engine is rootless Podman"),
            confidence=Confidence.POSSIBLE,
            location=unit.location,
        )
