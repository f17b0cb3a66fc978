"""The curves of a run: what is drawn of which events, and what is refused before the run."""

import json
import xml.etree.ElementTree as ET

import pytest

from devkit.errors import DevkitError
from devkit.workload.finetune.events import plot_run, validate_plot_file

pytest.importorskip("matplotlib", reason="the dev extra is not installed")


def step(number, loss, pace=1000.0):
    return {"event": "step", "step": number, "loss": loss, "tokens_per_s": pace}


def skipped(number):
    return {"event": "skipped", "step": number, "loss": "nan"}


def plotted(folder, events, title="run"):
    """The text of the picture of these events."""
    (folder / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    assert plot_run(folder, folder / "curves.svg", title=title)
    return (folder / "curves.svg").read_text()


def test_the_last_event_of_a_step_counts_also_where_it_was_skipped_before(tmp_path):
    events = [step(1, 9.0), skipped(2), {"event": "resumed", "step": 1}, step(2, 7.0)]
    text = plotted(tmp_path, [*events, step(3, 0.0)])
    assert "loss from 9 to 0" in text and "skipped" not in text


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([step(1, 2.0)], id="one step"),
        pytest.param([step(1, -1.0), step(2, 1.0)], id="a loss below zero"),
        pytest.param([skipped(1)], id="nothing but a skipped step"),
        pytest.param(
            [step(1, 8.0), {"event": "eval", "step": 1, "loss": 4.0}, skipped(2), step(3, 0.5)], id="all kinds"
        ),
    ],
)
def test_every_run_is_plotted_with_its_title_as_text(tmp_path, events):
    title = '</svg><script>"& $x^2$'
    root = ET.fromstring(plotted(tmp_path, events, title))
    texts = [each.text for each in root.iter() if each.text]
    assert title in texts and not list(root.iter("{http://www.w3.org/2000/svg}script"))


def test_a_loss_that_falls_far_has_numbers_on_its_axis_and_no_tex(tmp_path):
    root = ET.fromstring(plotted(tmp_path, [step(1, 20.0), step(2, 0.05)]))
    texts = [each.text for each in root.iter() if each.text]
    assert {"0.1", "1", "10"} <= set(texts)
    assert not [text for text in texts if "math" in text]


def test_the_picture_tells_its_figures_in_words(tmp_path):
    events = [step(1, 8.0), {"event": "eval", "step": 1, "loss": 4.0}, skipped(2), step(3, 0.5)]
    text = plotted(tmp_path, events)
    assert "loss from 8 to 0.5" in text and "evaluation loss, 4 at the end" in text and "1 step skipped" in text


@pytest.mark.parametrize(
    ("name", "said"), [("curves.png", "curves.svg"), ("curves", "curves.svg"), ("nowhere/curves.svg", "no directory")]
)
def test_a_plot_that_cannot_be_written_is_refused_before_the_run(tmp_path, name, said):
    with pytest.raises(DevkitError) as refused:
        validate_plot_file(tmp_path / name)
    assert said in f"{refused.value.message} {refused.value.hint}"
