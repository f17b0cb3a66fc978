"""Job arrays for sweeps: one array task for each combination of the settings' values."""

import re
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from typing import Any

from devkit.errors import DevkitError
from devkit.facts.settings import describe_settings, find_setting_type, format_flag, format_setting, validate_ranges
from devkit.text import join_words
from devkit.workload.finetune.settings import FinetuneSettings

MAX_ARRAY_TASKS = 1000
"""Slurm's MaxArraySize is 1001 unless a site says otherwise, and the highest index is below it.
Source: https://slurm.schedmd.com/slurm.conf.html#OPT_MaxArraySize"""
_FIXED = ("output", "resume", "model", "data", "eval_data", "targets")
"""Settings that all tasks share, or that have no single value."""


@dataclass(frozen=True)
class ArrayTask:
    """One task of the array: its folder in the output folder, and its additional flags."""

    folder: str
    flags: tuple[str, ...]


def expand_sweep(sweep: tuple[str, ...]) -> tuple[ArrayTask, ...]:
    """Return every combination of "SETTING=A,B" texts, the last varying fastest; () for none. Raises DevkitError."""
    axes = [_parse_axis(text) for text in sweep]
    names = [name for name, _ in axes]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated:
        raise DevkitError(f"--sweep names {repeated} twice", f"Write it once: --sweep {repeated}=A,B,C.")
    found = [_build_task(names, values) for values in product(*(values for _, values in axes))] if axes else []
    if len(found) > MAX_ARRAY_TASKS:
        raise DevkitError(
            f"--sweep makes {len(found)} tasks, and an array holds {MAX_ARRAY_TASKS}",
            "Try fewer values of each setting.",
        )
    return tuple(found)


def _parse_axis(text: str) -> tuple[str, list[str]]:
    name, mark, listing = text.partition("=")
    values = [value.strip() for value in listing.split(",")]
    if not mark or not all(values):
        raise DevkitError(f"--sweep {text!r} is no list of values", "Write it as --sweep learning-rate=1e-4,2e-4.")
    field = name.strip().replace("-", "_")
    known = [each for each in describe_settings(FinetuneSettings) if each not in _FIXED]
    if field not in known:
        choices = join_words(each.replace("_", "-") for each in known)
        raise DevkitError(f"--sweep {name!r} is no setting that can differ from task to task", f"These can: {choices}.")
    for value in values:
        _validate_value(field, value)
    if len(set(values)) < len(values):
        raise DevkitError(f"--sweep {text!r} names a value twice", "Each task trains with values of its own.")
    return field.replace("_", "-"), values


def _validate_value(field: str, value: str) -> None:
    """Raise DevkitError for a value that the setting cannot have."""
    kind = find_setting_type(FinetuneSettings, field)
    made: Any = value
    try:
        if kind is bool:
            made = {"true": True, "false": False}[value]
        elif kind in (int, float) or issubclass(kind, StrEnum):
            made = kind(value)
    except (ValueError, KeyError):
        raise DevkitError(
            f"--sweep: {value!r} is no value of {format_flag(field)}",
            f"{describe_settings(FinetuneSettings)[field][1].meaning}",
        ) from None
    validate_ranges(FinetuneSettings(**{field: made}))


def _build_task(names: list[str], values: tuple[str, ...]) -> ArrayTask:
    flags: list[str] = []
    for name, value in zip(names, values, strict=True):
        made = value == "true" if value in ("true", "false") else value
        flags += format_setting(FinetuneSettings, name.replace("-", "_"), made)
    parts = (f"{name}-{value}" for name, value in zip(names, values, strict=True))
    return ArrayTask(re.sub(r"[^A-Za-z0-9._+-]", "-", "_".join(parts)), tuple(flags))
