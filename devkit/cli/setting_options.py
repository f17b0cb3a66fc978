"""Options made from dataclasses: one flag for each setting, and groups of options that arrive as one value."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Any

import click

from devkit.cli.command import OTHER, Decorator, OutputPath, section
from devkit.facts.settings import describe_settings, find_setting_type, format_flag

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
