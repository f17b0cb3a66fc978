"""The requirements of one project as they are collected, and the reader of requirement files as pip and uv read them.

Source: https://pip.pypa.io/en/stable/reference/requirements-file-format/
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from devkit.compat.specifiers import canonicalize_name
from devkit.compat.version_tables import load_tables
from devkit.facts.dependencies import (
    OUTSIDE_OF_PROJECT,
    CondaPackage,
    DependencyChoice,
    ExcludedPackage,
    IndexUse,
    LocalPackage,
    PackageIndex,
    PackageRequirement,
    RequirementRole,
    UnreadableRequirement,
)
from devkit.facts.project import FileState
from devkit.facts.secrets import redact_tokens
from devkit.facts.values import MAX_SHOWN_CHARACTERS
from devkit.probe.documents import get_text, get_texts
from devkit.probe.project.files import ProjectFiles

MAX_DEPENDENCY_FILES = 40
PYTHON = "python"
COMPUTED = "computed by the build, so they are installed with the project when the container opens"
DOCKERFILE_SAFE_PATH = re.compile(r"[A-Za-z0-9_.][\w./+-]*", re.ASCII)
"""Paths that a Dockerfile can name as they are."""
_LOGIN = re.compile(r"(?<=://)(?!git@)[^/\\?#@\s]*@")
_TORCH_WHEEL = re.compile(r"/torch-(\d[\w.]*(?:(?:\+|%2[Bb])[\w.]+)?)-[\w.]+-[\w.]+-[\w.]+\.whl\b")
_PROBLEMS = {
    FileState.MISSING: "it does not exist",
    FileState.OUTSIDE: "it is outside the project",
    FileState.TOO_LARGE: "it is too large to be a list of packages",
    FileState.UNREADABLE: "it is not a text file that this user can read",
}

# Requirement files: lines, options, and the files that they include.
MAX_INCLUDE_DEPTH = 10
MAX_REQUIREMENTS = 10_000
"""Of all files together; the lock of a large project names a thousand."""
MAX_REQUIREMENT_CHARACTERS = 32_768
"""Of one requirement with its specifiers and markers, without its hashes."""
MAX_SPECIFIER_CHARACTERS = 4_096
"""Of the versions alone: Python reads no number of more than 4,300 digits."""
MAX_UNREADABLE = 1_000
CONSTRAINTS = "constraints"
"""The group of what a constraints file says: it limits a package that something else needs."""
_COMMENT = re.compile(r"(?:^|\s)#.*$")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_LABELED_BOUND = re.compile(r"((?:[<>~]=|[<>])\s*[\w.!]+)\+[\w.]+")
_PLACEHOLDER = re.compile(r"\s*==\s*0\.0[\w.]*")
OPTION = re.compile(r"(--[A-Za-z][\w-]*|-[A-Za-z])[\s=]*(.*)", re.DOTALL)
_PER_REQUIREMENT = re.compile(r"(?<!\s)\s+--(?:hash|global-option|config-settings?)[\s=].*$", re.DOTALL)
_NAMED_URL = re.compile(r"[#&]egg=([A-Za-z0-9][\w.-]*)")
WHEEL = re.compile(r"(?:^|[/\\])([A-Za-z0-9][\w.]*)-(\d[\w.!]*)[^/\\]*\.whl(?:[#?].*)?$")
"""The name and the public version in the file name or the address of a wheel."""
VCS = re.compile(r"^(?:git|hg|svn|bzr)\+\S+?/([\w.-]+?)(?:\.git)?/?(?:@[^#]*)?(?:#.*)?$")
_LOCAL_EXTRAS = re.compile(r"\[([^\]]*)\]")
_SHORT = {"-r": "--requirement", "-c": "--constraint", "-e": "--editable", "-i": "--index-url", "-f": "--find-links"}
INDEX_OPTIONS = {
    "--index-url": IndexUse.DEFAULT,
    "--pypi-url": IndexUse.DEFAULT,
    "--extra-index-url": IndexUse.EXTRA,
    "--find-links": IndexUse.LINKS,
}


_MEANT = {"": "==", "=": "==", "<": "<", ">": ">", "<=": "<=", "=>": ">="}
"""The operator that is meant, by the signs that a line has in any order and number."""


_BEGINS = re.compile(r"[A-Za-z][\w.-]*\s*(?:[=<>!~]|v?\d)")
_FORM = "a name and a version, such as torch==2.5"


class RequirementCollector:
    """The requirements found so far, and what could not be read. Readers of one format each add to it."""

    def __init__(self, files: ProjectFiles, choice: DependencyChoice) -> None:
        self.files = files
        self.choice = choice
        self.role = RequirementRole.PASSED_THROUGH
        """The role of the requirements that are read next."""
        self.paths: list[str] = []
        self.lists: list[str] = []
        self.included: list[str] = []
        self.has_too_many = False
        self.is_whole = True
        """False when no installer takes the lists as they are."""
        self.is_computed = False
        """True where only the project's own build knows all its requirements."""
        self.is_lock_dated = False
        """True for a lock that leaves out newer packages by a setting which the project does not hold."""
        self.needs: list[PackageRequirement] = []
        self.python: list[PackageRequirement] = []
        self.indexes: list[PackageIndex] = []
        self.unread: list[UnreadableRequirement] = []
        self.left_out: list[ExcludedPackage] = []
        self.local: list[LocalPackage] = []
        self.conda: list[tuple[CondaPackage, str, str]] = []
        """Packages of conda, each with its name and its PEP 440 specifier."""
        self.conda_channels: list[str] = []
        self.extras: dict[str, bool] = {}
        """The project's extras, and whether each is installed."""
        self.groups: dict[str, bool] = {}
        """The same of its dependency groups."""

    def select_extras(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the extras that were chosen, and remember the others as available."""
        return _select(names, self.choice.extras, self.extras)

    def select_groups(self, names: Iterable[str], *, defaults: Iterable[str]) -> tuple[str, ...]:
        """Return the groups that are installed by default or were chosen, and remember the others as available."""
        return _select(names, (*defaults, *self.choice.groups), self.groups)

    def text(self, path: str, *, named_by: str = "", line: int = 1) -> str | None:
        """Read a file whose `path` is relative to the file that names it, else to the project; note it if it cannot be read."""
        whole = self.files.within(path, beside=named_by)
        if whole is None:
            self.add_unreadable(named_by or path, line, f"{_shown(path)}: {_PROBLEMS[FileState.OUTSIDE]}")
            return None
        if not DOCKERFILE_SAFE_PATH.fullmatch(whole):
            self.add_unreadable(named_by or whole, line, f"{_shown(whole)}: a Dockerfile cannot carry this name")
            return None
        if whole in self.paths:
            return None
        if len(self.paths) >= MAX_DEPENDENCY_FILES:
            self.add_unreadable(whole, 1, f"more than {MAX_DEPENDENCY_FILES} files")
            return None
        text = self.files.read(whole, "dependencies")
        if text is None:
            seen = {file.path: file.state for file in self.files.seen}
            state = seen.get(whole, FileState.MISSING)
            if named_by:
                self.add_unreadable(named_by, line, f"{whole}: {_PROBLEMS[state]}")
            else:
                self.add_unreadable(whole, line if state is not FileState.UNREADABLE else 0, _PROBLEMS[state])
            return None
        self.paths.append(whole)
        return text

    def add_unreadable(self, path: str, line: int, problem: str, correction: str = "") -> None:
        """Remember what says no requirement, and why; of very many the first ones."""
        if len(self.unread) < MAX_UNREADABLE:
            self.unread.append(UnreadableRequirement(path, line, problem, correction))

    def need(
        self,
        text: str,
        path: str,
        line: int,
        *,
        group: str = "",
        is_limit: bool = False,
        url: str = "",
        index: str = "",
    ) -> None:
        """Add a PEP 508 requirement, with `url` or the name of an `index` as its source where the file says one elsewhere."""
        if len(self.needs) >= MAX_REQUIREMENTS:
            if not self.has_too_many:
                self.has_too_many, says = True, f"not read: more than {MAX_REQUIREMENTS} requirements"
                self.unread.insert(0, UnreadableRequirement(path, line, says))
            return
        if len(text) > MAX_REQUIREMENT_CHARACTERS:
            self.add_unreadable(path, line, f"not read: longer than {MAX_REQUIREMENT_CHARACTERS} characters")
            return
        try:
            found = Requirement(text)
            if len(str(found.specifier)) > MAX_SPECIFIER_CHARACTERS:
                raise InvalidRequirement
        except (InvalidRequirement, RecursionError):
            # What does not begin as a requirement may be anything that somebody pasted there.
            shown = _shown(text) if _BEGINS.match(text) else "the line"
            # What a line means to say, as torch==2.5 for `torch = 2.5` and `torch 2.5`.
            meant = re.fullmatch(r"([A-Za-z][\w.-]*)\s*(?:([=<>]+)\s*)?v?(\d[\w.]*)(?:=\w+)?", text)
            operator = _MEANT.get("".join(sorted({*(meant[2] or "")})), "") if meant else ""
            is_safe = meant and operator and redact_tokens(text) == text
            correction = f"{meant[1]}{operator}{meant[3]}" if meant and is_safe else _FORM
            is_list = path.endswith((".txt", ".in"))
            self.add_unreadable(path, line, f"{shown} is not a requirement", correction if is_list else "")
            return
        source = strip_login(url or found.url or "")
        name = canonicalize_name(found.name)
        specifier = str(found.specifier)
        if name == PYTHON:
            # `conda create --file` takes such a list, and no index has that package.
            self.is_whole = False
            self.add_python(specifier, path, line)
            return
        if name == "torch" and not specifier and (wheel := _TORCH_WHEEL.search(source)):
            with suppress(InvalidSpecifier):
                specifier = str(SpecifierSet(f"=={wheel[1].replace('%2B', '+').replace('%2b', '+')}"))
        need = PackageRequirement(
            name=name,
            specifier=specifier,
            path=path,
            line=line,
            marker=str(found.marker or ""),
            extras=tuple(sorted(found.extras)),
            url=source,
            group=group,
            role=RequirementRole.CONSTRAINT if is_limit else self.role,
            index=index,
        )
        self.needs.append(need)

    def need_table(
        self,
        name: str,
        table: Mapping[str, Any],
        path: str,
        line: int,
        *,
        version: str,
        group: str = "",
        marker: str = "",
    ) -> None:
        """Add a requirement that Poetry, Pipenv or pixi writes as a table: extras, a version or a source."""
        if "path" in table or table.get("editable") is True:
            self.need_local(get_text(table, "path") or ".", path, line)
        else:
            extras = ",".join(get_texts(table, "extras"))
            url = build_source_url(table)
            # Poetry and pixi say source, Pipenv says index.
            index = get_text(table, "source") or get_text(table, "index")
            written = f"{name}[{extras}]" if extras else name
            self.need(
                f"{written}{'' if url else version}{f' ; {marker}' if marker else ''}",
                path,
                line,
                group=group,
                url=url,
                index=index,
            )

    def need_local(self, written: str, path: str, line: int) -> None:
        """Add a folder or archive of the project, as the file `path` writes it: `./lib`, `file:lib`, `.[train]`."""
        place = _LOCAL_EXTRAS.sub("", re.split(r"\s;|#", written, maxsplit=1)[0].partition(";")[0].strip())
        place = place.removeprefix("file://").removeprefix("file:")
        whole = self.files.within(place, beside=path)
        if whole == ".":
            # The project itself is installed anyway; its extras may be named here alone.
            extras = _LOCAL_EXTRAS.search(written)
            names = [name.strip() for name in extras[1].split(",")] if extras else []
            self.choice = replace(self.choice, extras=(*self.choice.extras, *names))
        elif whole is None or not DOCKERFILE_SAFE_PATH.fullmatch(whole):
            self.exclude(written, path, line, OUTSIDE_OF_PROJECT)
        elif all(each.place != whole for each in self.local):
            self.local.append(LocalPackage(whole, path, line))

    def add_python(self, specifier: str, path: str, line: int) -> None:
        """Add a requirement of Python itself."""
        try:
            if len(specifier) > MAX_SPECIFIER_CHARACTERS:
                raise InvalidSpecifier
            checked = str(SpecifierSet(specifier))
        except InvalidSpecifier:
            self.add_unreadable(path, line, f"{_shown(specifier)} is not a version of Python")
            return
        if checked:
            self.python.append(PackageRequirement(PYTHON, checked, path, line))

    def index(self, url: str, path: str, line: int, *, name: str = "", use: IndexUse = IndexUse.EXTRA) -> None:
        """Add another place to take packages from."""
        self.indexes.append(PackageIndex(strip_login(url), path, line, name, use))

    def generate_lists(self) -> None:
        """Pass no list to an installer: devkit generates one from them."""
        self.lists.clear()
        self.included.clear()
        self.needs = [
            replace(need, role=RequirementRole.GENERATED) if need.role is RequirementRole.PASSED_THROUGH else need
            for need in self.needs
        ]

    def exclude(self, what: str, path: str, line: int, because: str) -> None:
        """Add something that the image does not install."""
        self.left_out.append(ExcludedPackage(_shown(what), path, line, because))


def _select(names: Iterable[str], chosen: Iterable[str], known: dict[str, bool]) -> tuple[str, ...]:
    wanted = set(map(canonicalize_name, chosen))
    known |= {name: canonicalize_name(name) in wanted for name in names}
    return tuple(name for name in names if known[name])


def build_source_url(table: Mapping[str, Any]) -> str:
    """Build the address of a git repository with its revision, or return that of a file; "" for neither."""
    git = get_text(table, "git")
    if not git:
        return get_text(table, "url") or get_text(table, "file")
    revision = next((get_text(table, key) for key in ("rev", "tag", "branch", "ref") if get_text(table, key)), "")
    return f"git+{git}@{revision}" if revision else f"git+{git}"


def read_requirements_file(path: str, found: RequirementCollector, *, group: str = "") -> None:
    """Read a requirement file of the project with all that it includes."""
    text = found.text(path)
    if text is not None:
        found.lists.append(path)
        read_requirement_lines(join_lines(text), path, found, group=group)


def join_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines without comments, each with its number; a backslash at the end joins the next one."""
    begun, parts = 0, []
    for number, line in number_lines(text):
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


def strip_login(url: str) -> str:
    """Return an address without user name and password; `git@` is every forge's public user."""
    return _LOGIN.sub("", url)


def parse_option(option: re.Match[str]) -> tuple[str, str]:
    """Return the long name and the value of a line that `OPTION` matches."""
    return _SHORT.get(option[1], option[1]), option[2].strip().strip("\"'")


def number_lines(text: str) -> Iterator[tuple[int, str]]:
    """Return the lines with their numbers, as editors count them."""
    return enumerate(re.split(r"\r\n|\n|\r", text), 1)


def read_requirement_lines(
    lines: Iterator[tuple[int, str]], path: str, found: RequirementCollector, *, group: str = "", depth: int = 0
) -> None:
    """Read lines as pip does, each with its number in `path`."""
    for number, line in lines:
        option = OPTION.fullmatch(line) if line.startswith("-") else None
        if option is None:
            _requirement(line, path, number, found, group=group)
            continue
        name, value = parse_option(option)
        if name in ("--requirement", "--constraint"):
            inner = CONSTRAINTS if name == "--constraint" else group
            _included(value, path, number, found, group=inner, depth=depth)
        elif name == "--editable":
            found.is_whole = False
            _requirement(value, path, number, found, group=group)
        elif name in INDEX_OPTIONS:
            found.index(value, path, number, use=INDEX_OPTIONS[name])


def _requirement(line: str, path: str, number: int, found: RequirementCollector, *, group: str) -> None:
    line = _PER_REQUIREMENT.sub("", line).strip()
    limits = group == CONSTRAINTS
    if is_local_path(line):
        found.is_whole = False
        found.need_local(line, path, number)
    elif "://" not in line or re.match(r"[\w.-]+\s*(?:\[[^\]]*\])?\s*@", line):
        renamed = name_as_on_index(line)
        found.is_whole = found.is_whole and renamed == line
        found.need(renamed, path, number, group=group, is_limit=limits)
    else:
        address, separator, marker = line.partition("; ")
        address = address.strip()
        named = _NAMED_URL.search(address) or VCS.match(strip_login(address)) or WHEEL.search(address)
        if named is None:
            found.add_unreadable(path, number, "an address that does not show which package it is")
        else:
            text = f"{named[1]} {separator}{marker}"
            found.need(text, path, number, group=group, is_limit=limits, url=address)
    if found.needs and found.needs[-1].url and found.needs[-1].name in ("torch", *load_tables().compiled.packages):
        # The plan brings torch from its index, and an installer takes two places for one package as a conflict. What
        # compiles against torch has to be named, so that it can be installed later.
        found.is_whole = False


def name_as_on_index(requirement: str) -> str:
    """Return a requirement with the name that the index has wheels by; the version of a placeholder counts for nothing.

    The label of a build, which pip has long ignored in a bound, is left out: `torch>=2.6.0+cu126`.
    """
    requirement = _LABELED_BOUND.sub(r"\1", requirement)
    named = _NAME.match(requirement)
    names = {row.name: row.distribution for row in load_tables().imports.misnamed}
    if named is None or named[0].lower() not in names:
        return requirement
    return names[named[0].lower()] + _PLACEHOLDER.sub("", requirement[named.end() :])


def _included(value: str, path: str, line: int, found: RequirementCollector, *, group: str, depth: int) -> None:
    if re.match(r"[a-z]+://", value):
        found.add_unreadable(path, line, "it includes a file from the network")
        return
    if depth >= MAX_INCLUDE_DEPTH:
        found.add_unreadable(path, line, "files include one another without end")
        return
    whole = found.files.within(value, beside=path)
    text = found.text(value, named_by=path, line=line)
    if text is not None and whole is not None:
        is_named_by_list = path in found.lists or path in found.included
        (found.included if is_named_by_list else found.lists).append(whole)
        role, found.role = found.role, RequirementRole.PASSED_THROUGH
        read_requirement_lines(join_lines(text), whole, found, group=group, depth=depth + 1)
        found.role = role


def is_local_path(line: str) -> bool:
    """Return whether a line names a folder or file instead of a package."""
    place = line.partition(";")[0].strip()
    if "://" in place and not place.startswith("file:"):
        return False
    return place.startswith((".", "~", "file:")) or (" @" not in place and any(mark in place for mark in "/\\"))


def _shown(text: str) -> str:
    """A wrong text as a message repeats it: short, on one line, without a login or a secret."""
    return redact_tokens(strip_login(ascii(text)[1:-1]))[:MAX_SHOWN_CHARACTERS]
