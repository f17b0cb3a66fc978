"""`devkit finetune`: train a model on texts."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from devkit.cli import exits
from devkit.cli.setting_flags import given_flags, setting_options
from devkit.cli.workload_needed import require_workload
from devkit.errors import DevkitError
from devkit.workload.finetune.leaving import is_told, leave_word, told_once_a_node
from devkit.workload.finetune.settings import FinetuneSettings, checked
from devkit.workload.finetune.settings_file import read_settings
from devkit.workload.finetune.stopping import Stopped, at_once, exit_code

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
    from devkit.workload.watching.watchers import watching

    with _word_left(ctx) as leave, at_once():
        with told_once_a_node():
            settings = checked(settings_of(file, flags))
            require_workload()
        with (
            _listener(as_json=as_json) as listener,
            watching(settings.output, plot=plot, tensorboard=tensorboard) as watcher,
        ):
            from devkit.workload.finetune.program_process import set_up

            set_up()
            from devkit.workload.finetune.program import run

            code = run(settings, listeners=(listener, watcher), dry_run=dry_run)
        leave(code)
    ctx.exit(code)


@contextmanager
def _word_left(ctx: click.Context) -> Iterator[Callable[[int], None]]:
    """What writes the exit code down for whoever started torchrun, which loses it; wrong input is written down here.

    Of several processes that end for one reason, one tells it. A signal before the first step leaves here.
    """
    try:
        yield leave_word
    except Stopped as asked:
        code = exit_code(asked.signal)
        leave_word(code)
        ctx.exit(code)
    except DevkitError as error:
        leave_word(exits.WRONG_INPUT)
        if is_told(error):
            ctx.exit(exits.WRONG_INPUT)
        raise


@contextmanager
def _listener(*, as_json: bool | None) -> Iterator["Listener"]:
    """Who prints the events. JSON has standard output for itself: what libraries print goes to standard error."""
    from devkit.workload.finetune.events import thinned
    from devkit.workload.finetune.progress import Progress, is_terminal
    from devkit.workload.proof import events_on_stdout

    if as_json is None:
        as_json = not is_terminal(sys.stdout)
    if not as_json:
        progress = Progress()
        try:
            yield progress
        finally:
            # What went wrong is told next, and on a line of its own.
            progress.clear()
        return
    with events_on_stdout() as emit:
        yield thinned(emit)


def settings_of(file: Path | None, flags: dict[str, Any]) -> FinetuneSettings:
    """The file's settings with those of typed flags in their place. Raises DevkitError."""
    given = read_settings(file) if file is not None else {}
    return FinetuneSettings(**given | given_flags(FinetuneSettings, flags))
