"""Checks of the user inside a container: the workspace belongs to them, and so do their groups."""

from collections.abc import Iterator

from devkit.doctor.applies import container_of, known
from devkit.doctor.model import Confidence, Finding, Fix, NotApplicable, Severity, Side, check
from devkit.facts.model import Facts
from devkit.text import listed

ROOT = 0
NOBODY_KNOWN = -1


@check(
    "CON013",
    "The workspace is writable in this container",
    covers=("J08",),
    symptoms=(
        "EACCES: permission denied, open '/workspaces/",
        "Permission denied",
        "fatal: detected dubious ownership",
    ),
)
def workspace_is_writable(facts: Facts) -> Iterator[Finding]:
    """The user of this container may write to the workspace.

    Why it matters: a bind mount keeps the host's owner. Where the container's user has another number, editors cannot
    save, git refuses, and a checkpoint fails at the end of the first epoch. Images of Ubuntu 24.04 already have a user
    1000, so a user added to them gets 1001.
    How it is seen: whether this user may create files in the workspace, its owner, and the user's number.
    Source: microsoft/vscode-remote-release issue 10030; dev container specification, `updateRemoteUserUID`.
    """
    container_of(facts)
    storage = known(facts.storage)
    folder = next((one for one in storage.directories if one.purpose == "workspace"), None)
    if folder is None or not folder.exists or folder.path == "/" or storage.uid == NOBODY_KNOWN:
        raise NotApplicable("there is no workspace to judge")
    if folder.is_writable:
        return
    yield Finding(
        Severity.ERROR,
        f"user {storage.uid} of this container may not write to the workspace, which belongs to {folder.owner_uid}",
        Fix(
            f"Give the container's user the number {folder.owner_uid}: in devcontainer.json name it as remoteUser and"
            " leave updateRemoteUserUID on; in an image of Ubuntu 24.04 remove the user ubuntu first."
            if folder.owner_uid != ROOT
            else "On the host, give the project back to its user: a container that ran as root has changed its owner.",
            ('"remoteUser": "dev", "updateRemoteUserUID": true', "RUN userdel --remove ubuntu")
            if folder.owner_uid != ROOT
            else ("sudo chown -R $USER: .",),
            where=Side.PROJECT if folder.owner_uid != ROOT else Side.HOST,
            root=folder.owner_uid == ROOT,
        ),
        subject=folder.path,
        evidence=(f"{folder.path}: owner {folder.owner_uid}, not writable", f"this user: {storage.uid}"),
        confidence=Confidence.CERTAIN if folder.owner_uid != storage.uid else Confidence.LIKELY,
    )


@check(
    "CON014",
    "Every group of this user has a name",
    covers=("F17",),
    symptoms=("groups: cannot find name for group ID 993",),
)
def groups_have_names(facts: Facts) -> Iterator[Finding]:
    """Each group of this process has a name in the container's /etc/group.

    Why it matters: it does not: Container Toolkit 1.19 and later adds the groups that own the host's device nodes, so
    that users who are not root may open them. Shells complain about the missing name, and nothing else happens.
    How it is seen: the groups of this process against /etc/group.
    Source: NVIDIA, Container Toolkit, "Troubleshooting".
    """
    nameless = known(container_of(facts).nameless_groups)
    if not nameless:
        return
    yield Finding(
        Severity.NOTE,
        f"the group {listed(str(number) for number in nameless)} has no name in this container, which harms nothing",
        Fix("Leave it, or add a line for it to /etc/group of the image.", where=Side.IMAGE),
        evidence=(f"/proc/self/status: Groups, without a name in /etc/group: {listed(map(str, nameless))}",),
    )
