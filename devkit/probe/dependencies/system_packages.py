"""Debian packages that a project's Dockerfiles, CI workflows and guides install with apt, and programs that its code starts."""

import ast
import re
from collections.abc import Iterable

from devkit.facts.dependencies import SystemPackage
from devkit.formats.shell import ShellCommand
from devkit.probe.dependencies.imports import parse_program, read_programs
from devkit.probe.dependencies.steps import list_guides, list_steps, read_commands
from devkit.probe.project.dockerfile import parse_instructions
from devkit.probe.project.files import ProjectFiles

WORKFLOWS = ".github/workflows"
MAX_FILES = 30
_FOLDERS = ("", "docker/", "Docker/", ".docker/", f"{WORKFLOWS}/")
_DOCKERFILE = re.compile(r"(?:.*[._-])?dockerfile(?:[._-].*)?", re.IGNORECASE)
_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]+", re.ASCII)
"""Source: https://www.debian.org/doc/debian-policy/ch-controlfields.html#source"""
_CALL = re.compile(
    r"(?:subprocess|sp)\.(?:run|call|Popen|check_call|check_output|getoutput|getstatusoutput)|os\.(?:system|popen)"
    r"|shutil\.which|Popen|check_call|check_output"
)
_STEP_OF_SHELL = re.compile(r"&&|\|\|?|;")
_PROGRAM = re.compile(r"[A-Za-z][\w+-]*", re.ASCII)


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


def find_started_programs(files: ProjectFiles) -> tuple[SystemPackage, ...]:
    """Find the programs that the project's code starts by a name that it spells out, each at its first call."""
    found: dict[str, SystemPackage] = {}
    for path, text in read_programs(files, is_library=False):
        tree = parse_program(text) if _CALL.search(text) else None
        for node in ast.walk(tree) if tree else ():
            if not (isinstance(node, ast.Call) and node.args and _CALL.fullmatch(ast.unparse(node.func))):
                continue
            # The first word of a list, or of each step of a line for the shell, up to what is computed.
            first = node.args[0]
            steps = [_read_start(first.elts[0])] if isinstance(first, ast.List | ast.Tuple) and first.elts else []
            for step in steps or _STEP_OF_SHELL.split(_read_start(first)):
                words = [word for word in step.split() if word != "sudo" and "=" not in word]
                if words and _PROGRAM.fullmatch(words[0]):
                    found.setdefault(words[0], SystemPackage(words[0], path, node.lineno))
    return tuple(found.values())


def _read_start(node: ast.expr) -> str:
    """Return the text at the start of an expression, "" where that is computed."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):  # "a {}".format(b)
        return _read_start(node.func.value)
    if isinstance(node, ast.BinOp):
        return _read_start(node.left)
    return _read_start(node.values[0]) if isinstance(node, ast.JoinedStr) and node.values else ""
