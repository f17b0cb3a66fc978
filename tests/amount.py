"""How much of the largest suites is tried: a part of it every time, all of it with DEVKIT_LONG=1."""

import os
from collections.abc import Sequence
from typing import TypeVar

LONG = os.environ.get("DEVKIT_LONG") == "1"

Case = TypeVar("Case")


def every(part: int, cases: Sequence[Case], *, first: int = 0) -> list[Case]:
    """One of `part` cases, counted from `first`, so that suites which differ in it try others; all when asked for."""
    return list(cases) if LONG else list(cases)[first % part :: part]
