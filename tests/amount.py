"""How much of the largest suites is tried: a part of it every time, the next commit another; all with DEVKIT_LONG=1.

One commit in so many tries a test that is marked `turns(parts)`, or one of so many of its cases: see `tests/conftest.py`.
`every` takes a part of the cases of a list, and `is_tried` decides on a part of a test.

`python -m tests.amount` prints the number of the part, which DEVKIT_TURN asks for again.
"""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

LONG = os.environ.get("DEVKIT_LONG") == "1"

Case = TypeVar("Case")


def _turn() -> int:
    """Of this commit, so that whoever looks at a failure meets it again; 0 where git knows none."""
    if asked := os.environ.get("DEVKIT_TURN"):
        return int(asked)
    argv = ["git", "rev-parse", "--short=6", "HEAD"]
    try:
        head = subprocess.run(argv, cwd=Path(__file__).parent, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return 0
    return int(head, 16) % TURNS


TURNS = 2520
"""A number that every small one divides, so that each part of each suite has its turn equally often."""

TURN = _turn()
"""Which part of everything that is tried in parts is tried this time."""


def every(part: int, cases: Sequence[Case], *, first: int = 0) -> list[Case]:
    """One of `part` cases and never none, counted from `first` and the turn; all of them when asked for."""
    begin = (first + TURN) % max(1, min(part, len(cases)))
    return list(cases) if LONG else list(cases)[begin::part]


def examples(many: int) -> int:
    """Return how many examples hypothesis draws of something: a third, because it draws others for the next commit."""
    return many if LONG else many // 3


def is_tried(number: int, parts: int) -> bool:
    """Whether part `number` of `parts` has its turn: for what takes minutes, and would be tried by nobody otherwise."""
    return LONG or TURN % parts == number % parts


if __name__ == "__main__":
    print(TURN)  # noqa: T201
