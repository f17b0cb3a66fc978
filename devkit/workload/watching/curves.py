"""What metrics.jsonl tells of a run, as points to draw."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from devkit.workload.finetune.events import Event

MOST_POINTS = 400
"""A picture has no more columns to show a curve in; longer runs are drawn by means, with the range around them."""

WARM_UP_STEPS = 1
"""The first step loads kernels; its pace would flatten all others."""


@dataclass(frozen=True)
class Point:
    """A value at a step; where several steps share a point, their mean, least and most."""

    step: float
    value: float
    least: float
    most: float


@dataclass(frozen=True)
class Curves:
    """The curves of one run. `bad_steps` had a loss or gradient that was no number, and were skipped."""

    loss: tuple[Point, ...]
    eval_loss: tuple[Point, ...]
    tokens_per_s: tuple[Point, ...]
    bad_steps: tuple[int, ...]
    last_step: int

    @property
    def is_empty(self) -> bool:
        """Whether no step was made."""
        return self.last_step == 0


def settled(points: Sequence[Point]) -> tuple[Point, ...]:
    """The moving median over a fifteenth of the curve: its level, without the jumps of single steps."""
    reach = max(1, len(points) // 30)
    return tuple(
        replace(point, value=median(near.value for near in points[max(0, at - reach) : at + reach + 1]))
        for at, point in enumerate(points)
    )


def curves_of(events: Iterable[Event]) -> Curves:
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
    return Curves(
        loss=_thinned(_values(ordered, "loss")),
        eval_loss=_thinned(_values([evals[step] for step in sorted(evals)], "loss")),
        tokens_per_s=_thinned(_values(ordered[WARM_UP_STEPS:] or ordered, "tokens_per_s")),
        bad_steps=tuple(sorted(bad)),
        last_step=max([*steps, *bad], default=0),
    )


def _values(events: Iterable[Event], field: str) -> list[tuple[int, float]]:
    found = ((event["step"], event.get(field)) for event in events)
    return [(step, float(value)) for step, value in found if isinstance(value, int | float) and math.isfinite(value)]


def _thinned(values: Sequence[tuple[int, float]]) -> tuple[Point, ...]:
    size = max(1, math.ceil(len(values) / MOST_POINTS))
    return tuple(_point(values[start : start + size]) for start in range(0, len(values), size))


def _point(part: Sequence[tuple[int, float]]) -> Point:
    numbers = [value for _, value in part]
    return Point(fmean(step for step, _ in part), fmean(numbers), min(numbers), max(numbers))
