"""`devkit down`: stop the project's dev container."""

from pathlib import Path

import click

from devkit.cli import exit_codes
from devkit.cli.dev_container import (
    BuildSteps,
    config_option,
    directory_argument,
    find_project_container,
    print_failure,
)


@click.command()
@directory_argument
@config_option
@click.option("--volumes", is_flag=True, help="Also remove the container and its volumes, with the caches in them.")
@click.pass_context
def down(ctx: click.Context, directory: Path, *, config: Path | None, volumes: bool) -> None:
    """Stop the dev container of DIR and the services beside it. The next `devkit up` starts it as it was."""
    from devkit.devcontainer.containers import find_client
    from devkit.devcontainer.stopping import find_running, stop_dev_container
    from devkit.probe.host import LocalHost

    container = find_project_container(directory, config)
    client = find_client(LocalHost())
    state = find_running(client, container)
    if state is None or not (state.is_running or volumes):
        click.echo(f"The dev container of {container.name} does not run.")
        return
    steps, title = BuildSteps(), f"{'remove' if volumes else 'stop'} {state.name}"
    steps.begin(title)
    failure = stop_dev_container(client, container, state, removes=volumes)
    steps.end(title, is_failed=failure is not None)
    if failure:
        print_failure(failure, None)
        ctx.exit(exit_codes.ANSWER_IS_NO)
    done = "is removed, with its volumes" if volumes else "is stopped"
    click.echo(f"The dev container of {container.name} {done}.")
