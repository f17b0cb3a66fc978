"""The same difference on several GPUs of a node as one: nvml.gpus[0-7].health.persistence."""

import re
from collections.abc import Iterable
from dataclasses import replace

from devkit.doctor.comparing.comparison import Difference

_PLACE = re.compile(r"\[(\d+)\]")


def merged(differences: Iterable[Difference]) -> list[Difference]:
    """Differences that are the same but for the first number in brackets, each set of them as one."""
    sets: dict[tuple[object, ...], list[Difference]] = {}
    for each in differences:
        shape = _PLACE.sub("[]", each.field, count=1)
        alike = (shape, each.value, each.usual, each.grade, each.checks, each.settles)
        sets.setdefault(alike, []).append(each)
    return [_one(alike) for alike in sets.values()]


def _one(alike: list[Difference]) -> Difference:
    first = alike[0]
    if len(alike) == 1:
        return first
    places = sorted(int(found[1]) for each in alike if (found := _PLACE.search(each.field)))
    agreeing = min(each.agreeing for each in alike)
    return replace(first, field=_PLACE.sub(f"[{_ranges(places)}]", first.field, count=1), agreeing=agreeing)


def _ranges(places: list[int]) -> str:
    """Sorted numbers in short: 0-3,5."""
    runs: list[list[int]] = []
    for place in places:
        if runs and place == runs[-1][1] + 1:
            runs[-1][1] = place
        else:
            runs.append([place, place])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
