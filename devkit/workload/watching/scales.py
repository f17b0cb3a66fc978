"""From numbers to places on paper: linear and logarithmic scales with round ticks."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

LOG_FROM = 50.0
"""A curve that falls to a fiftieth says nothing at its end on a linear scale."""


@dataclass(frozen=True)
class Scale:
    """Values from `low` to `high`, laid on 0 to 1."""

    low: float
    high: float
    is_log: bool
    ticks: tuple[float, ...]

    def place(self, value: float) -> float:
        """Where a value lies, 0 for the low end; values outside are brought to the nearer end."""
        value = min(max(value, self.low), self.high)
        if self.is_log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def scale_of(values: Iterable[float], *, may_be_log: bool, from_zero: bool = False) -> Scale:
    """A scale that holds all values. `from_zero` is for quantities whose length is compared."""
    found = list(values) or [0.0, 1.0]
    least, most = min(found), max(found)
    if may_be_log and least > 0 and most / least >= LOG_FROM:
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
