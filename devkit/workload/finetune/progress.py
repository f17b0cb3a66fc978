"""The progress of a run as people read it: a line for each decision and event, and one that moves with the steps.

Importable without torch.
"""

import shutil
import sys
from collections.abc import Callable
from typing import Any, TextIO

from devkit.text import format_bytes, format_count, format_duration, format_number, to_one_line, wrap_text
from devkit.workload.finetune.events import Event, is_terminal

MIN_BAR_WIDTH = 8
MAX_BAR_WIDTH = 30
LINE_INTERVAL_S = 10.0
"""Seconds between lines about steps where no line can move: in a log."""

_ADVICE = {
    "out-of-memory": "Shorten --sequence, add --checkpointing, or use --method qlora. Checkpoints are kept.",
    "not-finite": "Lower --learning-rate, or use --precision bf16 or fp32. Checkpoints are kept.",
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
    ) -> None:
        self._out = out or sys.stdout
        self._err = err or sys.stderr
        self._width = width
        self._can_move = is_terminal(self._err)
        self._moving_line = ""
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
        elif text := _FORMATS[name](event) if name in _FORMATS else "":
            self._print(text)

    def _step(self, event: Event) -> None:
        line = format_step(event, steps=self._steps, width=max(20, self._width() - 1))
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
        self._err.write("\r" + line.ljust(len(self._moving_line)))
        self._err.flush()
        self._moving_line = line

    def clear(self) -> None:
        """Erase the moving line before something else is printed."""
        if self._moving_line:
            self._err.write("\r" + " " * len(self._moving_line) + "\r")
            self._err.flush()
            self._moving_line = ""

    def _print(self, text: str) -> None:
        self.clear()
        for line in text.splitlines():
            self._out.write(wrap_text(to_one_line(line), width=max(40, self._width()), hanging="    ") + "\n")
        self._out.flush()


def format_step(event: Event, *, steps: int, width: int) -> str:
    """Format a step event in at most `width` columns; what matters least is left out first."""
    peak = event.get("peak_allocated_bytes") or event.get("peak_resident_bytes")
    parts = [
        f"loss {_number(event['loss'])}",
        f"{event['tokens_per_s']:.0f} tokens/s",
        f"{format_duration(event['eta_s'])} left",
        f"peak {format_bytes(peak)}" if peak else "",
    ]
    line = f"step {event['step']}/{steps}"
    for part in parts:
        if part and len(line) + 2 + len(part) <= width:
            line += f"  {part}"
    bar_width = min(MAX_BAR_WIDTH, width - len(line) - 4)
    if bar_width < MIN_BAR_WIDTH or not steps:
        return line[:width]
    filled = round(bar_width * event["step"] / steps)
    return f"[{'#' * filled}{'.' * (bar_width - filled)}]  {line}"


def _number(value: Any) -> str:  # noqa: ANN401 - a number, or the text in place of one
    return format_number(value) if isinstance(value, int | float) else str(value)


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
        losses = "every step was skipped, so nothing was learned"
    pace = f", {event['tokens_per_s']:.0f} tokens/s" if event["tokens_per_s"] else ""
    return (
        f"done: {losses} in {format_count(event['step'], 'step')}, {event['tokens']:,} tokens{pace}\n{event['result']}"
    )


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
    "eval": lambda event: f"step {event['step']}: eval loss {_number(event['loss'])}",
    "checkpoint": lambda event: (
        f"step {event['step']}: saved {event['path']}, {format_bytes(event['bytes'])} in {event['seconds']:.1f} s"
    ),
    "stopped": _stopped,
    "end": _end,
}
"""Event name -> the line that people read; "" for none."""
