"""Commands that programs run: `devkit completion` for shells, and `devkit gpu-request` for the gpu.sh of a dev container."""

import os
from typing import Any, NoReturn

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


@click.command("gpu-request", context_settings={"ignore_unknown_options": True})
@click.option("--modes", required=True, help="The plan's ways to pass on GPUs.")
@click.option("--engine", type=click.Choice(["docker", "podman"]), help="The engine to ask first.")
@click.option("--slug", default="", help="The Compose project's name; none for someone else's project.")
@click.option("--devices", default="", help="The GPUs to pass on. Default: all.")
@click.option("--graphical", is_flag=True, help="Pass on the sockets of the host's display.")
@click.argument("script")
@click.argument("folder", required=False)
def gpu_request(
    modes: str, engine: str | None, slug: str, devices: str, script: str, folder: str | None, *, graphical: bool
) -> NoReturn:
    """Write gpu.local.yml and .env next to SCRIPT, which is gpu.sh, or .env into FOLDER."""
    from devkit.render.container.compose import CPU_MODE, GPU_MODES, render_gpu_script

    named = tuple(modes.split(","))
    vendor = next((mode.vendor for mode in GPU_MODES if mode.name in named), CPU_MODE)
    text = render_gpu_script(
        vendor=vendor,
        modes=named,
        engine=engine or "",
        slug=slug,
        devices=devices.split(",") if devices else (),
        is_graphical=graphical,
    )
    os.execvp("sh", ["sh", "-c", text, script, *([folder] if folder else [])])  # noqa: S606 - the text is devkit's own
