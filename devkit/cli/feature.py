"""`devkit init --as-feature`: the dev container Feature that brings devkit into any dev container."""

from pathlib import Path
from typing import NoReturn

import click
from click.core import ParameterSource

from devkit.cli.changes import format_document, print_changes, select_changed
from devkit.cli.runtime import hold_project
from devkit.errors import DevkitError, ExitCode
from devkit.text import format_count, join_some

SCHEMA = "devkit.feature/1"
_OPTIONS = frozenset({"directory", "as_feature", "dry_run", "force", "yes", "as_json"})
"""What counts beside --as-feature, by its name in Click."""


def write_feature(ctx: click.Context, directory: Path, *, is_dry_run: bool, force: bool, as_json: bool) -> NoReturn:
    """Write DIR/devkit, print which files, and exit. Raises DevkitError where a file would be replaced without `force`."""
    for param in ctx.command.params:
        if param.name not in _OPTIONS and ctx.get_parameter_source(param.name or "") is ParameterSource.COMMANDLINE:
            raise DevkitError(f"{param.opts[0]} has no effect with --as-feature", "Remove one of them.")
    from devkit.render.changes import Action, compute_change, write_changes
    from devkit.render.feature import render_devcontainer_feature
    from devkit.render.wheel import build_devkit_wheel

    if not is_dry_run:
        ctx.with_resource(hold_project(directory))
    root = directory.absolute()
    changes = [compute_change(root, artifact) for artifact in render_devcontainer_feature(build_devkit_wheel())]
    replaced = [change.path for change in changes if change.action is Action.UPDATE]
    if replaced and not force:
        raise DevkitError(
            f"{join_some(replaced, 1)} would be replaced",
            "Pass --force to replace files of another devkit, or files that were edited.",
        )
    if not is_dry_run:
        write_changes(root, changes)
    if as_json:
        files = [{"path": change.path, "action": str(change.action)} for change in changes]
        click.echo(format_document({"directory": str(directory), "files": files}, schema=SCHEMA))
    else:
        print_changes(changes, show_diff=False)
        verb = "would write" if is_dry_run else "wrote"
        click.echo(f"{verb} {format_count(len(select_changed(changes)), 'file')} in {directory}")
    ctx.exit(ExitCode.DONE)
