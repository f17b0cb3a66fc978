"""TensorBoard's event files, written by its own writer while a run goes on."""

import importlib.util
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from devkit.errors import DevkitError
from devkit.workload.finetune.events import Event

SCALARS = {
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


class TensorBoard:
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
        for tag, field in SCALARS.get(event["event"], {}).items():
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
