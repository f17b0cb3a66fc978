"""The memory events of a traced step: allocations and deallocations in order, each with its section of the step.

Finds the peak of each phase, and unrolls the stream of a shallow model to that of a deep one: five layers are traced.
The first and the last differ from the others; the three in between do the same in the same order, so that the one in
the middle can stand for all further layers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby

MIN_BLOCK_BYTES = 512
"""CUDA's caching allocator rounds up to multiples of this.

Source: kMinBlockSize, https://github.com/pytorch/pytorch/blob/main/c10/cuda/CUDACachingAllocator.cpp
"""


class StepPhase(StrEnum):
    """The phase of a step."""

    LOAD = "load"
    FORWARD = "forward"
    LOSS = "loss"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    PREFILL = "prefill"
    DECODE = "decode"


class TensorKind(StrEnum):
    """The kind of tensor in an allocation, as far as it is known when it is made."""

    WEIGHTS = "weights"
    ADAPTERS = "adapters"
    OPTIMIZER_STATE = "optimizer state"
    GRADIENTS = "gradients"
    CACHE = "cache"
    RECOMPUTED = "recomputed layer"
    OTHER = "other"


@dataclass(frozen=True, order=True)
class Section:
    """A section of the step: a phase, within one decoder layer or outside of all (`layer` is None).

    `part` distinguishes sections outside of the layers, such as those before the first and after the last layer.
    """

    phase: StepPhase
    layer: int | None = None
    part: str = ""


@dataclass(frozen=True)
class Allocation:
    """Bytes allocated within `section`, as its `ordinal`-th allocation. `bytes` are as requested, not rounded."""

    section: Section
    ordinal: int
    bytes: int
    kind: TensorKind = TensorKind.OTHER

    @property
    def name(self) -> "AllocationName":
        """The name by which a deallocation refers to it."""
        return self.section, self.ordinal


@dataclass(frozen=True)
class Deallocation:
    """The bytes of the allocation `name` freed within `section`."""

    section: Section
    name: "AllocationName"


AllocationName = tuple[Section, int]
MemoryEvent = Allocation | Deallocation
EventStream = list[MemoryEvent]


def round_to_block(size_bytes: int) -> int:
    """Return the bytes that the allocator counts for a request of `size_bytes`."""
    return -(-size_bytes // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES


@dataclass(frozen=True)
class PeakMoment:
    """The tensors in memory at one moment: its section, the total bytes, and the bytes by what they hold."""

    section: Section
    bytes: int
    parts: dict[str, int]


def peak_by_phase(resident: Sequence[MemoryEvent], step: Sequence[MemoryEvent]) -> dict[StepPhase, PeakMoment]:
    """Find the peak of each phase of `step`. What `resident` left allocated stays in memory all the time."""
    live = _find_live(resident)
    now_bytes = sum(round_to_block(each.bytes) for each in live.values())
    peaks: dict[StepPhase, tuple[int, int]] = {}
    for index, event in enumerate(step):
        if isinstance(event, Allocation):
            live[event.name] = event
            now_bytes += round_to_block(event.bytes)
            if now_bytes > peaks.get(event.section.phase, (0, 0))[0]:
                peaks[event.section.phase] = now_bytes, index
        else:
            now_bytes -= round_to_block(live.pop(event.name).bytes)
    freed_in = {event.name: event.section for event in step if isinstance(event, Deallocation)}
    moments = {}
    for phase, (_, index) in peaks.items():
        parts: dict[str, int] = {}
        for each in _find_live([*resident, *step[: index + 1]]).values():
            part = _classify(each, freed_in.get(each.name))
            parts[part] = parts.get(part, 0) + round_to_block(each.bytes)
        moments[phase] = PeakMoment(step[index].section, sum(parts.values()), parts)
    return moments


def _find_live(events: Sequence[MemoryEvent]) -> dict[AllocationName, Allocation]:
    live: dict[AllocationName, Allocation] = {}
    for event in events:
        if isinstance(event, Allocation):
            live[event.name] = event
        else:
            del live[event.name]
    return live


def _classify(allocation: Allocation, freed_in: Section | None) -> str:
    """Return what an allocation holds, by its kind, its phase and whether it outlives its section."""
    if allocation.kind is not TensorKind.OTHER:
        return allocation.kind.value
    phase = allocation.section.phase
    if phase is StepPhase.LOSS:
        return "logits and loss"
    if phase is StepPhase.FORWARD and freed_in != allocation.section:
        return "activations"
    return "temporaries"


TRACED_LAYERS = 5
MIDDLE_LAYER = 2
"""The layer that is repeated; its neighbors are like it, so that what it frees of theirs exists in each copy."""


def is_periodic(stream: EventStream) -> bool:
    """Return whether the middle layers of a five-layer stream do the same, so that one may stand for all."""
    if any(_frees_distant_layer(event) for event in stream):
        return False
    for phase in StepPhase:
        first, middle, last = (_describe_layer(stream, phase, layer) for layer in (1, MIDDLE_LAYER, 3))
        if not first == middle == last:
            return False
    return True


def _frees_distant_layer(event: MemoryEvent) -> bool:
    """Return whether a layer frees memory of another but a neighbor; the first and last may do so outside of layers."""
    layer = event.section.layer
    if isinstance(event, Allocation) or layer is None:
        return False
    made_in = event.name[0].layer
    return layer in {1, MIDDLE_LAYER, 3} if made_in is None else abs(made_in - layer) > 1


def _describe_layer(stream: EventStream, phase: StepPhase, layer: int) -> list[tuple[object, ...]]:
    """Describe the events within one layer, without the layer's number."""
    described: list[tuple[object, ...]] = []
    for event in stream:
        if event.section.phase is not phase or event.section.layer != layer:
            continue
        if isinstance(event, Allocation):
            described.append((event.section.part, event.bytes, event.kind))
        else:
            made, ordinal = event.name
            offset = None if made.layer is None else made.layer - layer
            described.append((event.section.part, made.phase, made.part, offset, ordinal))
    return described


def unroll_layers(stream: EventStream, depth: int) -> EventStream:
    """Unroll the stream of five layers to that of `depth` layers.

    Raises ValueError for fewer than five, which are better traced whole.
    """
    if depth < TRACED_LAYERS:
        raise ValueError(f"{depth} layers are fewer than the {TRACED_LAYERS} that were traced")
    added = depth - TRACED_LAYERS
    unrolled: EventStream = []
    # Runs of one section each; those of the middle layer are repeated as a whole.
    for section, run in groupby(stream, key=lambda event: event.section):
        events = list(run)
        if section.layer is None:
            unrolled += [copy for event in events for copy in _unroll_outside(event, added)]
        else:
            unrolled += [_shift_event(event, shift) for shift in _list_shifts(section, added) for event in events]
    return unrolled


def _list_shifts(section: Section, added: int) -> Sequence[int]:
    """List how many layers each copy of a section is shifted by. Backward passes go from the last layer to the first."""
    if section.layer is None or section.layer < MIDDLE_LAYER:
        return (0,)
    if section.layer > MIDDLE_LAYER:
        return (added,)
    return range(added, -1, -1) if section.phase is StepPhase.BACKWARD else range(added + 1)


def _unroll_outside(event: MemoryEvent, added: int) -> Iterator[MemoryEvent]:
    """Unroll an event outside of the layers: freeing memory of the middle layer means freeing that of every copy."""
    if isinstance(event, Allocation):
        yield event
        return
    made, ordinal = event.name
    for shift in _list_shifts(made, added):
        yield Deallocation(event.section, (_shift_section(made, shift), ordinal))


def _shift_event(event: MemoryEvent, shift: int) -> MemoryEvent:
    section = _shift_section(event.section, shift)
    if isinstance(event, Allocation):
        return Allocation(section, event.ordinal, event.bytes, event.kind)
    made, ordinal = event.name
    # Memory of a neighbor is shifted with the layer; the last layers are shifted to the end.
    return Deallocation(section, (_shift_section(made, shift), ordinal))


def _shift_section(section: Section, shift: int) -> Section:
    return Section(section.phase, None if section.layer is None else section.layer + shift, section.part)
