"""What a traced step did with memory: allocations and releases in order, each with its place in the step."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

MIN_BLOCK_BYTES = 512
"""CUDA's caching allocator hands out multiples of this.

Source: kMinBlockSize, https://github.com/pytorch/pytorch/blob/main/c10/cuda/CUDACachingAllocator.cpp
"""


class StepPhase(StrEnum):
    """What the step is doing."""

    LOAD = "load"
    FORWARD = "forward"
    LOSS = "loss"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    PREFILL = "prefill"
    DECODE = "decode"


class TensorKind(StrEnum):
    """What an allocation holds, as far as the moment of its making tells."""

    WEIGHTS = "weights"
    ADAPTERS = "adapters"
    OPTIMIZER_STATE = "optimizer state"
    GRADIENTS = "gradients"
    CACHE = "cache"
    RECOMPUTED = "recomputed layer"
    OTHER = "other"


@dataclass(frozen=True, order=True)
class Section:
    """A stretch of the step: a phase, within one decoder layer or outside of all (`layer` is None).

    `part` tells stretches outside of the layers apart: what comes before the first from what comes after the last.
    """

    phase: StepPhase
    layer: int | None = None
    part: str = ""


@dataclass(frozen=True)
class Allocation:
    """Bytes taken within `section`; it is the `ordinal`-th of that section. `bytes` are as asked for, not rounded."""

    section: Section
    ordinal: int
    bytes: int
    kind: TensorKind = TensorKind.OTHER

    @property
    def name(self) -> tuple[Section, int]:
        """What a release calls it by."""
        return self.section, self.ordinal


@dataclass(frozen=True)
class Deallocation:
    """Bytes given back within `section`: those of the allocation `name`."""

    section: Section
    name: tuple[Section, int]


MemoryEvent = Allocation | Deallocation
EventStream = list[MemoryEvent]


def round_to_block(size_bytes: int) -> int:
    """Bytes that the allocator counts for a request of `size_bytes`."""
    return -(-size_bytes // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES


# The fullest moment of a stream, and what memory holds then.

AllocationName = tuple[Section, int]


@dataclass(frozen=True)
class PeakMoment:
    """Tensors in memory at one moment: its section, bytes in all, and bytes by what they are."""

    section: Section
    bytes: int
    parts: dict[str, int]


def peak_by_phase(resident: Sequence[MemoryEvent], step: Sequence[MemoryEvent]) -> dict[StepPhase, PeakMoment]:
    """The fullest moment of each phase of `step`, in which what `resident` left behind lies in memory all the time."""
    released = {event.name: event.section for event in step if isinstance(event, Deallocation)}
    live: dict[AllocationName, Allocation] = dict(_left(resident))
    now = sum(round_to_block(each.bytes) for each in live.values())
    found: dict[StepPhase, tuple[int, int]] = {}
    for index, event in enumerate(step):
        if isinstance(event, Allocation):
            live[event.name] = event
            now += round_to_block(event.bytes)
            if now > found.get(event.section.phase, (0, 0))[0]:
                found[event.section.phase] = now, index
        else:
            now -= round_to_block(live.pop(event.name).bytes)
    return {phase: _moment(resident, step, index, released) for phase, (_, index) in found.items()}


def _moment(
    resident: Sequence[MemoryEvent], step: Sequence[MemoryEvent], index: int, released: dict[AllocationName, Section]
) -> PeakMoment:
    parts: dict[str, int] = {}
    for _, made in _left([*resident, *step[: index + 1]]):
        part = _part(made, released.get(made.name))
        parts[part] = parts.get(part, 0) + round_to_block(made.bytes)
    return PeakMoment(step[index].section, sum(parts.values()), parts)


def _left(events: Sequence[MemoryEvent]) -> Iterator[tuple[AllocationName, Allocation]]:
    live: dict[AllocationName, Allocation] = {}
    for event in events:
        if isinstance(event, Allocation):
            live[event.name] = event
        else:
            del live[event.name]
    yield from live.items()


def _part(made: Allocation, released: Section | None) -> str:
    """What an allocation is, told by its kind, by when it was made and by whether it outlives its stretch."""
    if made.kind is not TensorKind.OTHER:
        return made.kind.value
    phase = made.section.phase
    if phase is StepPhase.LOSS:
        return "logits and loss"
    if phase is StepPhase.FORWARD and released != made.section:
        return "activations"
    return "temporaries"


# A step of a deep model from the step of a shallow one: its middle layer, repeated.
#
# Five layers are traced. The first and the last have neighbours of another kind; the three between do the same things
# in the same order, so the one in the middle stands for every further layer.

TRACED_LAYERS = 5
MIDDLE_LAYER = 2
"""The layer that is repeated; those beside it are like it, so what it releases of theirs exists in each copy."""


def is_periodic(stream: EventStream) -> bool:
    """Whether the middle layers of a five-layer stream do the same, so that one may stand for all."""
    if any(_reaches_far(event) for event in stream):
        return False
    for phase in StepPhase:
        shapes = {layer: _doings(stream, phase, layer) for layer in (1, MIDDLE_LAYER, 3)}
        if not shapes[1] == shapes[MIDDLE_LAYER] == shapes[3]:
            return False
    return True


def _reaches_far(event: MemoryEvent) -> bool:
    """Whether a layer releases what is neither its own nor a neighbour's; the first and last may do so outside."""
    layer = event.section.layer
    if isinstance(event, Allocation) or layer is None:
        return False
    made = event.name[0].layer
    return layer in {1, MIDDLE_LAYER, 3} if made is None else abs(made - layer) > 1


def _doings(stream: EventStream, phase: StepPhase, layer: int) -> list[tuple[object, ...]]:
    """What happens within one layer, told without the layer's number."""
    return [_told(event, layer) for event in stream if event.section.phase is phase and event.section.layer == layer]


def _told(event: MemoryEvent, layer: int) -> tuple[object, ...]:
    if isinstance(event, Allocation):
        return event.section.part, event.bytes, event.kind
    made, ordinal = event.name
    return event.section.part, made.phase, made.part, None if made.layer is None else made.layer - layer, ordinal


def unroll_layers(stream: EventStream, depth: int) -> EventStream:
    """The stream of `depth` layers, from one of five.

    Raises ValueError for fewer than five, which are better traced whole.
    """
    if depth < TRACED_LAYERS:
        raise ValueError(f"{depth} layers are fewer than the {TRACED_LAYERS} that were traced")
    return [event for run in _runs(stream) for event in _repeated(run, depth)]


def _runs(stream: EventStream) -> Iterator[EventStream]:
    """Stretches of one section each; the middle layer's are repeated as a whole."""
    run: EventStream = []
    for event in stream:
        if run and event.section != run[0].section:
            yield run
            run = []
        run.append(event)
    if run:
        yield run


def _repeated(run: EventStream, depth: int) -> Iterator[MemoryEvent]:
    section = run[0].section
    if section.layer is None:
        for event in run:
            yield from _outside(event, depth)
        return
    added = depth - TRACED_LAYERS
    for shift in _shifts(section, added):
        for event in run:
            yield _moved(event, shift)


def _shifts(section: Section, added: int) -> Iterator[int]:
    """By how much each copy of a layer's stretch is moved. Backward passes go from the last layer to the first."""
    if section.layer is None or section.layer < MIDDLE_LAYER:
        yield 0
    elif section.layer > MIDDLE_LAYER:
        yield added
    elif section.phase is StepPhase.BACKWARD:
        yield from range(added, -1, -1)
    else:
        yield from range(added + 1)


def _outside(event: MemoryEvent, depth: int) -> Iterator[MemoryEvent]:
    """Outside of the layers, releasing something of the middle layer means releasing it of every copy."""
    if isinstance(event, Allocation):
        yield event
        return
    made, ordinal = event.name
    for shift in _shifts(made, depth - TRACED_LAYERS):
        yield Deallocation(event.section, (_shifted(made, shift), ordinal))


def _moved(event: MemoryEvent, shift: int) -> MemoryEvent:
    section = _shifted(event.section, shift)
    if isinstance(event, Allocation):
        return Allocation(section, event.ordinal, event.bytes, event.kind)
    made, ordinal = event.name
    # What belongs to a neighbour moves along with the layer; the last layers moved as far as they could.
    return Deallocation(section, (_shifted(made, shift), ordinal))


def _shifted(section: Section, shift: int) -> Section:
    return Section(section.phase, None if section.layer is None else section.layer + shift, section.part)
