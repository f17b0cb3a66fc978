"""A step of a deep model from the step of a shallow one: its middle layer, repeated.

Five layers are traced. The first and the last have neighbours of another kind; the three between do the same things
in the same order, so the one in the middle stands for every further layer.
"""

from collections.abc import Iterator

from devkit.workload.tracing.stream import Allocation, Event, Phase, Release, Section, Stream

TRACED = 5
MIDDLE = 2
"""The layer that is repeated; those beside it are like it, so what it releases of theirs exists in each copy."""


def is_periodic(stream: Stream) -> bool:
    """Whether the middle layers of a five-layer stream do the same, so that one may stand for all."""
    if any(_reaches_far(event) for event in stream):
        return False
    for phase in Phase:
        shapes = {layer: _doings(stream, phase, layer) for layer in (1, MIDDLE, 3)}
        if not shapes[1] == shapes[MIDDLE] == shapes[3]:
            return False
    return True


def _reaches_far(event: Event) -> bool:
    """Whether a layer releases what is neither its own nor a neighbour's; the first and last may do so outside."""
    layer = event.section.layer
    if isinstance(event, Allocation) or layer is None:
        return False
    made = event.name[0].layer
    return layer in {1, MIDDLE, 3} if made is None else abs(made - layer) > 1


def _doings(stream: Stream, phase: Phase, layer: int) -> list[tuple[object, ...]]:
    """What happens within one layer, told without the layer's number."""
    return [_told(event, layer) for event in stream if event.section.phase is phase and event.section.layer == layer]


def _told(event: Event, layer: int) -> tuple[object, ...]:
    if isinstance(event, Allocation):
        return event.section.part, event.bytes, event.kind
    made, ordinal = event.name
    return event.section.part, made.phase, made.part, None if made.layer is None else made.layer - layer, ordinal


def unrolled(stream: Stream, depth: int) -> Stream:
    """The stream of `depth` layers, from one of five.

    Raises ValueError for fewer than five, which are better traced whole.
    """
    if depth < TRACED:
        raise ValueError(f"{depth} layers are fewer than the {TRACED} that were traced")
    return [event for run in _runs(stream) for event in _repeated(run, depth)]


def _runs(stream: Stream) -> Iterator[Stream]:
    """Stretches of one section each; the middle layer's are repeated as a whole."""
    run: Stream = []
    for event in stream:
        if run and event.section != run[0].section:
            yield run
            run = []
        run.append(event)
    if run:
        yield run


def _repeated(run: Stream, depth: int) -> Iterator[Event]:
    section = run[0].section
    if section.layer is None:
        for event in run:
            yield from _outside(event, depth)
        return
    added = depth - TRACED
    for shift in _shifts(section, added):
        for event in run:
            yield _moved(event, shift)


def _shifts(section: Section, added: int) -> Iterator[int]:
    """By how much each copy of a layer's stretch is moved. Backward passes go from the last layer to the first."""
    if section.layer is None or section.layer < MIDDLE:
        yield 0
    elif section.layer > MIDDLE:
        yield added
    elif section.phase is Phase.BACKWARD:
        yield from range(added, -1, -1)
    else:
        yield from range(added + 1)


def _outside(event: Event, depth: int) -> Iterator[Event]:
    """Outside of the layers, releasing something of the middle layer means releasing it of every copy."""
    if isinstance(event, Allocation):
        yield event
        return
    made, ordinal = event.name
    for shift in _shifts(made, depth - TRACED):
        yield Release(event.section, (_shifted(made, shift), ordinal))


def _moved(event: Event, shift: int) -> Event:
    section = _shifted(event.section, shift)
    if isinstance(event, Allocation):
        return Allocation(section, event.ordinal, event.bytes, event.kind)
    made, ordinal = event.name
    # What belongs to a neighbour moves along with the layer; the last layers moved as far as they could.
    return Release(section, (_shifted(made, shift), ordinal))


def _shifted(section: Section, shift: int) -> Section:
    return Section(section.phase, None if section.layer is None else section.layer + shift, section.part)
