"""The curves of a run as one SVG picture that reads well on light and on dark pages. Needs nothing but Python."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from statistics import fmean, median

from devkit.errors import DevkitError
from devkit.text import format_count, format_number
from devkit.workload.finetune.events import METRICS_FILE, Event, read_events

# What metrics.jsonl tells of a run, as points to draw.

MAX_POINTS = 400
"""A picture has no more columns to show a curve in; longer runs are drawn by means, with the range around them."""

WARM_UP_STEPS = 1
"""The first step loads kernels; its pace would flatten all others."""


@dataclass(frozen=True)
class CurvePoint:
    """A value at a step; where several steps share a point, their mean, least and most."""

    step: float
    value: float
    least: float
    most: float


@dataclass(frozen=True)
class RunCurves:
    """The curves of one run. `bad_steps` had a loss or gradient that was no number, and were skipped."""

    loss: tuple[CurvePoint, ...]
    eval_loss: tuple[CurvePoint, ...]
    tokens_per_s: tuple[CurvePoint, ...]
    bad_steps: tuple[int, ...]
    last_step: int

    @property
    def is_empty(self) -> bool:
        """Whether no step was made."""
        return self.last_step == 0


def smooth_by_median(points: Sequence[CurvePoint]) -> tuple[CurvePoint, ...]:
    """The moving median over a fifteenth of the curve: its level, without the jumps of single steps."""
    reach = max(1, len(points) // 30)
    return tuple(
        replace(point, value=median(near.value for near in points[max(0, at - reach) : at + reach + 1]))
        for at, point in enumerate(points)
    )


def build_curves(events: Iterable[Event]) -> RunCurves:
    """Points for each curve. Of a step that was told twice, the later counts."""
    steps: dict[int, Event] = {}
    evals: dict[int, Event] = {}
    bad: dict[int, None] = {}
    for event in events:
        step = event.get("step")
        if not isinstance(step, int):
            continue
        match event["event"]:
            case "step":
                steps[step] = event
                bad.pop(step, None)
            case "skipped":
                bad[step] = None
            case "eval":
                evals[step] = event
            case _:
                continue
    ordered = [steps[step] for step in sorted(steps)]
    return RunCurves(
        loss=_thinned(_values(ordered, "loss")),
        eval_loss=_thinned(_values([evals[step] for step in sorted(evals)], "loss")),
        tokens_per_s=_thinned(_values(ordered[WARM_UP_STEPS:] or ordered, "tokens_per_s")),
        bad_steps=tuple(sorted(bad)),
        last_step=max([*steps, *bad], default=0),
    )


def _values(events: Iterable[Event], field: str) -> list[tuple[int, float]]:
    found = ((event["step"], event.get(field)) for event in events)
    return [(step, float(value)) for step, value in found if isinstance(value, int | float) and math.isfinite(value)]


def _thinned(values: Sequence[tuple[int, float]]) -> tuple[CurvePoint, ...]:
    size = max(1, math.ceil(len(values) / MAX_POINTS))
    return tuple(_point(values[start : start + size]) for start in range(0, len(values), size))


def _point(part: Sequence[tuple[int, float]]) -> CurvePoint:
    numbers = [value for _, value in part]
    return CurvePoint(fmean(step for step, _ in part), fmean(numbers), min(numbers), max(numbers))


# From numbers to places on paper: linear and logarithmic scales with round ticks.

MIN_LOG_RATIO = 50.0
"""A curve that falls to a fiftieth says nothing at its end on a linear scale."""


@dataclass(frozen=True)
class Scale:
    """Values from `low` to `high`, laid on 0 to 1."""

    low: float
    high: float
    is_log: bool
    ticks: tuple[float, ...]

    def to_unit(self, value: float) -> float:
        """Where a value lies, 0 for the low end; values outside are brought to the nearer end."""
        value = min(max(value, self.low), self.high)
        if self.is_log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def build_scale(values: Iterable[float], *, may_be_log: bool, from_zero: bool = False) -> Scale:
    """A scale that holds all values. `from_zero` is for quantities whose length is compared."""
    found = list(values) or [0.0, 1.0]
    least, most = min(found), max(found)
    if may_be_log and least > 0 and most / least >= MIN_LOG_RATIO:
        return _logarithmic(least, most)
    return _linear(0.0 if from_zero else least, most)


def _linear(least: float, most: float, *, wanted: int = 5) -> Scale:
    if most <= least:
        most = least + (abs(least) or 1.0)
    step = _round_step((most - least) / wanted)
    first, last = math.floor(least / step), math.ceil(most / step)
    ticks = tuple(round(number * step, 12) for number in range(first, last + 1))
    return Scale(ticks[0], ticks[-1], is_log=False, ticks=ticks)


def _round_step(step: float) -> float:
    """The next of 1, 2, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * (1 - 1e-9))


def _logarithmic(least: float, most: float) -> Scale:
    first, last = math.floor(math.log10(least)), math.ceil(math.log10(most))
    skip = max(1, (last - first) // 6)
    ticks = tuple(10.0**power for power in range(first, last + 1, skip))
    return Scale(10.0**first, 10.0**last, is_log=True, ticks=ticks)


WIDTH, LEFT, RIGHT, TOP = 880, 76, 24, 64
PANEL_HEIGHT, GAP, BOTTOM = 220, 56, 48
HEIGHT = TOP + 2 * PANEL_HEIGHT + GAP + BOTTOM

STYLE = """
:root { color-scheme: light dark; --page: #ffffff; --ink: #1f2328; --quiet: #59636e; --grid: #d8dee4;
  --loss: #0969da; --eval: #bc4c00; --pace: #1a7f37; --bad: #cf222e; }
@media (prefers-color-scheme: dark) { :root { --page: #0d1117; --ink: #e6edf3; --quiet: #9198a1; --grid: #2b323b;
  --loss: #58a6ff; --eval: #f0883e; --pace: #3fb950; --bad: #ff7b72; } }
text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: var(--quiet); }
.title { font-size: 17px; font-weight: 600; fill: var(--ink); } .name { font-weight: 600; fill: var(--ink); }
.page { fill: var(--page); } .grid { stroke: var(--grid); stroke-width: 1; }
.line { fill: none; stroke-width: 1.8; stroke-linejoin: round; stroke-linecap: round; } .band { opacity: 0.18; }
.line.faint { opacity: 0.35; stroke-width: 1; }
.loss { stroke: var(--loss); } .pace { stroke: var(--pace); } .bad { fill: var(--bad); }
.eval { fill: var(--page); stroke: var(--eval); stroke-width: 2; } .evalline { stroke: var(--eval); }
.band.loss { fill: var(--loss); stroke: none; } .band.pace { fill: var(--pace); stroke: none; }
""".strip()
"""Colours by the reader's own theme; each line also has its words beside it."""


@dataclass(frozen=True)
class PlotPanel:
    """One diagram: a place on the paper, and its scales."""

    top: float
    steps: Scale
    values: Scale

    def to_pixels(self, step: float, value: float) -> tuple[float, float]:
        """The place of a point, in pixels from the upper left corner."""
        right = LEFT + self.steps.to_unit(step) * (WIDTH - LEFT - RIGHT)
        return right, self.top + (1 - self.values.to_unit(value)) * PANEL_HEIGHT


def validate_svg_path(file: Path) -> None:
    """Refuse now what could not be written after hours. Raises DevkitError."""
    if file.suffix.lower() != ".svg":
        raise DevkitError(
            f"--plot writes SVG, and {file.name} is not named so",
            f"Name it {file.with_suffix('.svg').name}: browsers, editors and GitHub show it.",
        )
    if not file.parent.is_dir():
        raise DevkitError(f"{file.parent} is no directory, so {file.name} cannot be written there", "Make it first.")


def plot_run(folder: Path, file: Path, *, title: str) -> bool:
    """Draw the run in `folder` into `file`; False where it made no step."""
    metrics = folder / METRICS_FILE
    curves = build_curves(read_events(metrics) if metrics.exists() else [])
    if curves.is_empty:
        return False
    try:
        file.write_text(render_svg(curves, title=title), encoding="utf-8")
    except OSError as error:
        raise DevkitError(
            f"cannot write {file}: {error.strerror}",
            f"The run is not touched by it, and {metrics} holds what would be drawn.",
        ) from error
    return True


def render_svg(curves: RunCurves, *, title: str) -> str:
    """The picture as text. Loss above, tokens per second below, over the same steps."""
    steps = build_scale([0, curves.last_step], may_be_log=False, from_zero=True)
    steps = Scale(0.0, float(curves.last_step), is_log=False, ticks=tuple(t for t in steps.ticks if t.is_integer()))
    losses = [value for each in (*curves.loss, *curves.eval_loss) for value in (each.least, each.most)]
    paces = [each.most for each in curves.tokens_per_s]
    level = smooth_by_median(curves.tokens_per_s)
    upper = PlotPanel(TOP, steps, build_scale(losses, may_be_log=True))
    lower = PlotPanel(TOP + PANEL_HEIGHT + GAP, steps, build_scale(paces, may_be_log=False, from_zero=True))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="t d">',
        f'<title id="t">{escape(title)}</title><desc id="d">{escape(_described(curves))}</desc>',
        f"<style>{STYLE}</style>",
        f'<rect class="page" width="{WIDTH}" height="{HEIGHT}"/>',
        f'<text class="title" x="{LEFT}" y="28">{escape(_shortened(title))}</text>',
        *_frame(upper, _loss_name(curves, upper.values)),
        *_curve(upper, curves.loss, "loss"),
        *_evaluations(upper, curves.eval_loss),
        *_bad_steps(upper, curves.bad_steps),
        *_frame(lower, f"tokens per second, and their moving median{_at_the_end(level)}"),
        *_curve(lower, curves.tokens_per_s, "pace faint"),
        *_curve(lower, level, "pace"),
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 10}" text-anchor="end">optimizer step</text>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _described(curves: RunCurves) -> str:
    said = [f"{curves.last_step} optimizer steps"]
    for name, points in (("loss", curves.loss), ("evaluation loss", curves.eval_loss)):
        if points:
            said.append(f"{name} from {format_number(points[0].value)} to {format_number(points[-1].value)}")
    if curves.tokens_per_s:
        said.append(f"{format_number(curves.tokens_per_s[-1].value)} tokens per second at the end")
    if curves.bad_steps:
        said.append(f"{format_count(len(curves.bad_steps), 'step')} skipped, because loss or gradient was no number")
    return "; ".join(said)


def _shortened(title: str, most: int = 90) -> str:
    return title if len(title) <= most else f"{title[: most - 1]}…"


def _frame(panel: PlotPanel, name: str) -> Iterator[str]:
    yield f'<text class="name" x="{LEFT}" y="{panel.top - 12:.0f}">{escape(name)}</text>'
    for tick in panel.values.ticks:
        _, y = panel.to_pixels(panel.steps.low, tick)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{LEFT - 10}" y="{y + 4:.1f}" text-anchor="end">{_tick(tick)}</text>'
    for tick in panel.steps.ticks:
        if tick <= panel.steps.high:
            x, _ = panel.to_pixels(tick, panel.values.low)
            yield f'<text x="{x:.1f}" y="{panel.top + PANEL_HEIGHT + 20:.0f}" text-anchor="middle">{_tick(tick)}</text>'


def _tick(value: float) -> str:
    """Short: 20000 is 20k, 0.0001 is 1e-4."""
    if value and abs(value) < 0.001:
        mantissa, _, exponent = f"{value:.0e}".partition("e")
        return f"{mantissa}e{int(exponent)}"
    for limit, letter in ((1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1e6 if letter == 'M' else 1e3):g}{letter}"
    return f"{value:g}"


def _curve(panel: PlotPanel, points: Sequence[CurvePoint], kind: str) -> Iterator[str]:
    if not points:
        return
    if any(each.least != each.most for each in points):
        above = [panel.to_pixels(each.step, each.most) for each in points]
        below = [panel.to_pixels(each.step, each.least) for each in reversed(points)]
        yield f'<polygon class="band {kind}" points="{_pairs([*above, *below])}"/>'
    yield f'<polyline class="line {kind}" points="{_pairs(panel.to_pixels(each.step, each.value) for each in points)}"/>'
    if len(points) == 1:
        x, y = panel.to_pixels(points[0].step, points[0].value)
        yield f'<circle class="line {kind}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>'


def _loss_name(curves: RunCurves, values: Scale) -> str:
    return f"loss{' on a logarithmic scale' if values.is_log else ''}{_at_the_end(curves.loss)}"


def _at_the_end(points: Sequence[CurvePoint]) -> str:
    return f": {_spoken(points[-1].value)} at the end" if points else ""


def _spoken(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else format_number(value)


def _evaluations(panel: PlotPanel, points: Sequence[CurvePoint]) -> Iterator[str]:
    places = [panel.to_pixels(each.step, each.value) for each in points]
    if places:
        yield f'<polyline class="line evalline" stroke-dasharray="5 4" points="{_pairs(places)}"/>'
        yield from (f'<circle class="eval" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>' for x, y in places)
        yield f'<circle class="eval" cx="{WIDTH - RIGHT - 82}" cy="{panel.top - 16:.0f}" r="3.5"/>'
        yield f'<text x="{WIDTH - RIGHT}" y="{panel.top - 12:.0f}" text-anchor="end">evaluation</text>'


def _bad_steps(panel: PlotPanel, steps: Sequence[int]) -> Iterator[str]:
    """A mark above the diagram for each step without a number."""
    for step in steps:
        x, _ = panel.to_pixels(step, panel.values.high)
        yield (
            f'<path class="bad" d="M{x - 5:.1f} {panel.top - 9:.0f} h10 l-5 8 z">'
            f"<title>step {step} skipped: loss or gradient was no number</title></path>"
        )


def _pairs(places: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
