"""`devkit plan`: choose versions that fit, and explain each choice."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from devkit.cli.changes import format_compile_costs
from devkit.cli.command import Command, ProjectPath
from devkit.cli.output import dump_json
from devkit.cli.plan_options import build_request_from_settings, plan_options, refuse_contradiction
from devkit.cli.runtime import is_drawn, today
from devkit.cli.terminal import draw_plan, make_console, show_status
from devkit.compat.version_tables import load_tables
from devkit.errors import DevkitError, ExitCode
from devkit.facts.dependencies import NO_DEPENDENCIES, NOTHING_CHOSEN
from devkit.facts.values import Unknown
from devkit.render import project_plan
from devkit.render.devkit_toml import ProjectSettings
from devkit.render.project_plan import read_project_settings
from devkit.solver.output import (
    format_answer,
    format_requirements,
    list_install_words,
    serialize_answer,
    serialize_dependencies,
)
from devkit.solver.plan import Conflict, Plan, Vendor
from devkit.solver.project import add_project_constraints, list_choices, select_torch_build, validate_choice
from devkit.text import wrap_text

if TYPE_CHECKING:
    from devkit.probe.machine.interpreter import WorkloadPython

# The option and the spinner of commands that let uv resolve a project's packages.


def resolve_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command that plans a project: it gets `no_resolve`."""
    text = "Do not use the network: the packages are neither resolved with uv nor checked."
    return click.option("--no-resolve", is_flag=True, help=text)(command)


plan_with_packages = partial(project_plan.plan_with_packages, show_status=show_status)


_NO_HOLD = {"--no-hold": "It does not change the plan. For the image, use: devkit init --set no_hold=true"}


@click.command(cls=Command, renamed={"--project": ""}, removed=_NO_HOLD)
@click.argument("project", metavar="[DIR]", default=".", type=ProjectPath(exists=True, file_okay=False))
@plan_options(with_details=True)
@click.option("--ignore-dependencies", is_flag=True, help="Plan without the project's own requirements.")
@click.option(
    "--why", metavar="FIELD", help="Explain one choice, such as torch, and why the alternatives were rejected."
)
@resolve_option
@click.option(
    "--pip", "as_requirements", is_flag=True, help="Print the plan as a requirements file, for uv pip install -r -."
)
@click.option("--install", is_flag=True, help="Print the uv or pip command that installs the plan here.")
@click.option("--run", is_flag=True, help="With --install: run the command in the active virtual environment.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
def plan(
    options: ProjectSettings,
    *,
    facts_files: tuple[str, ...],
    project: str,
    ignore_dependencies: bool,
    why: str | None,
    no_resolve: bool,
    as_requirements: bool,
    install: bool,
    run: bool,
    as_json: bool,
) -> int:
    """Choose versions that fit the driver and GPUs, with a reason for each.

    Plans for this machine, or for the machines in --facts or the flags. Respects the project's requirement
    files. Exits with 1 if nothing fits.

    With --install, plans for the active virtual environment's Python.
    """
    if as_json and (install or as_requirements):
        raise DevkitError(f"{'--install' if install else '--pip'} does not print JSON", "Remove --json.")
    refuse_contradiction(options)
    if run and not install:
        raise DevkitError("--run needs --install, because it runs that command", "devkit plan --install --run")
    target = find_target_python(runs=run) if install else None
    if target and not options.python:
        options = replace(options, python=str(target.version))
    settings = read_project_settings(project)
    dependencies = NO_DEPENDENCIES
    ignore_dependencies = ignore_dependencies or bool(settings and settings.ignore_dependencies)
    if not ignore_dependencies:
        from devkit.probe.project.reader import read_local_dependencies

        flags = {
            name: getattr(options, name) for name in ("extras", "groups", "requirements") if getattr(options, name)
        }
        wanted = replace(settings.choice if settings else NOTHING_CHOSEN, **flags)
        wanted = replace(wanted, packages=tuple(dict.fromkeys((*wanted.packages, *options.packages))))
        dependencies = read_local_dependencies(project, wanted)
        validate_choice(wanted, dependencies)
    request = build_request_from_settings(options, facts_files)
    answer = plan_with_packages(request, dependencies, Path(project), settings, no_resolve=no_resolve)
    width = shutil.get_terminal_size().columns
    if as_requirements or install:
        if isinstance(answer, Conflict):
            click.echo(format_answer(answer, width=width, is_cpu_requested=False, today=today()), err=True)
            return ExitCode.ANSWER_IS_NO
        return install_plan(answer, target, runs=run) if install else _print_requirements(answer)
    if why:
        from devkit.solver.why import BUILD_FIELDS, explain_choice, format_choice, serialize_choice

        python = answer.python if isinstance(answer, Plan) else None
        request = add_project_constraints(request, dependencies, python=python)
        choice = explain_choice(request, load_tables(), answer, why)
        if choice is None:
            fields = [reason.field for reason in answer.reasons] if isinstance(answer, Plan) else BUILD_FIELDS
            raise DevkitError(f"the plan has no choice named {why!r}", f"Known: {', '.join(fields)}.")
        text = format_choice(choice, answer, width=width, today=today())
        document = serialize_choice(choice, answer, today=today())
    else:
        wants_cpu = request.vendor is Vendor.CPU
        costs, following = [], []
        if isinstance(answer, Plan):
            dependencies = select_torch_build(dependencies, answer)
            costs = format_compile_costs(answer)
            # What describes the plan describes the dev container.
            following = [f"Next: {shlex.join(['devkit', 'init', *click.get_current_context().meta['words']])}"]
        choices = () if ignore_dependencies else list_choices(dependencies)
        text = format_answer(answer, width=width, is_cpu_requested=wants_cpu, today=today())
        text = "\n".join((text, *costs, *(wrap_text(line, width=width, hanging="  ") for line in choices), *following))
        document = serialize_answer(answer, today=today()) | serialize_dependencies(dependencies)
    if as_json:
        click.echo(dump_json(document))
    elif isinstance(answer, Plan) and not why and is_drawn(sys.stdout):
        draw_plan(make_console(sys.stdout), text)
    else:
        click.echo(text)
    return ExitCode.ANSWER_IS_NO if isinstance(answer, Conflict) else ExitCode.DONE


def _print_requirements(plan: Plan) -> int:
    """Print the packages of a plan as a requirements file."""
    plan.require_torch("--pip")
    click.echo(format_requirements(plan))
    return ExitCode.DONE


# `--install`: the command that installs the plan's packages here, printed or run.


def find_target_python(*, runs: bool) -> "WorkloadPython | None":
    """Find the Python of the active virtual environment; None without one. Raises DevkitError where it `runs` there."""
    from devkit.probe.host import LocalHost
    from devkit.probe.machine.interpreter import find_workload_python

    environment = os.environ.get("VIRTUAL_ENV", "")
    python = find_workload_python(LocalHost()) if environment else Unknown("none is active")
    if environment and not Path(environment).is_dir():
        python = Unknown(f"VIRTUAL_ENV is {environment}, which does not exist")
    if not isinstance(python, Unknown):
        return python
    if runs:
        raise DevkitError(
            f"--run installs into the active virtual environment, but {python.reason}",
            "Create one: uv venv && . .venv/bin/activate",
        )
    return None


def install_plan(plan: Plan, python: "WorkloadPython | None", *, runs: bool) -> int:
    """Print the uv or pip command that installs the plan, and run it in that Python. Returns the exit code."""
    from devkit.probe.uv_resolver import find_uv

    uv = find_uv()
    words = list_install_words(plan, with_uv=bool(uv))
    if not words:
        raise DevkitError("the plan contains no packages", "Specify a stack, as in --stack vllm.")
    click.echo(shlex.join([*(["uv", "pip"] if uv else ["pip"]), "install", *words]))
    if not runs or python is None:
        return ExitCode.DONE
    program = (
        [uv, "pip", "install", f"--python={python.executable}"] if uv else [python.executable, "-m", "pip", "install"]
    )
    done = subprocess.run([*program, *words], check=False)
    return ExitCode.DONE if done.returncode == 0 else ExitCode.ANSWER_IS_NO
