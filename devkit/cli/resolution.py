"""The option and the progress line of commands that let uv resolve a project's packages."""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import click

from devkit.render import project_plan


def resolve_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command that plans a project: it gets `no_resolve`."""
    text = "Use no network: do not resolve the packages with uv, and leave them unchecked."
    return click.option("--no-resolve", is_flag=True, help=text)(command)


def _print_step(step: str) -> None:
    if sys.stderr.isatty():
        click.echo(step, err=True)


plan_with_packages = partial(project_plan.plan_with_packages, report_step=_print_step)
