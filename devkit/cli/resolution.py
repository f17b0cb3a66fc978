"""The option and the spinner of commands that let uv resolve a project's packages."""

from collections.abc import Callable
from functools import partial
from typing import Any

import click

from devkit.cli.terminal import show_status
from devkit.render import project_plan


def resolve_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command that plans a project: it gets `no_resolve`."""
    text = "Use no network: do not resolve the packages with uv, and leave them unchecked."
    return click.option("--no-resolve", is_flag=True, help=text)(command)


plan_with_packages = partial(project_plan.plan_with_packages, show_status=show_status)
