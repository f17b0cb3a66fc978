"""The Python that trains: the project's, and how a devkit command continues in it.

devkit lives in its own environment, without the project's packages. Importable without torch.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from devkit.errors import DevkitError
from devkit.facts.values import Release, Unknown
from devkit.probe.host import Host, LocalHost
from devkit.probe.machine.interpreter import PYTHON_VARIABLE, find_workload_python, hint_at_variable
from devkit.release import INSTALL_WORKLOAD_COMMAND
from devkit.workload import boot

WORKLOAD_PACKAGES = ("torch", "transformers", "peft", "accelerate")
MIN_PYTHON = Release.parse("3.11")

_INSPECT = (
    "import importlib.util as u, platform, sys; "
    "print(platform.python_version(), *[name for name in sys.argv[1:] if u.find_spec(name)])"
)


@dataclass(frozen=True)
class Interpreter:
    """A Python, and those of WORKLOAD_PACKAGES that it has. `is_own` is devkit's own."""

    executable: str
    version: Release
    packages: tuple[str, ...]
    is_own: bool

    @property
    def missing(self) -> tuple[str, ...]:
        """The packages that training needs and this Python lacks."""
        return tuple(name for name in WORKLOAD_PACKAGES if name not in self.packages)

    def lacks(self, packages: Sequence[str]) -> DevkitError:
        """Return the error that says what this Python lacks and what to do."""
        names = " and ".join(packages)
        if self.is_own:
            verb = "is" if len(packages) == 1 else "are"
            return DevkitError(
                f"{names} {verb} not installed for {self.executable}",
                f"{INSTALL_WORKLOAD_COMMAND} --python {self.executable}",
            )
        install = f"uv pip install --python {self.executable} {' '.join(packages)}"
        return DevkitError(
            f"the project's environment has no {names}: {self.executable}",
            f"Add it to the project's requirements, or run: {install}",
        )


def find_torch_interpreter(host: Host) -> Interpreter:
    """Return the project's interpreter if it has torch, else devkit's own if that has. Raises DevkitError.

    The project's is what DEVKIT_PYTHON names, which is then the only one, or else the active virtual environment's.
    """
    project = find_workload_python(host)
    if isinstance(project, Unknown):
        raise DevkitError(f"no Python to train with: {project.reason}", hint_at_variable(host))
    executables = [project.executable, *(() if host.env.get(PYTHON_VARIABLE) else (host.python,))]
    found = [inspect_interpreter(host, executable) for executable in dict.fromkeys(executables)]
    for interpreter in found:
        if "torch" in interpreter.packages:
            return interpreter
    raise found[0].lacks(("torch",))


def inspect_interpreter(host: Host, executable: str) -> Interpreter:
    """Look for the workload's packages without importing them. Raises DevkitError where the interpreter does not start."""
    # Before Python 3.11 there is no -P.
    attempts = (host.run([executable, option, "-c", _INSPECT, *WORKLOAD_PACKAGES]) for option in ("-P", "-I"))
    done = next((done for done in attempts if done.code == 0 and done.out.split()), None)
    if done is None:
        raise DevkitError(f"{executable} does not start", hint_at_variable(host))
    version, *packages = done.out.split()
    return Interpreter(executable, Release.parse(version), tuple(packages), executable == host.python)


def build_module_command(python: str, module: str, *flags: str, with_requirements: bool = True) -> list[str]:
    """Build the command line that runs a module of this devkit in `python`, which needs to be 3.11 or newer.

    Args:
        flags: Python's own.
        with_requirements: whether what devkit requires is found there, too, after the packages of `python`.
    """
    own = [folder for folder in sys.path if Path(folder).name in ("site-packages", "dist-packages")]
    folders = os.pathsep.join(own) if with_requirements else ""
    return [python, "-P", *flags, str(Path(boot.__file__)), folders, module]


def require_workload_python(command: str) -> Interpreter:
    """Return the interpreter that `command` runs in. Raises DevkitError where that lacks a package or is too old."""
    interpreter = find_torch_interpreter(LocalHost())
    if interpreter.version < MIN_PYTHON:
        raise DevkitError(
            f"{command} needs Python {MIN_PYTHON}, but the project's environment has {interpreter.version}",
            f"Train with the project's own scripts, or plan a newer Python: devkit init --python {MIN_PYTHON}",
        )
    if interpreter.missing:
        raise interpreter.lacks(interpreter.missing)
    return interpreter


def continue_in_project(command: str) -> None:
    """Run this process's own command line again in the project's interpreter, unless it is this one.

    Raises DevkitError as `require_workload_python` does.
    """
    python = require_workload_python(command).executable
    if python == sys.executable:
        return
    # The command finds itself at home there, at once.
    os.environ[PYTHON_VARIABLE] = python
    argv = [*build_module_command(python, "devkit"), *sys.argv[1:]]
    if sys.platform == "win32":
        sys.exit(subprocess.call(argv))
    os.execv(python, argv)  # noqa: S606 - a list of arguments has no use for a shell
