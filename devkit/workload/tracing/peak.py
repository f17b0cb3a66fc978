"""The fullest moment of a stream, and what memory holds then."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from devkit.workload.tracing.stream import Allocation, Event, Kind, Phase, Release, Section, rounded

Name = tuple[Section, int]


@dataclass(frozen=True)
class Moment:
    """Tensors in memory at one moment: its section, bytes in all, and bytes by what they are."""

    section: Section
    bytes: int
    parts: dict[str, int]


def fullest(resident: Sequence[Event], step: Sequence[Event]) -> dict[Phase, Moment]:
    """The fullest moment of each phase of `step`, in which what `resident` left behind lies in memory all the time."""
    released = {event.name: event.section for event in step if isinstance(event, Release)}
    live: dict[Name, Allocation] = dict(_left(resident))
    now = sum(rounded(each.bytes) for each in live.values())
    found: dict[Phase, tuple[int, int]] = {}
    for index, event in enumerate(step):
        if isinstance(event, Allocation):
            live[event.name] = event
            now += rounded(event.bytes)
            if now > found.get(event.section.phase, (0, 0))[0]:
                found[event.section.phase] = now, index
        else:
            now -= rounded(live.pop(event.name).bytes)
    return {phase: _moment(resident, step, index, released) for phase, (_, index) in found.items()}


def _moment(resident: Sequence[Event], step: Sequence[Event], index: int, released: dict[Name, Section]) -> Moment:
    parts: dict[str, int] = {}
    for _, made in _left([*resident, *step[: index + 1]]):
        part = _part(made, released.get(made.name))
        parts[part] = parts.get(part, 0) + rounded(made.bytes)
    return Moment(step[index].section, sum(parts.values()), parts)


def _left(events: Sequence[Event]) -> Iterator[tuple[Name, Allocation]]:
    live: dict[Name, Allocation] = {}
    for event in events:
        if isinstance(event, Allocation):
            live[event.name] = event
        else:
            del live[event.name]
    yield from live.items()


def _part(made: Allocation, released: Section | None) -> str:
    """What an allocation is, told by its kind, by when it was made and by whether it outlives its stretch."""
    if made.kind is not Kind.OTHER:
        return made.kind.value
    phase = made.section.phase
    if phase is Phase.LOSS:
        return "logits and loss"
    if phase is Phase.FORWARD and released != made.section:
        return "activations"
    return "temporaries"
