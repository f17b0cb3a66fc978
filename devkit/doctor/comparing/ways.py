"""Ways of being odd: nodes that differ from their group in the same fields with the same values."""

import re
from collections.abc import Hashable, Iterable

from devkit.doctor.comparing.deviations import Deviation, Deviations
from devkit.doctor.comparing.rules import How
from devkit.doctor.comparing.weighing import Judged, Weighed
from devkit.facts.record import record

Reading = tuple[str, Hashable]
"""A path and the value there."""

_OF_GPUS = re.compile(
    r"(nvml\.gpus|driver\.pci_gpus|cdi)\[[^\]]*\](?!\Z)|driver\.device_nodes|.*\.gpu_\d+_.*|engine\.cdi_.*"
)
"""Fields that say no more than another number or model of GPUs does."""


@record
class Way:
    """One way of being odd: the differences, and the nodes that have them."""

    deviations: tuple[Deviation, ...]
    nodes: tuple[int, ...]

    @property
    def is_firm(self) -> bool:
        """Whether anything but readings of the moment differs."""
        return any(each.rule.how is not How.LIVE for each in self.deviations)

    @property
    def readings(self) -> frozenset[Reading]:
        """What is read there."""
        return frozenset((each.path, each.value) for each in self.deviations)

    def telling(self, judged: Judged) -> set[Reading]:
        """The readings on which a finding hangs."""
        pairs = zip(self.deviations, judged.weighed, strict=True)
        return {(each.path, each.value) for each, weighed in pairs if weighed is not None and weighed.settles}


def ways_of(found: Deviations) -> list[Way]:
    """The nodes that differ, by the way in which they do; readings of the moment do not make it another way.

    Nodes that are not alone in a way have one of their own for those readings.
    """
    firm: dict[frozenset[Reading], list[int]] = {}
    for node, deviations in found.by_node.items():
        firm.setdefault(_signature(deviations, is_live=False), []).append(node)
    steady = firm.pop(frozenset(), [])
    alone = {nodes[0] for nodes in firm.values() if len(nodes) == 1}
    live: dict[frozenset[Reading], list[int]] = {}
    for node in (*steady, *(node for nodes in firm.values() for node in nodes if node not in alone)):
        live.setdefault(_signature(found.by_node[node], is_live=True), []).append(node)
    live.pop(frozenset(), None)
    ways = [Way(_without_repetition(found.by_node[nodes[0]]), tuple(sorted(nodes))) for nodes in firm.values()]
    return ways + [Way(_live(found.by_node[nodes[0]]), tuple(sorted(nodes))) for nodes in live.values()]


def _signature(deviations: Iterable[Deviation], *, is_live: bool) -> frozenset[Reading]:
    return frozenset((each.path, each.value) for each in deviations if (each.rule.how is How.LIVE) is is_live)


def _live(deviations: Iterable[Deviation]) -> tuple[Deviation, ...]:
    return tuple(each for each in deviations if each.rule.how is How.LIVE)


def of_every_node(way: Way, judged: Judged) -> Judged:
    """What was found on the one node that was judged, without what hangs on its own readings of the moment."""
    if len(way.nodes) == 1 or not way.is_firm:
        return judged
    pairs = list(zip(way.deviations, judged.weighed, strict=True))
    of_moment = _settled(each for each in pairs if each[0].rule.how is How.LIVE)
    of_moment -= _settled(each for each in pairs if each[0].rule.how is not How.LIVE)
    weighed = tuple(None if each.rule.how is How.LIVE else own for each, own in pairs)
    return Judged(tuple(finding for finding in judged.findings if finding.code not in of_moment), weighed)


def _settled(pairs: Iterable[tuple[Deviation, Weighed | None]]) -> set[str]:
    return {code for _, weighed in pairs if weighed is not None for code in weighed.settles}


def _without_repetition(deviations: tuple[Deviation, ...]) -> tuple[Deviation, ...]:
    """Where the GPUs themselves are others, without the fields that only repeat it."""
    if not any(each.path == "gpus" for each in deviations):
        return deviations
    return tuple(each for each in deviations if not _OF_GPUS.match(each.path))


def covering(ways: Iterable[Way]) -> list[Way]:
    """Some of the ways, in which every reading of any of them occurs."""
    seen: set[Reading] = set()
    kept = []
    for way in ways:
        if not way.readings <= seen:
            kept.append(way)
            seen |= way.readings
    return kept
