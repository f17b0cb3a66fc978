"""TensorBoard's event files, written by its own writer while a run goes on."""

import importlib.util
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from devkit.errors import DevkitError
from devkit.probe.children import sample_gpu
from devkit.workload.finetune.events import Event, Listener
from devkit.workload.monitoring.plot import plot_run, validate_svg_path

# Samples of the GPUs that a run uses, taken by a child process beside it.

SAMPLES_FILE = "gpu.jsonl"
INTERVAL_S = 1.0
_END_GRACE_S = 2.0


@contextmanager
def sample_gpus(file: Path, uuids: tuple[str, ...], *, interval_s: float = INTERVAL_S) -> Iterator[None]:
    """Append samples of these GPUs to `file` while the context lasts. A child that cannot start costs them alone.

    The child ends with its standard input, so also when this process is killed.
    """
    program = str(Path(sample_gpu.__file__))
    try:
        child = subprocess.Popen(
            [sys.executable, "-P", program, str(file), str(interval_s), *uuids],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Ctrl-C asks the run for a checkpoint; the samples of that time count, too.
            start_new_session=True,
        )
    except OSError:
        yield
        return
    try:
        yield
    finally:
        _end(child)


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.stdin is not None:
        with suppress(OSError):
            child.stdin.close()
    try:
        child.wait(_END_GRACE_S)
    except subprocess.TimeoutExpired:
        child.kill()
        # A wedged driver may hold it in the kernel: it is nobody's to wait for.
        with suppress(subprocess.TimeoutExpired):
            child.wait(_END_GRACE_S)


def find_run_gpus() -> tuple[str, ...]:
    """UUIDs, as NVML has them, of the GPUs that this machine's processes of the run use; empty on a CPU."""
    import torch

    if not torch.cuda.is_available() or torch.version.hip is not None:
        return ()
    count = min(torch.cuda.device_count(), int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    found = (str(getattr(torch.cuda.get_device_properties(index), "uuid", "")) for index in range(count))
    return tuple(uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}" for uuid in found if uuid)


TENSORBOARD_SCALARS = {
    "step": {
        "train/loss": "loss",
        "train/learning_rate": "learning_rate",
        "train/gradient_norm": "gradient_norm",
        "speed/tokens_per_s": "tokens_per_s",
        "speed/waited_s": "waited_s",
        "memory/peak_allocated_bytes": "peak_allocated_bytes",
    },
    "eval": {"eval/loss": "loss"},
}
"""Event -> tag in TensorBoard -> field of the event."""


class TensorBoardListener:
    """A listener that writes `folder`. A run that goes on takes back what the folder holds of steps done again."""

    def __init__(self, folder: Path) -> None:
        if importlib.util.find_spec("tensorboard") is None:
            raise DevkitError(f"TensorBoard is not installed for {sys.executable}", "pip install tensorboard")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # Refuse now what could not be written after hours.
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise DevkitError(
                f"cannot write {folder}: {error.strerror}", "Name a folder that you may write to with --tensorboard."
            ) from error
        self._folder = folder
        self._writer: Any = None
        self._gave_up = False
        self._while_open = ExitStack()

    def __call__(self, event: Event) -> None:
        """Write the numbers of a step or an evaluation; other events have none."""
        for tag, field in TENSORBOARD_SCALARS.get(event["event"], {}).items():
            value = _number(event.get(field))
            if value is not None and not self._gave_up:
                self._add(tag, value, event["step"])

    def _add(self, tag: str, value: float, step: int) -> None:
        try:
            self._opened(step).add_scalar(tag, value, step)
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """The run goes on: what these files would show stands in metrics.jsonl."""
        self._gave_up = True
        sys.stderr.write(f"note: nothing more is written for TensorBoard, {self._folder}: {error.strerror}\n")

    def _opened(self, step: int) -> Any:  # noqa: ANN401 - TensorBoard's writer has no types
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._while_open.enter_context(_quiet_thread())
            self._writer = SummaryWriter(str(self._folder), purge_step=step)
        return self._writer

    def close(self) -> None:
        """Write what is left."""
        if self._writer is None:
            return
        with self._while_open:
            try:
                self._writer.close()
            except OSError as error:
                if not self._gave_up:
                    self._give_up(error)


@contextmanager
def _quiet_thread() -> Iterator[None]:
    """Keep the thread that writes from a traceback of its own: what the disk refuses it, the next call raises here.

    Source: tensorboard 2.21, summary/writer/event_file_writer.py, _AsyncWriterThread.run.
    """
    others = threading.excepthook

    def heard(args: threading.ExceptHookArgs) -> None:
        is_the_writers = type(args.thread).__module__.startswith("tensorboard.")
        if not (is_the_writers and issubclass(args.exc_type, OSError)):
            others(args)

    threading.excepthook = heard
    try:
        yield
    finally:
        if threading.excepthook is heard:
            threading.excepthook = others


def _number(value: object) -> float | None:
    """Events spell what JSON cannot hold, such as "nan"; TensorBoard draws that."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except ValueError:
        return None


# Everybody who watches a run, as one listener: TensorBoard, the samples of its GPUs, the picture at its end.


@contextmanager
def monitor_run(output: Path, *, plot: Path | None, tensorboard: Path | None) -> Iterator[Listener]:
    """A listener for the run whose folder is `output`. GPUs are sampled from the first step on, wherever there are any.

    The picture is drawn when the context is left, however that happens. A process that hears no event, as every one but
    the first of a run, does nothing. Raises DevkitError for a picture or files that could not be written.
    """
    if plot is not None:
        validate_svg_path(plot)
    board = TensorBoardListener(tensorboard) if tensorboard is not None else None
    with ExitStack() as stack:
        heard = False

        def listen(event: Event) -> None:
            nonlocal heard
            if not heard and event["event"] == "start":
                heard = True
                if gpus := find_run_gpus():
                    stack.enter_context(sample_gpus(output / SAMPLES_FILE, gpus))
                if plot is not None:
                    stack.callback(plot_run, output, plot, title=f"devkit finetune: {output.name}")
            if board is not None:
                board(event)

        if board is not None:
            stack.callback(board.close)
        yield listen
