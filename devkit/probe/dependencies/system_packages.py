"""Debian packages that a project's Dockerfiles, CI workflows and guides install with apt."""

import re
from collections.abc import Iterable

from devkit.facts.dependencies import SystemPackage
from devkit.formats.shell import ShellCommand
from devkit.probe.dependencies.steps import list_guides, list_steps, read_commands
from devkit.probe.project.dockerfile import parse_instructions
from devkit.probe.project.files import ProjectFiles

WORKFLOWS = ".github/workflows"
MAX_FILES = 30
_FOLDERS = ("", "docker/", "Docker/", ".docker/", f"{WORKFLOWS}/")
_DOCKERFILE = re.compile(r"(?:.*[._-])?dockerfile(?:[._-].*)?", re.IGNORECASE)
_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]+", re.ASCII)
"""Source: https://www.debian.org/doc/debian-policy/ch-controlfields.html#source"""


def find_system_packages(files: ProjectFiles, beside: Iterable[str] = ()) -> tuple[SystemPackage, ...]:
    """Find what the project's files install with apt, each package once: by Dockerfiles, then by guides, then by CI.

    Dockerfiles in the folders of the files `beside` count as well.
    """
    folders = dict.fromkeys((*_FOLDERS, *(each[: each.rfind("/") + 1] for each in beside)))
    paths = [f"{folder}{name}" for folder in folders for name in files.names(folder or ".")]
    found: dict[str, SystemPackage] = {}

    def add(command: ShellCommand, path: str, line: int, *, is_from_ci: bool = False) -> None:
        words = command.values
        after = (
            words[words.index("install") + 1 :] if command.program in ("apt", "apt-get") and "install" in words else ()
        )
        for word in after:
            # A version or a release may follow the name: libfoo1=1.2, libfoo1/stable.
            name = re.split(r"[=/]", word, maxsplit=1)[0]
            if _NAME.fullmatch(name):
                found.setdefault(name, SystemPackage(name, path, line, is_from_ci))

    for path in [path for path in paths if _DOCKERFILE.fullmatch(path.rpartition("/")[2])][:MAX_FILES]:
        for run in parse_instructions(files.read(path, "apt") or ""):
            for _, command in read_commands(f"{run.text}\n{run.heredoc}") if run.keyword == "RUN" else ():
                add(command, path, run.line)
    for path in list_guides(files):
        for step in list_steps(files, path):
            if not step.aside:
                add(step.command, step.path, step.line)
    for path in [path for path in paths if path.startswith(WORKFLOWS) and path.endswith((".yml", ".yaml"))][:MAX_FILES]:
        for line, command in read_commands(files.read(path, "apt") or ""):
            add(command, path, line, is_from_ci=True)
    return tuple(found.values())
