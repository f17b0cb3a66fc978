"""Debian packages that a project's Dockerfiles, CI workflows and guides install with apt."""

import re
from collections.abc import Iterable, Iterator

from devkit.facts.dependencies import SystemPackage
from devkit.probe.project.dockerfile import parse_instructions
from devkit.probe.project.files import ProjectFiles

WORKFLOWS = ".github/workflows"
MAX_FILES = 30
_FOLDERS = ("", "docker/", "Docker/", ".docker/", f"{WORKFLOWS}/")
_DOCKERFILE = re.compile(r"(?:.*[._-])?dockerfile(?:[._-].*)?", re.IGNORECASE)
_GUIDE = re.compile(r"(?:readme|install(?:ation)?)(?:\.(?:md|rst|txt))?", re.IGNORECASE)
_INSTALL = re.compile(r"\bapt(?:-get)?\b[^\n\\;&|`]*?\binstall\b((?:[^\n\\;&|`#]|\\\r?\n)*)")
_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]+", re.ASCII)
"""Source: https://www.debian.org/doc/debian-policy/ch-controlfields.html#source"""


def find_system_packages(files: ProjectFiles, beside: Iterable[str] = ()) -> tuple[SystemPackage, ...]:
    """Find what the project's files install with apt, each package once: by Dockerfiles, then by guides, then by CI.

    Dockerfiles in the folders of the files `beside` count as well.
    """
    folders = dict.fromkeys((*_FOLDERS, *(each[: each.rfind("/") + 1] for each in beside)))
    paths = [f"{folder}{name}" for folder in folders for name in files.names(folder or ".")]
    kinds = (
        [path for path in paths if _DOCKERFILE.fullmatch(path.rpartition("/")[2])],
        [path for path in paths if "/" not in path and _GUIDE.fullmatch(path)],
        [path for path in paths if path.startswith(WORKFLOWS) and path.endswith((".yml", ".yaml"))],
    )
    found: dict[str, SystemPackage] = {}
    for path in [path for kind in kinds for path in kind][:MAX_FILES]:
        text = files.read(path, "apt") or ""
        runs = [each for each in parse_instructions(text) if each.keyword == "RUN"] if path in kinds[0] else []
        inside = ((name, each.line) for each in runs for name, _ in _in_text(f"{each.text}\n{each.heredoc}"))
        for name, line in inside if path in kinds[0] else _in_text(text):
            found.setdefault(name, SystemPackage(name, path, line, path in kinds[2]))
    return tuple(found.values())


def _in_text(text: str) -> Iterator[tuple[str, int]]:
    for command in _INSTALL.finditer(text):
        if "#" in text[text.rfind("\n", 0, command.start()) + 1 : command.start()]:
            continue  # a comment or a heading, whose other words are prose
        line = text.count("\n", 0, command.start()) + 1
        for word in command[1].split():
            # A version or a release may follow the name: libfoo1=1.2, libfoo1/stable.
            name = re.split(r"[=/]", word.strip("\"'"), maxsplit=1)[0]
            if _NAME.fullmatch(name):
                yield name, line
