"""Problems of programs that fail: their own words are the evidence, explained by the failure catalog where it knows them.

A variable of the shell without which a program works is the cause. Else a setting whose value the words repeat is what to
correct, then what the catalog knows of the words counts, and where nothing does, the words themselves.
"""

import re
from dataclasses import replace
from shlex import quote
from typing import Any

from devkit.doctor.problems import Problem, problem
from devkit.doctor.signatures.model import Match
from devkit.facts.runs import ProgramFailure

_NOT_RUN = (126, 127)
"""Statuses of programs that were not executed. Source: POSIX, Shell Command Language, 2.8.2."""

_STRAY = ("/usr/local/", "/opt/", "/home/", "/root/")
"""Folders in which packages of a distribution put no program."""

_OF_WORKLOADS = ("CON", "CUD", "HUB", "PRJ", "PYT")
"""Prefixes of errors within containers and projects, which a program of the machine does not report."""


_PLACE = re.compile(r" in (\S+):(\d+)(?: \((.+?): (.+)\))?$")
"""File and line of a setting in the project, what is wrong with it, and what mends that."""
_REFUSED = re.compile(r"exec(?:: \"| )?(/[\w./+-]+)\"?(?:: stat \S+)?: (permission denied|exec format)", re.IGNORECASE)
"""A program by its path, and what the kernel has against it: `fork/exec /usr/bin/runc: permission denied`."""
_ABSENT = re.compile(
    r'exec: "([\w.+-]+)": executable file not found|(?:could not find a working ([\w.+-]+)|([\w.+-]+)(?:: command)? not found)'
)
"""A program that no folder of PATH holds. Source: os/exec of Go; libpod/config of Podman."""
_ALIKE = ("conmon", "crun", "runc", "iptables", "slirp4netns", "netavark", "catatonit", "containerd", "git-lfs")
_PACKAGES = {
    **{name: name for name in (*_ALIKE, "fuse-overlayfs", "aardvark-dns")},
    **{"newuidmap": "uidmap", "pasta": "passt", "ssh-add": "openssh-client"},
}
"""The packages of programs that an engine takes from others."""


def name_program(words: str) -> dict[str, Any]:
    """Return the program that a failing one says it needs, its package, and what ails it, as variants of fixes name it.

    The fault is `no-execute-bit`, `broken`, `absent`, or "" where the words name no program.
    """
    if found := _REFUSED.search(words):
        fault = "no-execute-bit" if found[2].lower().startswith("permission") else "broken"
        return {"needed": found[1], "fault": fault, "package": ""}
    for name, *others in _ABSENT.findall(words):
        if package := _PACKAGES.get(name or "".join(others)):
            return {"needed": "", "fault": "absent", "package": package}
        if name:
            return {"needed": f"/usr/bin/{name}", "fault": "broken", "package": ""}
    return {"needed": "", "fault": "", "package": ""}


def report_failure(
    failure: ProgramFailure, *, is_whole: bool = False, is_tried: bool = False, is_workload: bool = False
) -> Problem:
    """Report a program's failure by the row works-without, named-setting, known or said of a check.

    `is_whole` is for one that was asked for nothing but its version: it fails as a whole, whatever it says. `is_tried`
    is for one that works without its first setting, by trial. `is_workload` is for one in a container of the project.
    """
    needed_by = (f"needed by: {failure.needed_by}",) if failure.needed_by else ()
    evidence = (*failure.words, *failure.settings, *failure.set_in, f"read from: {failure.read_from}", *needed_by)
    needed = name_program("" if is_workload else " ".join(failure.words))
    setting = failure.settings[0] if failure.settings else ""
    place = _PLACE.search(setting)
    # A program that the words say is missing or cannot be executed is the cause of whatever else they match.
    match = None if needed["fault"] else explain_failure(failure, is_workload=is_workload)
    if failure.works_without:
        name = "works-without"
    elif is_whole or (not is_workload and (failure.status in _NOT_RUN or failure.status < 0)):
        name = "cannot-run"
    elif failure.settings:
        name = "works-without-setting" if is_tried else "named-cause" if place and place[4] else "named-setting"
    else:
        name = "known" if match else "said"
    if name == "cannot-run":
        faults = {"execute bit": "no-execute-bit", "not installed": "absent"}
        fault = next((fault for words, fault in faults.items() if words in failure.message), "broken")
        needed = {"needed": failure.program, "fault": fault, "package": _PACKAGES.get(failure.program, "")}
    shown_setting = f"{setting[: place.start(4) - 2]})" if place and place[4] else setting
    if name == "named-cause" and place:
        failure = replace(failure, words=(place[3],))
        shown_setting = shown_setting.partition(" (")[0]
    shown = problem(
        name,
        subject=failure.program,
        evidence=evidence,
        program=failure.program,
        **needed,
        words=failure.message,
        cause=match.cause if match else failure.message,
        variables=failure.works_without,
        shown_variables=", ".join(failure.works_without),
        places=" and ".join(failure.set_in) or "the shell's startup files",
        setting=shown_setting,
        setting_name=setting.partition(" in ")[0],
        file=place[1] if place else setting.rpartition(" in ")[2],
        line=place[2] if place else "",
        remedy=f": {place[4]}" if place and place[4] else "",
        log=f"tail -n 20 {quote(path)}" if (path := failure.read_from).startswith("/") else failure.read_from,
        kind="project" if place else "container" if is_workload else _name_owner(failure.program),
    )
    if name == "known" and match:
        return replace(shown, fix=match.fix, confidence=match.confidence)
    return shown


def explain_failure(failure: ProgramFailure, *, is_workload: bool = False) -> Match | None:
    """Return what the failure catalog knows of a program's last words."""
    from devkit.doctor.known_errors import find_known_errors

    found = find_known_errors("\n".join(failure.words), is_ours=True)
    able = (match for match in found if match.code or not match.is_common)
    return next((match for match in able if is_workload or match.code[:3] not in _OF_WORKLOADS), None)


def _name_owner(program: str) -> str:
    """Name what a program belongs to, as variants of fixes do."""
    if program.startswith(_STRAY) or "/.docker/" in program:
        return "stray"
    name = program.rpartition("/")[2]
    owners = {
        "nvidia": "toolkit",
        "podman": "podman",
        "docker-compose": "compose",
        "ssh-": "agent",
        "runc": "runc",
        "crun": "runc",
    }
    return next((owner for start, owner in owners.items() if name.startswith(start)), "docker")
