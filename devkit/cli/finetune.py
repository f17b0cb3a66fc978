"""`devkit finetune`: fine-tune a language model."""

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from devkit.cli.command import FILE, Command, collect_setting_flags, setting_options
from devkit.cli.output import print_next
from devkit.cli.runtime import is_drawn
from devkit.errors import DevkitError
from devkit.facts.settings import describe_settings, format_flag
from devkit.text import join_words
from devkit.workload.finetune.events import Listener, ProgressPrinter, require_trackers
from devkit.workload.finetune.process import (
    ReportedElsewhere,
    RunOutcome,
    StoppedBySignal,
    configure_libraries,
    raise_on_signal,
)
from devkit.workload.finetune.run_folder import check_inputs
from devkit.workload.finetune.settings import FinetuneSettings, read_settings_file, validate_finetune_settings
from devkit.workload.interpreter import continue_in_project
from devkit.workload.launch import write_exit_code
from devkit.workload.proof.standalone import reserve_stdout

_WITHOUT_FLAG = [name for name, (_, info) in describe_settings(FinetuneSettings).items() if not info.has_flag]


@click.command(
    cls=Command,
    removed={
        "--plot": "Open run.html in the folder of the run; metrics.jsonl has the numbers.",
        "--tensorboard": "Add --report-to tensorboard, which writes into the folder runs of --output.",
    },
    renamed={
        "--sequence": "--max-length",
        "--precision": "--dtype",
        "--adapter-precision": "--adapter-dtype",
        "--compile": "--set compile=true",
        "--no-compile": "--set compile=false",
        **{format_flag(name): f"--set {name}=" for name in _WITHOUT_FLAG if name != "compile"},
    },
)
@setting_options(FinetuneSettings)
@click.option(
    "--settings", "file", metavar="FILE", type=FILE, help="TOML file with any of these settings; flags override it."
)
@click.option(
    "--set", "assignments", multiple=True, metavar="KEY=VALUE", help=f"Another setting: {join_words(_WITHOUT_FLAG)}."
)
@click.option(
    "--report-to",
    "trackers",
    multiple=True,
    type=click.Choice(["mlflow", "tensorboard", "wandb"]),
    help="Also log losses and speed to this tracker.",
)
@click.option("--verbose", is_flag=True, help="Print the reason for each decision.")
@click.option("--dry-run", is_flag=True, help="Show the decisions and the memory estimate without training.")
@click.option("--json", "as_json", is_flag=True, help="Print events as JSON lines.")
@click.pass_context
def finetune(
    ctx: click.Context,
    /,
    *,
    file: Path | None,
    assignments: tuple[str, ...],
    trackers: tuple[str, ...],
    verbose: bool,
    dry_run: bool,
    as_json: bool,
    **flags: Any,  # noqa: ANN401 - one for each setting
) -> None:
    """Fine-tune a language model: an adapter on a frozen base, or all of its weights.

    devkit chooses the other settings for this machine, with reasons. The same command resumes a stopped run.
    """
    with _exit_code_written(ctx), raise_on_signal():
        settings = validate_finetune_settings(load_finetune_settings(file, flags, assignments))
        continue_in_project("devkit finetune")
        check_inputs(settings)
        require_trackers(trackers)
        with _print_events(as_json=as_json, has_reasons=verbose or dry_run) as listener:
            configure_libraries()
            from devkit.workload.finetune.program import run_finetuning

            code = run_finetuning(settings, listeners=(listener,), trackers=trackers, dry_run=dry_run)
        write_exit_code(code)
    if dry_run and not as_json and "RANK" not in os.environ:
        print_next(shlex.join(["devkit", "finetune", *(word for word in ctx.meta["words"] if word != "--dry-run")]))
    ctx.exit(code)


@contextmanager
def _exit_code_written(ctx: click.Context) -> Iterator[None]:
    """Write the exit code of a signal before the first step, and of wrong input, to the file for torchrun's caller.

    torchrun itself loses it. Where several processes end for one reason, one of them reports it.
    """
    try:
        yield
    except StoppedBySignal as stop:
        code = RunOutcome.from_signal(stop.signal).exit_code
        write_exit_code(code)
        ctx.exit(code)
    except DevkitError as error:
        write_exit_code(error.exit_code)
        if isinstance(error, ReportedElsewhere):
            ctx.exit(error.exit_code)
        raise


@contextmanager
def _print_events(*, as_json: bool, has_reasons: bool) -> Iterator["Listener"]:
    """Print the events. With JSON, output of libraries goes to standard error."""
    if not as_json:
        from devkit.cli.terminal import draw_bar

        has_bars = is_drawn(sys.stderr) and "NO_COLOR" not in os.environ
        progress = ProgressPrinter(draw=draw_bar if has_bars else None, has_reasons=has_reasons)
        try:
            yield progress
        finally:
            # An error message comes next, on its own line.
            progress.clear()
        return
    emit = reserve_stdout()
    yield lambda event: emit(**event)


def load_finetune_settings(
    file: Path | None, flags: dict[str, Any], assignments: tuple[str, ...] = ()
) -> FinetuneSettings:
    """Load the settings of the file, overridden by those of flags. Raises DevkitError."""
    from devkit.render.toml_tables import parse_assignments

    settings = read_settings_file(file) if file is not None else {}
    settings |= parse_assignments(assignments, FinetuneSettings, is_toml=True)
    return FinetuneSettings(**settings | collect_setting_flags(FinetuneSettings, flags))
