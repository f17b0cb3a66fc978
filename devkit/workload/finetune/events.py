"""The events of a run: one JSON object each, appended to metrics.jsonl and passed to listeners. Torch-free."""

import json
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from devkit.errors import DevkitError

Event = dict[str, Any]
Listener = Callable[[Event], None]

METRICS_FILE = "metrics.jsonl"

STEP_EVENTS = frozenset({"step", "eval", "checkpoint", "skipped"})
"""Events of single steps; a resumed run drops those of steps that it repeats. All others are of one process and stay."""

TRANSIENT_EVENTS = frozenset({"reading"})
"""Events that the next of their kind makes obsolete: listeners get them, the file does not."""

READING_INTERVAL_S = 0.5
"""Often enough for a line that visibly moves, seldom enough to cost nothing."""

READING_LINE_INTERVAL_S = 5.0


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


def throttle_reading_events(listener: Listener, *, now_s: Callable[[], float] = time.monotonic) -> Listener:
    """Return `listener` with at most one transient event every 5 seconds, for listeners that print each on a line."""
    emitted_s = -math.inf

    def listen(event: Event) -> None:
        nonlocal emitted_s
        if event["event"] in TRANSIENT_EVENTS:
            if now_s() - emitted_s < READING_LINE_INTERVAL_S:
                return
            emitted_s = now_s()
        listener(event)

    return listen


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
    new = file.with_name(f"{file.name}.tmp-{os.getpid()}")
    with new.open("w", encoding="utf-8") as stream:
        stream.writelines(f"{line}\n" for line in kept)
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
