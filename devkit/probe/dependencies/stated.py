"""Versions that a project's guides state in lists, tables and sentences, and those of their commands that a file leaves open.

They install nothing. What the project installs anyway has such a version, as far as it fits.
"""

import re
from collections.abc import Iterator, Mapping

from devkit.compat.specifiers import canonicalize_name
from devkit.compat.version_tables import load_tables
from devkit.facts.dependencies import PackageRequirement
from devkit.probe.dependencies.conda import FROM_CONDA, convert_conda_version, list_distributions
from devkit.probe.dependencies.guides import UNSUITED, list_followed
from devkit.probe.dependencies.requirements import PYTHON, RequirementCollector
from devkit.probe.dependencies.steps import CAPTION, list_guides, read_lines

_OF_VERSIONS = re.compile(
    r"(?i)(?!\s*(?:\S+\s+){5}\S)[^\n]*\b(?:requirements?|dependenc(?:y|ies)|prerequisites?|packages?|libraries|versions?|environment"
    r"|install\w*|set-?up|get(?:ting)? started|tested (?:on|with))\b"
)
"""The title of such a section; a longer one is that of the project."""
_COMMAND = re.compile(
    r"(?:pip[\d.]*|conda|mamba|micromamba|mim|uv|poetry|apt|apt-get|brew|docker|npm)\s+(?:\w+\s+)?(?:install|create|add|pull|run)\b"
)
_ADDRESS = re.compile(r"\]\([^)\s]{0,200}\)|\w+://[^\s)>\"']+|<[^>]{0,80}>")
_STATED = re.compile(
    r"(?<![\w./@=$-])(?P<name>[A-Za-z](?:[\w.-]{0,60}\w)?)(?:\[[\w, -]{0,40}\])?(?P<gap>[ \t`*|:(\"']{0,8}"
    r"(?:[Vv](?:er(?:sion|\.)?)?[ \t:]{0,2})?)"
    r"(?P<sign>===?|[<>~]=?|=|\u2265|)[ \t`*|]{0,4}(?P<version>\d{1,5}(?:\.\d{1,9}){1,5}(?:\.?(?:post|rc|[ab])\d+)?"
    r"|\d{1,5}(?:\.\d{1,9}){0,5}\.[x*]\b)"
    r"(?:\+\w+)?(?![\w%/]|\.\d)(?P<more>\+|[`*)]{0,3}[ \t](?:or|and)[ \t](?:newer|later|higher|above|up|greater)|[ \t]?[-~\u2013][ \t]?\d)?"
)
"""A package and its version: `gym==0.16.0`, `tensorflow 1.6.0`, `PyTorch (1.8+)`, `| numpy | >= 1.24.0 |`."""


def read_stated(found: RequirementCollector) -> tuple[PackageRequirement, ...]:
    """Read the version of each package as it is stated first, but for those that the project's files limit themselves."""
    limited = {need.name: need.origin for need in found.needs if need.specifier}
    known = {name: canonicalize_name(each) for name, each in list_distributions().items()} | FROM_CONDA
    known |= {row.name: row.distribution for row in load_tables().imports.misnamed}
    known |= {name: name for row in load_tables().frameworks.packages for name in row.names}
    known |= {need.name: need.name for need in found.needs}
    stated: dict[str, PackageRequirement] = {}
    for path in list_guides(found.files):
        for need in (*_read_commands(path, found, known), *_read_text(path, found, known)):
            # A guide's torch is a lower bound beside: a later one runs on GPUs that came later.
            own = limited.get(need.name, "") in ("", need.origin if need.name == "torch" else "")
            if own and need.name != PYTHON:
                stated.setdefault(need.name, need)
    return tuple(stated.values())


def _read_commands(path: str, found: RequirementCollector, known: Mapping[str, str]) -> Iterator[PackageRequirement]:
    for step in list_followed(found.files, path):
        for word in step.packages:
            named = re.fullmatch(r"([\w.-]+)(?:\[[^\]]*\])?(={1,2}\d[\w.]*)(?:\+\w+)?", word)
            specifier = convert_conda_version(named[2]) if named else ""
            if named and specifier and ((step.install and step.install.tool != "conda") or named[1] in known):
                name = canonicalize_name(named[1])
                yield PackageRequirement(known.get(name, name), specifier, step.path, step.line)


def _read_text(path: str, found: RequirementCollector, known: Mapping[str, str]) -> Iterator[PackageRequirement]:
    is_named, depth = False, 0
    for line in read_lines(found.files.read(path, "guide") or ""):
        if line.depth:
            is_inner = is_named and line.depth > depth
            is_named = not line.aside and (is_inner or bool(_OF_VERSIONS.match(line.heading)))
            depth = depth if is_inner else line.depth
        elif (caption := CAPTION.fullmatch(line.text.strip())) and _OF_VERSIONS.match(
            max(filter(None, caption.groups()))
        ):
            is_named = not line.aside
        elif not line.aside and not _COMMAND.search(line.text) and not UNSUITED.search(line.text):
            for each in _STATED.finditer(_ADDRESS.sub(" ", line.text)):
                name = canonicalize_name(each["name"])
                is_pin = each["sign"] in ("==", "===")
                if is_pin or (is_named and name in known and (each["gap"] or each["sign"])):
                    yield PackageRequirement(known.get(name, name), _format_specifier(each), path, line.number)


def _format_specifier(stated: re.Match[str]) -> str:
    """Format the specifier: two numbers in words are a minor release, `tensorflow 2.4` is ==2.4.*."""
    sign, version = stated["sign"], re.sub(r"\.[x*]$", ".*", stated["version"])
    if stated["more"] or sign == "\u2265":
        return f">={version.removesuffix('.*')}"
    if sign in ("", "="):
        is_minor = version.count(".") == 1 and not version.endswith("*")
        return f"=={version}.*" if is_minor else f"=={version}"
    return f"{sign}{version if sign in ('==', '===') else version.removesuffix('.*')}"
