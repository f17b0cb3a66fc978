"""Versions against specifiers (PEP 440), requirement lines of the tables, and markers."""

import re
from functools import cache

from packaging import utils
from packaging.markers import InvalidMarker, Marker, UndefinedComparison, UndefinedEnvironmentName
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

_REQUIREMENT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*(.*)")

_MARKER_VARIABLES = {
    "implementation_name": "cpython",
    "os_name": "posix",
    "platform_python_implementation": "CPython",
    "platform_release": "",
    "platform_system": "Linux",
    "platform_version": "",
    "sys_platform": "linux",
    "extra": "",
}
"""The container's marker variables (PEP 508), but for machine and Python.

Source: https://packaging.python.org/specifications/dependency-specifiers/.
"""


def canonicalize_name(name: str) -> str:
    """Normalize a distribution's name (PEP 503): Hugging.Face_hub is hugging-face-hub."""
    return utils.canonicalize_name(name)


@cache
def split_requirement(line: str) -> tuple[str, str]:
    """Split a requirement of the tables into name and specifier: ("torch", ">=2.6")."""
    found = _REQUIREMENT.fullmatch(line)
    return (found[1], found[2]) if found else (line, "")


@cache
def satisfies(version: str, specifier: str) -> bool:
    """Return whether a version meets a specifier; one that cannot be read refuses nothing.

    A local part such as +cu126 counts only where the specifier names one.
    """
    try:
        return SpecifierSet(specifier).contains(Version(version), prereleases=True)
    except (InvalidSpecifier, InvalidVersion):
        return True


@cache
def satisfies_python(minor: str, specifier: str) -> bool:
    """Return whether some patch release of a Python such as 3.12 meets a specifier; `<=3.12` leaves it out but for 3.12.0."""
    return find_python_release(minor, specifier) is not None


def find_python_release(minor: str, specifier: str) -> str | None:
    """Find the release of a Python such as 3.12 that a specifier takes: 3.12 where it takes the newest, 3.12.10, or None."""
    if satisfies(f"{minor}.99", specifier):
        return minor
    named: list[str] = re.findall(rf"(?<![\d.]){re.escape(minor)}\.\d+|(?<===){re.escape(minor)}(?![\d.])", specifier)
    releases = (each if each != minor else f"{minor}.0" for each in named)
    return max((each for each in releases if satisfies(each, specifier)), key=Version, default=None)


@cache
def holds_in_container(marker: str, *, machine: str, python: str) -> bool:
    """Return whether a marker (PEP 508) holds in a container on this machine; an unreadable marker holds."""
    versions = {"python_version": python, "python_full_version": f"{python}.99"}
    try:
        return Marker(marker).evaluate({**_MARKER_VARIABLES, "platform_machine": machine, **versions})
    except (InvalidMarker, UndefinedComparison, UndefinedEnvironmentName):
        return True
