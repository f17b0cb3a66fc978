"""What is usual among measured numbers, and what lies far from it."""

from collections.abc import Sequence
from statistics import median

from devkit.doctor.comparing.rules import Rule
from devkit.facts.record import record

MOST_DEVIATIONS = 3.5
NORMAL = 0.6745
"""Modified z-score: 0.6745 * |x - median| / MAD, an outlier above 3.5.

Source: B. Iglewicz and D. Hoaglin, "How to Detect and Handle Outliers", 1993, as in the NIST/SEMATECH e-Handbook of
Statistical Methods, 1.3.5.17, https://www.itl.nist.gov/div898/handbook/eda/section3/eda35h.htm
"""


@record
class Usual:
    """The middle of a group's readings, and how far from it a reading still is no difference."""

    middle: float
    reach: float

    def has(self, value: float) -> bool:
        """Whether a reading is as usual."""
        return abs(value - self.middle) <= self.reach


def usual(values: Sequence[float], rule: Rule) -> Usual:
    """What is usual among readings: within the rule's tolerance, and within the scatter of the group itself.

    The median and the median deviation from it do not move for a few odd readings, as mean and standard deviation do.
    """
    middle = float(median(values))
    scatter = float(median(abs(value - middle) for value in values))
    allowed = max(rule.tolerance * abs(middle), rule.span)
    if len(values) > 2:
        allowed = max(allowed, MOST_DEVIATIONS * scatter / NORMAL)
        return Usual(middle, allowed)
    # Of two readings the middle lies between them: a difference is their whole distance.
    largest = max(abs(value) for value in values)
    return Usual(middle, max(rule.tolerance * largest, rule.span) / 2)
