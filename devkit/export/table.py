"""The table [job] of devkit.toml: what it and typed flags wish for one target, and where typed flags are kept."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import Any

from devkit.errors import DevkitError
from devkit.export.job import ENGINE_WORDS, JobSettings, check_texts
from devkit.export.targets import NAMES, Target
from devkit.facts.said import described
from devkit.render.settings_values import Source, values_in

TABLE = "job"
OUTPUT = "output"
"""The key under [job.TARGET] for the folder of its files, relative to the project."""


@dataclass(frozen=True)
class Wishes:
    """What a target is asked to write. `own` is of its settings' class; `output` "" for its usual folder."""

    job: JobSettings
    own: Any
    output: str = ""


@dataclass(frozen=True)
class Typed:
    """What was typed on the command line, by name of setting: of the job, and of the target alone."""

    job: Mapping[str, Any]
    own: Mapping[str, Any]


def wishes_in(document: Mapping[str, Any], text: str, target: Target, typed: Typed) -> Wishes:
    """[job], over it [job.TARGET], over both the flags. `text` is what `document` was read from.

    [job.TARGET] knows the job's settings, too: storage has another name on every engine. Raises DevkitError with line
    and column for unknown keys and wrong types.
    """
    table = _table(document, (TABLE,), text)
    _check_targets(table, text)
    common = {key: value for key, value in table.items() if key not in NAMES}
    inner = _table(table, (TABLE, target.table), text)
    wished = _values(common, JobSettings, text, (TABLE,))
    of_job = {key: value for key, value in inner.items() if _name(key) in described(JobSettings)}
    own = {key: value for key, value in inner.items() if key not in of_job and key != OUTPUT}
    wished |= _values(of_job, JobSettings, text, (TABLE, target.table)) | dict(typed.job)
    settings = target.settings(**_values(own, target.settings, text, (TABLE, target.table)) | dict(typed.own))
    check_texts(settings)
    return Wishes(JobSettings(**wished), settings, _output(inner, text, target))


def kept(document: Mapping[str, Any], target: Target, typed: Typed) -> dict[tuple[str, ...], object]:
    """Where typed flags belong in devkit.toml, and their values in TOML's own types; only those that differ.

    A setting of the job belongs to all targets, in [job], unless [job.TARGET] has it, or it names storage in the
    target's own words.
    """
    common = document.get(TABLE, {})
    inner = common.get(target.table, {})
    found = dict(_kept(common, inner, target, typed))
    return {path: value for path, value in found.items() if _at(document, path) != value}


def _kept(
    common: Mapping[str, Any], inner: Mapping[str, Any], target: Target, typed: Typed
) -> Iterator[tuple[tuple[str, ...], object]]:
    for name, value in typed.job.items():
        spelled = _spelled(name, inner)
        if name in ENGINE_WORDS or spelled in inner:
            yield (TABLE, target.table, spelled), _plain(value)
        else:
            yield (TABLE, _spelled(name, common)), _plain(value)
    for name, value in typed.own.items():
        yield (TABLE, target.table, _spelled(name, inner)), _plain(value)


def meaning_of(path: tuple[str, ...], target: Target) -> str:
    """What the setting at a path of `kept` means, for a comment beside it."""
    name = _name(path[-1])
    known = described(JobSettings)
    return (known[name] if name in known else described(target.settings)[name])[1].meaning


def _check_targets(table: Mapping[str, Any], text: str) -> None:
    """Raises DevkitError for a table of no target."""
    for key, value in table.items():
        if isinstance(value, Mapping) and key not in NAMES:
            close = get_close_matches(key, NAMES, n=1)
            raise DevkitError(
                f"{Source('devkit.toml', text, (TABLE,)).at(key)}: there is no target {key!r}",
                f"Did you mean [{TABLE}.{close[0]}]?" if close else f"The targets are {', '.join(NAMES)}.",
            )


def _table(holder: Mapping[str, Any], path: tuple[str, ...], text: str) -> Mapping[str, Any]:
    found = holder.get(path[-1], {})
    if not isinstance(found, Mapping):
        raise DevkitError(
            f"{Source('devkit.toml', text, path[:-1]).at(path[-1])}: {'.'.join(path)} must be a table, not {found!r}",
            f"Write [{'.'.join(path)}] and its settings below.",
        )
    return found


def _values(table: Mapping[str, Any], settings: type, text: str, path: tuple[str, ...]) -> dict[str, Any]:
    return values_in(table, settings, Source("devkit.toml", text, path))


def _output(inner: Mapping[str, Any], text: str, target: Target) -> str:
    found = inner.get(OUTPUT, "")
    if not isinstance(found, str):
        where = Source("devkit.toml", text, (TABLE, target.table)).at(OUTPUT)
        raise DevkitError(f"{where}: output must be a string in quotes, not {found!r}", "Name a folder.")
    return found


def _name(key: str) -> str:
    return key.replace("-", "_")


def _spelled(name: str, table: Mapping[str, Any]) -> str:
    """The setting's key as it stands in the table already: with dashes, perhaps."""
    return next((key for key in table if _name(key) == name), name)


def _plain(value: object) -> object:
    if isinstance(value, StrEnum | Path):
        return str(value)
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def _at(document: Mapping[str, Any], path: tuple[str, ...]) -> object:
    found: Any = document
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found
