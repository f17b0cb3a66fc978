"""The job's command as words of a shell, with the output folder of this very task in it."""

import shlex
from collections.abc import Iterable, Iterator

from devkit.export.launch import KEEP_CODE
from devkit.export.task import Task

OUTPUT = '"$output"'
RECORD = '"$output/run.json"'
"""The shell's variable in the place of the task's folder."""


def command_tokens(task: Task, *, is_moved: bool) -> tuple[str, ...]:
    """The command's words, quoted. `is_moved` puts the shell's `$output` in the place of the output folder."""
    words = list(task.command)
    tokens = [shlex.quote(word) for word in words]
    if not is_moved:
        return tuple(tokens)
    if KEEP_CODE in words:
        # sh -c KEEP_CODE devkit RECORD …
        tokens[words.index(KEEP_CODE) + 2] = RECORD
    tokens[words.index("--output") + 1] = OUTPUT
    return tuple(tokens)


def folded(tokens: Iterable[str], *, indent: int) -> str:
    """Tokens on lines of a shell: each option with its value, and the words before the first together."""
    lines: list[str] = []
    for token in tokens:
        if not lines or token.startswith("-"):
            lines.append(token)
        else:
            lines[-1] += f" {token}"
    return f" \\\n{' ' * indent}".join(lines)


def environment_tokens(pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    """NAME=VALUE words, each value for itself."""
    for name, value in pairs:
        yield shlex.quote(f"{name}={value}")
