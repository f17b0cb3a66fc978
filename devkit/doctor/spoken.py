"""Problems of programs that fail: their own words are the evidence, explained by the failure catalog where it knows them.

A variable of the shell without which a program works is the cause. Else a setting whose value the words repeat is what to
correct, then what the catalog knows of the words counts, and where nothing does, the words themselves.
"""

from dataclasses import replace
from shlex import quote

from devkit.doctor.problems import Problem, problem
from devkit.doctor.signatures.model import Match
from devkit.facts.model import ProgramFailure

_NOT_RUN = (126, 127)
"""Statuses of programs that were not executed. Source: POSIX, Shell Command Language, 2.8.2."""

_OF_WORKLOADS = ("CON", "CUD", "HUB", "PRJ", "PYT")
"""Prefixes of errors within containers and projects, which a program of the machine does not report."""


def report_failure(failure: ProgramFailure) -> Problem:
    """Report a program's failure by the row works-without, named-setting, known or said of a check."""
    evidence = (*failure.words, *failure.settings, *failure.set_in, f"read from: {failure.read_from}")
    match = explain_failure(failure)
    if failure.works_without:
        name = "works-without"
    elif failure.status in _NOT_RUN or failure.status < 0:
        name = "cannot-run"
    elif failure.settings:
        name = "named-setting"
    else:
        name = "known" if match else "said"
    shown = problem(
        name,
        subject=failure.program,
        evidence=evidence,
        program=failure.program,
        words=failure.message,
        cause=match.cause if match else failure.message,
        variables=failure.works_without,
        shown_variables=", ".join(failure.works_without),
        places=" and ".join(failure.set_in) or "the shell's start-up files",
        setting=failure.settings[0] if failure.settings else "",
        file=failure.settings[0].rpartition(" in ")[2] if failure.settings else "",
        log=f"tail -n 20 {quote(path)}" if (path := failure.read_from).startswith("/") else failure.read_from,
        kind=_name_owner(failure.program),
    )
    if name == "known" and match:
        return replace(shown, fix=match.fix, confidence=match.confidence)
    return shown


def explain_failure(failure: ProgramFailure) -> Match | None:
    """Return what the failure catalog knows of a program's last words."""
    from devkit.doctor.known_errors import find_known_errors

    found = find_known_errors("\n".join(failure.words), is_ours=True)
    return next(
        (match for match in found if match.code[:3] not in _OF_WORKLOADS and (match.code or not match.is_common)), None
    )


def _name_owner(program: str) -> str:
    """Name what a program belongs to, as variants of fixes do."""
    name = program.rpartition("/")[2]
    owners = {"nvidia": "toolkit", "podman": "podman", "docker-compose": "compose", "runc": "runc", "crun": "runc"}
    return next((owner for start, owner in owners.items() if name.startswith(start)), "docker")
