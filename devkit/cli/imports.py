"""Packages that a project's programs import and its files do not name: shown by `devkit init`, and added on a yes."""

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from devkit.compat.specifiers import satisfies
from devkit.compat.version_tables import load_tables
from devkit.facts.dependencies import PackageManager
from devkit.text import join_words, wrap_text

if TYPE_CHECKING:
    from devkit.facts.dependencies import ImportedPackage
    from devkit.render.project import DevkitProject
    from devkit.solver.plan import Plan

MAX_NAMED = 12


def add_imports(
    project: "DevkitProject", *, is_wanted: bool, is_confirmed: bool, asks: bool, width: int
) -> "tuple[DevkitProject, tuple[ImportedPackage, ...]]":
    """Return the project with the packages that its programs import and no file names, and those that were not added.

    A project without any dependency file is looked at always, with a question on a terminal, unless everything
    `is_confirmed`. In any other it takes the user's own flag, `is_wanted`, because most of what it imports without naming
    it comes with what it names.
    """
    from devkit.probe.project.reader import read_local_imports

    has_files = project.dependencies.tool is not PackageManager.NONE
    if project.settings.ignore_dependencies or (has_files and not is_wanted):
        return project, ()
    is_accepted = is_wanted or is_confirmed
    found = read_local_imports(str(project.root), project.dependencies)
    known = [each for each in found if each.name]
    if asks and known and not is_accepted and sys.stdin.isatty():
        shown = join_words([f"{_format_requirement(each)} ({each.origin})" for each in known])
        click.echo(wrap_text(f"No dependency file was found. The programs here import {shown}.", width=width))
        is_accepted = click.confirm("Install them, too?", default=True)
    if not is_accepted or not known:
        return project, found
    names = tuple(dict.fromkeys((*project.settings.packages, *(_format_requirement(each) for each in known))))
    return project.with_settings(replace(project.settings, packages=names)), tuple(
        each for each in found if not each.name
    )


def find_missing_imports(project: "DevkitProject", plan: "Plan") -> "tuple[ImportedPackage, ...]":
    """Find what a project with dependency files imports and uv's resolution lacks; nothing where that is not known.

    What conda installs is not in that resolution. What no distribution is known for is mostly a module of the project's.
    """
    from devkit.facts.resolution import Resolved
    from devkit.probe.project.reader import read_local_imports

    dependencies = project.dependencies
    if (
        not isinstance(plan.resolution, Resolved)
        or dependencies.is_locked
        or not dependencies.files
        or dependencies.conda
    ):
        return ()
    resolved = dict(plan.resolution.packages)
    found = read_local_imports(str(project.root), dependencies)
    limits = load_tables().imports.limits()
    return tuple(
        each
        for each in found
        if each.name and not (each.name in resolved and satisfies(resolved[each.name], limits.get(each.name, "")))
    )


def _format_requirement(package: "ImportedPackage") -> str:
    return f"{package.name}{load_tables().imports.limits().get(package.name, '')}"


def print_imports(found: "tuple[ImportedPackage, ...]", *, width: int) -> None:
    """Print what is imported and not installed, with the flag or the setting that installs it."""
    for is_known, how in (
        (True, "--add-imports installs them and records them in devkit.toml"),
        (False, "devkit knows no package for them; name it under [project] packages in devkit.toml"),
    ):
        of_kind = [
            f"{_format_requirement(each) or each.module} ({each.origin})"
            for each in found
            if bool(each.name) is is_known
        ]
        if of_kind:
            more = [f"{len(of_kind) - MAX_NAMED} more"] if len(of_kind) > MAX_NAMED else []
            line = f"imported and named by no file: {join_words([*of_kind[:MAX_NAMED], *more])}; {how}"
            click.echo(wrap_text(line, width=width))
