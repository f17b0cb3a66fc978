"""The events of a run and who listens to them: its file metrics.jsonl, people, trackers, and GPU samples.

One JSON object each. Importable without torch.
"""

import importlib.util
import json
import math
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from devkit.errors import DevkitError
from devkit.estimate.settings import Objective
from devkit.probe.children import sample_gpu
from devkit.text import format_bytes, format_count, format_duration, format_number, to_one_line, wrap_text

Event = dict[str, Any]
Listener = Callable[[Event], None]

METRICS_FILE = "metrics.jsonl"
ADAPTER_FOLDER = "adapter"

STEP_EVENTS = frozenset({"step", "eval", "checkpoint", "skipped"})
"""Events of single steps; a resumed run drops those of steps that it repeats. All others are of one process and stay."""

OBJECTIVE_METRICS = ("margin", "accuracy", "reward")
"""Fields that steps and evaluations have with TRL's objectives, and that people read."""

TRANSIENT_EVENTS = frozenset({"reading"})
"""Events that the next of their kind makes obsolete: listeners get them, the file does not."""

READING_INTERVAL_S = 1.0
"""Often enough for a line that visibly moves, seldom enough for a reader of JSON."""


class Events:
    """The sink of a run's events: listeners, and a file if one is given. Only rank 0 has either."""

    def __init__(self, file: Path | None, listeners: tuple[Listener, ...] = ()) -> None:
        self._file = file
        self._listeners = listeners

    def __call__(self, name: str, /, **fields: Any) -> None:  # noqa: ANN401 - whatever JSON can hold
        """Emit one event. Numbers that JSON cannot hold become text, so that a NaN is seen as one."""
        event: Event = {"event": name}
        for field, value in fields.items():
            is_non_finite = isinstance(value, float) and not math.isfinite(value)
            event[field] = str(value) if is_non_finite else value
        if self._file is not None and name not in TRANSIENT_EVENTS:
            with explain_write_errors(self._file), self._file.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(event, allow_nan=False) + "\n")
        for listener in self._listeners:
            try:
                listener(event)
            except BrokenPipeError:
                # The reader left. The run continues: its events are in the file.
                self._listeners = tuple(each for each in self._listeners if each is not listener)


class ReadingProgress:
    """A callback that emits how many records have been read so far, and how long that took."""

    def __init__(self, events: Events, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._events = events
        self._now_s = now_s
        self._started_s = now_s()
        self._emitted_s = -math.inf

    def __call__(self, records: int) -> None:
        """Emit that `records` have been read, unless the last event was a moment ago."""
        now_s = self._now_s()
        if now_s - self._emitted_s < READING_INTERVAL_S:
            return
        self._emitted_s = now_s
        self._events("reading", records=records, seconds=round(now_s - self._started_s, 1))


def is_terminal(stream: TextIO) -> bool:
    """Return True if a line on `stream` can be overwritten."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


@contextmanager
def explain_write_errors(file: Path) -> Iterator[None]:
    """Turn an OSError while `file` is written into a DevkitError with a hint."""
    try:
        yield
    except OSError as error:
        raise DevkitError(
            f"cannot write {file}: {error.strerror}",
            "Free space there, or name a folder on another disk with --output.",
        ) from error


def read_events(file: Path) -> list[Event]:
    """Read the events in `file`; a last line that a kill cut off is left out."""
    return [event for event, _ in _events_with_lines(file)]


def drop_events_after(file: Path, step: int) -> None:
    """Drop step events after `step`, which a resumed run repeats, and a half-written last line."""
    if not file.exists():
        return
    kept = [
        line
        for event, line in _events_with_lines(file)
        if event["event"] not in STEP_EVENTS or event.get("step", 0) <= step
    ]
    replace_text(file, "".join(f"{line}\n" for line in kept))


def replace_text(file: Path, text: str) -> None:
    """Replace the text of `file` completely or not at all."""
    new = file.with_name(f"{file.name}.tmp-{os.getpid()}")
    with new.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    new.replace(file)


def _events_with_lines(file: Path) -> Iterator[tuple[Event, str]]:
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and "event" in event:
            yield event, line


MIN_BAR_WIDTH = 8
MAX_BAR_WIDTH = 32
LINE_INTERVAL_S = 10.0
"""Seconds between lines about steps where no line can move: in a log."""
_ERASE_LINE = "\x1b[K"

_ADVICE = {
    "out-of-memory": "Shorten --max-length, add --checkpointing, or use --method qlora. Checkpoints are kept.",
    "not-finite": "Lower --learning-rate, or use --dtype bf16 or fp32. Checkpoints are kept.",
    "preempted": "The same command resumes the run.",
    "interrupted": "The same command resumes the run.",
}


class ProgressPrinter:
    """A listener that prints events for people: lines that stay to `out`, the moving line to `err` if a terminal."""

    def __init__(
        self,
        out: TextIO | None = None,
        err: TextIO | None = None,
        *,
        width: Callable[[], int] = lambda: shutil.get_terminal_size().columns,
        draw: Callable[[float, int], str] | None = None,
        has_reasons: bool = True,
    ) -> None:
        """With `has_reasons`, each decision has its own line with its reason; otherwise one line has all of them."""
        self._out = out or sys.stdout
        self._has_reasons = has_reasons
        self._decisions: list[str] = []
        self._draw = draw or format_bar
        self._err = err or sys.stderr
        self._width = width
        self._can_move = is_terminal(self._err)
        self._has_moving_line = False
        self._steps = 0
        self._unprinted_s = LINE_INTERVAL_S
        self._reading_printed_s = 0.0

    def __call__(self, event: Event) -> None:
        """Print one event."""
        name = event["event"]
        if name == "start":
            self._steps = event["steps"]
        if name == "step":
            self._step(event)
        elif name == "reading":
            self._reading(event)
        elif name == "decision" and not self._has_reasons:
            self._decisions.append(f"{event['name'].replace('_', ' ')} {event['value']}")
        elif text := _FORMATS[name](event) if name in _FORMATS else "":
            self._print(text)

    def _step(self, event: Event) -> None:
        draw = self._draw if self._can_move else None
        line = format_step(event, steps=self._steps, width=max(20, self._width() - 1), draw=draw)
        if self._can_move:
            self._move(line)
            return
        self._unprinted_s += event["seconds"]
        if self._unprinted_s >= LINE_INTERVAL_S or event["step"] == self._steps:
            self._unprinted_s = 0.0
            self._print(line)

    def _reading(self, event: Event) -> None:
        line = f"reading: {format_count(event['records'], 'record')} in {format_duration(event['seconds'])}"
        if self._can_move:
            self._move(line[: max(20, self._width() - 1)])
        elif event["seconds"] >= self._reading_printed_s + LINE_INTERVAL_S:
            self._reading_printed_s = event["seconds"]
            self._print(line)

    def _move(self, line: str) -> None:
        self._err.write(f"\r{_ERASE_LINE}{line}")
        self._err.flush()
        self._has_moving_line = True

    def clear(self) -> None:
        """Erase the moving line before something else is printed."""
        if self._has_moving_line:
            self._err.write(f"\r{_ERASE_LINE}")
            self._err.flush()
            self._has_moving_line = False

    def _print(self, text: str) -> None:
        self.clear()
        if self._decisions:
            decided, self._decisions = ", ".join(self._decisions), []
            self._print(f"decided: {decided} (reasons: --verbose, run.json)")
        for line in text.splitlines():
            self._out.write(wrap_text(to_one_line(line), width=max(40, self._width()), hanging="    ") + "\n")
        self._out.flush()


def format_bar(share: float, width: int) -> str:
    """Format how far a run has come as text."""
    filled = round((width - 2) * share)
    return f"[{'#' * filled}{'.' * (width - 2 - filled)}]"


def format_step(event: Event, *, steps: int, width: int, draw: Callable[[float, int], str] | None = format_bar) -> str:
    """Format a step event in at most `width` columns; what matters least is left out first."""
    peak = event.get("peak_allocated_bytes") or event.get("peak_resident_bytes")
    parts = [
        f"loss {_number(event['loss'])}",
        _objective_metrics(event),
        f"{event['tokens_per_s']:.0f} tokens/s",
        f"{format_duration(event['eta_s'])} left",
        f"peak {format_bytes(peak)}" if peak else "",
    ]
    line = f"step {event['step']}/{steps}"
    for part in parts:
        if part and len(line) + 2 + len(part) <= width:
            line += f"  {part}"
    bar_width = min(MAX_BAR_WIDTH, width - len(line) - 2)
    if draw is None or bar_width < MIN_BAR_WIDTH or not steps:
        return line[:width]
    return f"{draw(event['step'] / steps, bar_width)}  {line}"


def _number(value: Any) -> str:  # noqa: ANN401 - a number, or the text in place of one
    return format_number(value) if isinstance(value, int | float) else str(value)


def _objective_metrics(event: Event) -> str:
    return "  ".join(f"{name} {_number(event[name])}" for name in OBJECTIVE_METRICS if name in event)


def _memory(event: Event) -> str:
    if "allocated_bytes" not in event:
        return ""
    return (
        f": tensors took up to {format_bytes(event['allocated_bytes'])}, the allocator up to "
        f"{format_bytes(event['reserved_bytes'])}, {format_bytes(event['free_bytes'])} are free"
    )


def _estimate(event: Event) -> str:
    largest = sorted(event["terms"], key=lambda term: -term["bytes"])[:3]
    parts = ", ".join(f"{term['name']} {format_bytes(term['bytes'])}" for term in largest)
    peak = event["reserved_peak_bytes"]
    return f"memory: about {format_bytes(peak['point'])}, at most {format_bytes(peak['upper'])} - {parts}"


def _start(event: Event) -> str:
    parameters = f"{event['trainable_parameters']:,} trainable parameters"
    steps = format_count(event["steps"] - event["step"], "step")
    resumed = f", resumed at step {event['step']}" if event["step"] else ""
    return f"training {parameters} on {format_count(event['rows'], 'row')}, {steps}{resumed}"


def _probe(event: Event) -> str:
    refused = f", after {', '.join(map(str, event['refused']))} did not" if event["refused"] else ""
    if not event["micro_batch"]:
        return f"not even one row fits into memory{_memory(event)}\n{_ADVICE['out-of-memory']}"
    return f"the largest micro-batch of {format_count(event['micro_batch'], 'row')} fits{refused}{_memory(event)}"


def _out_of_memory(event: Event) -> str:
    rows = format_count(event["micro_batch"], "row")
    text = f"step {event['step']}: out of memory with a micro-batch of {rows}{_memory(event)}"
    half = event["next_micro_batch"]
    return f"{text}\nretrying with {half}" if half else text


def _stopped(event: Event) -> str:
    advice = _ADVICE[event["how"]]
    if event["step"] is None and event["how"] != "out-of-memory":
        return f"stopped ({event['how']}) before the first step\nNothing is lost: the same command starts again."
    if event["step"] is None:
        where = f" in process {event['process']}" if "process" in event else ""
        return f"stopped ({event['how']}){where}{_memory(event)}\n{advice}"
    saved = f"saved at step {event['saved']}" if event["saved"] >= 0 else "nothing was saved"
    return f"stopped at step {event['step']} ({event['how']}), {saved}\n{advice}"


def _end(event: Event) -> str:
    if event["how"] != "done":
        return ""
    losses = f"loss {_number(event['first_loss'])} -> {_number(event['last_loss'])}"
    if event["first_loss"] is None:
        losses = "every step was skipped, so the model learned nothing"
    pace = f", {event['tokens_per_s']:.0f} tokens/s" if event["tokens_per_s"] else ""
    done = f"done: {losses} in {format_count(event['step'], 'step')}, {event['tokens']:,} tokens{pace}"
    if event.get("objective") == Objective.REWARD:
        return f"{done}\n{event['result']}\nIt scores texts in peft and transformers, as a model for sequence classification."
    flag = "--adapter" if Path(event["result"]).name == ADAPTER_FOLDER else "--model"
    try_it = shlex.join(["devkit", "generate", flag, event["result"], "--prompt"])
    return f'{done}\n{event["result"]}\nTry it: {try_it} "..."'


_FORMATS: dict[str, Callable[[Event], str]] = {
    "decision": lambda event: f"{event['name'].replace('_', ' ')}: {event['value']} - {event['because']}",
    "estimate": _estimate,
    "note": lambda event: f"note: {event['text']}",
    "start": _start,
    "probe": _probe,
    "skipped": lambda event: (
        f"step {event['step']}: skipped, loss {_number(event['loss'])}, gradient norm {_number(event['gradient_norm'])}"
    ),
    "out-of-memory": _out_of_memory,
    "eval": lambda event: (
        f"step {event['step']}: eval loss {_number(event['loss'])}  {_objective_metrics(event)}".rstrip()
    ),
    "checkpoint": lambda event: (
        f"step {event['step']}: saved {event['path']}, {format_bytes(event['bytes'])} in {event['seconds']:.1f} s"
    ),
    "stopped": _stopped,
    "end": _end,
}
"""Event name -> the line that people read; "" for none."""


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
        **{f"train/{name}": name for name in OBJECTIVE_METRICS},
    },
    "eval": {"eval/loss": "loss", **{f"eval/{name}": name for name in OBJECTIVE_METRICS}},
}
"""Event -> tag in TensorBoard -> field of the event."""


@contextmanager
def monitor_run(output: Path, *, tensorboard: Path | None, trackers: Sequence[str] = ()) -> Iterator[Listener]:
    """Yield a listener for the run whose folder is `output`, which also samples its GPUs, if any, from the start on.

    A process without events, as all but rank 0 of each node, does nothing. Raises DevkitError for files that cannot be
    written.
    """
    folders = dict.fromkeys(trackers, output) | ({"tensorboard": tensorboard} if tensorboard is not None else {})
    reported = [TrackerListener(name, folder) for name, folder in folders.items()]
    with ExitStack() as stack:
        has_started = False

        def listen(event: Event) -> None:
            nonlocal has_started
            if not has_started and event["event"] == "start":
                has_started = True
                if gpus := find_run_gpus():
                    stack.enter_context(sample_gpus(output / SAMPLES_FILE, gpus))
            for each in reported:
                each(event)

        for each in reported:
            stack.push(each.finish)
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


class TrackerListener:
    """A listener that logs the numbers of a run to TensorBoard, MLflow or Weights & Biases.

    MLflow's and Weights & Biases' own variables say where to: MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME, WANDB_PROJECT,
    WANDB_MODE=offline; with MLFLOW_RUN_ID or WANDB_RUN_ID a resumed run goes on in the same record. In TensorBoard's files
    it purges the steps that it repeats. A failure ends the reports, never the run: metrics.jsonl holds the same values.
    """

    def __init__(self, name: str, folder: Path) -> None:
        """`folder` is TensorBoard's, or the run's, whose name the others' record gets."""
        if importlib.util.find_spec(name) is None:
            shown = "TensorBoard" if name == "tensorboard" else name
            raise DevkitError(f"{shown} is not installed for {sys.executable}", f"pip install {name}")
        if name == "tensorboard":
            try:
                folder.mkdir(parents=True, exist_ok=True)
                # Fail now rather than after hours.
                with tempfile.TemporaryFile(dir=folder):
                    pass
            except OSError as error:
                raise DevkitError(
                    f"cannot write {folder}: {error.strerror}",
                    "Name a folder that you can write to with --tensorboard.",
                ) from error
        self._name = name
        self._folder = folder
        self._tracker: Any = None
        self._has_failed = False
        self._while_open = ExitStack()

    def __call__(self, event: Event) -> None:
        """Log the numbers of a step or an evaluation; other events have none."""
        found = {
            tag: _parse_number(event.get(field)) for tag, field in TENSORBOARD_SCALARS.get(event["event"], {}).items()
        }
        numbers = {tag: value for tag, value in found.items() if value is not None}
        if not numbers or self._has_failed:
            return
        step = event["step"]
        with self._ends_reports():
            if self._tracker is None:
                self._start(step)
            if self._name == "mlflow":
                self._tracker.log_metrics(numbers, step=step)
            elif self._name == "wandb":
                self._tracker.log(numbers, step=step)
            else:
                for tag, value in numbers.items():
                    self._tracker.add_scalar(tag, value, step)

    def _start(self, step: int) -> None:
        if self._name == "tensorboard":
            from torch.utils.tensorboard import SummaryWriter

            self._while_open.enter_context(_silence_writer_thread())
            self._tracker = SummaryWriter(str(self._folder), purge_step=step)
            return
        self._tracker = importlib.import_module(self._name)
        if self._name == "mlflow":
            self._tracker.start_run(run_name=self._folder.name)
        else:
            self._tracker.init(name=self._folder.name, resume="allow")

    def finish(self, kind: type[BaseException] | None, *_exception: object) -> None:
        """End the record, as failed where the run is."""
        if self._tracker is None or (self._has_failed and self._name != "tensorboard"):
            return
        with self._while_open, self._ends_reports():
            if self._name == "tensorboard":
                self._tracker.close()
            elif self._name == "mlflow":
                self._tracker.end_run("FINISHED" if kind is None else "FAILED")
            else:
                self._tracker.finish(exit_code=0 if kind is None else 1)

    @contextmanager
    def _ends_reports(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever a tracker raises, the run continues
            if not self._has_failed:
                sys.stderr.write(f"note: reporting to {self._name} stopped: {to_one_line(str(error))}\n")
            self._has_failed = True


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
