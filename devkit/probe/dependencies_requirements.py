"""Requirement files as pip and uv read them: lines, options, and the files that they include.

Source: https://pip.pypa.io/en/stable/reference/requirements-file-format/
"""

import re
from collections.abc import Iterator

from devkit.facts.dependencies import OF_THE_PROJECT, Role
from devkit.probe.dependencies_reading import Reading, numbered, without_login

DEEPEST = 10
CONSTRAINTS = "constraints"
"""The group of what a constraints file says: it limits a package that something else needs."""

_COMMENT = re.compile(r"(?:^|\s)#.*$")
_OPTION = re.compile(r"(--[A-Za-z][\w-]*|-[A-Za-z])[\s=]*(.*)", re.DOTALL)
_PER_REQUIREMENT = re.compile(r"\s+--(?:hash|global-option|config-settings?)[\s=].*$", re.DOTALL)
_NAMED_URL = re.compile(r"[#&]egg=([A-Za-z0-9][\w.-]*)")
_WHEEL = re.compile(r"(?:^|[/\\])([A-Za-z0-9][\w.]*)-\d[^/\\]*\.whl(?:[#?].*)?$")
_VCS = re.compile(r"^(?:git|hg|svn|bzr)\+\S+?/([\w.-]+?)(?:\.git)?(?:@[^#]*)?(?:#.*)?$")
_SHORT = {"-r": "--requirement", "-c": "--constraint", "-e": "--editable", "-i": "--index-url", "-f": "--find-links"}
_INDEXES = ("--index-url", "--extra-index-url", "--find-links", "--pypi-url")


def read_requirements(path: str, found: Reading, *, group: str = "") -> None:
    """A requirement file of the project with all that it includes."""
    text = found.text(path)
    if text is not None:
        found.lists.append(path)
        read_lines(_logical(text), path, found, group=group)


def read_lines(lines: Iterator[tuple[int, str]], path: str, found: Reading, *, group: str = "", depth: int = 0) -> None:
    """Lines as pip takes them, each with its number in `path`."""
    for number, line in lines:
        option = _OPTION.fullmatch(line) if line.startswith("-") else None
        if option is None:
            _requirement(line, path, number, found, group=group)
            continue
        name = _SHORT.get(option[1], option[1])
        value = option[2].strip().strip("\"'")
        if name in ("--requirement", "--constraint"):
            inner = CONSTRAINTS if name == "--constraint" else group
            _included(value, path, number, found, group=inner, depth=depth)
        elif name == "--editable":
            found.is_whole = False
            _requirement(value, path, number, found, group=group)
        elif name in _INDEXES:
            found.index(value, path, number)


def _included(value: str, path: str, line: int, found: Reading, *, group: str, depth: int) -> None:
    if re.match(r"[a-z]+://", value):
        found.cannot_read(path, line, "it includes a file from the network")
        return
    if depth >= DEEPEST:
        found.cannot_read(path, line, "files include one another without end")
        return
    whole = found.files.within(value, beside=path)
    text = found.text(value, named_by=path, line=line)
    if text is not None and whole is not None:
        is_named_by_list = path in found.lists or path in found.included
        (found.included if is_named_by_list else found.lists).append(whole)
        role, found.role = found.role, Role.HANDED
        read_lines(_logical(text), whole, found, group=group, depth=depth + 1)
        found.role = role


def _logical(text: str) -> Iterator[tuple[int, str]]:
    """Lines without comments; a backslash at the end joins the next one."""
    begun, parts = 0, []
    for number, line in numbered(text):
        begun = begun or number
        is_comment = line.lstrip().startswith("#")
        if line.endswith("\\") and not is_comment:
            parts.append(line[:-1])
            continue
        parts.append("" if is_comment else line)
        whole = _COMMENT.sub("", "".join(parts)).strip()
        if whole:
            yield begun, whole
        begun, parts = 0, []
    if parts and (rest := _COMMENT.sub("", "".join(parts)).strip()):
        yield begun, rest


def _requirement(line: str, path: str, number: int, found: Reading, *, group: str) -> None:
    line = _PER_REQUIREMENT.sub("", line).strip()
    limits = group == CONSTRAINTS
    named = _NAMED_URL.search(line) or _VCS.match(without_login(line)) or _WHEEL.search(line)
    if is_local(line):
        found.is_whole = False
        found.leave_out(line, path, number, OF_THE_PROJECT)
    elif "://" not in line or re.match(r"[\w.-]+\s*(?:\[[^\]]*\])?\s*@", line):
        found.need(line, path, number, group=group, is_limit=limits)
    elif named is None:
        found.cannot_read(path, number, "an address that does not say which package it is")
    else:
        found.need(named[1], path, number, group=group, is_limit=limits, url=line)
    if found.needs and found.needs[-1].url and found.needs[-1].name == "torch":
        # The plan brings torch from its index, and an installer takes two places for one package as a conflict.
        found.is_whole = False


def is_local(line: str) -> bool:
    """Whether a line names a folder or file instead of a package."""
    place = line.partition(";")[0].strip()
    if "://" in place and not place.startswith("file:"):
        return False
    return place.startswith((".", "~", "file:")) or (" @" not in place and any(mark in place for mark in "/\\"))
