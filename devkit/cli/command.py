"""Commands whose options stand in sections, and which still take the flags of the last release.

Groups of options arrive as one dataclass, with one flag for each setting; shells complete codes, GPUs and models.
"""

import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from enum import StrEnum
from functools import wraps
from itertools import pairwise
from pathlib import Path
from typing import Any

import click

from devkit.errors import DevkitError
from devkit.facts.settings import describe_settings, find_setting_type, format_flag

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

OTHER = "Options"
"""The section of options that name none; it comes last."""


class PathType(click.Path):
    """A path. An empty one, as of a variable that is not set, is an error, and so is a URL as a command's folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401 - as in click
        """Check the path and convert it. Raises DevkitError."""
        word = os.fspath(value)
        name = (ctx.command_path if ctx else "devkit") if isinstance(param, click.Argument) else param and param.opts[0]
        if not word:
            raise DevkitError(f"{name}: the path is empty", "Name a file or folder.")
        if isinstance(param, click.Argument) and re.match(r"\w+://|git@", word):
            folder = word.rstrip("/").rpartition("/")[2].removesuffix(".git")
            clone = shlex.join(["git", "clone", word])
            raise DevkitError(
                f"{word} is a URL, not a folder", f"Clone it first: {clone} && {name} {shlex.quote(folder)}"
            )
        return super().convert(value, param, ctx)


class OutputPath(PathType):
    """A path that the command writes: no hint proposes it for a file or folder that exists."""


FILE = PathType(path_type=Path, dir_okay=False)
FOLDER = PathType(path_type=Path, exists=True, file_okay=False)
OUTPUT_FILE = OutputPath(path_type=Path, dir_okay=False)
OUTPUT_FOLDER = OutputPath(path_type=Path, file_okay=False)


def facts_option(meaning: str) -> Decorator:
    """Return the option that takes files of saved facts, as `facts_files`."""
    return click.option("--facts", "facts_files", metavar="FILE", type=FILE, multiple=True, help=meaning)


class Command(click.Command):
    """A Click command with sections of options, whose help says which of them may be repeated.

    `renamed` maps a flag of the last release to its present form. A form such as "--set name=" takes the value at its end;
    "" leaves the value alone, as an argument. `removed` maps a flag that is gone to what does its part.
    """

    def __init__(
        self,
        *args: Any,  # noqa: ANN401 - those of click
        renamed: Mapping[str, str] | None = None,
        removed: Mapping[str, str] | None = None,
        **named: Any,  # noqa: ANN401 - those of click
    ) -> None:
        super().__init__(*args, **named)
        self.renamed = renamed or {}
        self.removed = removed or {}
        for param in self.params:
            if isinstance(param, click.Option) and param.multiple and "repeated" not in (param.help or ""):
                param.help = f"{param.help} May be repeated."

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments, flags of the last release included, and keep them in `meta`, with present flags alone.

        Raises DevkitError for a flag that was removed.
        """
        words = self._replace_renamed(args)
        ctx.meta["words"] = tuple(words)
        takers = {
            flag for each in self.params if isinstance(each, click.Option) and not each.is_flag for flag in each.opts
        }
        for word, value in pairwise(words[: words.index("--")] if "--" in words else words):
            # Click would take it for the value, as after an empty variable: --model $MODEL --data x.jsonl.
            if word in takers and re.match("--[a-z]", value):
                raise click.BadOptionUsage(word, f"Option '{word}' requires an argument, but {value} follows.", ctx)
        return super().parse_args(ctx, words)

    def _replace_renamed(self, args: Sequence[str]) -> list[str]:
        found: list[str] = []
        rest = iter(args)
        for word in rest:
            name, _, value = word.partition("=")
            new = self.renamed.get(name)
            if word == "--":
                return [*found, word, *rest]
            if name in self.removed:
                raise DevkitError(f"{name} was removed", self.removed[name])
            if new is None:
                found.append(word)
                continue
            shown = f"{new}VALUE" if new.endswith("=") else new or "an argument without a flag"
            click.echo(f"{name} is now {shown}; devkit 0.4 removes the old flag.", err=True)
            if new.endswith("="):
                flag, _, key = new.partition(" ")
                found += [flag, f"{key}{value if '=' in word else next(rest, '')}"]
            else:
                found += [*new.split(), *([value] if "=" in word else [])]
        return found

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Format the options section by section."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            if isinstance(param, click.Option) and (record := param.get_help_record(ctx)):
                sections.setdefault(getattr(param, "section", OTHER), []).append(record)
        other = sections.pop(OTHER, [])
        for title, records in (*sections.items(), *([(OTHER, other)] if other else [])):
            with formatter.section(title):
                formatter.write_dl(records)


def section(title: str, *options: Decorator) -> Decorator:
    """Return a decorator that adds options to a command, in a section of its help."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            before = len(getattr(command, "__click_params__", ()))
            command = option(command)
            for param in command.__click_params__[before:]:  # type: ignore[attr-defined]
                if not hasattr(param, "section"):
                    param.section = title
        return command

    return decorate


def complete_codes(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the code of a check."""
    from devkit.doctor.checks.loader import list_codes

    return sorted(code for code in list_codes() if code.startswith(incomplete.upper()))


def complete_gpus(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of a GPU, however much of it is left out, in one word: bash would take a space for its end."""
    from devkit.compat.version_tables import load_tables

    names = (row.name.replace(" ", "-") for row in load_tables().gpus.models)
    return [name for name in names if incomplete.replace(" ", "-").lower() in name.lower()]


def complete_models(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of a model that estimates know."""
    from devkit.estimate.shape import list_models

    return [model.id for model in list_models() if incomplete.lower() in model.id.lower()]


_METAVARS = {int: "N", float: "X", Path: "DIR", str: "NAME"}


def group_options(options: Sequence[Decorator], into: type, argument: str, *, title: str = OTHER) -> Decorator:
    """Return a decorator that adds the options to a command, which receives them as one `into`, named `argument`.

    The options stand in the section `title` of its help. Fields of `into` without an option keep their defaults.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def with_group(*args: Any, **values: Any) -> Any:  # noqa: ANN401 - whatever the command takes and returns
            group = into(**{field.name: values.pop(field.name) for field in fields(into) if field.name in values})
            return command(*args, **{argument: group}, **values)

        return section(title, *options)(with_group)

    return decorate


def setting_options(settings: type, *, title: str = OTHER) -> Decorator:
    """Return a decorator that gives a command one flag for each setting of the class, in its order.

    A setting without a section goes into the section `title` of the help.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for name, (_, info) in reversed(describe_settings(settings).items()):
            if info.has_flag:
                command = section(info.section or title, _setting_option(settings, name))(command)
        return command

    return decorate


def collect_setting_flags(settings: type, flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings whose flags were given, with values of the types that the class holds."""
    given = {}
    for name in describe_settings(settings):
        value = flags.get(name)
        if value is None or value == ():
            continue
        kind = find_setting_type(settings, name)
        given[name] = kind(value) if kind is tuple or issubclass(kind, StrEnum) else value
    return given


def _setting_option(settings: type, name: str) -> Decorator:
    """Build the flag of one setting. It is None unless given, to distinguish a file's value from a flag's."""
    kind, info = find_setting_type(settings, name), describe_settings(settings)[name][1]
    default = next(field.default for field in fields(settings) if field.name == name)
    meaning = info.meaning
    if default not in (None, (), "", MISSING) and not isinstance(default, bool):
        shown = ", ".join(default) if isinstance(default, tuple) else default
        meaning = f"{meaning}  [default: {shown}]"
    flag = format_flag(name)
    if kind is bool:
        return click.option(f"{flag}/--no-{flag[2:]}", name, default=None, help=meaning)
    if kind is tuple:
        return click.option(flag, name, multiple=True, metavar=info.example or "NAME", help=meaning)
    if issubclass(kind, StrEnum):
        return click.option(
            flag,
            name,
            type=click.Choice([str(each) for each in kind if each not in info.unsupported]),
            default=None,
            help=meaning,
        )
    flag_type = OutputPath(path_type=Path) if kind is Path else kind
    return click.option(flag, name, type=flag_type, metavar=info.example or _METAVARS[kind], help=meaning)
