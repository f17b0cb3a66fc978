"""`devkit onboard`: from a fresh clone to a proved dev container, as a numbered list."""

import json
import shlex
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from devkit.cli.command import Command
from devkit.cli.dev_container import directory_argument, find_project_container, start
from devkit.cli.output import print_next
from devkit.cli.terminal import show_status
from devkit.errors import DevkitError, ExitCode
from devkit.release import __version__

if TYPE_CHECKING:
    from devkit.devcontainer.engine import Entry
    from devkit.devcontainer.onboarding import Need

READING_TIMEOUT_S = 10.0
PROOF_TIMEOUT_S = 600.0


class Steps:
    """The steps so far, numbered as they are shown."""

    def __init__(self) -> None:
        self.done: list[dict[str, str]] = []

    def begin(self, name: str, command: str) -> None:
        """Show a step and its command."""
        self.done.append({"name": name, "status": "failed", "detail": ""})
        click.echo(f"{len(self.done)}. {name}: {command}", err=True)

    def end(self, status: str, detail: str) -> None:
        """Show how the step ended."""
        self.done[-1] |= {"status": status, "detail": detail}
        click.echo(f"   {status}: {detail}", err=True)


@click.command(cls=Command)
@directory_argument
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_context
def onboard(ctx: click.Context, directory: Path, *, as_json: bool) -> None:
    """Go from a fresh clone to a proven dev container: check the machine, find the dev container, start it, verify it.

    Shows each step with its command, stops at the first failure, and prints the command to run next. If the project has
    no dev container yet, first run `devkit init` with the options that you want.
    """
    steps = Steps()
    steps.begin("machine", f"devkit doctor --project {shlex.quote(str(directory))}")
    needs = _examine(directory)
    follow = go_through(directory, needs, steps)
    is_done = steps.done[-1]["status"] in ("done", "skipped")
    if as_json:
        document = {
            "schema": "devkit.onboard/1",
            "verdict": "done" if is_done else "stopped",
            "needs": [asdict(need) for need in needs],
            "steps": steps.done,
            "next": follow,
        }
        click.echo(json.dumps(document, indent=2))
    else:
        print_next(*follow)
    ctx.exit(ExitCode.DONE if is_done else ExitCode.ANSWER_IS_NO)


def _examine(directory: Path) -> "list[Need]":
    """Return what this machine lacks, and show it."""
    from devkit.cli.facts import read_this_machine
    from devkit.devcontainer.onboarding import list_needs
    from devkit.doctor.registry import CHECKS
    from devkit.doctor.report.report import build_report
    from devkit.doctor.runner import run_on_host_and_container

    with show_status("reading this machine"):
        facts = read_this_machine(directory, timeout_s=READING_TIMEOUT_S, with_trial=True)
        outcomes = run_on_host_and_container(CHECKS, facts, clock=time.perf_counter)
    needs = list(list_needs(build_report(facts, outcomes, devkit=__version__)))
    for need in needs:
        click.echo(f"{need.topic}: {need.message} ({need.code})", err=True)
        click.echo(f"   {need.summary} (on the {need.where}{', as root' if need.needs_root else ''})", err=True)
        for command in need.commands:
            click.echo(f"       {command}", err=True)
    return needs


def go_through(directory: Path, needs: "list[Need]", steps: Steps) -> list[str]:
    """Go through the steps after the first, as far as possible. Returns what to do next."""
    from devkit.devcontainer.configuration import NoDevContainerError

    where = shlex.quote(str(directory))
    again = f"devkit onboard {where}" if not needs else f"Do the steps listed above, then run: devkit onboard {where}"
    if stopping := sum(need.stops for need in needs):
        steps.end("stopped", f"{stopping} to do first")
        return [again]
    steps.end("done", f"{len(needs)} to do; the dev container starts without them" if needs else "nothing is missing")
    try:
        steps.begin("init", f"devkit init {where}")
        try:
            container = find_project_container(directory, None)
        except NoDevContainerError as error:
            steps.end("stopped", error.message)
            return [f"devkit init {where}", again]
        steps.end("skipped", f"{container.file} already exists")
        steps.begin("up", f"devkit up {where}")
        started = start(container)
    except DevkitError as error:
        steps.end("failed", error.message)
        return [*error.hint.splitlines(), again]
    if started is None:
        steps.end("failed", "the dev container did not start")
        return [again]
    steps.end("done", started.action)
    steps.begin("verify", f"devkit run --directory {where} -- devkit verify --here --quick")
    status, detail = _prove(started.entry)
    steps.end(status, detail)
    return [again] if status == "failed" else [f"devkit shell {where}", "devkit run -- COMMAND", f"devkit down {where}"]


def _prove(entry: "Entry") -> tuple[str, str]:
    """Train a tiny model in the dev container. Returns the status and the conclusion."""
    from devkit.verify.process import run_streaming

    with show_status("verify: train a tiny model in the dev container"):
        command = entry.build_command(["devkit", "verify", "--here", "--quick", "--json"])
        done = run_streaming(command, timeout_s=PROOF_TIMEOUT_S)
    if done.code in (126, 127):
        return (
            "skipped",
            'devkit is not installed in this dev container; run devkit init --as-feature .devcontainer, add "features":'
            ' {"./devkit": {}} to devcontainer.json, and run devkit up',
        )
    with suppress(ValueError, KeyError, TypeError):
        return "done" if done.code == 0 else "failed", str(json.loads(done.out)["conclusion"])
    return "failed", done.last_line
