"""The file of events: what a kill leaves of it, and what a resumed run drops. Without torch."""

import json
from pathlib import Path

import pytest

from devkit.errors import DevkitError
from devkit.workload.finetune.events import Events, ReadingProgress, drop_events_after, read_events


def test_each_event_is_a_line_and_reaches_the_listeners(tmp_path):
    heard = []
    events = Events(tmp_path / "metrics.jsonl", (heard.append,))
    events("start", steps=2)
    events("step", step=1, loss=float("nan"))
    assert heard == [{"event": "start", "steps": 2}, {"event": "step", "step": 1, "loss": "nan"}]
    assert read_events(tmp_path / "metrics.jsonl") == heard


def test_steps_that_will_be_done_again_are_dropped_and_a_torn_line_too(tmp_path):
    file = tmp_path / "metrics.jsonl"
    events = Events(file)
    events("decision", name="precision")
    for step in (1, 2, 3):
        events("step", step=step)
    events("eval", step=3)
    with file.open("a") as stream:
        stream.write('{"event": "step", "st')
    drop_events_after(file, 2)
    told = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(each["event"], each.get("step")) for each in told] == [("decision", None), ("step", 1), ("step", 2)]


def test_a_disk_that_takes_no_more_is_named_and_not_called_standard_output():
    with pytest.raises(DevkitError) as caught:
        Events(Path("/dev/full"))("step", step=1)
    assert caught.value.message == "cannot write /dev/full: No space left on device"


class Clock:
    def __init__(self):
        self.s = 100.0

    def __call__(self):
        return self.s


def test_reading_progress_is_emitted_once_a_second_and_not_written(tmp_path):
    heard, clock = [], Clock()
    counts = ReadingProgress(Events(tmp_path / "metrics.jsonl", (heard.append,)), now_s=clock)
    for records in range(0, 5000, 1000):
        counts(records)
        clock.s += 0.6
    assert [(each["records"], each["seconds"]) for each in heard] == [(0, 0.0), (2000, 1.2), (4000, 2.4)]
    assert not (tmp_path / "metrics.jsonl").exists()
