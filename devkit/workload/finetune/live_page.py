"""The live page of a run: one HTML file with its curves, which reloads itself while the run goes on.

Importable without torch.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

from devkit.text import format_bytes, format_duration, format_number
from devkit.whole_files import write_whole
from devkit.workload.finetune.events import METRICS_FILE, OBJECTIVE_METRICS, WRITE_HINT, Event, read_events

PAGE_FILE = "run.html"
WRITE_INTERVAL_S = 2.0
MAX_POINTS = 400
"""More points than this on a curve cannot be told apart."""
_WIDTH, _HEIGHT = 360, 150


@dataclass(frozen=True)
class _Chart:
    """One picture of a field of steps."""

    title: str
    field: str
    format: Callable[[float], str] = format_number


_MEASURES = ("loss", *OBJECTIVE_METRICS)
"""Fields that evaluations have, too."""
_CHARTS = (
    *(_Chart(name, name) for name in _MEASURES),
    _Chart("learning rate", "learning_rate"),
    _Chart("gradient norm", "gradient_norm"),
    _Chart("tokens per second", "tokens_per_s", lambda value: f"{value:,.0f}"),
    _Chart("seconds per step", "seconds"),
    _Chart("seconds waiting for data", "waited_s"),
    _Chart("GPU memory at its peak", "peak_allocated_bytes", lambda value: format_bytes(round(value))),
    _Chart("process memory at its peak", "peak_resident_bytes", lambda value: format_bytes(round(value))),
)

_STYLE = f"""
:root {{ color-scheme: light dark; --line: #2563eb; --dots: #c2410c; --soft: #6b7280; --card: #f3f4f6 }}
@media (prefers-color-scheme: dark) {{ :root {{ --line: #60a5fa; --dots: #fb923c; --soft: #9ca3af; --card: #1f2937 }} }}
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 1.5rem auto; max-width: 75rem; padding: 0 1rem; overflow-wrap: anywhere }}
main {{ display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 20rem), 1fr)) }}
figure {{ margin: 0; padding: .75rem 1rem; border-radius: .5rem; background: var(--card) }}
figcaption {{ display: flex; justify-content: space-between; gap: 1rem }}
b, i {{ white-space: nowrap }}
svg {{ display: block; width: 100%; aspect-ratio: {_WIDTH} / {_HEIGHT} }}
polyline {{ fill: none; stroke: var(--line); stroke-width: 2; vector-effect: non-scaling-stroke }}
polyline + polyline {{ stroke: var(--dots); stroke-dasharray: 0 7; stroke-width: 5; stroke-linecap: round }}
i {{ font-style: normal; color: var(--dots) }}
small, summary {{ color: var(--soft) }}
td {{ padding-right: 1rem; vertical-align: top }}
"""


class LivePage:
    """A listener that writes the page into the run's folder, at most every two seconds and at the end."""

    def __init__(self, folder: Path, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._now_s = now_s
        self._written_s = -math.inf
        self._points: list[Event] = []
        self._decisions: list[Event] = []
        self._steps = 0

    def __call__(self, event: Event) -> None:
        """Take one event. A run that resumes begins with those of its file."""
        name = event["event"]
        if name == "start":
            self._steps = event["steps"]
            self._points = [
                each for each in read_events(self._folder / METRICS_FILE) if each["event"] in ("step", "eval")
            ]
        elif name == "decision":
            self._decisions.append(event)
        elif name in ("step", "eval"):
            self._points.append(event)
        is_last = name in ("end", "stopped")
        is_due = self._now_s() - self._written_s >= WRITE_INTERVAL_S
        if self._steps and (is_last or is_due):
            self._written_s = self._now_s()
            page = self.render(how=str(event["how"]) if is_last else "")
            write_whole(self._folder / PAGE_FILE, page.encode(), hint=WRITE_HINT)

    def render(self, *, how: str) -> str:
        """Render the page. `how` is how the run ended, "" while it goes on."""
        title = escape(f"{self._folder.resolve().name}: {how or 'training'}")
        last = next((each for each in reversed(self._points) if each["event"] == "step"), None)
        status = [f"step {last['step']} of {self._steps}" if last else f"{self._steps} steps"]
        if last and not how:
            status.append(f"{format_duration(last['eta_s'])} left")
        rows = "".join(
            f"<tr><td>{escape(each['name'].replace('_', ' '))}<td>{escape(str(each['value']))}<td>{escape(each['because'])}"
            for each in self._decisions
        )
        return (
            '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
            f"{'' if how else f'<meta http-equiv=refresh content={WRITE_INTERVAL_S:.0f}>'}"
            f"<title>{title}</title><style>{_STYLE}</style><h1>{title}</h1>"
            f"<p>{' · '.join(status)} · <small>written {time.strftime('%Y-%m-%d %H:%M:%S')}</small></p>"
            f"<main>{''.join(self._draw())}</main><details><summary>Decisions</summary><table>{rows}</table></details></html>\n"
        )

    def _draw(self) -> Iterator[str]:
        """Yield the charts that the run has values for."""
        for chart in _CHARTS:
            curve = self._list_values("step", chart.field)
            dots = self._list_values("eval", chart.field) if chart.field in _MEASURES else []
            if not curve:
                continue
            values = [value for _, value in (*curve, *dots)]
            low, high = min(values), max(values)
            lines = "".join(
                # The last point once more makes a dot of a single one.
                f'<polyline points="{" ".join(_place(point, curve[-1][0], low, high) for point in (*points, points[-1]))}"/>'
                for points in (curve, dots)
                if points
            )
            last = f"<b>{chart.format(curve[-1][1])}</b>"
            last += f" <i>evaluation {chart.format(dots[-1][1])}</i>" if dots else ""
            yield (
                f"<figure><figcaption>{chart.title}<span>{last}</span></figcaption>"
                f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img" aria-label="{chart.title}">'
                f"{lines}</svg><small>{chart.format(low)} to {chart.format(high)}, steps 1 to {curve[-1][0]}</small></figure>"
            )

    def _list_values(self, event: str, field: str) -> list[tuple[int, float]]:
        """Return steps and finite values of a field, at most MAX_POINTS of them and the last."""
        found = [
            (each["step"], each[field])
            for each in self._points
            if each["event"] == event and isinstance(each.get(field), int | float)
        ]
        stride = -(-len(found) // MAX_POINTS) or 1
        return found[::-1][::stride][::-1]


def _place(point: tuple[int, float], last: int, low: float, high: float) -> str:
    step, value = point
    x = _WIDTH * (0.02 + 0.96 * step / last)
    y = _HEIGHT * (0.95 - 0.9 * (value - low) / ((high - low) or 1))
    return f"{x:.1f},{y:.1f}"
