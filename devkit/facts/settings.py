"""Settings as frozen dataclasses whose fields carry their description: flags, files and validation derive from it."""

import math
from dataclasses import dataclass
from functools import cache
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from devkit.errors import DevkitError


@dataclass(frozen=True)
class SettingInfo:
    """The description of a setting for people, and the range of its number. `example` is a flag's placeholder for a text.

    With `has_flag` false it has no flag: `--set KEY=VALUE`, or what the command says, gives it. `unsupported` are members
    of an enumeration that are not choices here. `section` is its heading in the help, "" for the command's own.
    """

    meaning: str
    at_least: float | None = None
    at_most: float | None = None
    example: str = ""
    has_flag: bool = True
    unsupported: tuple[str, ...] = ()
    section: str = ""


@cache
def describe_settings(settings: type) -> dict[str, tuple[Any, SettingInfo]]:
    """Return every setting of the class with its type and its description."""
    hints = get_type_hints(settings, include_extras=True)
    return {name: (get_args(hint)[0], get_args(hint)[1]) for name, hint in hints.items()}


FLAG_NAMES = {"precision": "dtype", "adapter_precision": "adapter-dtype", "sequence": "max-length"}
"""Setting -> the name of its flag, where Hugging Face's libraries have another word."""
SETTING_NAMES = {f"--{flag}": name for name, flag in FLAG_NAMES.items()}


def format_flag(name: str) -> str:
    """Format a setting as its flag: micro_batch is --micro-batch."""
    return "--" + FLAG_NAMES.get(name, name.replace("_", "-"))


def format_setting(settings: type, name: str, value: object) -> tuple[str, ...]:
    """Format the words of a command line that set a value. A setting without a flag is KEY=VALUE, after --set."""
    flag = format_flag(name)
    if not describe_settings(settings)[name][1].has_flag:
        text = str(value).lower() if isinstance(value, bool) else str(value)
        return ("--set", f"{name}={','.join(value) if isinstance(value, tuple) else text}")
    if isinstance(value, bool):
        return (flag if value else f"--no-{flag[2:]}",)
    if isinstance(value, tuple):
        return tuple(word for each in value for word in (flag, str(each)))
    return (flag, f"{value}")


def format_option(settings: type, name: str) -> str:
    """Format a setting as it is given on the command line: its flag, or --set NAME for one without a flag."""
    return format_flag(name) if describe_settings(settings)[name][1].has_flag else f"--set {name}"


def find_setting_type(settings: type, name: str) -> Any:  # noqa: ANN401 - a type, or a tuple of one
    """Return the type of a setting's value when it is given: int, float, bool, str, Path, a StrEnum or tuple."""
    hint = describe_settings(settings)[name][0]
    if isinstance(hint, UnionType):
        hint = next(each for each in get_args(hint) if each is not type(None))
    return get_origin(hint) or hint


def validate_ranges(settings: object) -> None:
    """Raise DevkitError for a number outside its range."""
    kind: type = type(settings)
    for name, (_, info) in describe_settings(kind).items():
        value, flag = getattr(settings, name), format_option(kind, name)
        if not isinstance(value, int | float) or isinstance(value, bool):
            continue
        meaning = info.meaning.removesuffix(".")
        if not math.isfinite(value):
            raise DevkitError(f"{flag} is {value}, which is not a finite number", info.meaning)
        if info.at_least is not None and value < info.at_least:
            raise DevkitError(
                f"{flag} is {value}, which is below {info.at_least:g}", f"{meaning}: {info.at_least:g} or more."
            )
        if info.at_most is not None and value > info.at_most:
            raise DevkitError(
                f"{flag} is {value}, which is above {info.at_most:g}", f"{meaning}: {info.at_most:g} or less."
            )
