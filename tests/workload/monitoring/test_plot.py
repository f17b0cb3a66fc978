"""The curves of a run: what is drawn, where, and how it looks in a real browser."""

import json
import math
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from devkit.errors import DevkitError
from devkit.workload.monitoring.plot import (
    HEIGHT,
    MAX_POINTS,
    WIDTH,
    build_curves,
    build_scale,
    plot_run,
    render_svg,
    smooth_by_median,
    validate_svg_path,
)
from tests.browser import shot

SVG = "{http://www.w3.org/2000/svg}"


def step(number, loss, pace=1000.0):
    return {"event": "step", "step": number, "loss": loss, "tokens_per_s": pace}


def falling(steps, last=0.5):
    """A loss that falls from 8 to `last`, with evaluations and one step that was skipped."""
    rate = math.log(8 / last) / max(1, steps - 1)
    events = [step(number, 8 * math.exp(-rate * (number - 1)), 900 + number % 7) for number in range(1, steps + 1)]
    events += [{"event": "eval", "step": number, "loss": 4.0} for number in range(10, steps, 10)]
    return [*events, {"event": "skipped", "step": steps + 1, "loss": "nan"}]


def drawn(events, title="run"):
    return ET.fromstring(render_svg(build_curves(events), title=title))


def lines(root, kind):
    found = [each for each in root.iter(f"{SVG}polyline") if each.get("class") == f"line {kind}"]
    return [[tuple(map(float, pair.split(","))) for pair in each.get("points").split()] for each in found]


def test_every_step_is_a_point_and_lower_losses_are_drawn_lower():
    (points,) = lines(drawn(falling(50)), "loss")
    assert len(points) == 50
    assert [y for _, y in points] == sorted(y for _, y in points)
    assert [x for x, _ in points] == sorted(x for x, _ in points)


def test_everything_stays_within_the_picture():
    root = drawn(falling(3000, last=1e-4))
    for kind in ("loss", "pace", "evalline"):
        for points in lines(root, kind):
            assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in points)


def test_a_long_run_is_plotted_as_means_with_their_range():
    curves = build_curves([step(number, 5.0 if number % 2 else 1.0) for number in range(1, 10_001)])
    assert len(curves.loss) <= MAX_POINTS
    assert {(each.least, each.most) for each in curves.loss} == {(1.0, 5.0)}
    assert all(each.value == pytest.approx(3.0, abs=0.1) for each in curves.loss)


def test_a_repeated_step_counts_once_with_its_later_value():
    curves = build_curves([step(1, 9.0), step(2, 8.0), {"event": "resumed", "step": 1}, step(2, 7.0)])
    assert [each.value for each in curves.loss] == [9.0, 7.0]


def test_a_skipped_step_that_is_repeated_is_no_longer_bad():
    curves = build_curves([{"event": "skipped", "step": 1, "loss": "nan"}, step(1, 3.0)])
    assert (curves.bad_steps, [each.value for each in curves.loss]) == ((), [3.0])


def test_a_non_finite_loss_is_a_mark_and_no_point():
    curves = build_curves([step(1, 2.0), {"event": "skipped", "step": 2, "loss": "nan"}, step(3, 1.0)])
    assert [each.step for each in curves.loss] == [1, 3]
    assert curves.bad_steps == (2,)
    assert "step 2 skipped" in render_svg(curves, title="run")


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([step(1, 2.0)], id="one step"),
        pytest.param([step(1, 2.0), step(2, 2.0)], id="a flat loss"),
        pytest.param([step(1, 0.0), step(2, 0.0)], id="a loss of zero"),
        pytest.param([step(1, 1e-9), step(2, 1e9)], id="eighteen powers of ten"),
        pytest.param([step(1, -1.0), step(2, 1.0)], id="a loss below zero"),
        pytest.param([{"event": "skipped", "step": 1, "loss": "nan"}], id="nothing but a skipped step"),
    ],
)
def test_unusual_runs_are_plotted_too(events):
    assert drawn(events).get("viewBox") == f"0 0 {WIDTH} {HEIGHT}"


def test_the_title_is_text_and_never_markup():
    root = drawn(falling(5), title='</svg><script>"&')
    assert root.find(f"{SVG}title").text == '</svg><script>"&'
    assert not list(root.iter(f"{SVG}script"))


def test_the_picture_has_a_description_for_screen_readers():
    said = drawn(falling(50)).find(f"{SVG}desc").text
    assert "loss from 8 to 0.5" in said and "1 step skipped" in said


@pytest.mark.parametrize(
    ("values", "is_log", "ticks"),
    [
        ([0.3, 7.9], False, (0, 2, 4, 6, 8)),
        ([0.0002, 7.2], True, (1e-4, 1e-3, 1e-2, 1e-1, 1, 10)),
        ([3.0], False, (3, 4, 5, 6)),
        ([0.0, 7.0], False, (0, 2, 4, 6, 8)),
    ],
)
def test_scales_have_round_ticks(values, is_log, ticks):
    scale = build_scale(values, may_be_log=True)
    assert scale.is_log is is_log
    assert scale.ticks[0] == pytest.approx(ticks[0]) and scale.ticks[-1] == pytest.approx(ticks[-1])
    assert scale.to_unit(scale.low) == 0 and scale.to_unit(scale.high) == 1
    assert 0 <= scale.to_unit(min(values)) <= scale.to_unit(max(values)) <= 1


def test_one_slow_step_does_not_change_the_median():
    points = build_curves([step(number, 1.0, 10.0 if number == 30 else 1000.0) for number in range(1, 61)]).tokens_per_s
    assert {each.value for each in smooth_by_median(points)} == {1000.0}


@pytest.mark.parametrize(
    ("name", "said"), [("curves.png", "curves.svg"), ("curves", "curves.svg"), ("nowhere/curves.svg", "no directory")]
)
def test_a_plot_that_cannot_be_written_is_refused_before_the_run(tmp_path, name, said):
    with pytest.raises(DevkitError) as refused:
        validate_svg_path(tmp_path / name)
    assert said in f"{refused.value.message} {refused.value.hint}"


def test_a_run_without_a_step_draws_nothing(tmp_path):
    assert not plot_run(tmp_path, tmp_path / "curves.svg", title="run")
    assert not (tmp_path / "curves.svg").exists()


@pytest.fixture(scope="module")
def picture(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in falling(200)))
    assert plot_run(folder, folder / "curves.svg", title="devkit finetune: run")
    return folder / "curves.svg"


@pytest.mark.parametrize(("scheme", "is_dark"), [("light", False), ("dark", True)])
def test_a_browser_shows_it_in_the_readers_theme(picture, scheme, is_dark):
    image = shot(picture, width=WIDTH, height=HEIGHT, scheme=scheme)
    page, colours = image.getpixel((WIDTH // 2, 30)), image.getcolors(maxcolors=2**20)
    assert (sum(page) < 3 * 128) is is_dark
    strong = {colour for count, colour in colours if count > 40 and max(colour) - min(colour) > 100}
    assert any(blue > red + 60 for red, _, blue in strong), "the loss is there, in blue"
    assert any(green > red + 60 and green > blue + 40 for red, green, blue in strong), "the pace is there, in green"


def test_a_plot_that_the_disk_refuses_is_named(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(json.dumps(step(1, 2.0)) + "\n")
    with pytest.raises(DevkitError, match=r"^cannot write /dev/full: No space left on device$") as refused:
        plot_run(tmp_path, Path("/dev/full"), title="run")
    assert "The run is not affected" in refused.value.hint
