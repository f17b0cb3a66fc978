"""The listeners of a run: samples of its GPUs, TensorBoard's event files, and the plot at its end."""

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

SAMPLES_FILE = "gpu.jsonl"
INTERVAL_S = 1.0
_END_GRACE_S = 2.0

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


@contextmanager
def monitor_run(output: Path, *, plot: Path | None, tensorboard: Path | None) -> Iterator[Listener]:
    """Yield a listener for the run whose folder is `output`, which also samples its GPUs, if any, from the start on.

    The plot is drawn when the context ends in any way. A process without events, as all but rank 0 of each node, does
    nothing. Raises DevkitError for a plot or files that cannot be written.
    """
    if plot is not None:
        from devkit.workload.monitoring.plot import plot_run, validate_plot_file

        validate_plot_file(plot)
    board = TensorBoardListener(tensorboard) if tensorboard is not None else None
    with ExitStack() as stack:
        has_started = False

        def listen(event: Event) -> None:
            nonlocal has_started
            if not has_started and event["event"] == "start":
                has_started = True
                if gpus := find_run_gpus():
                    stack.enter_context(sample_gpus(output / SAMPLES_FILE, gpus))
                if plot is not None:
                    stack.callback(plot_run, output, plot, title=f"devkit finetune: {output.name}")
            if board is not None:
                board(event)

        if board is not None:
            stack.callback(board.close)
        yield listen


@contextmanager
def sample_gpus(file: Path, uuids: tuple[str, ...], *, interval_s: float = INTERVAL_S) -> Iterator[None]:
    """Append samples of these GPUs to `file` within the context, by a child process. Without the child there are none.

    The child ends with its standard input, so that it also ends when this process is killed.
    """
    program = str(Path(sample_gpu.__file__))
    try:
        child = subprocess.Popen(
            [sys.executable, "-P", program, str(file), str(interval_s), *uuids],
            # pynvml may be one of devkit's own requirements, which this Python looks up last.
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Ctrl-C makes the run save a checkpoint; the samples of that time count, too.
            start_new_session=True,
        )
    except OSError:
        yield
        return
    try:
        yield
    finally:
        if child.stdin is not None:
            with suppress(OSError):
                child.stdin.close()
        try:
            child.wait(_END_GRACE_S)
        except subprocess.TimeoutExpired:
            child.kill()
            # A hung driver may hold it in the kernel, and then it is left there.
            with suppress(subprocess.TimeoutExpired):
                child.wait(_END_GRACE_S)


def find_run_gpus() -> tuple[str, ...]:
    """Return the UUIDs, as NVML has them, of the GPUs that the run uses on this machine; empty on a CPU."""
    import torch

    if not torch.cuda.is_available() or torch.version.hip is not None:
        return ()
    count = min(torch.cuda.device_count(), int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    found = (str(getattr(torch.cuda.get_device_properties(index), "uuid", "")) for index in range(count))
    return tuple(uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}" for uuid in found if uuid)


class TensorBoardListener:
    """A listener that writes TensorBoard's files to `folder`. A resumed run purges the steps that it repeats."""

    def __init__(self, folder: Path) -> None:
        if importlib.util.find_spec("tensorboard") is None:
            raise DevkitError(f"TensorBoard is not installed for {sys.executable}", "pip install tensorboard")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # Fail now rather than after hours.
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise DevkitError(
                f"cannot write {folder}: {error.strerror}", "Name a folder that you may write to with --tensorboard."
            ) from error
        self._folder = folder
        self._writer: Any = None
        self._has_failed = False
        self._while_open = ExitStack()

    def __call__(self, event: Event) -> None:
        """Write the numbers of a step or an evaluation; other events have none."""
        for tag, field in TENSORBOARD_SCALARS.get(event["event"], {}).items():
            value = _parse_number(event.get(field))
            if value is None or self._has_failed:
                continue
            try:
                self._open_writer(event["step"]).add_scalar(tag, value, event["step"])
            except OSError as error:
                self._fail(error)

    def _fail(self, error: OSError) -> None:
        """Write no more. The run continues: metrics.jsonl holds the same values."""
        self._has_failed = True
        sys.stderr.write(f"note: nothing more is written for TensorBoard, {self._folder}: {error.strerror}\n")

    def _open_writer(self, step: int) -> Any:  # noqa: ANN401 - TensorBoard's writer has no types
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._while_open.enter_context(_silence_writer_thread())
            self._writer = SummaryWriter(str(self._folder), purge_step=step)
        return self._writer

    def close(self) -> None:
        """Flush and close the files."""
        if self._writer is None:
            return
        with self._while_open:
            try:
                self._writer.close()
            except OSError as error:
                if not self._has_failed:
                    self._fail(error)


@contextmanager
def _silence_writer_thread() -> Iterator[None]:
    """Suppress the traceback of the writer's thread: the next call raises the same error here.

    Source: tensorboard 2.21, summary/writer/event_file_writer.py, _AsyncWriterThread.run.
    """
    previous = threading.excepthook

    def hook(args: threading.ExceptHookArgs) -> None:
        is_writer = type(args.thread).__module__.startswith("tensorboard.")
        if not (is_writer and issubclass(args.exc_type, OSError)):
            previous(args)

    threading.excepthook = hook
    try:
        yield
    finally:
        if threading.excepthook is hook:
            threading.excepthook = previous


def _parse_number(value: object) -> float | None:
    """Parse an event's number, which is text where JSON cannot hold it, such as "nan"; TensorBoard shows that."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except ValueError:
        return None
