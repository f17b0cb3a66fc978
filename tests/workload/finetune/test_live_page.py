"""The live page of a run."""

import json
import re

import pytest

from devkit.workload.finetune.events import METRICS_FILE
from devkit.workload.finetune.live_page import MAX_POINTS, PAGE_FILE, LivePage


def step(number, loss=1.0):
    return {"event": "step", "step": number, "loss": loss, "learning_rate": 1e-3, "eta_s": 9.0, "tokens_per_s": 50.0}


@pytest.fixture
def write(tmp_path):
    """Sends events to a page, each three seconds after the last, and returns its text."""
    (tmp_path / METRICS_FILE).touch()
    page = LivePage(tmp_path, now_s=iter(range(0, 3_000_000, 3)).__next__)

    def send(*events):
        for event in ({"event": "start", "steps": 40}, *events):
            page(event)
        return (tmp_path / PAGE_FILE).read_text("utf-8")

    return send


def test_a_page_reloads_itself_until_the_run_ends(write):
    going = write(step(1))
    assert "http-equiv=refresh" in going
    assert "step 1 of 40" in going
    ended = write(step(2), {"event": "end", "how": "done"})
    assert "http-equiv=refresh" not in ended
    assert ": done</title>" in ended


def test_each_measure_has_a_curve_and_evaluations_have_dots(write):
    page = write(step(1, 3.0), step(2, 1.0), {"event": "eval", "step": 2, "loss": 2.0, "seconds": 1.0})
    titles = re.findall(r'aria-label="(.+?)"', page)
    assert titles == ["loss", "learning rate", "tokens per second"]
    assert "evaluation 2" in page
    loss = page.partition("</figure>")[0]
    assert loss.count("<polyline") == 2
    assert "1 to 3, steps 1 to 2" in loss


def test_a_loss_that_is_no_number_is_left_out(write):
    assert "steps 1 to 1<" in write(step(1), step(2, "nan")).partition("</figure>")[0]


def test_a_long_run_has_no_more_points_than_can_be_seen(write, tmp_path):
    (tmp_path / METRICS_FILE).write_text(
        "".join(f"{json.dumps(step(number))}\n" for number in range(1, 20 * MAX_POINTS))
    )
    page = write(step(20 * MAX_POINTS))
    assert "points=" in page
    for points in re.findall(r'points="(.+?)"', page):
        assert MAX_POINTS / 2 < len(points.split()) <= MAX_POINTS + 1


def test_what_a_decision_says_is_escaped(write):
    page = write({"event": "decision", "name": "optimizer", "value": "<b>", "because": "a < b"}, step(1))
    assert "<td>&lt;b&gt;<td>a &lt; b" in page


def test_a_run_that_resumes_begins_with_its_earlier_steps(tmp_path):
    (tmp_path / METRICS_FILE).write_text("".join(json.dumps(step(number)) + "\n" for number in (1, 2)))
    page = LivePage(tmp_path)
    page({"event": "start", "steps": 3})
    page(step(3))
    page({"event": "stopped", "how": "preempted"})
    assert "steps 1 to 3" in (tmp_path / PAGE_FILE).read_text("utf-8")
