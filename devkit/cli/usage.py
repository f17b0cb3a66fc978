"""What a mistyped command line probably meant: the flag, value or command to type in its place."""

import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import dropwhile, islice, takewhile
from pathlib import Path

import click

from devkit.cli.command import OutputPath, find_place
from devkit.reading import suggest_path
from devkit.text import find_similar, join_words

MAX_LISTED = 8
"""A hint lists the commands of a group, or the options of a command, that has at most so many."""
MIN_STEM = 2
"""A longer word than an option's name means it if the name has more letters: --environment means --env."""
MAX_MEANT = 3
"""A hint proposes at most so many names."""
OF_OTHER_TOOLS = {
    "doctor": "check diagnose env health info status",
    "init": "create new",
    "up": "build launch rebuild restart start",
    "down": "halt kill stop",
    "down --volumes": "clean destroy prune remove rm",
    "run -- {}": "exec",
    "shell": "attach bash connect enter exec ssh",
    "plan": "resolve solve versions",
    "estimate": "memory vram",
    "explain FILE": "logs",
    "verify": "bench check prove test validate",
    "finetune": "fit lora qlora sft train tune",
    "generate": "chat complete infer inference predict prompt",
    "generate --merge DIR": "merge",
    "export kubernetes": "k8s kubernetes",
    "export slurm": "sbatch slurm submit",
    "serve": "deploy server",
    "fetch": "download pull",
    "update": "refresh sync upgrade",
    "--version": "version",
    "{} --help": "help man",
}
"""devkit's words -> those by which other tools have a user's hands; the words after them take the place of {}."""
_OPTIONS_OF_OTHER_TOOLS = {
    "per-device-train-batch-size": "--micro-batch N",
    "gradient-accumulation-steps": "--batch N",
    "num-train-epochs": "--epochs X",
    "lr-scheduler-type": "--set schedule=NAME",
    "load-in-4bit": "--method qlora",
    "load-in-8bit": "--method int8-lora",
    "train-file": "--data FILE",
    "dataset-name": "--data NAME",
    "n": "--dry-run",
}
"""Those of transformers' and TRL's scripts that share no word with devkit's, and that of make and rsync."""
_VALUES_OF_OTHER_TOOLS = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32"}
_EXAMPLES = {
    **{"-- COMMAND": "-- python main.py", "NAME": "smollm2-135m", "MODEL": "smollm2-135m"},
    "REPORT...": "NODE1.json NODE2.json",
}
"""What to give for an argument, by its name in the help."""
_SIZES = {"k": 1e3, "m": 1e6, "b": 1e9}
_UNITS = {
    "SECONDS": {"ms": 1e-3, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86400},
    "TOKENS": _SIZES | {"k": 1024},
    "N": _SIZES,
    "X": {"%": 1e-2},
}
"""The units that a number may have been given in, by what the option takes."""
_EXTRA = re.compile(r"Got unexpected extra arguments? \((.*)\)")
_DASHES = re.compile("^[\u2010-\u2015\u2212]+(?=.(.?))")
_BACKSLASH = "the backslash before a space"
_QUOTED = re.compile("(?<![^\0=])[“”„«\u2018]([^“”„«»\u2018\u2019]*)[“”»\u2019](?![^\0])")
_PLACEHOLDER = re.compile(r"<[^<>]+>|.*\bpath/to/.*|your[-_].+|(owner|org)/(name|model)", re.IGNORECASE)
_PROMPTS = ("$", "#", "%", ">", "devkit")


def _leave_out_docker(words: Sequence[str]) -> list[str]:
    """Leave out what devkit does without an option of docker."""
    own = [*takewhile("--".__ne__, words)]
    if not own or own[0] not in _STARTING:
        return [*words]
    kept = re.sub(_OF_DOCKER, "", "\0".join(own)).split("\0")
    return [*kept, *words[len(own) :]]


_STARTING = ("init", "onboard", "run", "shell", "up", "verify")
_OF_DOCKER = re.compile(
    "\0(?:-it|-ti|-i|-t|-d|--rm|--interactive|--tty|--detach|--gpus[\0=]all|--runtime[\0=]nvidia)(?=\0|$)"
)
_SLIPS: tuple[tuple[Callable[[Sequence[str]], list[str]], str, str], ...] = (
    (
        lambda words: _QUOTED.sub(lambda quoted: quoted[1].replace("\0", " "), "\0".join(words)).split("\0"),
        "use",
        "plain quotes",
    ),
    (lambda words: [*dropwhile(_PROMPTS.__contains__, words)], "leave out", "the prompt"),
    (lambda words: [*takewhile("#".__ne__, words)], "leave out", "the comment"),
    (_leave_out_docker, "leave out", "options of docker"),
    (lambda words: [re.sub(r"^ +(?=-)", "", each) for each in words if each.strip(" \\")], "leave out", _BACKSLASH),
    (
        lambda words: [_DASHES.sub(lambda found: "--" if found[1] else "-", each) for each in words],
        "use",
        "plain dashes",
    ),
)
"""What corrects a kind of words that nobody types, or that another program needs, and how to say it."""


def find_slip(words: Sequence[str]) -> str:
    """Return the hint for words that nobody types: dashes and quotes of a web page, a prompt, a comment, an empty variable."""
    if not words:
        return ""
    if "" in words:
        return "An argument is empty: a variable in the command may not be set."
    if placeholder := next(filter(_PLACEHOLDER.fullmatch, words), ""):
        return f"Replace {placeholder} with a value of your own."
    meant, advice = [*words], list[tuple[str, str]]()
    for correct, verb, what in _SLIPS:
        corrected = correct(meant)
        advice += [(verb, what)] if corrected != meant else []
        meant = corrected
    said = (
        (verb, join_words(dict.fromkeys(what for each, what in advice if each == verb)))
        for verb in dict.fromkeys(verb for verb, _ in advice)
    )
    says = ", and ".join(map(" ".join, said)).capitalize()
    return f"{says}: {shlex.join(['devkit', *meant])}" if advice else ""


def explain_usage_error(error: click.ClickException, root: click.Group) -> tuple[str, str]:
    """Return a usage error as one line, and as its hint what was probably meant and where the right words are."""
    # Click lists the choices of a missing argument on separate lines, and doubles backslashes.
    message = " ".join(error.format_message().split()).replace("\\\\", "\\")
    for kind, wanted in (("float", "a number"), ("integer", "a whole number")):
        message = message.replace(f"a valid {kind} range", wanted).replace(f"a valid {kind}", wanted)
    context = (isinstance(error, click.UsageError) and error.ctx) or _find_typed_context(root)
    command, more = context.command, ""
    meant: Iterable[str] = ()
    if isinstance(error, click.MissingParameter):
        example = _EXAMPLES.get(error.param.human_readable_name if error.param else "")
        more = f"{context.command_path} {example}" if example else ""
    elif isinstance(error, click.BadParameter):
        meant, more = _find_meant_values(error, context)
    elif isinstance(error, click.NoSuchOption):
        name = error.option_name
        if len(name) == 2:  # of -help, click names -e
            name = next((word for word in sys.argv if word[:1] == "-" != word[1:2] and name[1] in word[1:]), name)
        message, more = f"No such option '{name}'.", _say_without(name, context)
        meant = () if more else _find_meant_options(name, context, root)
        more = more or _pass_through(name, context)
    elif isinstance(error, click.BadOptionUsage):
        option = next(each for each in command.params if error.option_name in each.opts + each.secondary_opts)
        more = f"{context.command_path} {_show_option(option, context)}"
    elif extra := _EXTRA.match(message):
        meant = _find_meant_words(extra[1], context, root)
        taken = [piece for piece in command.collect_usage_pieces(context) if piece != command.options_metavar]
        more = f"{context.command_path} takes {' '.join(('only', *taken)) if taken else 'no arguments'}."
    elif isinstance(command, click.Group):
        known = command.list_commands(context)
        more = f"One of {', '.join(known)}." if len(known) <= MAX_LISTED else ""
        if message.startswith("No such command"):
            message, meant = f"{message.partition('.')[0]}.", _find_commands(message.split("'")[1], command, context)
        else:
            # Click says nothing but the help.
            message = f"Missing argument '{command.subcommand_metavar.split()[0]}'."
    proposed = " or ".join(islice(dict.fromkeys(meant), MAX_MEANT))
    if isinstance(error, click.NoSuchOption) and not (proposed or more or isinstance(command, click.Group)):
        options = [each.opts[0] for each in command.params if isinstance(each, click.Option) and not each.hidden]
        more = f"Options: {', '.join(options or ['--help'])}." if len(options) <= MAX_LISTED else ""
        if command.name in ("run", "shell", "up"):
            more += " The container's own settings are in its devcontainer.json, its Compose file and .env."
    slip = find_slip(sys.argv[1:])
    lines = (slip,) if slip else (proposed and f"Did you mean {proposed}?", more)
    return message, "\n".join(filter(None, (*lines, f"{context.command_path} --help")))


def _find_meant_words(extra: str, context: click.Context, root: click.Group) -> Iterator[str]:
    """Yield what was probably meant by words that a command does not take."""
    first, last = extra.partition(" ")[0], extra.rpartition(" ")[2]
    group = root.get_command(context, first)
    if isinstance(group, click.Group) and context.info_name in group.list_commands(context):  # the words are swapped
        yield shlex.join(("devkit", first, context.info_name, *_list_words_from(first)[1:]))
        return
    yield from (*_quote_words(last, context), *_find_flags(first, context), *_find_options_for(extra, context))


def _find_meant_values(error: click.BadParameter, context: click.Context) -> tuple[Iterable[str], str]:
    """Return what was probably meant by a wrong value, and a further line of the hint."""
    typed = (
        error.message.split("'")[1].replace("\\\\", "\\") if "'" in error.message else error.message.partition(" ")[0]
    )
    option = error.param if isinstance(error.param, click.Option) else None
    is_written = error.param is not None and isinstance(error.param.type, OutputPath)
    meant: list[str] = []
    if error.message.endswith("does not exist."):
        meant = [*_quote_words(typed, context), *(() if option else _find_flags(typed, context))]
        meant = meant or _find_gpu_words(typed, context) or ([] if option else _swap_output(typed, context))
        is_command = shutil.which(typed) or "--" in takewhile(typed.__ne__, sys.argv)
        if not meant and isinstance(error.param, click.Argument) and is_command:
            meant = [f"devkit run -- {shlex.join(_list_words_from(typed))}"]
        return meant, "" if meant else suggest_path(Path(typed), f"Check the path, which is relative to {Path.cwd()}.")
    if error.message.endswith("is not readable."):
        return (), "Make it readable by this user."
    if error.message.endswith("is a directory."):
        if is_written:
            return (), f"Name a file in it{option and f': {option.opts[0]}'} {Path(typed) / 'FILE'}"
        with suppress(OSError):  # a folder that this user may not read
            inside = sorted(each for each in Path(typed).iterdir() if each.is_file())
            # What the option's help names comes first.
            meant = [
                f"{each}" for each in sorted(inside, key=lambda each: each.name not in f"{option and option.help}")
            ]
        return meant, ""
    if error.message.endswith("is a file."):
        if is_written and error.param:
            return (), f"Choose another place: {find_place(error.param, context)} {error.param.make_metavar(context)}"
        folder = " ".join((*(option.opts[:1] if option else ()), shlex.quote(f"{Path(typed).parent}")))
        return [folder, *_find_options_for(typed, context)], ""
    if option and option.type.name.startswith(("int", "float")):
        return _find_number(typed, option, context), ""
    if error.param is None or not isinstance(error.param.type, click.Choice):
        return (), ""
    for each in context.command.get_params(context):
        if isinstance(each.type, click.Choice) and typed in each.type.choices:
            return [f"{each.opts[0]} {typed}"], ""
    known = _VALUES_OF_OTHER_TOOLS.get(typed.lower(), typed)
    return [known] if known in error.param.type.choices else find_similar(typed, error.param.type.choices), ""


def _swap_output(typed: str, context: click.Context) -> list[str]:
    """Return the command with its argument and the value of its output swapped, where only that value is there."""
    words = sys.argv[1:]
    outputs = {flag for each in context.command.params if isinstance(each.type, OutputPath) for flag in each.opts}
    at = next(
        (place for place, each in enumerate(words[1:], 1) if words[place - 1] in outputs and Path(each).is_dir()), 0
    )
    swap = {words[at]: typed, typed: words[at]} if at else {}
    return [shlex.join(("devkit", *(swap.get(each, each) for each in words)))] if swap else []


def _find_number(typed: str, option: click.Option, context: click.Context) -> list[str]:
    """Return the option with the number that was given with a unit, as 8k, 5s and 90% are, or with a name, as H100:8."""
    flag = option.opts[0]
    if found := re.fullmatch(r"([A-Za-z][\w.-]*):(\d+)", typed):
        single = flag.removesuffix("s")
        has_name = any(single in each.opts and each.type.name == "text" for each in context.command.params)
        return [f"{single} {found[1]} {flag} {found[2]}" if has_name else f"{flag} {found[2]}"]
    # A comma that does not separate thousands separates decimals, as in most of Europe.
    typed = typed if re.match(r"[1-9]\d{0,2}(,\d{3})+(?!\d)", typed) else typed.replace(",", ".")
    found = re.fullmatch(r"(\d[\d_,]*\.?\d*)\s*([A-Za-z%]*)", typed)
    factor = _UNITS.get(option.metavar or "N", {}).get(found[2].lower(), 0 if found[2] else 1) if found else 0
    value = float(found[1].replace(",", "")) * factor if found else 0.0
    low, high = (getattr(option.type, each, None) for each in ("min", "max"))
    if high is not None and value > high:
        value = value / 100 if value <= 100 * high and option.type.name.startswith("float") else float(high)
    is_possible = value > 0 and value >= (low or 0) and (value.is_integer() or option.type.name.startswith("float"))
    return [f"{flag} {value:.15g}"] if is_possible else []


def _find_flags(typed: str, context: click.Context) -> list[str]:
    """Return the option that a word without its dashes names."""
    return [_show_option(each, context) for each in context.command.params if f"--{typed}" in each.opts]


def _find_gpu_words(typed: str, context: click.Context) -> list[str]:
    """Return the option for a GPU that was named without it, as in `devkit plan RTX 4090`."""
    from devkit.compat.gpus import find_gpu

    words = [*takewhile(lambda each: each[:1] != "-", _list_words_from(typed))]
    name = next((" ".join(words[:end]) for end in range(len(words), 0, -1) if find_gpu(" ".join(words[:end]))), "")
    takes = any("--gpu" in each.opts for each in context.command.params)
    return [f"--gpu {shlex.quote(name)}"] if name and takes else []


def _show_option(option: click.Parameter, context: click.Context) -> str:
    """Return an option with what it takes: --gpu NAME."""
    return option.opts[0] if getattr(option, "is_flag", False) else f"{option.opts[0]} {option.make_metavar(context)}"


def _quote_words(typed: str, context: click.Context) -> list[str]:
    """Return the option whose value was not quoted, as in `--gpu RTX 4090`, where `typed` is its second word or a later one."""
    words = sys.argv[1:]
    end = words.index(typed) + 1 if typed in words else 0
    start = next((at for at in reversed(range(end)) if words[at].startswith("--")), end)
    option = next((each for each in context.command.params if words[start:end] and words[start] in each.opts), None)
    if not isinstance(option, click.Option) or option.is_flag or option.type.name != "text" or end - start < 3:
        return []
    value = " ".join(words[start + 1 : end])
    if Path(words[start + 1]).is_dir() and any(isinstance(each, click.Argument) for each in context.command.params):
        folder, rest = words[start + 1], words[start + 2 : end]
        return [shlex.join((*context.command_path.split(), folder, words[start], " ".join(rest), *words[end:]))]
    if re.fullmatch(r"\d+[a-z]", option.metavar or ""):
        value = re.sub(r"^(\d+) ([a-z])[a-z]*$", r"\1\2", value.lower())  # 2 days as in 24h
    return [f"{words[start]} {shlex.quote(value)}"]


def _find_meant_options(typed: str, context: click.Context, root: click.Group) -> Iterator[str]:
    """Yield what others call `typed`: -y by its letter, --lr by its initials, --bf16 as a value, then what resembles it.

    That is what another command calls exactly so, --jsn by its letters, and --seq-len by the words of the help.
    """
    words = typed.strip("-").replace("_", "-").split("-")
    renamed = getattr(context.command, "renamed", {})
    settings = {each.strip("-"): f"{new}VALUE" for each, new in renamed.items() if new.endswith("=")}
    by_help: list[str] = []
    known: dict[str, str] = {}
    told = _OPTIONS_OF_OTHER_TOOLS.get("-".join(words), "")
    if told and any(told.split()[0] in param.opts for param in context.command.params):
        yield told
        return
    for param in context.command.get_params(context):
        is_option = isinstance(param, click.Option)
        if getattr(param, "hidden", False):
            continue
        flag = max(param.opts, key=len) if is_option else f"{param.human_readable_name} without a flag"
        is_output = isinstance(param.type, OutputPath) and not is_option
        name = ["output"] if is_output else max(param.opts, key=len).strip("-").split("-")
        known |= {"-".join(name): flag} | {each.strip("-"): each for each in param.secondary_opts}
        is_initials = len(words) == 1 and "".join(word[0] for word in name).startswith(words[0])
        is_longer = len(words) == 1 and len(name[0]) > MIN_STEM and words[0].startswith("".join(name))
        if (is_option or is_output) and (is_initials or is_longer or name == words[: len(name)]):
            yield flag
        if isinstance(param.type, click.Choice) and "-".join(words) in param.type.choices:
            yield f"{flag} {'-'.join(words)}"
        help_words = (getattr(param, "help", None) or "").lower().replace(":", " ").split()[:6]
        if len(typed) > 2 and all(any(each.startswith(word) for each in (*name, *help_words)) for word in words):
            by_help.append(flag)
    known |= settings
    yield from _find_elsewhere(typed, context, root)
    close = [known[each] for each in find_similar("-".join(words), known)]
    yield from (*by_help, *close) if len(words) > 1 else (*close, *by_help)
    if not by_help and not close:
        yield from (flag for name, flag in known.items() if 2 * len({*words} & {*name.split("-")}) >= len(words))


def _find_elsewhere(option: str, context: click.Context, root: click.Group) -> Iterator[str]:
    """Yield the option with each command that has it; of one before the command of a group, with that command."""
    here = context.command
    group, path = (here, context.command_path) if isinstance(here, click.Group) else (root, "devkit")
    commands = group.list_commands(context)
    after = [each for each in sys.argv[1:] if each in commands] if group is here else []
    for name in after or commands if option.startswith("--") else after:
        command = group.get_command(context, name)
        if command and any(option in each.opts for each in command.params):
            yield f"{path} {name} {option}"


def _find_options_for(value: str, context: click.Context) -> list[str]:
    """Return the options that take a value that was given without one, by what it is."""
    if any(piece.startswith("[--") for piece in context.command.collect_usage_pieces(context)):
        return ["-- COMMAND, after two dashes"]
    # What is beside the project's folder may be anything.
    named = () if any(isinstance(each, click.Argument) for each in context.command.params) else ("TEXT", "NAME")
    options = [
        each for each in context.command.params if isinstance(each, click.Option) and {*each.opts}.isdisjoint(sys.argv)
    ]

    def list_taking(word: str) -> list[str]:
        metavars = (
            ("DIR", "PATH", "NAME") if Path(word).is_dir() else ("FILE", "NAME") if Path(word).is_file() else named
        )
        taking = (each for metavar in metavars for each in options if each.metavar == metavar)
        # A file of settings is TOML, as the option's help says.
        fits = (each for each in taking if "TOML" not in f"{each.help}" or word.endswith(".toml"))
        return [each.opts[0] for each in fits if not isinstance(each.type, OutputPath)]

    words = value.split()
    if len(words) > 1 and all(Path(each).exists() for each in words):
        flags: list[str] = []
        for word in words:
            flags += [each for each in list_taking(word) if each not in flags][:1]
        return (
            [shlex.join(each for pair in zip(flags, words, strict=True) for each in pair)]
            if len(flags) == len(words)
            else []
        )
    return [f"{flag} {shlex.quote(value)}" for flag in list_taking(value)]


def _find_commands(typed: str, group: click.Group, context: click.Context) -> list[str]:
    """Return the commands that a wrong one resembles, or that do what other tools call so, with the words after it."""
    rest = _list_words_from(typed)[1:]
    table = OF_OTHER_TOOLS if context.parent is None else {}
    meant = [each.format(shlex.join(rest) or "COMMAND") for each, words in table.items() if typed in words.split()]
    known = group.list_commands(context)
    meant = meant or find_similar(typed, known)
    if not meant and (
        command := next((each for each in rest if group.get_command(context, each)), "")
    ):  # the words are swapped
        rest.remove(command)
        meant = [shlex.join((command, typed, *rest))]
    return [f"{context.command_path} {each}" for each in meant]


def _list_words_from(typed: str) -> list[str]:
    """Return a word of the command line and what follows it, without two dashes; nothing for a word that is not in it."""
    return [each for each in sys.argv[sys.argv.index(typed) :] if each != "--"] if typed in sys.argv else []


def _split_words(unknown: str, context: click.Context) -> tuple[list[str], list[str]]:
    """Split the command line into devkit's own words and an unknown option with its value."""
    words = [each for each in sys.argv[1:] if each != "--"]
    at = next(place for place, each in enumerate(words) if each.partition("=")[0] == unknown)
    known = {flag for each in context.command.get_params(context) for flag in (*each.opts, *each.secondary_opts)}
    end = next((place for place in range(at + 1, len(words)) if words[place].partition("=")[0] in known), len(words))
    return [*words[:at], *words[end:]], words[at:end]


def _say_without(unknown: str, context: click.Context) -> str:
    """Return the command without an option for what it does in any case, as update --upgrade, or for a file's part."""
    does = OF_OTHER_TOOLS.get(context.command.name or "", "").split()
    name = unknown.strip("-")
    if any(name in flag for each in context.command.params for flag in each.opts):
        return ""  # as up --build, which is --rebuild
    own, given = _split_words(unknown, context) if name in does or context.ignore_unknown_options else ([], [])
    if name in does and len(given) == 1:
        return f"That is what the command does without an option: {shlex.join(('devkit', *own))}"
    file = next((each for each in given[1:] if Path(each).is_file()), "")
    return f"Leave it out: {shlex.join(('devkit', *own, file))}" if file and unknown.startswith("-") else ""


def _pass_through(typed: str, context: click.Context) -> str:
    """Return how to give another program's option, as in --sbatch=--qos=high; "" for a command that passes it to none."""
    if context.ignore_unknown_options:
        return "If it belongs to an error text, put the text in quotes."
    if any(f"{each.metavar}".startswith("[-- ") for each in context.command.params):
        own, passed = _split_words(typed, context)
        return f"Options of the program that it starts come after two dashes: {shlex.join(('devkit', *own, '--', *passed))}"
    taker = next((each.opts[0] for each in context.command.params if each.metavar == "OPTION"), "")
    if not taker or typed[:2] != "--":
        return ""
    from devkit.export.slurm.settings import RESERVED_OPTIONS

    if source := RESERVED_OPTIONS.get(typed[2:]):
        return f"devkit sets {typed} from {source}."
    separate = "=".join((typed, *(word for word in _list_words_from(typed)[1:2] if word[:1] != "-")))
    word = next((each for each in sys.argv if each.startswith(f"{typed}=")), separate)
    return f"To pass it to {taker.strip('-')}: {shlex.quote(f'{taker}={word}')}"


def _find_typed_context(root: click.Group) -> click.Context:
    """Return the context of the command that was typed, as of `devkit export slurm`, where click's error does not hold it."""
    context = click.Context(root, info_name="devkit")
    for word in sys.argv[1:]:
        group = context.command
        if not (isinstance(group, click.Group) and (command := group.get_command(context, word))):
            break
        context = click.Context(command, context, word)
    return context
