"""The job's command as words of a shell, with the output folder of this very task in it."""

import shlex
from collections.abc import Iterable, Iterator

from devkit.export.launch import KEEP_CODE
from devkit.export.task import Task

OUTPUT = '"$output"'
RECORD = '"$output/run.json"'
KEEP = '"$keep"'
"""The shell's variables in the place of the task's folder, and of the long script that keeps the exit code."""


def command_tokens(task: Task, *, is_moved: bool) -> tuple[str, ...]:
    """The command's words, quoted. `is_moved` puts the shell's `$output` in the place of the output folder."""
    words = list(task.command)
    tokens = [KEEP if word == KEEP_CODE else quoted(word) for word in words]
    if not is_moved:
        return tuple(tokens)
    at = words.index("--output") + 1
    record = f"{words[at]}/run.json"
    tokens = [RECORD if word == record else token for word, token in zip(words, tokens, strict=True)]
    tokens[at] = OUTPUT
    return tuple(tokens)


def folded(tokens: Iterable[str], *, indent: int) -> str:
    """Tokens on lines of a shell: each long option with its value, and the words before the first together."""
    lines: list[str] = []
    for token in tokens:
        if not lines or token.startswith("--"):
            lines.append(token)
        else:
            lines[-1] += f" {token}"
    return f" \\\n{' ' * indent}".join(lines)


def environment_tokens(pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    """NAME=VALUE words, each value for itself."""
    for name, value in pairs:
        yield quoted(f"{name}={value}")


def quoted(word: str) -> str:
    """A word for itself; in an array a comma looks as if it should separate."""
    plain = shlex.quote(word)
    return f"'{plain}'" if plain == word and "," in word else plain
