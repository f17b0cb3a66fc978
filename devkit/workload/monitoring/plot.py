"""A plot of a run's curves as one SVG file, by matplotlib: loss above, tokens per second below."""

import importlib.util
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from devkit.errors import DevkitError
from devkit.text import format_count, format_number
from devkit.workload.finetune.events import METRICS_FILE, Event, read_events

WARM_UP_STEPS = 1
"""The first step loads kernels; its throughput would distort the scale."""

MIN_LOG_RATIO = 50.0
"""A curve that falls to a fiftieth is flat at its end on a linear scale."""

Points = tuple[tuple[int, float], ...]
"""Steps with their values."""


@dataclass(frozen=True)
class RunCurves:
    """The curves of one run. `bad_steps` had a non-finite loss or gradient, and were skipped."""

    loss: Points
    eval_loss: Points
    tokens_per_s: Points
    bad_steps: tuple[int, ...]


def validate_plot_file(file: Path) -> None:
    """Raise DevkitError for a file that could not be written at the end of a run."""
    if importlib.util.find_spec("matplotlib") is None:
        raise DevkitError("--plot needs matplotlib, which is not installed", "pip install matplotlib")
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
    if not curves.loss and not curves.bad_steps:
        return False
    try:
        draw_curves(curves, file, title=title)
    except OSError as error:
        raise DevkitError(
            f"cannot write {file}: {error.strerror}",
            f"The run is not affected, and {metrics} holds the plotted values.",
        ) from error
    return True


def draw_curves(curves: RunCurves, file: Path, *, title: str) -> None:
    """Draw the curves. Text stays text, so that it is read aloud and found."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.fonttype": "none", "text.parse_math": False, "axes.grid": True, "grid.alpha": 0.4}):
        figure = Figure(figsize=(9, 6), layout="constrained")
        upper, lower = figure.subplots(2, sharex=True)
        figure.suptitle(title)
        upper.plot(*_split(curves.loss), label=_label("loss", curves.loss))
        if curves.eval_loss:
            upper.plot(*_split(curves.eval_loss), "o--", label=_label("evaluation loss", curves.eval_loss))
        for step in curves.bad_steps:
            upper.axvline(step, color="tab:red", linestyle=":")
        if curves.bad_steps:
            upper.plot([], [], ":", color="tab:red", label=f"{format_count(len(curves.bad_steps), 'step')} skipped")
        losses = [value for _, value in (*curves.loss, *curves.eval_loss)]
        if losses and min(losses) > 0 and max(losses) / min(losses) >= MIN_LOG_RATIO:
            upper.set_yscale("log")
        smooth = smooth_by_median(curves.tokens_per_s)
        lower.plot(*_split(curves.tokens_per_s), alpha=0.35, label="tokens per second")
        lower.plot(*_split(smooth), color="tab:blue", label=_label("moving median", smooth))
        lower.set_ylim(bottom=0)
        lower.set_xlabel("optimizer step")
        for axes in (upper, lower):
            axes.legend()
        figure.savefig(file, format="svg", metadata={"Title": title, "Description": _describe(curves)})


def _split(points: Points) -> tuple[list[int], list[float]]:
    return [step for step, _ in points], [value for _, value in points]


def _label(name: str, points: Points) -> str:
    return f"{name}, {format_number(points[-1][1])} at the end" if points else name


def _describe(curves: RunCurves) -> str:
    parts = []
    for name, points in (("loss", curves.loss), ("evaluation loss", curves.eval_loss)):
        if points:
            parts.append(f"{name} from {format_number(points[0][1])} to {format_number(points[-1][1])}")
    if curves.bad_steps:
        parts.append(f"{format_count(len(curves.bad_steps), 'step')} skipped for a non-finite loss or gradient")
    return "; ".join(parts)


def smooth_by_median(points: Points) -> Points:
    """Return the moving median over a fifteenth of the curve, which leaves out outliers of single steps."""
    reach = max(1, len(points) // 30)
    return tuple(
        (step, median(value for _, value in points[max(0, at - reach) : at + reach + 1]))
        for at, (step, _) in enumerate(points)
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
        loss=_read_values(ordered, "loss"),
        eval_loss=_read_values([evals[step] for step in sorted(evals)], "loss"),
        tokens_per_s=_read_values(ordered[WARM_UP_STEPS:] or ordered, "tokens_per_s"),
        bad_steps=tuple(sorted(bad)),
    )


def _read_values(events: Iterable[Event], field: str) -> Points:
    found = ((event["step"], event.get(field)) for event in events)
    return tuple(
        (step, float(value)) for step, value in found if isinstance(value, int | float) and math.isfinite(value)
    )
