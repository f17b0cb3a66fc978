"""A set of releases for requirements that contradict each other, tried with uv; nothing of a package runs."""

from packaging.requirements import Requirement

from devkit.compat.specifiers import canonicalize_name
from devkit.facts.dependencies import RequirementSources, ResolutionRequest, Resolved
from devkit.facts.releases import Contradiction, SolvedSet
from devkit.facts.values import Unknown
from devkit.probe.package_indexes import find_offline_setting
from devkit.probe.uv_resolver import UvResolver

DEADLINE_S = 8.0
_PYTHON = "3.11"
"""The Python of a text that names none: nearly every release of these years has a wheel for it."""


def solve_contradiction(stated: Contradiction) -> SolvedSet | Unknown:
    """Let uv find releases: with all requirements of the user, else with the release of one of them open.

    A package that would be built from source does not count: uv then went back to a release before wheels.
    """
    if setting := find_offline_setting():
        return Unknown(f"{setting} is set")
    tries = [(stated.kept, stated.free)] if stated.free else []
    for each in stated.kept if len(stated.kept) > 1 else ():
        others = tuple(other for other in stated.kept if other != each)
        tries.append((others, (*stated.free, canonicalize_name(Requirement(each).name))))
    with UvResolver(RequirementSources(), deadline_s=DEADLINE_S) as resolve:
        requests = [
            ResolutionRequest(python=stated.python or _PYTHON, machine="x86_64", requirements=(*kept, *free))
            for kept, free in tries
        ]
        for wanted in requests:
            resolve.expect(wanted)
        for (kept, free), wanted in zip(tries, requests, strict=True):
            found = resolve(wanted)
            if isinstance(found, Unknown):
                return found
            if isinstance(found, Resolved) and not {*free}.intersection(found.from_source):
                versions = dict(found.packages)
                names = dict.fromkeys(canonicalize_name(Requirement(each).name) for each in (*kept, *free))
                return SolvedSet(
                    tuple(f"{name}=={versions[name]}" for name in names if name in versions), free, wanted.python
                )
    return Unknown("uv cannot find a set of releases, even if it ignores any one of the requirements")
