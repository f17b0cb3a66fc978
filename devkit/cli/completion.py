"""`devkit completion`: what a shell needs to complete commands, flags, codes of checks, GPUs and models."""

from typing import Any

import click
from click.shell_completion import CompletionItem, ShellComplete, add_completion_class, get_completion_class

_VARIABLE = "_DEVKIT_COMPLETE"
_INSTALL = {
    "bash": 'eval "$(devkit completion bash)"  # in ~/.bashrc',
    "zsh": 'eval "$(devkit completion zsh)"  # in ~/.zshrc',
    "fish": "devkit completion fish > ~/.config/fish/completions/devkit.fish",
    "powershell": "devkit completion powershell | Out-String | Invoke-Expression  # in $PROFILE",
}


class PowerShellComplete(ShellComplete):
    """Completion of PowerShell, which click lacks: the words come in COMP_WORDS, the unfinished one in COMP_CWORD."""

    name = "powershell"
    source_template = """\
Register-ArgumentCompleter -Native -CommandName %(prog_name)s -ScriptBlock {
    param($word, $ast, $position)
    $env:%(complete_var)s = "powershell_complete"
    $env:COMP_WORDS = ($ast.CommandElements | ForEach-Object { $_.ToString() }) -join "`n"
    $env:COMP_CWORD = $word
    %(prog_name)s | ForEach-Object {
        $value, $help = $_ -split "`t", 2
        if (-not $help) { $help = $value }
        [System.Management.Automation.CompletionResult]::new($value, $value, "ParameterValue", $help)
    }
    Remove-Item Env:%(complete_var)s, Env:COMP_WORDS, Env:COMP_CWORD
}
"""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the finished words and the unfinished one."""
        import os

        words = os.environ.get("COMP_WORDS", "").splitlines()[1:]
        incomplete = os.environ.get("COMP_CWORD", "")
        if incomplete and words and words[-1] == incomplete:
            words.pop()
        return words, incomplete

    def format_completion(self, item: CompletionItem) -> str:
        """Format a completion as its value and its help, in one line."""
        value = f'"{item.value}"' if " " in item.value else item.value
        return f"{value}\t{item.help or ''}"


add_completion_class(PowerShellComplete)


@click.command()
@click.argument("shell", metavar="SHELL", type=click.Choice(list(_INSTALL)))
@click.pass_context
def completion(ctx: click.Context, *, shell: str) -> None:
    """Print the script by which SHELL completes commands, flags, codes of checks, GPUs and models.

    To install it, for example: eval "$(devkit completion bash)" in ~/.bashrc.
    """
    kind: Any = get_completion_class(shell)
    click.echo(f"# {_INSTALL[shell]}")
    click.echo(kind(ctx.find_root().command, {}, "devkit", _VARIABLE).source())
