"""The requirements that a text says contradict each other, and the set of releases that uv found for them."""

import re

from packaging.requirements import InvalidRequirement, Requirement

from devkit.compat.specifiers import canonicalize_name
from devkit.doctor.signatures.library_changes import load_distributions
from devkit.doctor.signatures.log_text import Words
from devkit.doctor.signatures.text_facts import PACKAGES, TextFacts
from devkit.facts.dependencies import TORCH_FAMILY
from devkit.facts.releases import Contradiction, SolvedSet
from devkit.text import join_words

MAX_PACKAGES = 12
_NAME = r"[A-Za-z][\w.-]{1,60}(?:\[[\w,-]{1,60}\])?"
_BOUNDS = r"(?:[<>=!~]=?=?[\w.*+!]{1,40})(?:,[<>=!~]=?=?[\w.*+!]{1,40}){0,5}"
_ASKED = re.compile(
    rf"\b(?:The user requested (?:\(constraint\) )?|you require |your project depends on )({_NAME}{_BOUNDS})"
)
_NEEDS = re.compile(rf"\b({_NAME}?)(?:==| )\d[\w.+]{{0,30}} depends on {_NAME}")
_INSTALLED = re.compile(
    rf"\b({_NAME}) \d[\w.+]{{0,30}} requires ({_NAME}?)(?:{_BOUNDS})?(?:; [^,]{{1,80}})?, but you have {_NAME} (\d[\w.]{{0,30}})"
)


def find_contradiction(text: Words, values: TextFacts) -> Contradiction | None:
    """Find the requirements that pip or uv cannot meet together; None where a text has no such report.

    What an installed package misses keeps the release that the user has, and the package that asks for another one moves.
    torch's own companions are chosen from the tables, which know their builds. A name that the tables do not know may be the
    user's own, and a stranger's on the index: then none is sent.
    """
    kept = {_canonicalize(each[1]): each[1] for each in _ASKED.finditer(text.shown)}
    free = {_canonicalize(each[1]) for each in _NEEDS.finditer(text.shown)}
    for found in _INSTALLED.finditer(text.shown):
        one, other = _canonicalize(found[1]), _canonicalize(found[2])
        if not {one, other} <= set(TORCH_FAMILY):
            free.add(one)
            kept.setdefault(other, f"{other}=={found[3]}")
    requested = tuple(each for name, each in kept.items() if name not in free or each in text.shown)
    free -= {_canonicalize(each) for each in requested}
    if (
        not ((requested and free) or len(requested) > 1)
        or len(requested) + len(free) > MAX_PACKAGES
        or not all(map(_is_read, requested))
        or not {*map(_canonicalize, requested), *free} <= {*load_distributions().values(), *PACKAGES}
    ):
        return None
    return Contradiction(requested, tuple(sorted(free)), values.python or "")


def _canonicalize(requirement: str) -> str:
    return canonicalize_name(re.split(r"[\[<>=!~]", requirement, maxsplit=1)[0])


def _is_read(requirement: str) -> bool:
    try:
        return "+" not in str(Requirement(requirement).specifier)
    except InvalidRequirement:
        return False


def describe_set(found: SolvedSet) -> dict[str, str]:
    """Return the facts by which a family of errors names a set of releases."""
    tried = f"uv resolved {', '.join(found.releases)} for Python {found.python} on Linux x86_64"
    return {
        "solved": " ".join(f"'{each}'" for each in found.releases),
        "moved": join_words(found.moved),
        "tried": tried,
    }
