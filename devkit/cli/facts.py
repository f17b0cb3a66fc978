"""Facts for the commands: read on this machine, or loaded from saved files."""

import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from devkit.cli.runtime import is_drawn
from devkit.cli.terminal import StepPrinter
from devkit.text import format_duration

if TYPE_CHECKING:
    from devkit.facts.model import Facts
    from devkit.facts.runs import ProgramFailure

DEFAULT_TIMEOUT_S = 5.0
DEEP_TIMEOUT_S = 90.0
"""A first `import torch` from a cold disk takes half a minute."""
_OVERHEAD_S = 0.3
"""The time to start Python and to judge; subtracted, so that `--timeout` holds for the whole command."""


def read_this_machine(
    folder: Path,
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    is_deep: bool = False,
    with_trial: bool = False,
    report_step: Callable[[str], object] = bool,
    meanwhile: Callable[[], object] = bool,
) -> "Facts":
    """Read the facts of this machine and of the project in `folder`.

    Args:
        with_trial: start containers, too, in the time that the reading leaves.
        report_step: called before each step.
        meanwhile: called while the probes wait.
    """
    from devkit.facts.values import Unknown
    from devkit.probe.gather import gather_facts
    from devkit.probe.host import CachingHost, LocalHost

    host, started_s = LocalHost(), time.monotonic()
    report_step(f"reading this machine (at most {format_duration(timeout_s)})")
    deadline_s = max(timeout_s - _OVERHEAD_S, timeout_s / 2)
    reader, project = CachingHost(deadline_s=deadline_s), str(folder.resolve())
    facts = gather_facts(reader, deadline_s=deadline_s, project=project, meanwhile=meanwhile)
    if with_trial:
        from devkit.trial.containers import try_containers

        report_step("starting containers to test whether they get the GPUs")
        left_s = deadline_s - (time.monotonic() - started_s)
        # The trials stay in the main thread, which alone can clean up after a signal.
        with ThreadPoolExecutor(1) as pool:
            ended = pool.submit(_explain_ended, facts, project, deadline_s=left_s)
            trials = try_containers(host, facts, deadline_s=left_s, project=project, reader=reader)
            trials = trials if isinstance(trials, Unknown) else replace(trials, ended=ended.result())
        facts = replace(facts, trials=trials)
    if is_deep:
        from devkit.probe.deep import read_deep

        report_step(f"trying CUDA and torch in child processes (at most {format_duration(DEEP_TIMEOUT_S)})")
        facts = replace(facts, deep=read_deep(host, deadline_s=DEEP_TIMEOUT_S))
        if isinstance(facts.deep, Unknown):
            click.echo(f"devkit: --deep did not try anything: {facts.deep.reason}", err=True)
    return facts


def _explain_ended(facts: "Facts", project: str, *, deadline_s: float) -> "tuple[ProgramFailure, ...]":
    """Explain how the project's last containers ended, if any of them failed."""
    from devkit.doctor.checks.container.running import list_failed

    if not (failed := list_failed(facts)):
        return ()
    from devkit.devcontainer.verdict import explain_ended

    return tuple(explain_ended(failed, Path(project), deadline_s=deadline_s))


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
