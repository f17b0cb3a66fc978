"""What a mistyped command line probably meant: the flag, value or command to type in its place."""

import re
import sys
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from itertools import islice
from pathlib import Path

import click

MAX_LISTED = 6
"""A hint lists the commands of a group, or the options of a command, that has at most so many."""
MAX_MEANT = 3
"""A hint proposes at most so many names."""
_EXTRA = re.compile(r"Got unexpected extra arguments? \((.*)\)")


def explain_usage_error(error: click.ClickException, root: click.Group) -> tuple[str, str]:
    """Return a usage error as one line, and as its hint what was probably meant and where the right words are."""
    # Click lists the choices of a missing argument on separate lines.
    message = " ".join(error.format_message().split())
    for kind, wanted in (("float", "a number"), ("integer", "a whole number")):
        message = message.replace(f"a valid {kind} range", wanted).replace(f"a valid {kind}", wanted)
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is None:
        return message, f"{_find_typed_command(root)} --help"
    command, more = context.command, ""
    meant: Iterable[str] = ()
    if isinstance(error, click.BadParameter):
        meant, more = _find_meant_values(error, context)
    elif isinstance(error, click.NoSuchOption):
        message, meant = error.message, _find_meant_options(error.option_name, context, root)
    elif extra := _EXTRA.match(message):
        meant = _find_options_for(extra[1], context)
    elif isinstance(command, click.Group):
        known = command.list_commands(context)
        more = f"One of {', '.join(known)}." if len(known) <= MAX_LISTED else ""
        if message.startswith("No such command"):
            message, meant = f"{message.partition('.')[0]}.", _find_similar(message.split("'")[1], known)
        else:
            # Click says nothing but the help.
            message = f"Missing argument '{command.subcommand_metavar.split()[0]}'."
    proposed = " or ".join(islice(dict.fromkeys(meant), MAX_MEANT))
    if not (proposed or more or isinstance(error, click.BadParameter) or isinstance(command, click.Group)):
        more = _list_options(command)
    lines = [f"Did you mean {proposed}?"] if proposed else []
    lines += [more] if more else []
    return message, "\n".join((*lines, f"{context.command_path} --help"))


def _find_meant_values(error: click.BadParameter, context: click.Context) -> tuple[Iterable[str], str]:
    """Return what was probably meant by a wrong value, and a further line of the hint."""
    typed = error.message.split("'")[1] if "'" in error.message else ""
    if error.message.endswith("does not exist."):
        return (), f"Check the path, which is relative to {Path.cwd()}."
    if error.message.endswith("is a file."):
        return _find_options_for(typed, context), ""
    if error.param is None or not isinstance(error.param.type, click.Choice):
        return (), ""
    for each in context.command.get_params(context):
        if isinstance(each.type, click.Choice) and typed in each.type.choices:
            return [f"{each.opts[0]} {typed}"], ""
    return _find_similar(typed, list(error.param.type.choices)), ""


def _find_meant_options(typed: str, context: click.Context, root: click.Group) -> Iterator[str]:
    """Yield what others call `typed`: -y by its letter, --lr by its initials, --bf16 as a value, then what resembles it.

    That is --jsn by its letters, --seq-len by the words of the help, and what another command calls exactly so.
    """
    if len(typed) == 2:
        # Of -help, click names -e.
        typed = next((word for word in sys.argv if word[:1] == "-" != word[1:2] and typed[1] in word[2:]), typed)
    words = typed.strip("-").split("-")
    renamed = getattr(context.command, "renamed", {})
    settings = {each.strip("-"): f"{new}VALUE" for each, new in renamed.items() if new.endswith("=")}
    told: list[str] = []
    known: dict[str, str] = {}
    for param in context.command.get_params(context):
        is_option = isinstance(param, click.Option)
        if getattr(param, "hidden", False):
            continue
        flag = max(param.opts, key=len) if is_option else f"{param.human_readable_name} without a flag"
        name = max(param.opts, key=len).strip("-").split("-")
        known |= {"-".join(name): flag} | {each.strip("-"): each for each in param.secondary_opts}
        is_initials = len(words) == 1 and "".join(word[0] for word in name).startswith(words[0])
        if is_option and (is_initials or name == words[: len(name)]):
            yield flag
        if isinstance(param.type, click.Choice) and "-".join(words) in param.type.choices:
            yield f"{flag} {'-'.join(words)}"
        help_words = (getattr(param, "help", None) or "").lower().replace(":", " ").split()[:6]
        if len(typed) > 2 and all(any(each.startswith(word) for each in (*name, *help_words)) for word in words):
            told.append(flag)
    known |= settings
    close = [known[each] for each in get_close_matches("-".join(words), known, cutoff=0.65)]
    yield from (*told, *close) if len(words) > 1 else (*close, *told)
    if not told and not close:
        yield from (flag for name, flag in known.items() if {*words} & {*name.split("-")})
        yield from _find_elsewhere(typed, root)


def _find_elsewhere(option: str, root: click.Group) -> Iterator[str]:
    """Yield the option with each command that has it."""
    context = click.Context(root)
    for name in root.list_commands(context) if option.startswith("--") else ():
        command = root.get_command(context, name)
        if command and any(option in each.opts for each in command.params):
            yield f"devkit {name} {option}"


def _find_options_for(value: str, context: click.Context) -> list[str]:
    """Return the options that take a value that was given without one, by what it is."""
    if any(piece.startswith("[--") for piece in context.command.collect_usage_pieces(context)):
        return ["-- COMMAND, after two dashes"]
    path = Path(value)
    # What is beside the project's folder may be anything.
    named = () if any(isinstance(each, click.Argument) for each in context.command.params) else ("TEXT", "NAME")
    metavars = ("DIR", "PATH", "NAME") if path.is_dir() else ("FILE", "NAME") if path.is_file() else named
    options = [each for each in context.command.get_params(context) if isinstance(each, click.Option)]
    return [f"{each.opts[0]} {metavar}" for metavar in metavars for each in options if each.metavar == metavar]


def _find_similar(typed: str, known: list[str]) -> list[str]:
    """Return the names that a wrong one resembles; `devkit help` resembles none."""
    # A numeronym, such as k8s, has the number of letters between the first and the last.
    meant = [name for name in known if typed == f"{name[0]}{len(name) - 2}{name[-1]}"]
    return meant or get_close_matches(typed.lower(), known if typed != "help" else ())


def _list_options(command: click.Command) -> str:
    """Return what a command takes as a line, "" where that is long."""
    options = [each.opts[0] for each in command.params if isinstance(each, click.Option) and not each.hidden]
    if not command.params:
        return f"devkit {command.name} takes no arguments."
    return f"Options: {', '.join(options)}." if 0 < len(options) <= MAX_LISTED else ""


def _find_typed_command(root: click.Group) -> str:
    """Return the command that was typed, as in `devkit export slurm`, where click's error does not say it."""
    command: click.Command | None = root
    path = "devkit"
    for word in sys.argv[1:]:
        command = command.get_command(click.Context(command), word) if isinstance(command, click.Group) else None
        if command is None:
            break
        path += f" {word}"
    return path
