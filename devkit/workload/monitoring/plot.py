"""A plot of a run's curves as one SVG file, for light and dark pages. It needs only the standard library."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from statistics import fmean, median

from devkit.errors import DevkitError
from devkit.text import format_count, format_number
from devkit.workload.finetune.events import METRICS_FILE, Event, read_events

MAX_POINTS = 400
"""More points would not be visible; longer runs are plotted as means, with the range around them."""

MAX_TITLE = 90
WARM_UP_STEPS = 1
"""The first step loads kernels; its throughput would distort the scale."""

MIN_LOG_RATIO = 50.0
"""A curve that falls to a fiftieth is flat at its end on a linear scale."""

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
"""Colors by the reader's own theme; each line also has a label."""


@dataclass(frozen=True)
class CurvePoint:
    """A value at a step; where several steps share a point, their mean, minimum and maximum."""

    step: float
    value: float
    least: float
    most: float


@dataclass(frozen=True)
class RunCurves:
    """The curves of one run. `bad_steps` had a non-finite loss or gradient, and were skipped."""

    loss: tuple[CurvePoint, ...]
    eval_loss: tuple[CurvePoint, ...]
    tokens_per_s: tuple[CurvePoint, ...]
    bad_steps: tuple[int, ...]
    last_step: int

    @property
    def is_empty(self) -> bool:
        """True if there was no step."""
        return self.last_step == 0


@dataclass(frozen=True)
class Scale:
    """A linear or logarithmic scale that maps `low` to `high` onto 0 to 1."""

    low: float
    high: float
    is_log: bool
    ticks: tuple[float, ...]

    def to_unit(self, value: float) -> float:
        """Map a value onto 0 to 1; values outside are clamped."""
        value = min(max(value, self.low), self.high)
        if self.is_log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


@dataclass(frozen=True)
class PlotPanel:
    """One diagram: its position and its scales."""

    top: float
    steps: Scale
    values: Scale

    def to_pixels(self, step: float, value: float) -> tuple[float, float]:
        """Return the position of a point, in pixels from the upper left corner."""
        right = LEFT + self.steps.to_unit(step) * (WIDTH - LEFT - RIGHT)
        return right, self.top + (1 - self.values.to_unit(value)) * PANEL_HEIGHT


def validate_svg_path(file: Path) -> None:
    """Raise DevkitError for a file that could not be written at the end of a run."""
    if file.suffix.lower() != ".svg":
        raise DevkitError(
            f"--plot writes SVG, and {file.name} is not named so",
            f"Name it {file.with_suffix('.svg').name}: browsers, editors and GitHub show it.",
        )
    if not file.parent.is_dir():
        raise DevkitError(f"{file.parent} is no directory, so {file.name} cannot be written there", "Make it first.")


def plot_run(folder: Path, file: Path, *, title: str) -> bool:
    """Plot the run in `folder` to `file`. Returns False if it had no step."""
    metrics = folder / METRICS_FILE
    curves = build_curves(read_events(metrics) if metrics.exists() else [])
    if curves.is_empty:
        return False
    try:
        file.write_text(render_svg(curves, title=title), encoding="utf-8")
    except OSError as error:
        raise DevkitError(
            f"cannot write {file}: {error.strerror}",
            f"The run is not affected, and {metrics} holds the plotted values.",
        ) from error
    return True


def render_svg(curves: RunCurves, *, title: str) -> str:
    """Render the SVG: loss above, tokens per second below, over the same steps."""
    steps = build_scale([0, curves.last_step], may_be_log=False, from_zero=True)
    steps = Scale(0.0, float(curves.last_step), is_log=False, ticks=tuple(t for t in steps.ticks if t.is_integer()))
    losses = [value for each in (*curves.loss, *curves.eval_loss) for value in (each.least, each.most)]
    paces = [each.most for each in curves.tokens_per_s]
    level = smooth_by_median(curves.tokens_per_s)
    upper = PlotPanel(TOP, steps, build_scale(losses, may_be_log=True))
    lower = PlotPanel(TOP + PANEL_HEIGHT + GAP, steps, build_scale(paces, may_be_log=False, from_zero=True))
    scale = " on a logarithmic scale" if upper.values.is_log else ""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="t d">',
        f'<title id="t">{escape(title)}</title><desc id="d">{escape(_describe(curves))}</desc>',
        f"<style>{STYLE}</style>",
        f'<rect class="page" width="{WIDTH}" height="{HEIGHT}"/>',
        f'<text class="title" x="{LEFT}" y="28">{escape(title if len(title) <= MAX_TITLE else title[: MAX_TITLE - 1] + "…")}</text>',
        *_render_frame(upper, f"loss{scale}{_format_last_value(curves.loss)}"),
        *_render_curve(upper, curves.loss, "loss"),
        *_render_evaluations(upper, curves.eval_loss),
        *_render_bad_steps(upper, curves.bad_steps),
        *_render_frame(lower, f"tokens per second, and their moving median{_format_last_value(level)}"),
        *_render_curve(lower, curves.tokens_per_s, "pace faint"),
        *_render_curve(lower, level, "pace"),
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 10}" text-anchor="end">optimizer step</text>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _describe(curves: RunCurves) -> str:
    parts = [f"{curves.last_step} optimizer steps"]
    for name, points in (("loss", curves.loss), ("evaluation loss", curves.eval_loss)):
        if points:
            parts.append(f"{name} from {format_number(points[0].value)} to {format_number(points[-1].value)}")
    if curves.tokens_per_s:
        parts.append(f"{format_number(curves.tokens_per_s[-1].value)} tokens per second at the end")
    if curves.bad_steps:
        parts.append(f"{format_count(len(curves.bad_steps), 'step')} skipped for a non-finite loss or gradient")
    return "; ".join(parts)


def _render_frame(panel: PlotPanel, name: str) -> Iterator[str]:
    yield f'<text class="name" x="{LEFT}" y="{panel.top - 12:.0f}">{escape(name)}</text>'
    for tick in panel.values.ticks:
        _, y = panel.to_pixels(panel.steps.low, tick)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{LEFT - 10}" y="{y + 4:.1f}" text-anchor="end">{_format_tick(tick)}</text>'
    for tick in panel.steps.ticks:
        if tick <= panel.steps.high:
            x, _ = panel.to_pixels(tick, panel.values.low)
            yield f'<text x="{x:.1f}" y="{panel.top + PANEL_HEIGHT + 20:.0f}" text-anchor="middle">{_format_tick(tick)}</text>'


def _format_tick(value: float) -> str:
    """Format a tick in short: 20000 is 20k, 0.0001 is 1e-4."""
    if value and abs(value) < 0.001:
        mantissa, _, exponent = f"{value:.0e}".partition("e")
        return f"{mantissa}e{int(exponent)}"
    for limit, letter in ((1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1e6 if letter == 'M' else 1e3):g}{letter}"
    return f"{value:g}"


def _render_curve(panel: PlotPanel, points: Sequence[CurvePoint], kind: str) -> Iterator[str]:
    if not points:
        return
    if any(each.least != each.most for each in points):
        above = [panel.to_pixels(each.step, each.most) for each in points]
        below = [panel.to_pixels(each.step, each.least) for each in reversed(points)]
        yield f'<polygon class="band {kind}" points="{_format_points([*above, *below])}"/>'
    yield f'<polyline class="line {kind}" points="{_format_points(panel.to_pixels(each.step, each.value) for each in points)}"/>'
    if len(points) == 1:
        x, y = panel.to_pixels(points[0].step, points[0].value)
        yield f'<circle class="line {kind}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>'


def _format_last_value(points: Sequence[CurvePoint]) -> str:
    if not points:
        return ""
    value = points[-1].value
    return f": {f'{value:,.0f}' if abs(value) >= 1000 else format_number(value)} at the end"


def _render_evaluations(panel: PlotPanel, points: Sequence[CurvePoint]) -> Iterator[str]:
    places = [panel.to_pixels(each.step, each.value) for each in points]
    if places:
        yield f'<polyline class="line evalline" stroke-dasharray="5 4" points="{_format_points(places)}"/>'
        yield from (f'<circle class="eval" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>' for x, y in places)
        yield f'<circle class="eval" cx="{WIDTH - RIGHT - 82}" cy="{panel.top - 16:.0f}" r="3.5"/>'
        yield f'<text x="{WIDTH - RIGHT}" y="{panel.top - 12:.0f}" text-anchor="end">evaluation</text>'


def _render_bad_steps(panel: PlotPanel, steps: Sequence[int]) -> Iterator[str]:
    """Render a mark above the diagram for each step with a non-finite loss or gradient."""
    for step in steps:
        x, _ = panel.to_pixels(step, panel.values.high)
        yield (
            f'<path class="bad" d="M{x - 5:.1f} {panel.top - 9:.0f} h10 l-5 8 z">'
            f"<title>step {step} skipped: non-finite loss or gradient</title></path>"
        )


def _format_points(places: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)


def smooth_by_median(points: Sequence[CurvePoint]) -> tuple[CurvePoint, ...]:
    """Return the moving median over a fifteenth of the curve, which leaves out outliers of single steps."""
    reach = max(1, len(points) // 30)
    return tuple(
        replace(point, value=median(near.value for near in points[max(0, at - reach) : at + reach + 1]))
        for at, point in enumerate(points)
    )


def build_curves(events: Iterable[Event]) -> RunCurves:
    """Build the curves from events. The last event of a step counts."""
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
        loss=_reduce(_read_values(ordered, "loss")),
        eval_loss=_reduce(_read_values([evals[step] for step in sorted(evals)], "loss")),
        tokens_per_s=_reduce(_read_values(ordered[WARM_UP_STEPS:] or ordered, "tokens_per_s")),
        bad_steps=tuple(sorted(bad)),
        last_step=max([*steps, *bad], default=0),
    )


def _read_values(events: Iterable[Event], field: str) -> list[tuple[int, float]]:
    found = ((event["step"], event.get(field)) for event in events)
    return [(step, float(value)) for step, value in found if isinstance(value, int | float) and math.isfinite(value)]


def _reduce(values: Sequence[tuple[int, float]]) -> tuple[CurvePoint, ...]:
    size = max(1, math.ceil(len(values) / MAX_POINTS))
    points = []
    for start in range(0, len(values), size):
        steps, numbers = zip(*values[start : start + size], strict=True)
        points.append(CurvePoint(fmean(steps), fmean(numbers), min(numbers), max(numbers)))
    return tuple(points)


def build_scale(values: Iterable[float], *, may_be_log: bool, from_zero: bool = False) -> Scale:
    """Build a scale with round ticks that covers all values. `from_zero` is for quantities compared by length."""
    numbers = list(values) or [0.0, 1.0]
    least, most = min(numbers), max(numbers)
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
    """Round up to 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * (1 - 1e-9))


def _logarithmic(least: float, most: float) -> Scale:
    first, last = math.floor(math.log10(least)), math.ceil(math.log10(most))
    skip = max(1, (last - first) // 6)
    ticks = tuple(10.0**power for power in range(first, last + 1, skip))
    return Scale(10.0**first, 10.0**last, is_log=True, ticks=ticks)
