"""Facts for the commands: read on this machine, or loaded from saved files."""

import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from devkit.cli.runtime import is_drawn
from devkit.cli.terminal import StepPrinter
from devkit.text import format_duration

if TYPE_CHECKING:
    from devkit.facts.model import Facts

DEFAULT_TIMEOUT_S = 5.0
DEEP_TIMEOUT_S = 90.0
"""A first `import torch` from a cold disk takes half a minute."""
SMOKE_TIMEOUT_S = 60.0
_OVERHEAD_S = 0.3
"""The time to start Python and to judge; subtracted, so that `--timeout` holds for the whole command."""


@dataclass(frozen=True)
class ReadOptions:
    """The parts of this machine to read, and the time limit."""

    project: Path
    timeout_s: float = DEFAULT_TIMEOUT_S
    is_deep: bool = False
    is_smoke: bool = False


def read_this_machine(
    options: ReadOptions, *, report_step: Callable[[str], None], meanwhile: Callable[[], object]
) -> "Facts":
    """Read the facts of this machine.

    Args:
        options: the parts to read.
        report_step: called before each step.
        meanwhile: called while the probes wait.
    """
    from devkit.facts.values import Unknown
    from devkit.probe.gather import gather_facts
    from devkit.probe.host import CachingHost, LocalHost

    def warn_if_unknown(flag: str, result: object) -> None:
        if isinstance(result, Unknown):
            click.echo(f"devkit: {flag} tried nothing: {result.reason}", err=True)

    host = LocalHost()
    report_step(f"reading this machine (at most {format_duration(options.timeout_s)})")
    deadline_s = max(options.timeout_s - _OVERHEAD_S, options.timeout_s / 2)
    facts = gather_facts(
        CachingHost(deadline_s=deadline_s),
        deadline_s=deadline_s,
        project=str(options.project.resolve()),
        meanwhile=meanwhile,
    )
    if options.is_deep:
        from devkit.probe.deep import read_deep

        report_step(f"trying CUDA and torch in child processes (at most {format_duration(DEEP_TIMEOUT_S)})")
        facts = replace(facts, deep=read_deep(host, deadline_s=DEEP_TIMEOUT_S))
        warn_if_unknown("--deep", facts.deep)
    if options.is_smoke:
        from devkit.probe.engine.smoke import run_smoke

        report_step(f"starting a temporary container with a GPU (at most {format_duration(SMOKE_TIMEOUT_S)})")
        facts = replace(facts, smoke=run_smoke(host, facts, deadline_s=SMOKE_TIMEOUT_S))
        warn_if_unknown("--smoke", facts.smoke)
    return facts


@contextmanager
def show_steps(*, is_verbose: bool) -> Iterator[Callable[[str], None]]:
    """Make a function that shows a step: as a spinner on a terminal, and with `is_verbose` as a line."""
    with closing(StepPrinter()) as printer:

        def show_step(step: str) -> None:
            if is_verbose:
                click.echo(f"devkit: {step}", err=True)
            elif is_drawn(sys.stderr):
                printer(f"{step} …")

        yield show_step
