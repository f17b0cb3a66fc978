"""`devkit finetune`: train a model on texts."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from devkit.cli import exit_codes
from devkit.cli.options.settings import collect_setting_flags, setting_options
from devkit.cli.runtime import require_workload_extra
from devkit.errors import DevkitError
from devkit.workload.finetune.process import (
    StoppedBySignal,
    exit_code_for_signal,
    is_reported_elsewhere,
    raise_on_signal,
    report_once_per_node,
    write_exit_code,
)
from devkit.workload.finetune.settings import FinetuneSettings, read_settings_file, validate_finetune_settings

if TYPE_CHECKING:
    from devkit.workload.finetune.events import Listener


@click.command()
@setting_options(FinetuneSettings)
@click.option(
    "--settings",
    "file",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="TOML file with any of the settings above; flags win.",
)
@click.option(
    "--plot", metavar="FILE.svg", type=click.Path(path_type=Path, dir_okay=False), help="Draw the curves at the end."
)
@click.option(
    "--tensorboard",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write event files for TensorBoard.",
)
@click.option("--dry-run", is_flag=True, help="Show decisions and estimate, and train nothing.")
@click.option(
    "--json/--text",
    "as_json",
    default=None,
    help="Print events as JSON, one a line, or for people.  [default: text on a terminal, else JSON]",
)
@click.pass_context
def finetune(
    ctx: click.Context,
    /,
    *,
    file: Path | None,
    plot: Path | None,
    tensorboard: Path | None,
    dry_run: bool,
    as_json: bool | None,
    **flags: Any,  # noqa: ANN401 - one for each setting
) -> None:
    """Train a model on texts: an adapter on a frozen base, or all of its weights.

    What is not given is chosen for this machine and said with its reason. The same command goes on after a stop.
    """
    from devkit.workload.monitoring.listeners import monitor_run

    with _word_left(ctx) as leave, raise_on_signal():
        with report_once_per_node():
            settings = validate_finetune_settings(load_finetune_settings(file, flags))
            require_workload_extra()
        with (
            _listener(as_json=as_json) as listener,
            monitor_run(settings.output, plot=plot, tensorboard=tensorboard) as watcher,
        ):
            from devkit.workload.finetune.process import configure_libraries

            configure_libraries()
            from devkit.workload.finetune.program import run_finetuning

            code = run_finetuning(settings, listeners=(listener, watcher), dry_run=dry_run)
        leave(code)
    ctx.exit(code)


@contextmanager
def _word_left(ctx: click.Context) -> Iterator[Callable[[int], None]]:
    """What writes the exit code down for whoever started torchrun, which loses it; wrong input is written down here.

    Of several processes that end for one reason, one tells it. A signal before the first step leaves here.
    """
    try:
        yield write_exit_code
    except StoppedBySignal as asked:
        code = exit_code_for_signal(asked.signal)
        write_exit_code(code)
        ctx.exit(code)
    except DevkitError as error:
        write_exit_code(exit_codes.WRONG_INPUT)
        if is_reported_elsewhere(error):
            ctx.exit(exit_codes.WRONG_INPUT)
        raise


@contextmanager
def _listener(*, as_json: bool | None) -> Iterator["Listener"]:
    """Who prints the events. JSON has standard output for itself: what libraries print goes to standard error."""
    from devkit.workload.environment import reserve_stdout_for_events
    from devkit.workload.finetune.events import throttle_reading_events
    from devkit.workload.finetune.progress import ProgressPrinter, is_terminal

    if as_json is None:
        as_json = not is_terminal(sys.stdout)
    if not as_json:
        progress = ProgressPrinter()
        try:
            yield progress
        finally:
            # What went wrong is told next, and on a line of its own.
            progress.clear()
        return
    with reserve_stdout_for_events() as emit:
        yield throttle_reading_events(emit)


def load_finetune_settings(file: Path | None, flags: dict[str, Any]) -> FinetuneSettings:
    """The file's settings with those of typed flags in their place. Raises DevkitError."""
    given = read_settings_file(file) if file is not None else {}
    return FinetuneSettings(**given | collect_setting_flags(FinetuneSettings, flags))
