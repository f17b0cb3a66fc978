"""The curves of a run: what is drawn of which events, and what is refused before the run."""

import xml.etree.ElementTree as ET

import pytest

from devkit.errors import DevkitError
from devkit.workload.monitoring import plot
from devkit.workload.monitoring.plot import build_curves, draw_curves, plot_run, smooth_by_median, validate_plot_file

pytest.importorskip("matplotlib", reason="the dev extra is not installed")


def step(number, loss, pace=1000.0):
    return {"event": "step", "step": number, "loss": loss, "tokens_per_s": pace}


def skipped(number):
    return {"event": "skipped", "step": number, "loss": "nan"}


def test_a_repeated_step_counts_once_with_its_later_value():
    curves = build_curves([step(1, 9.0), step(2, 8.0), {"event": "resumed", "step": 1}, step(2, 7.0)])
    assert curves.loss == ((1, 9.0), (2, 7.0))


def test_a_skipped_step_that_is_repeated_is_no_longer_bad():
    curves = build_curves([skipped(1), step(1, 3.0)])
    assert (curves.bad_steps, curves.loss) == ((), ((1, 3.0),))


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([step(1, 2.0)], id="one step"),
        pytest.param([step(1, 2.0), step(2, 2.0)], id="a flat loss"),
        pytest.param([step(1, 0.0), step(2, 0.0)], id="a loss of zero"),
        pytest.param([step(1, 1e-9), step(2, 1e9)], id="eighteen powers of ten"),
        pytest.param([step(1, -1.0), step(2, 1.0)], id="a loss below zero"),
        pytest.param([skipped(1)], id="nothing but a skipped step"),
        pytest.param(
            [step(1, 8.0), {"event": "eval", "step": 1, "loss": 4.0}, skipped(2), step(3, 0.5)], id="all kinds"
        ),
    ],
)
def test_every_run_is_plotted_with_its_title_as_text(tmp_path, events):
    title = '</svg><script>"& $x^2$'
    draw_curves(build_curves(events), tmp_path / "curves.svg", title=title)
    root = ET.parse(tmp_path / "curves.svg").getroot()
    texts = [each.text for each in root.iter() if each.text]
    assert title in texts and not list(root.iter("{http://www.w3.org/2000/svg}script"))


def test_the_picture_tells_its_figures_in_words(tmp_path):
    events = [step(1, 8.0), {"event": "eval", "step": 1, "loss": 4.0}, skipped(2), step(3, 0.5)]
    draw_curves(build_curves(events), tmp_path / "curves.svg", title="run")
    text = (tmp_path / "curves.svg").read_text()
    assert "loss from 8 to 0.5" in text and "1 step skipped" in text


def test_one_slow_step_does_not_change_the_median():
    points = build_curves([step(number, 1.0, 10.0 if number == 30 else 1000.0) for number in range(1, 61)]).tokens_per_s
    assert {value for _, value in smooth_by_median(points)} == {1000.0}


@pytest.mark.parametrize(
    ("name", "said"), [("curves.png", "curves.svg"), ("curves", "curves.svg"), ("nowhere/curves.svg", "no directory")]
)
def test_a_plot_that_cannot_be_written_is_refused_before_the_run(tmp_path, name, said):
    with pytest.raises(DevkitError) as refused:
        validate_plot_file(tmp_path / name)
    assert said in f"{refused.value.message} {refused.value.hint}"


def test_without_matplotlib_it_is_refused_before_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(plot.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DevkitError, match="matplotlib") as refused:
        validate_plot_file(tmp_path / "curves.svg")
    assert refused.value.hint == "pip install matplotlib"


def test_a_run_without_a_step_draws_nothing(tmp_path):
    assert not plot_run(tmp_path, tmp_path / "curves.svg", title="run")
    assert not (tmp_path / "curves.svg").exists()
