"""Whether a version meets a specifier (PEP 440), without loading `packaging` where all are plain numbers."""

import re
from collections.abc import Callable
from functools import cache
from operator import eq, ge, gt, le, lt, ne

_PLAIN = re.compile(r"(\d+(?:\.\d+)*)(?:\+[a-z0-9.]+)?")
_CLAUSE = re.compile(r"\s*(>=|<=|==|!=|>|<)\s*(\d+(?:\.\d+)*)\s*")
_REQUIREMENT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*(.*)")
_COMPARE: dict[str, Callable[[tuple[int, ...], tuple[int, ...]], bool]] = {
    ">=": ge,
    "<=": le,
    "==": eq,
    "!=": ne,
    ">": gt,
    "<": lt,
}


def canonicalize_name(name: str) -> str:
    """A distribution's name as PEP 503 compares it: Hugging.Face_hub is hugging-face-hub."""
    return re.sub(r"[-_.]+", "-", name).lower()


@cache
def split_requirement(line: str) -> tuple[str, str]:
    """The name and the specifier of a requirement line of the tables: ("torch", ">=2.6")."""
    found = _REQUIREMENT.fullmatch(line)
    return (found[1], found[2]) if found else (line, "")


@cache
def satisfies(version: str, specifier: str) -> bool:
    """Whether a version meets a specifier; one that cannot be read is not held against it.

    A local part such as +cu126 counts only where the specifier names one.
    """
    plain = _PLAIN.fullmatch(version)
    clauses = [_CLAUSE.fullmatch(clause) for clause in specifier.split(",") if clause.strip()]
    if plain is None or None in clauses:
        return _meets_pep_440(version, specifier)
    return all(_COMPARE[clause[1]](*_padded(plain[1], clause[2])) for clause in clauses if clause)


def satisfies_python(minor: str, specifier: str) -> bool:
    """Whether some patch release of a Python such as 3.12 meets a specifier."""
    named: list[str] = re.findall(rf"(?<![\d.]){re.escape(minor)}\.\d+", specifier)
    return any(satisfies(version, specifier) for version in (f"{minor}.99", minor, *named))


def _padded(one: str, other: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    left, right = ([int(part) for part in text.split(".")] for text in (one, other))
    length = max(len(left), len(right))
    return tuple(left + [0] * (length - len(left))), tuple(right + [0] * (length - len(right)))


def _meets_pep_440(version: str, specifier: str) -> bool:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet
    from packaging.version import InvalidVersion, Version

    try:
        return SpecifierSet(specifier).contains(Version(version), prereleases=True)
    except (InvalidSpecifier, InvalidVersion):
        return True
