"""Whether a reading is what its words ask for, as a report has them: "<= 0.01", "> 0", "not 0", "396 to 1290; …"."""

import re

_NUMBER = r"-?\d[\d.e+-]*"
_AT_MOST = re.compile(rf"<= ({_NUMBER})")
_ABOVE = re.compile(rf"> ({_NUMBER})")
_RANGE = re.compile(rf"({_NUMBER}) to ({_NUMBER}); (?:data sheet|estimate) {_NUMBER}")
_NOT = re.compile(r"not (.+)", re.DOTALL)
_IN_WORDS = ("runs code for ", "loads, as a GPU is here", "bitsandbytes' own")
_NOT_JUDGED = "not judged"
_ROUNDING = 1e-5
"""Limits are written with six digits."""


def holds(measured: object, expected: str) -> bool | None:
    """Whether `measured` is as `expected`; None where the words say what no reader of them can decide."""
    if expected.startswith(_IN_WORDS) or expected.endswith(f"{_NOT_JUDGED}: the row is inferred"):
        return None
    number = _number(measured)
    if found := _AT_MOST.fullmatch(expected):
        return number is not None and number <= _up(float(found[1]))
    if found := _ABOVE.fullmatch(expected):
        return number is not None and number > float(found[1])
    if found := _RANGE.fullmatch(expected):
        # The least is written with three digits.
        return number is not None and float(found[1]) * 0.995 <= number <= float(found[2]) * 1.005
    if found := _NOT.fullmatch(expected):
        return str(measured) != found[1]
    return str(measured) == expected


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except ValueError:
        return None


def _up(limit: float) -> float:
    return limit + abs(limit) * _ROUNDING
