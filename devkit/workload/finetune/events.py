"""What a run tells while it runs: one JSON object per event, kept in metrics.jsonl and heard by whoever watches."""

import json
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from devkit.errors import DevkitError

Event = dict[str, Any]
Listener = Callable[[Event], None]

METRICS_FILE = "metrics.jsonl"
STEP_EVENTS = frozenset({"step", "eval", "checkpoint", "skipped"})
"""Events of single steps; those of a step that is done again go. The others tell of one process and stay."""

TRANSIENT_EVENTS = frozenset({"reading"})
"""Events that the next of their kind makes out of date: they are heard and not kept."""

READING_INTERVAL_S = 0.5
"""Often enough for a line to be seen moving, seldom enough to cost nothing."""
READING_LINE_INTERVAL_S = 5.0


class Events:
    """Hands each event to the listeners, and keeps it in a file where one is given.

    A process that is not the first of a run has neither.
    """

    def __init__(self, file: Path | None, listeners: tuple[Listener, ...] = ()) -> None:
        self._file = file
        self._listeners = listeners

    def __call__(self, event: str, **fields: Any) -> None:  # noqa: ANN401 - whatever JSON can hold
        """Tell one event. Numbers that JSON cannot hold become text, so that a NaN is seen as one."""
        told: Event = {"event": event, **{name: _json_value(value) for name, value in fields.items()}}
        if self._file is not None and event not in TRANSIENT_EVENTS:
            with explain_write_errors(self._file), self._file.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(told, allow_nan=False) + "\n")
        for listener in self._listeners:
            try:
                listener(told)
            except BrokenPipeError:
                # The reader left. The run goes on: what it tells is in the file.
                self._listeners = tuple(each for each in self._listeners if each is not listener)


class ReadingProgress:
    """Tells how many records are read, and how long that took so far."""

    def __init__(self, events: Events, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._events = events
        self._now_s = now_s
        self._begun_s = now_s()
        self._told_s = -math.inf

    def __call__(self, records: int) -> None:
        """Tell that `records` are read, unless something was told a moment ago."""
        now_s = self._now_s()
        if now_s - self._told_s < READING_INTERVAL_S:
            return
        self._told_s = now_s
        self._events("reading", records=records, seconds=round(now_s - self._begun_s, 1))


def throttle_reading_events(listener: Listener, *, now_s: Callable[[], float] = time.monotonic) -> Listener:
    """`listener` that hears passing events with 5 seconds between them: it keeps each as a line."""
    told_s = -math.inf

    def listen(event: Event) -> None:
        nonlocal told_s
        if event["event"] in TRANSIENT_EVENTS:
            if now_s() - told_s < READING_LINE_INTERVAL_S:
                return
            told_s = now_s()
        listener(event)

    return listen


@contextmanager
def explain_write_errors(file: Path) -> Iterator[None]:
    """Raises DevkitError for a disk that does not take `file`, which is written meanwhile."""
    try:
        yield
    except OSError as error:
        raise DevkitError(
            f"cannot write {file}: {error.strerror}", "Make room there, or name a folder that takes it with --output."
        ) from error


def _json_value(value: Any) -> Any:  # noqa: ANN401 - whatever JSON can hold
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def drop_events_after(file: Path, step: int) -> None:
    """Drop what `file` tells of steps after `step`, which a resumed run does again, and a half-written last line."""
    if not file.exists():
        return
    kept = [line for event, line in _lines(file) if event["event"] not in STEP_EVENTS or event.get("step", 0) <= step]
    new = file.with_name(f"{file.name}.tmp-{os.getpid()}")
    with new.open("w", encoding="utf-8") as stream:
        stream.writelines(f"{line}\n" for line in kept)
        stream.flush()
        os.fsync(stream.fileno())
    new.replace(file)


def read_events(file: Path) -> list[Event]:
    """The events in `file`; a last line that a kill cut off is left out."""
    return [event for event, _ in _lines(file)]


def _lines(file: Path) -> Iterator[tuple[Event, str]]:
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and "event" in event:
            yield event, line
