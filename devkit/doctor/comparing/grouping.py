"""From the counts of one group to its odd nodes: what deviates, judged where checks can be asked."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from devkit.doctor.comparing.classes import Make
from devkit.doctor.comparing.comparison import Difference, Division, Group, Odd
from devkit.doctor.comparing.deviations import Deviation, Deviations, Split, deviations_of
from devkit.doctor.comparing.kinds import Kind, WrongReport
from devkit.doctor.comparing.leaves import Mark
from devkit.doctor.comparing.merging import merged
from devkit.doctor.comparing.rules import How
from devkit.doctor.comparing.tally import Tally
from devkit.doctor.comparing.ways import Reading, Way, covering, of_every_node, ways_of
from devkit.doctor.comparing.weighing import Judged, Weighed, Weighing, found_on
from devkit.facts.model import Facts
from devkit.facts.store import WrongFacts, from_document

Reread = Callable[[Sequence[int]], Iterator[tuple[int, dict[str, Any]]]]

MOST_JUDGED = 100
"""Ways of being odd, in one group, for which the checks are asked: each costs some hundredths of a second."""
MOST_GLANCES = 300
"""Ways of standing out by readings of the moment alone, which cost a tenth of that where nothing is found."""
SPLIT_SHARE = 10
"""A value that one in ten nodes have, and no other more, is what the others are held against for a live reading."""
SHOWN_NODES = 5
SHOWN_VALUES = 3
MOST_CANDIDATES = 12


def grouped(tally: Tally, *, kind: Kind, make: Make, names: Sequence[str], reread: Reread, keeps_all: bool) -> Group:
    """One group with its odd nodes, the oddest first."""
    found = deviations_of(tally)
    if kind is not Kind.FACTS:
        found = _paired(found, tally, usual=tally.nodes[0])
        odd = [_odd(way, _by_rule(way.deviations), tally, names) for way in ways_of(found)]
        divisions = tuple(
            _division(split, Weighed(split.rule.grade, split.rule.subjects, ()), names) for split in found.splits
        )
        return _group(kind, make, tally, names, odd, divisions)
    judging = _Judging(tally, found, reread, names, keeps_all=keeps_all)
    odd = [_odd(way, judged, tally, names) for way, judged in judging.ways()]
    divisions = tuple(_division(split, weighed, names) for split, weighed in judging.splits() if weighed is not None)
    return _group(kind, make, tally, names, odd, divisions, not_judged=judging.not_judged)


def _group(
    kind: Kind,
    make: Make,
    tally: Tally,
    names: Sequence[str],
    odd: Iterable[Odd],
    divisions: tuple[Division, ...],
    *,
    not_judged: int = 0,
) -> Group:
    told = sorted(
        (each for each in odd if each.differences or each.findings), key=lambda each: each.weight, reverse=True
    )
    heavy = tuple(sorted(divisions, key=lambda each: (-each.grade, each.field)))
    return Group(kind, make, tuple(names[node] for node in tally.nodes), tuple(told), heavy, not_judged)


class _Judging:
    """Asks the checks about the ways of being odd in one group of facts."""

    def __init__(
        self, tally: Tally, found: Deviations, reread: Reread, names: Sequence[str], *, keeps_all: bool
    ) -> None:
        self._reread = reread
        self._names = names
        self.not_judged = 0
        usual = self._healthiest(_usual_nodes(tally, found))
        ((_, document, facts),) = self._read([usual])
        paired = _paired(found, tally, usual=usual)
        self._found = paired if keeps_all else _held_against_usual(paired, tally, usual)
        undecided = {split.path for split in self._found.splits if split.rule.how is not How.LIVE}
        self._weighing_of_group = Weighing(document, facts, undecided=undecided, keeps_all=keeps_all)

    def _read(self, nodes: Sequence[int]) -> Iterator[tuple[int, dict[str, Any], Facts]]:
        """Documents of some nodes, with their facts. Raises WrongReport where they hold none after all."""
        for node, document in self._reread(nodes):
            try:
                facts = from_document(document)
            except WrongFacts as error:
                raise WrongReport(f"{self._names[node]}: {error}") from error
            yield node, document, facts

    def _healthiest(self, nodes: Sequence[int]) -> int:
        """Of nodes that are as usual as another, the first with the fewest findings."""
        if len(nodes) == 1:
            return nodes[0]
        found = {node: len(found_on(facts)) for node, _, facts in self._read(nodes)}
        return min(nodes, key=lambda node: (found[node], nodes.index(node)))

    def ways(self) -> Iterator[tuple[Way, Judged]]:
        """Every way of being odd with what the checks say of it; those with few nodes first, where there are many.

        A reading of the moment is judged on one node that has it, and where a finding hangs on it, on all of those.
        """
        ways = sorted(ways_of(self._found), key=lambda way: len(way.nodes))
        firm = [way for way in ways if way.is_firm]
        self.not_judged += sum(len(way.nodes) for way in firm[MOST_JUDGED:])
        telling: set[Reading] = set()
        for way, judged in self._judged(firm[:MOST_JUDGED]):
            telling |= way.telling(judged)
            yield way, of_every_node(way, judged)
        live = [way for way in ways if not way.is_firm]
        first = covering(live)
        for way, judged in self._judged(first[:MOST_GLANCES]):
            telling |= way.telling(judged)
            yield way, judged
        asked = {way.nodes[0] for way in first}
        alike = [way for way in live if way.nodes[0] not in asked and way.readings & telling]
        self.not_judged += sum(len(way.nodes) for way in (*first[MOST_GLANCES:], *alike[MOST_GLANCES:]))
        yield from self._judged(alike[:MOST_GLANCES])

    def _judged(self, ways: Iterable[Way]) -> Iterator[tuple[Way, Judged]]:
        by_carrier = {way.nodes[0]: way for way in ways}
        for node, document, facts in self._read(sorted(by_carrier)):
            way = by_carrier[node]
            yield way, self._weighing_of_group.judged(document, facts, way.deviations)

    def splits(self) -> Iterator[tuple[Split, Weighed | None]]:
        """Every field without a usual value, with what it matters to."""
        splits = self._found.splits
        asked: dict[int, list[int]] = {}
        for place, split in enumerate(splits):
            for _, nodes in split.values[:SHOWN_NODES]:
                asked.setdefault(nodes[0], []).append(place)
        weighed: dict[int, Weighed | None] = {}
        for node, document, facts in self._read(sorted(asked)[:MOST_JUDGED]):
            held = [Deviation(splits[place].path, None, None, 0, splits[place].rule) for place in asked[node]]
            judged = self._weighing_of_group.judged(document, facts, held)
            for place, each in zip(asked[node], judged.weighed, strict=True):
                weighed[place] = _heavier(weighed.get(place), each)
        for place, split in enumerate(splits):
            yield split, weighed.get(place)


def _heavier(one: Weighed | None, other: Weighed | None) -> Weighed | None:
    if one is None or other is None:
        return one or other
    settles = tuple(dict.fromkeys((*one.settles, *other.settles)))
    return Weighed(max(one.grade, other.grade), tuple(dict.fromkeys((*one.checks, *other.checks))), settles)


def _by_rule(deviations: Iterable[Deviation]) -> Judged:
    """Reports say themselves what they are of: each field's rule has its weight."""
    return Judged((), tuple(Weighed(each.rule.grade, each.rule.subjects, ()) for each in deviations))


def _usual_nodes(tally: Tally, found: Deviations) -> list[int]:
    """Nodes that are as usual as any: the one with the fewest differences, and one for each value that halves have.

    In a small group it may be any node.
    """
    frequent: Counter[int] = Counter()
    for split in found.splits:
        frequent.update(split.values[0][1])
    ordered = sorted(tally.nodes, key=lambda node: (len(found.by_node.get(node, ())), -frequent[node], node))
    place = {node: number for number, node in enumerate(ordered)}
    firm = [split for split in found.splits if split.rule.how is not How.LIVE]
    best = [min(nodes, key=lambda node: place[node]) for split in firm for _, nodes in split.values[:SHOWN_VALUES]]
    others = ordered if len(ordered) <= MOST_CANDIDATES and found.splits else best
    return list(dict.fromkeys([ordered[0], *others]))[:MOST_CANDIDATES]


def _paired(found: Deviations, tally: Tally, *, usual: int) -> Deviations:
    """Of a pair no value is usual by number: what the other node has is held against the `usual` one's."""
    if len(tally.nodes) != 2:
        return found
    other = next(node for node in tally.nodes if node != usual)
    held = []
    for split in found.splits:
        value_of = {node: value for value, nodes in split.values for node in nodes}
        held.append(Deviation(split.path, value_of[other], value_of[usual], 1, split.rule))
    return Deviations({other: tuple(held)} if held else {}, ())


def _held_against_usual(found: Deviations, tally: Tally, usual: int) -> Deviations:
    """Live readings without a majority are held against the usual node's, where that is frequent at all."""
    by_node = dict(found.by_node)
    kept = []
    for split in found.splits:
        top, top_nodes = next((each for each in split.values if usual in each[1]), split.values[0])
        if split.rule.how is not How.LIVE:
            kept.append(split)
        elif len(top_nodes) * SPLIT_SHARE >= len(tally.nodes):
            for value, nodes in split.values:
                if value == top or Mark.ABSENT in (value, top):
                    continue  # what is absent, is with the record around it, which is told
                held = Deviation(split.path, value, top, len(top_nodes), split.rule)
                by_node.update({node: (*by_node.get(node, ()), held) for node in nodes})
    return Deviations(by_node, tuple(kept))


def _odd(way: Way, judged: Judged, tally: Tally, names: Sequence[str]) -> Odd:
    differences = [
        Difference(
            each.path,
            each.value,
            each.usual,
            each.agreeing,
            len(tally.nodes),
            weighed.grade,
            weighed.checks,
            weighed.settles,
        )
        for each, weighed in zip(way.deviations, judged.weighed, strict=True)
        if weighed is not None
    ]
    ordered = sorted(
        merged(differences), key=lambda each: (-each.grade, each.field != "gpus", -len(each.settles), each.field)
    )
    return Odd(tuple(names[node] for node in way.nodes), tuple(ordered), judged.findings)


def _division(split: Split, weighed: Weighed, names: Sequence[str]) -> Division:
    values = tuple(
        (value, len(nodes), tuple(names[node] for node in nodes[:SHOWN_NODES])) for value, nodes in split.values
    )
    return Division(split.path, values, weighed.grade, weighed.checks, weighed.settles)
