"""Commands whose options stand in sections, and which still take the flags of the last release.

Groups of options arrive as one dataclass, with one flag for each setting; shells complete codes, GPUs and models.
"""

import errno
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Any

import click

from devkit.errors import DevkitError
from devkit.facts.settings import describe_settings, find_setting_type, format_flag
from devkit.text import find_similar

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

OTHER = "Options"
"""The section of options that name none; it comes last."""
_OPTION = re.compile("[-\u2010-\u2015\u2212]+[A-Za-z][\\w-]*(=.*)?", re.DOTALL)
"""A word that is an option, or was one before a web page made its dashes long; a text has blanks or other marks."""


def find_place(param: click.Parameter | None, ctx: click.Context | None) -> str:
    """Return what stands before a path on the command line."""
    return param.opts[0] if isinstance(param, click.Option) else ctx.command_path if ctx else "devkit"


class PathType(click.Path):
    """A path. An empty one, as of a variable that is not set, is an error, and so is a URL as a command's folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401 - as in click
        """Check the path and convert it, and a ~ that the shell left alone. Raises DevkitError."""
        word, name = os.fspath(value), find_place(param, ctx)
        if word.startswith("~") and not os.path.lexists(word):
            value = os.path.expanduser(word)  # noqa: PTH111 - pathlib raises for an unknown user
        if not word:
            raise DevkitError(f"{name}: the path is empty", "Name a file or folder.")
        if isinstance(param, click.Argument) and re.match(r"\w+://|git@", word):
            folder = word.rstrip("/").rpartition("/")[2].removesuffix(".git")
            clone = shlex.join(["git", "clone", word])
            raise DevkitError(
                f"{word} is a URL, not a folder", f"Clone it first: {clone} && {name} {shlex.quote(folder)}"
            )
        if self.exists and os.path.islink(value) and not os.path.exists(value):  # noqa: PTH110, PTH114 - pathlib raises for a loop
            target = os.readlink(value)  # noqa: PTH115
            says = f"{word} is a link to {target}, which leads to nothing"
            try:
                os.stat(value)  # noqa: PTH116
            except OSError as error:
                says = f"{word} is a link in a loop of links" if error.errno == errno.ELOOP else says
            raise DevkitError(says, "Correct the link, or name another path.")
        return super().convert(value, param, ctx)


class ProjectPath(PathType):
    """A project's folder: not the folder of its dev container, which is in it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401 - as in click
        """Check the path and convert it. Raises DevkitError."""
        path = Path(value).absolute()
        at = next((each for each in (path, *path.parents) if each.name == ".devcontainer" and each.is_dir()), None)
        if at and (path == at or path.is_file() or (path / "devcontainer.json").is_file()):
            words, shown = sys.argv[1:], _show(at.parent)
            place = words.index(f"{value}") if f"{value}" in words else len(ctx.command_path.split()) - 1 if ctx else 0
            typed = shlex.join(("devkit", *words[:place], shown, *words[place + (f"{value}" in words) :]))
            hint = f"The project is the folder above: {typed}"
            raise DevkitError(f"{value} is part of a dev container, not a project", hint)
        return super().convert(value, param, ctx)


class OutputPath(PathType):
    """A path that the command can write, which is checked before any work; no hint proposes what is only read."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401 - as in click
        """Check the path, and the folder that it comes into. Raises DevkitError."""
        path = super().convert(value, param, ctx)
        place = Path(path).absolute()
        # Of a name that is too long, pathlib would raise.
        above = next(
            each
            for each in (place, *place.parents)
            if os.path.isdir(each) or (each != place and os.path.lexists(each))  # noqa: PTH112
        )
        hint = f"Choose another place: {find_place(param, ctx)} {param.make_metavar(ctx) if param and ctx else ''}"
        if not above.is_dir():
            lacks = f"{_show(above)} is a file, not a folder"
        elif above != place.parent and not self.dir_okay:
            lacks, hint = f"the folder {_show(place.parent)} does not exist", f"mkdir -p {_show(place.parent)}"
        elif not (os.access(above, os.W_OK) or os.access(place, os.W_OK)):
            lacks = f"this user may not write into {_show(above)}"
        else:
            return path
        raise DevkitError(f"cannot write {value}: {lacks}", hint)


def _show(path: Path) -> str:
    return shlex.quote(min(os.path.relpath(path), f"{path}", key=len))


FILE = PathType(path_type=Path, dir_okay=False)
FOLDER = PathType(path_type=Path, exists=True, file_okay=False)
PROJECT = ProjectPath(path_type=Path, exists=True, file_okay=False)
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
        if not ctx.resilient_parsing:
            self._refuse_misread(ctx, iter(words))
        return super().parse_args(ctx, words)

    def _refuse_misread(self, ctx: click.Context, rest: Iterator[str]) -> None:
        """Refuse what Click would misread: an option as the value of another or as text, and all values of an option but one.

        Words of a text that is not in quotes may look like options, unless they resemble one of the command.
        """
        known = [each for each in self.get_params(ctx) if isinstance(each, click.Option)]
        options = {flag: each for each in known for flag in (*each.opts, *each.secondary_opts)}
        given: dict[click.Option, str] = {}
        texts: list[str] = []
        for word in rest:
            flag, is_joined, value = word.partition("=")
            option = options.get(flag)
            if word == "--" or not (option or word[:1] == "-" or ctx.allow_interspersed_args):
                return
            if option is None:
                is_text = ctx.ignore_unknown_options and len(texts) > 1 and not any(" " in each for each in texts)
                if _OPTION.fullmatch(word) and not (is_text and not find_similar(flag, options)):
                    raise click.NoSuchOption(flag, ctx=ctx)
                texts.append(word)
                continue
            if option.is_flag:
                value = flag
            elif not is_joined:
                value = next(rest, "")
                # Click would take it for the value, as after an empty variable: --model $MODEL --data x.jsonl.
                if re.match("--[a-z]", value):
                    raise click.BadOptionUsage(flag, f"Option '{flag}' requires an argument, but {value} follows.", ctx)
            if not option.multiple and value and given.setdefault(option, value) != value:
                # A file of them, which its help says, takes several.
                several = re.compile(f"(?i){flag.strip('-')}s\\b")
                files = (each for each in known if each.metavar == "FILE" and several.search(each.help or ""))
                hint = next(
                    (f"For several, use {each.opts[0]} FILE: {each.help}" for each in files), "Remove one of them."
                )
                both = f"{given[option]} and {value}"
                says = f"{both} contradict each other" if option.is_flag else f"{flag} is given twice: {both}"
                raise DevkitError(says, hint)

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

    The options stand in the section `title` of its help. Fields of `into` whose option is not given keep their defaults.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        others = len(getattr(command, "__click_params__", ()))

        @wraps(command)
        def with_group(*args: Any, **values: Any) -> Any:  # noqa: ANN401 - whatever the command takes and returns
            given = {name: value for name in names if (value := values.pop(name)) is not None}
            return command(*args, **{argument: into(**given)}, **values)

        grouped = section(title, *options)(with_group)
        known = {field.name for field in fields(into)}
        names = [each.name for each in grouped.__click_params__[others:] if each.name in known]  # type: ignore[attr-defined]
        return grouped

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
    flag_type = OUTPUT_FOLDER if kind is Path else kind
    return click.option(flag, name, type=flag_type, metavar=info.example or _METAVARS[kind], help=meaning)
