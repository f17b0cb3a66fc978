"""What `devkit estimate` learned from measured runs: one file of the user's, named in every answer that it changes."""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from devkit.cli.own_tables import own_file
from devkit.errors import DevkitError

if TYPE_CHECKING:
    from devkit.estimate.cards import Card
    from devkit.estimate.learned import Observation


def learned_file() -> str | None:
    """Where the runs are kept; None without a home."""
    beside = own_file()
    return f"{os.path.dirname(beside)}/measured.json" if beside else None  # noqa: PTH120 - every estimate comes by here


def with_bounds(cards: "Sequence[Card]") -> "tuple[tuple[Card, ...], str]":
    """The GPUs with what was learned about them, and the file that says so, "" where none does."""
    path = learned_file()
    if not cards or path is None or not os.access(path, os.F_OK):
        return tuple(cards), ""
    from devkit.estimate.learned import bounds_of

    found = _kept(Path(path))
    known = tuple(replace(card, bounds=bounds_of(found, card.name)) for card in cards)
    return known, path if any(card.bounds for card in known) else ""


def learn(source: Path) -> str:
    """Take up the runs of a file, and say how far off the estimates were. Raises DevkitError."""
    path = _needed_file()
    before = _kept(path) if path.exists() else ()
    new = [each for each in _read(source) if each not in before]
    _write(path, (*before, *new))
    return _told((*before, *new), new, path)


def forget() -> str:
    """Drop all that was learned. Raises DevkitError."""
    path = _needed_file()
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise DevkitError(f"cannot remove {path}: {error.strerror}", "Remove it yourself.") from None
    return f"Forgotten: {path} is gone, and the bounds are the general ones again."


def _told(every: "Sequence[Observation]", new: "Sequence[Observation]", path: Path) -> str:
    from devkit.estimate.learned import ENOUGH_RUNS, bounds_of
    from devkit.text import count_of, human_bytes

    lines = [
        f"{each.gpu}: estimated {human_bytes(each.estimated_bytes)}, measured {human_bytes(each.allocated_bytes)} "
        f"({each.error:+.1%}); the allocator held {each.slack:.1%} more"
        for each in new
    ]
    for gpu in dict.fromkeys(each.gpu for each in new or every):
        bounds = bounds_of(every, gpu)
        runs = count_of(sum(each.gpu == gpu for each in every), "run")
        if bounds is None:
            lines.append(f"{gpu}: {runs}, the bounds move from {ENOUGH_RUNS} on")
        else:
            share = f"{bounds.slack_point:.1%} now, at most {bounds.slack_upper:.1%}"
            lines.append(f"{gpu}: {runs}; the allocator's share is {share}")
    return "\n".join([*lines, f"Kept in {path}; `devkit estimate --learn --reset` forgets it."])


def _kept(path: Path) -> "tuple[Observation, ...]":
    """The runs kept so far. A file that cannot be read counts for nothing, which is said."""
    try:
        return _read(path)
    except DevkitError as error:
        click.echo(f"Warning: {error.message}; `devkit estimate --learn --reset` drops it", err=True)
        return ()


def _read(path: Path) -> "tuple[Observation, ...]":
    from devkit.estimate.learned import observations_of

    hint = "Give run.json of a finished devkit finetune, or the report of devkit verify on a GPU."
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DevkitError(f"cannot read {path}: {error.strerror}", hint) from None
    except (ValueError, RecursionError) as error:
        raise DevkitError(f"{path} is not JSON: {error}", hint) from None
    if not isinstance(document, dict):
        raise DevkitError(f"{path} holds no object", hint)
    return observations_of(document, origin=str(path))


def _write(path: Path, found: "Sequence[Observation]") -> None:
    """Whole or not at all."""
    from tempfile import NamedTemporaryFile

    from devkit.estimate.learned import learned_document

    staged = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, prefix="measured-", delete=False) as file:
            staged = Path(file.name)
            json.dump(learned_document(found), file, indent=1)
        staged.replace(path)
    except OSError as error:
        if staged is not None:
            staged.unlink(missing_ok=True)
        raise DevkitError(f"cannot write {path}: {error.strerror}", "Make room there, or set XDG_DATA_HOME.") from None


def _needed_file() -> Path:
    path = learned_file()
    if path is None:
        raise DevkitError("there is no home folder to keep measurements in", "Set HOME or XDG_DATA_HOME to a folder.")
    return Path(path)
