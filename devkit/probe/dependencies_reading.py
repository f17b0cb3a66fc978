"""What is collected while the files of one project are read for the packages that they name."""

import re
from collections.abc import Iterator
from dataclasses import replace

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from devkit.facts.dependencies import LeftOut, Needed, PackageIndex, Role, Unread
from devkit.facts.project import FileState
from devkit.facts.values import MOST_SHOWN
from devkit.probe.project_files import ProjectFiles

MOST_FILES = 40
PYTHON = "python"
IN_A_BUILD_FILE = re.compile(r"[A-Za-z0-9_.][\w./+-]*", re.ASCII)
"""Paths that a Dockerfile can name as they are."""

_LOGIN = re.compile(r"(?<=://)(?!git@)[^/@\s]*@")
_TORCH_WHEEL = re.compile(r"/torch-(\d[\w.]*(?:(?:\+|%2[Bb])[\w.]+)?)-[\w.]+-[\w.]+-[\w.]+\.whl\b")
_PROBLEMS = {
    FileState.MISSING: "it does not exist",
    FileState.OUTSIDE: "it lies outside of the project",
    FileState.TOO_LARGE: "it is too large to be a list of packages",
    FileState.UNREADABLE: "it cannot be read",
}


class Reading:
    """The requirements found so far, and what could not be read. Readers of one format each add to it."""

    def __init__(self, files: ProjectFiles) -> None:
        self.files = files
        self.role = Role.HANDED
        """What becomes of the requirements that are read next."""
        self.paths: list[str] = []
        self.lists: list[str] = []
        self.included: list[str] = []
        self.is_whole = True
        """Whether an installer can be handed the lists as they are."""
        self.needs: list[Needed] = []
        self.python: list[Needed] = []
        self.indexes: list[PackageIndex] = []
        self.unread: list[Unread] = []
        self.left_out: list[LeftOut] = []

    def text(self, path: str, *, named_by: str = "", line: int = 1) -> str | None:
        """The text of a file whose `path` is relative to the file that names it, else to the project; noted if bad."""
        whole = self.files.within(path, beside=named_by)
        if whole is None:
            self.cannot_read(named_by or path, line, f"{_shown(path)}: {_PROBLEMS[FileState.OUTSIDE]}")
            return None
        if not IN_A_BUILD_FILE.fullmatch(whole):
            self.cannot_read(named_by or whole, line, f"{_shown(whole)}: a Dockerfile cannot carry this name")
            return None
        if whole in self.paths:
            return None
        if len(self.paths) >= MOST_FILES:
            self.cannot_read(whole, 1, f"more than {MOST_FILES} files")
            return None
        text = self.files.read(whole, "dependencies")
        if text is None:
            seen = {file.path: file.state for file in self.files.seen}
            problem = _PROBLEMS[seen.get(whole, FileState.MISSING)]
            self.cannot_read(named_by or whole, line, f"{whole}: {problem}" if named_by else problem)
            return None
        self.paths.append(whole)
        return text

    def cannot_read(self, path: str, line: int, problem: str) -> None:
        """Remember what says no requirement, and why."""
        self.unread.append(Unread(path, line, problem))

    def need(self, text: str, path: str, line: int, *, group: str = "", is_limit: bool = False, url: str = "") -> None:
        """A PEP 508 requirement, with `url` as its source where the file names one elsewhere."""
        try:
            found = Requirement(text)
        except (InvalidRequirement, RecursionError):
            self.cannot_read(path, line, f"{_shown(text)} is no requirement")
            return
        source = without_login(url or found.url or "")
        name = canonicalize_name(found.name)
        need = Needed(
            name=name,
            specifier=str(found.specifier) or (_of_wheel(source) if name == "torch" else ""),
            path=path,
            line=line,
            marker=str(found.marker or ""),
            extras=tuple(sorted(found.extras)),
            url=source,
            group=group,
            role=Role.LIMIT if is_limit else self.role,
        )
        self.needs.append(need)

    def needs_python(self, specifier: str, path: str, line: int) -> None:
        """A requirement of Python itself."""
        try:
            checked = str(SpecifierSet(specifier))
        except InvalidSpecifier:
            self.cannot_read(path, line, f"{_shown(specifier)} is no version of Python")
            return
        if checked:
            self.python.append(Needed(PYTHON, checked, path, line))

    def index(self, url: str, path: str, line: int) -> None:
        """Another place to take packages from."""
        self.indexes.append(PackageIndex(without_login(url), path, line))

    def write_out(self) -> None:
        """Hand no list to an installer: devkit writes out what they say."""
        self.lists.clear()
        self.included.clear()
        self.needs = [replace(need, role=Role.WRITTEN) if need.role is Role.HANDED else need for need in self.needs]

    def leave_out(self, what: str, path: str, line: int, because: str) -> None:
        """Something that the image does not install."""
        self.left_out.append(LeftOut(_shown(what), path, line, because))


def without_login(url: str) -> str:
    """An address without the user name and password in it; `git@` is every forge's public user."""
    return _LOGIN.sub("", url)


def line_of(text: str, *words: str, after: int = 0) -> int:
    """The number of the first line below line `after` that holds all the words; 1 where none does."""
    for number, line in enumerate(text.splitlines(), 1):
        if number > after and all(word in line for word in words):
            return number
    return 1


def numbered(text: str) -> Iterator[tuple[int, str]]:
    """The lines with their numbers, as editors count them."""
    return enumerate(re.split(r"\r\n|\n|\r", text), 1)


def _of_wheel(url: str) -> str:
    """The version that the address of a torch wheel names, as a specifier."""
    found = _TORCH_WHEEL.search(url)
    try:
        return str(SpecifierSet(f"=={found[1].replace('%2B', '+').replace('%2b', '+')}")) if found else ""
    except InvalidSpecifier:
        return ""


def _shown(text: str) -> str:
    """A wrong text as a message repeats it: short, on one line, without a login."""
    return without_login(ascii(text)[1:-1])[:MOST_SHOWN]
