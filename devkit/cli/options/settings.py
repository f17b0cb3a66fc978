"""Flags made from the settings that they set."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

import click

from devkit.facts.settings import describe_settings, find_setting_type, format_flag

_METAVARS = {int: "N", float: "X", Path: "DIR", str: "NAME"}


def setting_options(settings: type) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that gives a command one flag for each setting of the class, in its order."""

    def decorated(command: Callable[..., Any]) -> Callable[..., Any]:
        for name in reversed(describe_settings(settings)):
            command = _option(settings, name)(command)
        return command

    return decorated


def collect_setting_flags(settings: type, flags: Mapping[str, Any]) -> dict[str, Any]:
    """Those settings whose flags were typed, as the class holds them."""
    given = {}
    for name in describe_settings(settings):
        value = flags.get(name)
        if value is None or value == ():
            continue
        kind = find_setting_type(settings, name)
        given[name] = kind(value) if kind is tuple or issubclass(kind, StrEnum) else value
    return given


def _option(settings: type, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The flag of one setting. It is None until it is typed, so that a file's value can be told from a flag's."""
    kind, said = find_setting_type(settings, name), describe_settings(settings)[name][1]
    default = next(each.default for each in fields(settings) if each.name == name)
    meaning = said.meaning
    if default not in (None, (), "", MISSING) and not isinstance(default, bool):
        shown = ", ".join(default) if isinstance(default, tuple) else default
        meaning = f"{meaning}  [default: {shown}]"
    flag = format_flag(name)
    if kind is bool:
        return click.option(f"{flag}/--no-{flag[2:]}", name, default=None, help=meaning)
    if kind is tuple:
        return click.option(flag, name, multiple=True, metavar=said.example or "NAME", help=meaning)
    if issubclass(kind, StrEnum):
        return click.option(flag, name, type=click.Choice([str(each) for each in kind]), default=None, help=meaning)
    made = click.Path(path_type=Path) if kind is Path else kind
    return click.option(flag, name, type=made, metavar=said.example or _METAVARS[kind], help=meaning)
