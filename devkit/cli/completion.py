"""`devkit completion`: what a shell needs to complete commands, flags, codes of checks, GPUs and models."""

from typing import Any

import click
from click.shell_completion import get_completion_class

_VARIABLE = "_DEVKIT_COMPLETE"
_INSTALL = {
    "bash": 'eval "$(devkit completion bash)"  # in ~/.bashrc',
    "zsh": 'eval "$(devkit completion zsh)"  # in ~/.zshrc',
    "fish": "devkit completion fish > ~/.config/fish/completions/devkit.fish",
}


@click.command()
@click.argument("shell", metavar="SHELL", type=click.Choice(list(_INSTALL)))
@click.pass_context
def completion(ctx: click.Context, *, shell: str) -> None:
    """Print SHELL's completion script for commands, flags, check codes, GPUs and models.

    To install it in bash, add this line to ~/.bashrc: eval "$(devkit completion bash)"
    """
    kind: Any = get_completion_class(shell)
    click.echo(f"# {_INSTALL[shell]}")
    click.echo(kind(ctx.find_root().command, {}, "devkit", _VARIABLE).source())
