"""`devkit install`: the command that installs the plan's packages here."""

import os
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import click

from devkit.cli.plan import plan_with_packages, resolve_option
from devkit.cli.plan_options import PlanOptions, build_request_from_options, plan_options
from devkit.errors import DevkitError, ExitCode
from devkit.facts.dependencies import NOTHING_CHOSEN, DependencyChoice
from devkit.facts.values import Unknown


@click.command()
@plan_options
@click.option(
    "--project",
    metavar="DIR",
    default=".",
    type=click.Path(exists=True, file_okay=False),
    help="The project to install for. Default: this directory.",
)
@click.option("--run", is_flag=True, help="Run the command, in the virtual environment that is active.")
@resolve_option
def install(options: PlanOptions, *, project: str, run: bool, no_resolve: bool) -> int:
    """Print the uv or pip command that installs what `devkit plan` chooses for this machine.

    The Python is that of the virtual environment that is active. Exit code 1: nothing fits, or the command failed.
    """
    from devkit.probe.host import LocalHost
    from devkit.probe.machine.interpreter import find_workload_python
    from devkit.probe.project.reader import read_local_dependencies
    from devkit.probe.uv_resolver import find_uv
    from devkit.render.project_plan import read_project_settings
    from devkit.solver.output import format_answer, list_install_words
    from devkit.solver.plan import Conflict

    is_active = bool(os.environ.get("VIRTUAL_ENV"))
    if run and not is_active:
        raise DevkitError(
            "--run installs in a virtual environment alone, and none is active",
            "Make one: uv venv && . .venv/bin/activate",
        )
    python = find_workload_python(LocalHost()) if is_active else Unknown("no virtual environment is active")
    if not isinstance(python, Unknown) and options.python is None:
        options = replace(options, python=str(python.version))
    settings = read_project_settings(project)
    chosen = settings.choice if settings else NOTHING_CHOSEN
    wanted = DependencyChoice(
        options.extras or chosen.extras,
        options.groups or chosen.groups,
        options.requirements or chosen.requirements,
        tuple(dict.fromkeys((*chosen.packages, *options.packages))),
    )
    dependencies = read_local_dependencies(project, wanted)
    request = build_request_from_options(options)
    plan = plan_with_packages(request, dependencies, Path(project), settings, no_resolve=no_resolve)
    if isinstance(plan, Conflict):
        click.echo(format_answer(plan, width=120, is_cpu_requested=False), err=True)
        return ExitCode.ANSWER_IS_NO
    uv = find_uv()
    installer = ["uv", "pip"] if uv else ["pip"]
    words = list_install_words(plan, with_uv=bool(uv))
    if not words:
        raise DevkitError("the plan has no packages", "Name a stack, as in --stack vllm.")
    click.echo(shlex.join([*installer, "install", *words]))
    if not run or isinstance(python, Unknown):
        return ExitCode.DONE
    program = (
        [uv, "pip", "install", f"--python={python.executable}"] if uv else [python.executable, "-m", "pip", "install"]
    )
    done = subprocess.run([*program, *words], check=False)
    return ExitCode.DONE if done.returncode == 0 else ExitCode.ANSWER_IS_NO
