"""Where the facts of `devkit doctor` come from: this machine, or files of saved ones."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from devkit.errors import DevkitError
from devkit.text import format_duration

if TYPE_CHECKING:
    from devkit.facts.model import Facts

DEFAULT_TIMEOUT_S = 5.0
DEEP_TIMEOUT_S = 90.0
"""A first `import torch` from a cold disk takes half a minute."""
SMOKE_TIMEOUT_S = 60.0
_AROUND_S = 0.3
"""What starting Python and judging take; kept back, so that `--timeout` holds for the whole command."""

_HOW_TO_SAVE = "Save facts on the machine in question: devkit doctor --save-facts FILE"


@dataclass(frozen=True)
class ReadOptions:
    """What to read on this machine, and for how long at most."""

    project: Path
    timeout_s: float = DEFAULT_TIMEOUT_S
    is_deep: bool = False
    is_smoke: bool = False


def read_this_machine(reading: ReadOptions, *, say: Callable[[str], None], meanwhile: Callable[[], object]) -> "Facts":
    """The facts of this machine. `say` hears of each step before it begins; `meanwhile` is called while probes wait."""
    from devkit.probe.gather import gather_facts
    from devkit.probe.host import CachingHost, LocalHost

    host = LocalHost()
    say(f"reading this machine (at most {format_duration(reading.timeout_s)})")
    deadline_s = max(reading.timeout_s - _AROUND_S, reading.timeout_s / 2)
    facts = gather_facts(
        CachingHost(), deadline_s=deadline_s, project=str(reading.project.resolve()), meanwhile=meanwhile
    )
    if reading.is_deep:
        from devkit.probe.deep import read_deep

        say(f"trying CUDA and torch in processes of their own (at most {format_duration(DEEP_TIMEOUT_S)})")
        facts = replace(facts, deep=read_deep(host, deadline_s=DEEP_TIMEOUT_S))
        _admit("--deep", facts.deep)
    if reading.is_smoke:
        from devkit.probe.engine.smoke import run_smoke

        say(f"starting a throw-away container with a GPU (at most {format_duration(SMOKE_TIMEOUT_S)})")
        facts = replace(facts, smoke=run_smoke(host, facts, deadline_s=SMOKE_TIMEOUT_S))
        _admit("--smoke", facts.smoke)
    return facts


def _admit(flag: str, reading: object) -> None:
    """Who asked for more than the fast tier hears when there was nothing to try it on."""
    from devkit.facts.values import Unknown

    if isinstance(reading, Unknown):
        click.echo(f"devkit: {flag} tried nothing: {reading.reason}", err=True)


def make_progress_printer(*, is_verbose: bool) -> Callable[[str], None]:
    """Says steps on standard error, where somebody watches or asked for it."""
    is_watched = is_verbose or sys.stderr.isatty()

    def say(step: str) -> None:
        if is_watched:
            click.echo(f"devkit: {step}", err=True)

    return say


def load_saved_facts(paths: Sequence[Path]) -> "Facts":
    """The saved machine, or the host with its container where two files are given, in any order.

    Raises DevkitError for a file that is not there or holds no facts, and for two of the same side.
    """
    facts = [_loaded(path) for path in paths]
    if len(facts) == 1:
        return facts[0]
    # False sorts first: the host before what runs on it.
    host, inside, *more = sorted(facts, key=_is_inside)
    if more or _is_inside(host) or not _is_inside(inside):
        raise DevkitError(
            "two files of facts must be those of a host and of a container on it",
            "Save one outside and one inside the container: devkit doctor --save-facts FILE",
        )
    return replace(host, inside=inside)


def _is_inside(facts: "Facts") -> bool:
    from devkit.facts.model import Container

    return isinstance(facts.container, Container)


def _loaded(path: Path) -> "Facts":
    from devkit.facts.store import InvalidFacts, parse_facts

    try:
        return parse_facts(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DevkitError(f"cannot read {path}: {error.strerror}", _HOW_TO_SAVE) from error
    except (InvalidFacts, UnicodeDecodeError) as error:
        raise DevkitError(f"{path} holds no facts of a machine: {error}", _HOW_TO_SAVE) from error
