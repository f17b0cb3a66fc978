"""`devkit up`: start the project's dev container."""

import json
from pathlib import Path

import click

from devkit.cli import exit_codes
from devkit.cli.dev_container import (
    BuildSteps,
    config_option,
    directory_argument,
    find_project_container,
    print_failure,
    write_log,
)

SCHEMA = "devkit.up/1"


@click.command()
@directory_argument
@config_option
@click.option("--rebuild", is_flag=True, help="Make the container anew, and end what runs in it.")
@click.option("--no-cache", is_flag=True, help="Build the image without its cache, too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_context
def up(
    ctx: click.Context, directory: Path, *, config: Path | None, rebuild: bool, no_cache: bool, as_json: bool
) -> None:
    """Start the dev container of DIR: build it, wait until it is healthy, run its lifecycle commands once.

    It is the container that VS Code and the dev container CLI then attach to. Repeat it as you like: what is up to date
    is kept, and what changed is built again and named.
    """
    from devkit.devcontainer.containers import Failure
    from devkit.devcontainer.making import StartOptions
    from devkit.devcontainer.starting import start_dev_container
    from devkit.probe.host import LocalHost
    from devkit.verify.process import interrupt_on_termination

    container = find_project_container(directory, config)
    options = StartOptions(rebuilds=rebuild or no_cache, no_cache=no_cache)
    with interrupt_on_termination():
        try:
            started = start_dev_container(LocalHost(), container, options, BuildSteps())
        except KeyboardInterrupt:
            click.echo("\nWhat was built so far is kept: the next `devkit up` continues.", err=True)
            raise
    if isinstance(started, Failure):
        print_failure(started, write_log(container, started))
        ctx.exit(exit_codes.ANSWER_IS_NO)
    entry = started.entry
    if as_json:
        document = {
            "schema": SCHEMA,
            "action": started.action,
            "container": entry.state.name,
            "container_id": entry.state.id,
            "image_id": entry.state.image_id,
            "user": entry.user,
            "workspace_folder": entry.folder,
            "changed": list(started.changed),
            "built": list(started.built),
        }
        click.echo(json.dumps(document, indent=2))
        return
    done = "runs already" if started.action == "kept" else "runs"
    click.echo(f"The dev container of {container.name} {done}: {entry.state.name}")
    click.echo("  enter it:    devkit shell\n  run in it:   devkit run -- COMMAND\n  stop it:     devkit down")
    click.echo('  in VS Code:  "Dev Containers: Reopen in Container" attaches to it')
