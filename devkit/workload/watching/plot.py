"""The curves of a run as one SVG picture that reads well on light and on dark pages. Needs nothing but Python."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from devkit.errors import DevkitError
from devkit.text import count_of, human_number
from devkit.workload.finetune.events import METRICS_FILE, read_events
from devkit.workload.watching.curves import Curves, Point, curves_of, settled
from devkit.workload.watching.scales import Scale, scale_of

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
class Panel:
    """One diagram: a place on the paper, and its scales."""

    top: float
    steps: Scale
    values: Scale

    def at(self, step: float, value: float) -> tuple[float, float]:
        """The place of a point, in pixels from the upper left corner."""
        right = LEFT + self.steps.place(step) * (WIDTH - LEFT - RIGHT)
        return right, self.top + (1 - self.values.place(value)) * PANEL_HEIGHT


def require_svg(file: Path) -> None:
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
    curves = curves_of(read_events(metrics) if metrics.exists() else [])
    if curves.is_empty:
        return False
    try:
        file.write_text(svg_of(curves, title=title), encoding="utf-8")
    except OSError as error:
        raise DevkitError(
            f"cannot write {file}: {error.strerror}",
            f"The run is not touched by it, and {metrics} holds what would be drawn.",
        ) from error
    return True


def svg_of(curves: Curves, *, title: str) -> str:
    """The picture as text. Loss above, tokens per second below, over the same steps."""
    steps = scale_of([0, curves.last_step], may_be_log=False, from_zero=True)
    steps = Scale(0.0, float(curves.last_step), is_log=False, ticks=tuple(t for t in steps.ticks if t.is_integer()))
    losses = [value for each in (*curves.loss, *curves.eval_loss) for value in (each.least, each.most)]
    paces = [each.most for each in curves.tokens_per_s]
    level = settled(curves.tokens_per_s)
    upper = Panel(TOP, steps, scale_of(losses, may_be_log=True))
    lower = Panel(TOP + PANEL_HEIGHT + GAP, steps, scale_of(paces, may_be_log=False, from_zero=True))
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


def _described(curves: Curves) -> str:
    said = [f"{curves.last_step} optimizer steps"]
    for name, points in (("loss", curves.loss), ("evaluation loss", curves.eval_loss)):
        if points:
            said.append(f"{name} from {human_number(points[0].value)} to {human_number(points[-1].value)}")
    if curves.tokens_per_s:
        said.append(f"{human_number(curves.tokens_per_s[-1].value)} tokens per second at the end")
    if curves.bad_steps:
        said.append(f"{count_of(len(curves.bad_steps), 'step')} skipped, because loss or gradient was no number")
    return "; ".join(said)


def _shortened(title: str, most: int = 90) -> str:
    return title if len(title) <= most else f"{title[: most - 1]}…"


def _frame(panel: Panel, name: str) -> Iterator[str]:
    yield f'<text class="name" x="{LEFT}" y="{panel.top - 12:.0f}">{escape(name)}</text>'
    for tick in panel.values.ticks:
        _, y = panel.at(panel.steps.low, tick)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{LEFT - 10}" y="{y + 4:.1f}" text-anchor="end">{_tick(tick)}</text>'
    for tick in panel.steps.ticks:
        if tick <= panel.steps.high:
            x, _ = panel.at(tick, panel.values.low)
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


def _curve(panel: Panel, points: Sequence[Point], kind: str) -> Iterator[str]:
    if not points:
        return
    if any(each.least != each.most for each in points):
        above = [panel.at(each.step, each.most) for each in points]
        below = [panel.at(each.step, each.least) for each in reversed(points)]
        yield f'<polygon class="band {kind}" points="{_pairs([*above, *below])}"/>'
    yield f'<polyline class="line {kind}" points="{_pairs(panel.at(each.step, each.value) for each in points)}"/>'
    if len(points) == 1:
        x, y = panel.at(points[0].step, points[0].value)
        yield f'<circle class="line {kind}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>'


def _loss_name(curves: Curves, values: Scale) -> str:
    return f"loss{' on a logarithmic scale' if values.is_log else ''}{_at_the_end(curves.loss)}"


def _at_the_end(points: Sequence[Point]) -> str:
    return f": {_spoken(points[-1].value)} at the end" if points else ""


def _spoken(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else human_number(value)


def _evaluations(panel: Panel, points: Sequence[Point]) -> Iterator[str]:
    places = [panel.at(each.step, each.value) for each in points]
    if places:
        yield f'<polyline class="line evalline" stroke-dasharray="5 4" points="{_pairs(places)}"/>'
        yield from (f'<circle class="eval" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>' for x, y in places)
        yield f'<circle class="eval" cx="{WIDTH - RIGHT - 82}" cy="{panel.top - 16:.0f}" r="3.5"/>'
        yield f'<text x="{WIDTH - RIGHT}" y="{panel.top - 12:.0f}" text-anchor="end">evaluation</text>'


def _bad_steps(panel: Panel, steps: Sequence[int]) -> Iterator[str]:
    """A mark above the diagram for each step without a number."""
    for step in steps:
        x, _ = panel.at(step, panel.values.high)
        yield (
            f'<path class="bad" d="M{x - 5:.1f} {panel.top - 9:.0f} h10 l-5 8 z">'
            f"<title>step {step} skipped: loss or gradient was no number</title></path>"
        )


def _pairs(places: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
