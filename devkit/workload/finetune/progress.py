"""What a person sees of a run: each decision and event on a line of its own, and one line that moves on with the steps.

Importable without torch.
"""

import os
import shutil
import sys
from collections.abc import Callable
from typing import Any, TextIO

from devkit.text import format_bytes, format_count, format_duration, format_number, to_one_line, wrap_text
from devkit.workload.finetune.events import Event

MIN_BAR_WIDTH = 8
MAX_BAR_WIDTH = 30
LINE_INTERVAL_S = 10.0
"""How often a step is told where no line can move: in a log."""

_ADVICE = {
    "out-of-memory": "Shorten --sequence, add --checkpointing, or use --method qlora. Checkpoints are kept.",
    "not-finite": "Lower --learning-rate, or use --precision bf16 or fp32. Checkpoints are kept.",
    "preempted": "The same command goes on from there.",
    "interrupted": "The same command goes on from there.",
}


def is_terminal(stream: TextIO) -> bool:
    """Whether a line on `stream` can be written over."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


class ProgressPrinter:
    """Writes events for people: what stays to `out`, the line that moves to `err` where that is a terminal."""

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
        self._moves = is_terminal(self._err)
        self._shown = ""
        self._steps = 0
        self._unsaid_s = LINE_INTERVAL_S
        self._read_s = 0.0

    def __call__(self, event: Event) -> None:
        """Show one event."""
        if event["event"] == "start":
            self._steps = event["steps"]
        if event["event"] == "step":
            self._step(event)
            return
        if event["event"] == "reading":
            self._reading(event)
            return
        text = _WORDS[event["event"]](event) if event["event"] in _WORDS else ""
        if text:
            self._put(text)

    def _step(self, event: Event) -> None:
        line = format_step(event, steps=self._steps, width=max(20, self._width() - 1))
        if self._moves:
            self._move(line)
            return
        self._unsaid_s += event["seconds"]
        if self._unsaid_s >= LINE_INTERVAL_S or event["step"] == self._steps:
            self._unsaid_s = 0.0
            self._put(line)

    def _reading(self, event: Event) -> None:
        line = f"reading: {format_count(event['records'], 'record')} in {format_duration(event['seconds'])}"
        if self._moves:
            self._move(line[: max(20, self._width() - 1)])
        elif event["seconds"] >= self._read_s + LINE_INTERVAL_S:
            self._read_s = event["seconds"]
            self._put(line)

    def _move(self, line: str) -> None:
        self._err.write("\r" + line.ljust(len(self._shown)))
        self._err.flush()
        self._shown = line

    def clear(self) -> None:
        """Take the line that moves away, where somebody else is about to write."""
        if self._shown:
            self._err.write("\r" + " " * len(self._shown) + "\r")
            self._err.flush()
            self._shown = ""

    def _put(self, text: str) -> None:
        self.clear()
        for line in text.splitlines():
            self._out.write(wrap_text(to_one_line(line), width=max(40, self._width()), hanging="    ") + "\n")
        self._out.flush()


def format_step(event: Event, *, steps: int, width: int) -> str:
    """A step in at most `width` columns: what matters least is left out first."""
    parts = [
        f"step {event['step']}/{steps}",
        f"loss {_number(event['loss'])}",
        f"{event['tokens_per_s']:.0f} tokens/s",
        f"{format_duration(event['eta_s'])} left",
        _peak(event),
    ]
    line = parts[0]
    for part in parts[1:]:
        if part and len(line) + 2 + len(part) <= width:
            line += f"  {part}"
    room = min(MAX_BAR_WIDTH, width - len(line) - 4)
    if room < MIN_BAR_WIDTH or not steps:
        return line[:width]
    filled = round(room * event["step"] / steps)
    return f"[{'#' * filled}{'.' * (room - filled)}]  {line}"


def _peak(event: Event) -> str:
    found = event.get("peak_allocated_bytes") or event.get("peak_resident_bytes")
    return f"peak {format_bytes(found)}" if found else ""


def _number(value: Any) -> str:  # noqa: ANN401 - a number, or the text that stands for one
    return format_number(value) if isinstance(value, int | float) else str(value)


def _decision(event: Event) -> str:
    return f"{event['name'].replace('_', ' ')}: {event['value']} - {event['because']}"


def _estimate(event: Event) -> str:
    largest = sorted(event["terms"], key=lambda term: -term["bytes"])[:3]
    parts = ", ".join(f"{term['name']} {format_bytes(term['bytes'])}" for term in largest)
    peak = event["reserved_peak_bytes"]
    return f"memory: about {format_bytes(peak['point'])}, at most {format_bytes(peak['upper'])} - {parts}"


def _start(event: Event) -> str:
    trained = f"{event['trainable_parameters']:,} numbers of the model"
    rows = format_count(event["rows"], "row")
    left = event["steps"] - event["step"]
    since = f" from step {event['step']} on" if event["step"] else ""
    return f"training {trained} on {rows}, {format_count(left, 'step')}{since}"


def _probe(event: Event) -> str:
    refused = f", after {', '.join(map(str, event['refused']))} did not" if event["refused"] else ""
    if not event["micro_batch"]:
        return f"not one row fits into memory{_memory(event)}\n{_ADVICE['out-of-memory']}"
    return f"the largest pass of {format_count(event['micro_batch'], 'row')} fits{refused}{_memory(event)}"


def _memory(event: Event) -> str:
    if "allocated_bytes" not in event:
        return ""
    return (
        f": tensors took up to {format_bytes(event['allocated_bytes'])}, the allocator up to "
        f"{format_bytes(event['reserved_bytes'])}, {format_bytes(event['free_bytes'])} are free"
    )


def _out_of_memory(event: Event) -> str:
    tried = f"step {event['step']}: out of memory with {format_count(event['micro_batch'], 'row')} in a pass{_memory(event)}"
    half = event["next_micro_batch"]
    return f"{tried}\ntaking it again with {half}" if half else tried


def _stopped(event: Event) -> str:
    advice = _ADVICE[event["how"]]
    if event["step"] is None and event["how"] != "out-of-memory":
        return f"stopped ({event['how']}) before the first step\nNothing is lost: the same command begins anew."
    if event["step"] is None:
        where = f" in process {event['process']}" if "process" in event else ""
        return f"stopped ({event['how']}){where}{_memory(event)}\n{advice}"
    saved = f"saved at step {event['saved']}" if event["saved"] >= 0 else "nothing was saved"
    return f"stopped at step {event['step']} ({event['how']}), {saved}\n{advice}"


def _skipped(event: Event) -> str:
    loss, norm = _number(event["loss"]), _number(event["gradient_norm"])
    return f"step {event['step']}: skipped, with loss {loss} and a gradient of length {norm}"


def _checkpoint(event: Event) -> str:
    return f"step {event['step']}: saved {event['path']}, {format_bytes(event['bytes'])} in {event['seconds']:.1f} s"


def _end(event: Event) -> str:
    if event["how"] != "done":
        return ""
    losses = f"loss {_number(event['first_loss'])} -> {_number(event['last_loss'])}"
    if event["first_loss"] is None:
        losses = "every step was skipped, so that nothing was learned"
    pace = f", {event['tokens_per_s']:.0f} tokens/s" if event["tokens_per_s"] else ""
    return (
        f"done: {losses} in {format_count(event['step'], 'step')}, {event['tokens']:,} tokens{pace}\n{event['result']}"
    )


_WORDS: dict[str, Callable[[Event], str]] = {
    "decision": _decision,
    "estimate": _estimate,
    "note": lambda event: f"note: {event['text']}",
    "start": _start,
    "probe": _probe,
    "skipped": _skipped,
    "out-of-memory": _out_of_memory,
    "eval": lambda event: f"step {event['step']}: loss {_number(event['loss'])} on texts that are not learned",
    "checkpoint": _checkpoint,
    "stopped": _stopped,
    "end": _end,
}
"""Event -> what people read of it; "" for nothing."""
