"""`devkit plan --install`: the command that installs the plan's packages here, printed or run."""

import os
import shlex
import subprocess
from typing import TYPE_CHECKING

import click

from devkit.errors import DevkitError, ExitCode
from devkit.facts.values import Unknown

if TYPE_CHECKING:
    from devkit.probe.machine.interpreter import WorkloadPython
    from devkit.solver.plan import Plan


def find_target_python(*, runs: bool) -> "WorkloadPython | None":
    """Find the Python of the active virtual environment; None without one. Raises DevkitError where it `runs` there."""
    from devkit.probe.host import LocalHost
    from devkit.probe.machine.interpreter import find_workload_python

    python = find_workload_python(LocalHost()) if os.environ.get("VIRTUAL_ENV") else Unknown("none is active")
    if not isinstance(python, Unknown):
        return python
    if runs:
        raise DevkitError(
            "--run installs into the active virtual environment, but none is active",
            "Make one: uv venv && . .venv/bin/activate",
        )
    return None


def install_plan(plan: "Plan", python: "WorkloadPython | None", *, runs: bool) -> int:
    """Print the uv or pip command that installs the plan, and run it in that Python. Returns the exit code."""
    from devkit.probe.uv_resolver import find_uv
    from devkit.solver.output import list_install_words

    uv = find_uv()
    words = list_install_words(plan, with_uv=bool(uv))
    if not words:
        raise DevkitError("the plan has no packages", "Name a stack, as in --stack vllm.")
    click.echo(shlex.join([*(["uv", "pip"] if uv else ["pip"]), "install", *words]))
    if not runs or python is None:
        return ExitCode.DONE
    program = (
        [uv, "pip", "install", f"--python={python.executable}"] if uv else [python.executable, "-m", "pip", "install"]
    )
    done = subprocess.run([*program, *words], check=False)
    return ExitCode.DONE if done.returncode == 0 else ExitCode.ANSWER_IS_NO
