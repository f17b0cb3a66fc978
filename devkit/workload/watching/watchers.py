"""Everybody who watches a run, as one listener: TensorBoard, the samples of its GPUs, the picture at its end."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from devkit.workload.finetune.events import Event, Listener
from devkit.workload.watching.plot import plot_run, require_svg
from devkit.workload.watching.samples import SAMPLES_FILE, gpus_of_this_run, sampled
from devkit.workload.watching.tensorboard import TensorBoard


@contextmanager
def watching(output: Path, *, plot: Path | None, tensorboard: Path | None) -> Iterator[Listener]:
    """A listener for the run whose folder is `output`. GPUs are sampled from the first step on, wherever there are any.

    The picture is drawn when the context is left, however that happens. A process that hears no event, as every one but
    the first of a run, does nothing. Raises DevkitError for a picture or files that could not be written.
    """
    if plot is not None:
        require_svg(plot)
    board = TensorBoard(tensorboard) if tensorboard is not None else None
    with ExitStack() as stack:
        heard = False

        def listen(event: Event) -> None:
            nonlocal heard
            if not heard and event["event"] == "start":
                heard = True
                if gpus := gpus_of_this_run():
                    stack.enter_context(sampled(output / SAMPLES_FILE, gpus))
                if plot is not None:
                    stack.callback(plot_run, output, plot, title=f"devkit finetune: {output.name}")
            if board is not None:
                board(event)

        if board is not None:
            stack.callback(board.close)
        yield listen
