"""From the counts of one group to its odd nodes: what deviates, judged where checks can be asked."""

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from devkit.doctor.comparison.deviations import Deviation, Deviations, Split, Tally, find_deviations
from devkit.doctor.comparison.documents import (
    HardwareClass,
    InvalidReport,
    ReportKind,
    assign_groups,
    find_hardware_class,
    parse_report_kind,
    validate_form,
)
from devkit.doctor.comparison.impact import ImpactAnalysis, NodeAssessment, Relevance, find_root_findings
from devkit.doctor.comparison.leaves import FactsFlattener, Leaf, Mark, flatten_report
from devkit.doctor.comparison.model import ComparisonGroup, Difference, NoMajority, Outlier
from devkit.doctor.comparison.rules import TRANSIENT, ComparisonKind, FieldRule, Grade
from devkit.facts.model import Facts
from devkit.facts.store import InvalidFacts, parse_facts_document
from devkit.facts.values import record

# The same difference on several GPUs of a node as one: nvml.gpus[0-7].health.persistence.

_PLACE = re.compile(r"\[(\d+)\]")


def merge_gpu_differences(differences: Iterable[Difference]) -> list[Difference]:
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


# Ways of being odd: nodes that differ from their group in the same fields with the same values.

Reading = tuple[str, Hashable]
"""A path and the value there."""

_OF_GPUS = re.compile(
    r"(nvml\.gpus|driver\.pci_gpus|cdi)\[[^\]]*\](?!\Z)|driver\.device_nodes|.*\.gpu_\d+_.*|engine\.cdi_.*"
)
"""Fields that say no more than another number or model of GPUs does."""


@record
class DeviationPattern:
    """One way of being odd: the differences, and the nodes that have them."""

    deviations: tuple[Deviation, ...]
    nodes: tuple[int, ...]

    @property
    def is_firm(self) -> bool:
        """Whether anything but readings of the moment differs."""
        return any(each.rule.how is not ComparisonKind.LIVE for each in self.deviations)

    @property
    def readings(self) -> frozenset[Reading]:
        """What is read there."""
        return frozenset((each.path, each.value) for each in self.deviations)

    def telling(self, judged: NodeAssessment) -> set[Reading]:
        """The readings on which a finding hangs."""
        pairs = zip(self.deviations, judged.weighed, strict=True)
        return {(each.path, each.value) for each, weighed in pairs if weighed is not None and weighed.settles}


def find_patterns(found: Deviations) -> list[DeviationPattern]:
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
    ways = [
        DeviationPattern(_without_repetition(found.by_node[nodes[0]]), tuple(sorted(nodes))) for nodes in firm.values()
    ]
    return ways + [DeviationPattern(_live(found.by_node[nodes[0]]), tuple(sorted(nodes))) for nodes in live.values()]


def _signature(deviations: Iterable[Deviation], *, is_live: bool) -> frozenset[Reading]:
    return frozenset(
        (each.path, each.value) for each in deviations if (each.rule.how is ComparisonKind.LIVE) is is_live
    )


def _live(deviations: Iterable[Deviation]) -> tuple[Deviation, ...]:
    return tuple(each for each in deviations if each.rule.how is ComparisonKind.LIVE)


def drop_own_transients(way: DeviationPattern, judged: NodeAssessment) -> NodeAssessment:
    """What was found on the one node that was judged, without what hangs on its own readings of the moment."""
    if len(way.nodes) == 1 or not way.is_firm:
        return judged
    pairs = list(zip(way.deviations, judged.weighed, strict=True))
    of_moment = _settled(each for each in pairs if each[0].rule.how is ComparisonKind.LIVE)
    of_moment -= _settled(each for each in pairs if each[0].rule.how is not ComparisonKind.LIVE)
    weighed = tuple(None if each.rule.how is ComparisonKind.LIVE else own for each, own in pairs)
    return NodeAssessment(tuple(finding for finding in judged.findings if finding.code not in of_moment), weighed)


def _settled(pairs: Iterable[tuple[Deviation, Relevance | None]]) -> set[str]:
    return {code for _, weighed in pairs if weighed is not None for code in weighed.settles}


def _without_repetition(deviations: tuple[Deviation, ...]) -> tuple[Deviation, ...]:
    """Where the GPUs themselves are others, without the fields that only repeat it."""
    if not any(each.path == "gpus" for each in deviations):
        return deviations
    return tuple(each for each in deviations if not _OF_GPUS.match(each.path))


def find_covering_patterns(ways: Iterable[DeviationPattern]) -> list[DeviationPattern]:
    """Some of the ways, in which every reading of any of them occurs."""
    seen: set[Reading] = set()
    kept = []
    for way in ways:
        if not way.readings <= seen:
            kept.append(way)
            seen |= way.readings
    return kept


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


def build_group(
    tally: Tally, *, kind: ReportKind, make: HardwareClass, names: Sequence[str], reread: Reread, keeps_all: bool
) -> ComparisonGroup:
    """One group with its odd nodes, the oddest first."""
    found = find_deviations(tally)
    if kind is not ReportKind.FACTS:
        found = _paired(found, tally, usual=tally.nodes[0])
        odd = [_odd(way, _by_rule(way.deviations), tally, names) for way in find_patterns(found)]
        divisions = tuple(
            _division(split, Relevance(split.rule.grade, split.rule.subjects, ()), names) for split in found.splits
        )
        return _group(kind, make, tally, names, odd, divisions)
    judging = _Judging(tally, found, reread, names, keeps_all=keeps_all)
    odd = [_odd(way, judged, tally, names) for way, judged in judging.ways()]
    divisions = tuple(_division(split, weighed, names) for split, weighed in judging.splits() if weighed is not None)
    return _group(kind, make, tally, names, odd, divisions, not_judged=judging.not_judged)


def _group(
    kind: ReportKind,
    make: HardwareClass,
    tally: Tally,
    names: Sequence[str],
    odd: Iterable[Outlier],
    divisions: tuple[NoMajority, ...],
    *,
    not_judged: int = 0,
) -> ComparisonGroup:
    told = sorted(
        (each for each in odd if each.differences or each.findings), key=lambda each: each.weight, reverse=True
    )
    heavy = tuple(sorted(divisions, key=lambda each: (-each.grade, each.field)))
    return ComparisonGroup(kind, make, tuple(names[node] for node in tally.nodes), tuple(told), heavy, not_judged)


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
        undecided = {split.path for split in self._found.splits if split.rule.how is not ComparisonKind.LIVE}
        self._weighing_of_group = ImpactAnalysis(document, facts, undecided=undecided, keeps_all=keeps_all)

    def _read(self, nodes: Sequence[int]) -> Iterator[tuple[int, dict[str, Any], Facts]]:
        """Documents of some nodes, with their facts. Raises WrongReport where they hold none after all."""
        for node, document in self._reread(nodes):
            try:
                facts = parse_facts_document(document)
            except InvalidFacts as error:
                raise InvalidReport(f"{self._names[node]}: {error}") from error
            yield node, document, facts

    def _healthiest(self, nodes: Sequence[int]) -> int:
        """Of nodes that are as usual as another, the first with the fewest findings."""
        if len(nodes) == 1:
            return nodes[0]
        found = {node: len(find_root_findings(facts)) for node, _, facts in self._read(nodes)}
        return min(nodes, key=lambda node: (found[node], nodes.index(node)))

    def ways(self) -> Iterator[tuple[DeviationPattern, NodeAssessment]]:
        """Every way of being odd with what the checks say of it; those with few nodes first, where there are many.

        A reading of the moment is judged on one node that has it, and where a finding hangs on it, on all of those.
        """
        ways = sorted(find_patterns(self._found), key=lambda way: len(way.nodes))
        firm = [way for way in ways if way.is_firm]
        self.not_judged += sum(len(way.nodes) for way in firm[MOST_JUDGED:])
        telling: set[Reading] = set()
        for way, judged in self._judged(firm[:MOST_JUDGED]):
            telling |= way.telling(judged)
            yield way, drop_own_transients(way, judged)
        live = [way for way in ways if not way.is_firm]
        first = find_covering_patterns(live)
        for way, judged in self._judged(first[:MOST_GLANCES]):
            telling |= way.telling(judged)
            yield way, judged
        asked = {way.nodes[0] for way in first}
        alike = [way for way in live if way.nodes[0] not in asked and way.readings & telling]
        self.not_judged += sum(len(way.nodes) for way in (*first[MOST_GLANCES:], *alike[MOST_GLANCES:]))
        yield from self._judged(alike[:MOST_GLANCES])

    def _judged(self, ways: Iterable[DeviationPattern]) -> Iterator[tuple[DeviationPattern, NodeAssessment]]:
        by_carrier = {way.nodes[0]: way for way in ways}
        for node, document, facts in self._read(sorted(by_carrier)):
            way = by_carrier[node]
            yield way, self._weighing_of_group.assess(document, facts, way.deviations)

    def splits(self) -> Iterator[tuple[Split, Relevance | None]]:
        """Every field without a usual value, with what it matters to."""
        splits = self._found.splits
        asked: dict[int, list[int]] = {}
        for place, split in enumerate(splits):
            for _, nodes in split.values[:SHOWN_NODES]:
                asked.setdefault(nodes[0], []).append(place)
        weighed: dict[int, Relevance | None] = {}
        for node, document, facts in self._read(sorted(asked)[:MOST_JUDGED]):
            held = [Deviation(splits[place].path, None, None, 0, splits[place].rule) for place in asked[node]]
            judged = self._weighing_of_group.assess(document, facts, held)
            for place, each in zip(asked[node], judged.weighed, strict=True):
                weighed[place] = _heavier(weighed.get(place), each)
        for place, split in enumerate(splits):
            yield split, weighed.get(place)


def _heavier(one: Relevance | None, other: Relevance | None) -> Relevance | None:
    if one is None or other is None:
        return one or other
    settles = tuple(dict.fromkeys((*one.settles, *other.settles)))
    return Relevance(max(one.grade, other.grade), tuple(dict.fromkeys((*one.checks, *other.checks))), settles)


def _by_rule(deviations: Iterable[Deviation]) -> NodeAssessment:
    """Reports say themselves what they are of: each field's rule has its weight."""
    return NodeAssessment((), tuple(Relevance(each.rule.grade, each.rule.subjects, ()) for each in deviations))


def _usual_nodes(tally: Tally, found: Deviations) -> list[int]:
    """Nodes that are as usual as any: the one with the fewest differences, and one for each value that halves have.

    In a small group it may be any node.
    """
    frequent: Counter[int] = Counter()
    for split in found.splits:
        frequent.update(split.values[0][1])
    ordered = sorted(tally.nodes, key=lambda node: (len(found.by_node.get(node, ())), -frequent[node], node))
    place = {node: number for number, node in enumerate(ordered)}
    firm = [split for split in found.splits if split.rule.how is not ComparisonKind.LIVE]
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
        if split.rule.how is not ComparisonKind.LIVE:
            kept.append(split)
        elif len(top_nodes) * SPLIT_SHARE >= len(tally.nodes):
            for value, nodes in split.values:
                if value == top or Mark.ABSENT in (value, top):
                    continue  # what is absent, is with the record around it, which is told
                held = Deviation(split.path, value, top, len(top_nodes), split.rule)
                by_node.update({node: (*by_node.get(node, ()), held) for node in nodes})
    return Deviations(by_node, tuple(kept))


def _odd(way: DeviationPattern, judged: NodeAssessment, tally: Tally, names: Sequence[str]) -> Outlier:
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
        merge_gpu_differences(differences),
        key=lambda each: (-each.grade, each.field != "gpus", -len(each.settles), each.field),
    )
    return Outlier(tuple(names[node] for node in way.nodes), tuple(ordered), judged.findings)


def _division(split: Split, weighed: Relevance, names: Sequence[str]) -> NoMajority:
    values = tuple(
        (value, len(nodes), tuple(names[node] for node in nodes[:SHOWN_NODES])) for value, nodes in split.values
    )
    return NoMajority(split.path, values, weighed.grade, weighed.checks, weighed.settles)


# Takes in documents one by one, keeping counts of them alone, and groups their nodes by kind and make.

RereadDocuments = Callable[[Sequence[int]], Iterator[tuple[int, dict[str, Any]]]]
"""Reads documents again, by their numbers in the order in which they were added; yields them in any order."""

DECIDING_RULE = FieldRule(ComparisonKind.EQUAL, grade=Grade.DECIDES)


class ComparisonBuilder:
    """A comparison in the making. `keeps_all` also compares times, serial numbers and readings of the moment."""

    def __init__(self, *, keeps_all: bool = False) -> None:
        self._keeps_all = keeps_all
        self._names: list[str] = []
        self._tallies: dict[tuple[ReportKind, HardwareClass], Tally] = {}
        self._facts = FactsFlattener()

    def add(self, name: str, document: object, *, is_changed: bool = False) -> None:
        """Count one document. `is_changed`: its own hash says that it was changed later. Raises WrongReport."""
        kind = parse_report_kind(document)
        if not isinstance(document, dict):
            raise InvalidReport("not a JSON object")
        validate_form(document, kind)
        try:
            leaves = self._leaves(document, kind)
        except RecursionError as error:
            raise InvalidReport("it is nested too deep") from error
        if kind is ReportKind.VERIFY:
            leaves.append(("report_sha256", DECIDING_RULE, "not its own" if is_changed else "its own"))
        tally = self._tallies.setdefault((kind, find_hardware_class(document, kind)), Tally())
        if kind is ReportKind.FACTS and tally.has_news(leaves):
            # Only a document with something new in it can be wrong: what was there before, was right.
            _check_facts(document)
        tally.add(len(self._names), leaves)
        self._names.append(name)

    def _leaves(self, document: dict[str, Any], kind: ReportKind) -> list[Leaf]:
        found = self._facts.flatten(document) if kind is ReportKind.FACTS else list(flatten_report(document, kind))
        if not self._keeps_all:
            return found
        return [
            (path, TRANSIENT if rule.how is ComparisonKind.LEFT_OUT else rule, value) for path, rule, value in found
        ]

    @property
    def kinds(self) -> dict[ReportKind, int]:
        """How many documents there are of each kind, in the order in which kinds came."""
        counts: dict[ReportKind, int] = {}
        for (kind, _), tally in self._tallies.items():
            counts[kind] = counts.get(kind, 0) + len(tally.nodes)
        return counts

    def finish(self, reread: RereadDocuments) -> tuple[ComparisonGroup, ...]:
        """The groups, the largest first within a kind. `reread` is asked for the few documents that stand out.

        Raises WrongReport for a document that only now shows to be wrong: in what is not compared.
        """
        return tuple(
            build_group(tally, kind=kind, make=make, names=self._names, reread=reread, keeps_all=self._keeps_all)
            for kind in self.kinds
            for make, tally in self._groups(kind)
        )

    def _groups(self, kind: ReportKind) -> list[tuple[HardwareClass, Tally]]:
        """Tallies of a kind by make, with those of few nodes taken into the nearest."""
        own = {make: tally for (each, make), tally in self._tallies.items() if each is kind}
        homes = assign_groups({make: len(tally.nodes) for make, tally in own.items()})
        for home in set(homes.values()):
            guests = [make for make, into in homes.items() if into == home and make != home]
            if guests:
                _label(own[home], home)
            for make in guests:
                _label(own[make], make)
                own[home].absorb(own[make])
        kept = [(make, own[make]) for make in own if homes[make] == make]
        return sorted(kept, key=lambda pair: -len(pair[1].nodes))


def _label(tally: Tally, make: HardwareClass) -> None:
    """Make the GPUs a field of their own, so that nodes of another make than the group's differ in it."""
    tally.label("gpus", DECIDING_RULE, make.label)


def _check_facts(document: object) -> None:
    try:
        parse_facts_document(document)
    except (InvalidFacts, RecursionError) as error:
        raise InvalidReport(str(error) or "it is nested too deep") from error
