"""Settings of a run from a TOML file, whose keys are the settings' names. Importable without torch."""

import difflib
import tomllib
from enum import StrEnum
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin

from devkit.errors import DevkitError
from devkit.render.toml_place import place_of, split_error
from devkit.text import listed
from devkit.workload.finetune.settings import described


def kind_of(name: str) -> Any:  # noqa: ANN401 - a type, or a tuple of one
    """The type that a setting's value has when it is given: int, float, bool, str, Path, a StrEnum or tuple."""
    hint = described()[name][0]
    if isinstance(hint, UnionType):
        hint = next(each for each in get_args(hint) if each is not type(None))
    return get_origin(hint) or hint


def read_settings(path: Path) -> dict[str, Any]:
    """What the file at `path` sets, by name of setting. Its paths start where the command runs, as those of flags do.

    Raises DevkitError with line and column for TOML errors, unknown keys and wrong types.
    """
    text = _text(path)
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        # Not only TOMLDecodeError: a number of five thousand digits, and brackets without end, are others.
        problem, place = split_error(str(error), text)
        raise DevkitError(f"{_at(path, place)} is not TOML: {problem}", "Correct that line.") from None
    return {name: _value(path, text, name, value) for name, value in _named(path, text, document).items()}


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise DevkitError(f"cannot read {path}: {error.strerror}", "Name a file of settings with --settings.") from None
    except UnicodeDecodeError:
        raise DevkitError(f"{path} is not TOML: it is not UTF-8", "Save the file as UTF-8.") from None


def _at(path: Path, place: str) -> str:
    return f"{path}:{place}" if place else f"{path}"


def _named(path: Path, text: str, document: dict[str, Any]) -> dict[str, Any]:
    """The document with names as the settings have them; dashes, as flags have them, are as good."""
    named = {}
    for key, value in document.items():
        name = key.replace("-", "_")
        if name not in described():
            close = difflib.get_close_matches(name, described(), n=1, cutoff=0.5)
            hint = f"Did you mean {close[0]}?" if close else f"The settings are {listed(described())}."
            raise DevkitError(f"{_at(path, place_of(text, (key,)))}: there is no setting {key!r}", hint)
        if name in named:
            raise DevkitError(f"{_at(path, place_of(text, (key,)))}: {name} is set twice", "Keep one of the two.")
        named[name] = value
    return named


def _value(path: Path, text: str, name: str, value: object) -> object:
    kind = kind_of(name)
    wanted, made = _checked(kind, value)
    if made is None:
        place = place_of(text, (name,)) or place_of(text, (name.replace("_", "-"),))
        raise DevkitError(f"{_at(path, place)}: {name} must be {wanted}, not {value!r}", f"Write it as {wanted}.")
    return made


def _checked(kind: Any, value: object) -> tuple[str, object]:  # noqa: ANN401 - a type
    """What a value of this kind looks like, and the value as the settings hold it; None for a wrong one."""
    if kind is bool:
        return "true or false", value if isinstance(value, bool) else None
    if kind is tuple:
        texts = [value] if isinstance(value, str) else value
        fits = isinstance(texts, list) and bool(texts) and all(isinstance(each, str) for each in texts)
        return "a list of strings", tuple(texts) if fits and isinstance(texts, list) else None
    if isinstance(value, bool):
        return "a number" if kind in (int, float) else "a string in quotes", None
    if kind is int:
        return "a whole number", value if isinstance(value, int) else None
    if kind is float:
        return "a number", float(value) if isinstance(value, int | float) else None
    return _of_text(kind, value)


def _of_text(kind: Any, value: object) -> tuple[str, object]:  # noqa: ANN401 - a type
    if issubclass(kind, StrEnum):
        known = [str(each) for each in kind]
        return listed((f'"{each}"' for each in known), "or"), kind(value) if value in known else None
    if not isinstance(value, str) or not value:
        return "a string in quotes", None
    return "a string in quotes", kind(value)
