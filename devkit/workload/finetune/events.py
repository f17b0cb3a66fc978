"""The events of a run and who listens to them: its file metrics.jsonl, and people.

One JSON object each. Importable without torch.
"""

import importlib.util
import json
import math
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

from devkit.errors import DevkitError
from devkit.estimate.settings import Objective
from devkit.text import format_bytes, format_count, format_duration, format_number, to_one_line, wrap_text
from devkit.whole_files import write_whole

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

WRITE_HINT = "Free some space there, or choose a folder on another disk with --output."

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
            try:
                with self._file.open("a", encoding="utf-8") as stream:
                    stream.write(json.dumps(event, allow_nan=False) + "\n")
            except OSError as error:
                raise DevkitError(f"cannot write {self._file}: {error.strerror}", WRITE_HINT) from error
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
    write_whole(file, "".join(f"{line}\n" for line in kept).encode(), hint=WRITE_HINT)


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
        self._draw = draw
        self._err = err or sys.stderr
        self._width = width
        # A line on a dumb terminal cannot be overwritten.
        self._can_move = self._err.isatty() and os.environ.get("TERM") != "dumb"
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
        elif text := _format_event(event):
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


def format_step(event: Event, *, steps: int, width: int, draw: Callable[[float, int], str] | None = None) -> str:
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


def _format_event(event: Event) -> str:
    """Return the lines that people read; "" for none."""
    step = f"step {event.get('step')}"
    match event["event"]:
        case "decision":
            return f"{event['name'].replace('_', ' ')}: {event['value']} - {event['because']}"
        case "estimate":
            largest = sorted(event["terms"], key=lambda term: -term["bytes"])[:3]
            parts = ", ".join(f"{term['name']} {format_bytes(term['bytes'])}" for term in largest)
            peak = event["reserved_peak_bytes"]
            return f"memory: about {format_bytes(peak['point'])}, at most {format_bytes(peak['upper'])} - {parts}"
        case "note":
            return f"note: {event['text']}"
        case "plan":
            steps, rows = format_count(event["steps"], "step"), format_count(event["rows"], "row")
            return f"would train {steps} on {rows} and write {event['output']}; nothing was loaded or written"
        case "start":
            resumed = f", resumed at {step}" if event["step"] else ""
            done = f"training {event['trainable_parameters']:,} trainable parameters on {format_count(event['rows'], 'row')}"
            done += f", {format_count(event['steps'] - event['step'], 'step')}{resumed}"
            return f"{done}\nTo watch it, open {event['page']} in a browser"
        case "skipped":
            return f"{step}: skipped, loss {_number(event['loss'])}, gradient norm {_number(event['gradient_norm'])}"
        case "out-of-memory":
            half, rows = event["next_micro_batch"], format_count(event["micro_batch"], "row")
            text = f"{step}: out of memory with a micro-batch of {rows}{_memory(event)}"
            return f"{text}\nretrying with {half}" if half else text
        case "eval":
            return f"{step}: eval loss {_number(event['loss'])}  {_objective_metrics(event)}".rstrip()
        case "checkpoint":
            return f"{step}: saved {event['path']}, {format_bytes(event['bytes'])} in {event['seconds']:.1f} s"
        case "stopped" | "end" as name:
            return (_format_stop if name == "stopped" else _format_end)(event)
        case _:
            return ""


def _format_stop(event: Event) -> str:
    advice = _ADVICE[event["how"]]
    if event["step"] is None and event["how"] != "out-of-memory":
        return f"stopped ({event['how']}) before the first step\nNothing is lost; the same command starts again."
    if event["step"] is None:
        where = f" in process {event['process']}" if "process" in event else ""
        return f"stopped ({event['how']}){where}{_memory(event)}\n{advice}"
    saved = f"saved at step {event['saved']}" if event["saved"] >= 0 else "nothing was saved"
    return f"stopped at step {event['step']} ({event['how']}), {saved}\n{advice}"


def _format_end(event: Event) -> str:
    if event["how"] != "done":
        return ""
    losses = f"loss {_number(event['first_loss'])} -> {_number(event['last_loss'])}"
    if event["first_loss"] is None:
        losses = "every step was skipped, so the model learned nothing"
    pace = f", {event['tokens_per_s']:.0f} tokens/s" if event["tokens_per_s"] else ""
    done = (
        f"done: {losses} in {format_count(event['step'], 'step')}, {event['tokens']:,} tokens{pace}\n{event['result']}"
    )
    if event.get("objective") == Objective.REWARD:
        return f"{done}\nIt scores texts in peft and transformers as a sequence classification model."
    flag = "--adapter" if Path(event["result"]).name == ADAPTER_FOLDER else "--model"
    try_it = shlex.join(["devkit", "generate", flag, event["result"], "--prompt"])
    return f'{done}\nTry it: {try_it} "..."'


def require_trackers(names: tuple[str, ...]) -> None:
    """Raise DevkitError for a tracker that is not installed: now, not after hours."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise DevkitError(f"{name} is not installed for {sys.executable}", f"pip install {name}")
