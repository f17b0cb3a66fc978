"""Commands that restart, remove or take over, and the machines on which a finding may print them."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import StrEnum
from itertools import takewhile

from devkit.doctor.model import Confidence, Finding, Restart, Side
from devkit.doctor.preconditions import is_in_container
from devkit.facts.machine import Directory
from devkit.facts.model import Facts
from devkit.facts.values import Unknown


class Harm(StrEnum):
    """The cost of a command for other people, or this user's own work, in words for the reader."""

    RESTART = "restarts the machine"
    INTERRUPTION = "interrupts other users' work"
    REMOVAL = "removes files or packages"
    TAKEOVER = "changes the owner of a whole folder"


_PATTERNS: Mapping[Harm, re.Pattern[str]] = {
    Harm.RESTART: re.compile(
        r"\b(?:reboot|poweroff|halt|shutdown)\b(?!\.)|\bkexec\b|\binit 6\b|--firmware-setup|\bipmitool\b.*\bpower\b"
    ),
    Harm.TAKEOVER: re.compile(r"\bch(?:own|mod|grp)\s+(?:-\w*R|--recursive)"),
    Harm.REMOVAL: re.compile(
        r"\b(?:purge|autoremove|wipefs|mkfs\S*)\b|--purge|-Rns?\b|\b(?:dnf|yum|zypper|apt|apt-get) (?:-y )?remove\b"
        r"|\brm\s+(?:-\w*[rR]|--recursive)|\bsystem prune\b|\bvolume (?:rm|prune)\b"
    ),
    Harm.INTERRUPTION: re.compile(
        r"--gpu-reset|\brmmod\b|modprobe -r|\b(?:systemctl|service|snap) (?:\S+ )*(?:restart|stop)\b|\bisolate\b"
    ),
}
"""In the order in which a command of several kinds is named."""

_OWN_CACHES = re.compile(r"\bcache purge\b|\brm -\w+ (?:~|\$HOME)/\.(?:cache|triton|nv)\b|systemctl --user|wsl\.exe")
"""What can be made again, and services of this user alone."""
_RESTARTS = re.compile(r"(?:sudo )?(?:systemctl )?(?:reboot|poweroff|halt|shutdown)\b")
_UNPROVEN = "the cause is not proven"
_OF_THE_MACHINE = (Side.HOST, Side.WSL)
"""Sides on which a command reaches the machine: an image, a container and a project are the user's to rebuild."""
_NETWORK_FILE_SYSTEMS = re.compile(
    r"nfs\d*|cifs|smb\d*|lustre|gpfs|beegfs\S*|ceph|fuse\.(?:sshfs|ceph\S*|gluster\S*|juicefs)|wekafs|afs|pvfs2|glusterfs|9p"
)


def find_harm(command: str) -> Harm | None:
    """Find what a command may cost; None for one that only reads, or changes what is easily made again."""
    if _OWN_CACHES.search(command):
        return None
    return next((harm for harm, pattern in _PATTERNS.items() if pattern.search(command)), None)


def put_restarts_last(commands: Iterable[str]) -> tuple[str, ...]:
    """Return the commands in their order, but for those that restart the machine: what comes after one of them never runs."""
    return tuple(sorted(commands, key=lambda command: bool(_RESTARTS.match(command))))


def find_manager(facts: Facts) -> str:
    """Find what says that this machine is not its user's alone; "" where nothing does."""
    manager = facts.system if isinstance(facts.system, Unknown) else facts.system.managed_by
    return "a machine with unknown users" if isinstance(manager, Unknown) else manager


def is_in_job(facts: Facts) -> bool:
    """Say if a batch scheduler lent this process its part of the machine."""
    return not isinstance(facts.system, Unknown) and facts.system.is_in_job is True


def find_objection(command: str, finding: Finding, facts: Facts) -> str:
    """Find why this finding must not print the command on this machine; "" where it may.

    It may where the cause is proven and the machine is the user's alone; a folder is taken over only below the user's
    home, on a file system of this machine that can be written.
    """
    harm = find_harm(command)
    if harm is None:
        return ""
    if harm is Harm.TAKEOVER:
        return _find_owner(command, facts)
    if finding.fix.where not in _OF_THE_MACHINE:
        return ""
    if manager := find_manager(facts):
        return f"this is {manager}"
    if harm is not Harm.INTERRUPTION and finding.confidence is not Confidence.CERTAIN:
        return _UNPROVEN
    return ""


def _find_owner(command: str, facts: Facts) -> str:
    """Find why the folder at a command's end may be another's; "" where it is this user's own."""
    path = command.split()[-1].strip("'\"")
    if path.startswith(("~", "$HOME")):
        return ""
    known = () if isinstance(facts.storage, Unknown) else facts.storage.directories
    purpose = "workspace" if not path.startswith("/") else ""
    found = next((each for each in known if each.path == path or each.purpose == purpose), None)
    if found is None:
        return "the folder may belong to others"
    if found.is_read_only is True or _NETWORK_FILE_SYSTEMS.fullmatch(found.file_system):
        return "the folder is on a shared or read-only file system"
    if manager := "" if found.is_in_home is True or purpose else find_manager(facts):
        return f"this is {manager}"
    return "" if is_free_to_take(found, facts) else "the folder belongs to another user"


def is_free_to_take(folder: Directory, facts: Facts) -> bool:
    """Say if a folder is this user's, or one that root made for them: in their home, their project or their container."""
    user = None if isinstance(facts.storage, Unknown) else facts.storage.uid
    is_theirs = folder.is_in_home is not False or folder.purpose == "workspace" or is_in_container(facts)
    return folder.owner_uid in (user, -1) or (folder.owner_uid == 0 and is_theirs)


def withhold(finding: Finding, facts: Facts) -> Finding:
    """Return the finding without the commands that it must not print, and with who may run them and why not the reader.

    What comes after them falls away too, and what needs root where the administrator is asked: a part of a repair is
    another repair.
    """
    fix = finding.fix
    refused = {command: reason for command in fix.commands if (reason := find_objection(command, finding, facts))}
    if not refused:
        return finding
    first = next(iter(refused.values()))
    kept = tuple(takewhile(lambda command: command not in refused, fix.commands))
    if first != _UNPROVEN:
        kept = tuple(command for command in kept if not command.startswith("sudo "))
    harms = " or ".join(dict.fromkeys(str(find_harm(command)) for command in refused))
    summary = (
        f"First prove the cause, which is only {finding.confidence}; devkit therefore prints no command that {harms}. Then: {fix.summary}"
        if first == _UNPROVEN
        else f"Ask the administrator, because {first} and the repair {harms}: {fix.summary}"
    )
    is_root = any(command.startswith("sudo ") for command in kept)
    return replace(
        finding, fix=replace(fix, summary=summary, commands=kept, root=is_root, restart=Restart.NONE, repairs=())
    )
