"""Outliers: documents are counted one by one, and nodes that deviate from their group are assessed by the checks."""

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
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
from devkit.doctor.comparison.leaves import FactsFlattener, Mark, Section, flatten_report
from devkit.doctor.comparison.model import ComparisonGroup, Difference, NoMajority, Outlier
from devkit.doctor.comparison.rules import TRANSIENT, ComparisonKind, FieldRule, Grade
from devkit.facts.model import Facts
from devkit.facts.store import InvalidFacts, parse_facts_document

Reread = Callable[[Sequence[int]], Iterator[tuple[int, dict[str, Any]]]]
"""Reads documents again, by their numbers in the order in which they were added; yields them in any order."""
Reading = tuple[str, Hashable]
"""A path and the value there."""

MAX_ASSESSED = 100
"""Patterns in one group that the checks are run on: each costs some hundredths of a second."""
MAX_TRANSIENT_ASSESSED = 300
"""Patterns of transient deviations alone, which cost a tenth of that where nothing is found."""
SPLIT_SHARE = 10
"""A transient value of at least one in ten nodes is usual enough to compare the others with it."""
MIN_ROLLOUT = 3
"""Nodes that make a difference common: of fewer, each is reported by itself."""
MAX_NODES = 5
MAX_VALUES = 3
MAX_CANDIDATES = 12

DECIDING_RULE = FieldRule(ComparisonKind.EQUAL, grade=Grade.DECIDES)


class ComparisonBuilder:
    """Builds a comparison from documents, of which only counts are kept.

    Args:
        keeps_all: Whether times, serial numbers and transient metrics are compared, too.
    """

    def __init__(self, *, keeps_all: bool = False) -> None:
        self._keeps_all = keeps_all
        self._names: list[str] = []
        self._tallies: dict[tuple[ReportKind, HardwareClass], Tally] = {}
        self._facts = FactsFlattener()

    @property
    def kinds(self) -> dict[ReportKind, int]:
        """The number of documents of each kind, in the order in which the kinds came."""
        counts: dict[ReportKind, int] = {}
        for (kind, _), tally in self._tallies.items():
            counts[kind] = counts.get(kind, 0) + len(tally.nodes)
        return counts

    def add(self, name: str, document: object, *, is_changed: bool = False) -> None:
        """Count one document.

        Args:
            name: The name of its node.
            document: The document.
            is_changed: Whether its own hash says that it was changed later.

        Raises:
            InvalidReport: It cannot be compared.
        """
        kind = parse_report_kind(document)
        if not isinstance(document, dict):
            raise InvalidReport("not a JSON object")
        validate_form(document, kind)
        try:
            if kind is ReportKind.FACTS and not self._keeps_all:
                sections = self._facts.flatten_sections(document)
            else:
                is_facts = kind is ReportKind.FACTS
                sections = [
                    Section(
                        self._facts.flatten(document) if is_facts else list(flatten_report(document, kind)),
                        is_repeated=False,
                    )
                ]
        except RecursionError as error:
            raise InvalidReport("it is nested too deep") from error
        if self._keeps_all:
            for section in sections:
                section.leaves[:] = [
                    (path, TRANSIENT if rule.kind is ComparisonKind.IGNORED else rule, value)
                    for path, rule, value in section.leaves
                ]
        if kind is ReportKind.VERIFY:
            sections[0].leaves.append(("report_sha256", DECIDING_RULE, "not its own" if is_changed else "its own"))
        tally = self._tallies.setdefault((kind, find_hardware_class(document, kind)), Tally())
        if kind is ReportKind.FACTS and tally.has_news(sections):
            # Only a document with something new in it can be invalid: what was there before, was valid.
            try:
                parse_facts_document(document)
            except (InvalidFacts, RecursionError) as error:
                raise InvalidReport(str(error) or "it is nested too deep") from error
        tally.add(len(self._names), sections)
        self._names.append(name)

    def finish(self, reread: Reread) -> tuple[ComparisonGroup, ...]:
        """Return the groups, the largest first within a kind.

        Args:
            reread: Reads the few documents again that deviate.

        Raises:
            InvalidReport: A document turns out to be invalid only now, in what is not compared.
        """
        return tuple(
            _GroupBuilder(kind, hardware, tally, self._names, reread, keeps_all=self._keeps_all).build()
            for kind in self.kinds
            for hardware, tally in self._merge_tallies(kind)
        )

    def _merge_tallies(self, kind: ReportKind) -> list[tuple[HardwareClass, Tally]]:
        """Return the tallies of a kind by hardware, with those of few nodes merged into the nearest."""
        own = {hardware: tally for (each, hardware), tally in self._tallies.items() if each is kind}
        for tally in own.values():
            tally.count_repeated()
        groups = assign_groups({hardware: len(tally.nodes) for hardware, tally in own.items()})
        for group in set(groups.values()):
            merged = [hardware for hardware, into in groups.items() if into == group and hardware != group]
            for hardware in (group, *merged) if merged else ():
                # As a field of their own: nodes of other hardware than the group's differ in it.
                own[hardware].set_field("gpus", DECIDING_RULE, hardware.label)
            for hardware in merged:
                own[group].absorb(own[hardware])
        kept = [(hardware, own[hardware]) for hardware in own if groups[hardware] == hardware]
        return sorted(kept, key=lambda pair: -len(pair[1].nodes))


_GPU_FIELDS = re.compile(
    r"(nvml\.gpus|driver\.pci_gpus|cdi)\[[^\]]*\](?!\Z)|driver\.device_nodes|.*\.gpu_\d+_.*|engine\.cdi_.*"
)
"""Fields that say no more than another number or model of GPUs does."""


@dataclass(frozen=True)
class DeviationPattern:
    """Nodes that deviate from their group in the same fields with the same values."""

    deviations: tuple[Deviation, ...]
    nodes: tuple[int, ...]

    @property
    def is_steady(self) -> bool:
        """True if more than transient metrics deviate."""
        return any(not each.rule.is_transient for each in self.deviations)

    @property
    def readings(self) -> frozenset[Reading]:
        """The paths with the values there."""
        return frozenset((each.path, each.value) for each in self.deviations)

    def find_causes(self, assessment: NodeAssessment) -> set[Reading]:
        """Return the readings that cause a finding."""
        pairs = zip(self.deviations, assessment.relevance, strict=True)
        return {(each.path, each.value) for each, relevance in pairs if relevance is not None and relevance.settles}


def find_patterns(found: Deviations) -> list[DeviationPattern]:
    """Group the nodes that deviate by their pattern; transient metrics do not make it another pattern.

    Nodes that share a pattern with others have one of their own for their transient deviations.
    """

    def find_signature(node: int, *, is_transient: bool) -> frozenset[Reading]:
        of_kind = (each for each in found.by_node[node] if each.rule.is_transient is is_transient)
        return frozenset((each.path, each.value) for each in of_kind)

    rollouts = find_rollouts(found)
    apart = {(node, each.path) for deviations, nodes in rollouts for node in nodes for each in deviations}
    steady: dict[frozenset[Reading], list[int]] = {}
    for node in found.by_node:
        signature = find_signature(node, is_transient=False)
        own = frozenset(reading for reading in signature if (node, reading[0]) not in apart)
        if own or not signature:
            steady.setdefault(own, []).append(node)
    only_transient = steady.pop(frozenset(), [])
    sharing = (node for nodes in steady.values() if len(nodes) > 1 for node in nodes)
    transient: dict[frozenset[Reading], list[int]] = {}
    for node in (*only_transient, *sharing):
        transient.setdefault(find_signature(node, is_transient=True), []).append(node)
    transient.pop(frozenset(), None)
    patterns = [DeviationPattern(deviations, nodes) for deviations, nodes in rollouts]
    for nodes in steady.values():
        deviations = tuple(each for each in found.by_node[nodes[0]] if (nodes[0], each.path) not in apart)
        if any(each.path == "gpus" for each in deviations):
            # Where the GPUs themselves differ, fields that only repeat it are dropped.
            deviations = tuple(each for each in deviations if not _GPU_FIELDS.match(each.path))
        patterns.append(DeviationPattern(deviations, tuple(sorted(nodes))))
    for nodes in transient.values():
        deviations = tuple(each for each in found.by_node[nodes[0]] if each.rule.is_transient)
        patterns.append(DeviationPattern(deviations, tuple(sorted(nodes))))
    return patterns


def find_rollouts(found: Deviations) -> list[tuple[tuple[Deviation, ...], tuple[int, ...]]]:
    """Find what several nodes have in common beside differences of their own, such as another driver.

    Said once for all of them, and not again for each. The nodes with the fewest differences come first: the checks are
    run on such a one.
    """
    holders: dict[Reading, list[int]] = {}
    of_reading: dict[Reading, Deviation] = {}
    for node, deviations in found.by_node.items():
        for each in deviations:
            if not each.rule.is_transient and each.path != "gpus":
                holders.setdefault((each.path, each.value), []).append(node)
                of_reading[each.path, each.value] = each
    shared: dict[tuple[int, ...], list[Deviation]] = {}
    for reading, nodes in holders.items():
        if len(nodes) >= MIN_ROLLOUT:
            shared.setdefault(tuple(nodes), []).append(of_reading[reading])
    counts = {node: sum(not each.rule.is_transient for each in own) for node, own in found.by_node.items()}
    return [
        (tuple(deviations), tuple(sorted(nodes, key=lambda node: (counts[node], node))))
        for nodes, deviations in shared.items()
        if any(counts[node] > len(deviations) for node in nodes)
        and not any(each.path == "gpus" for node in nodes for each in found.by_node[node])
    ]


def drop_own_transients(pattern: DeviationPattern, assessment: NodeAssessment) -> NodeAssessment:
    """Drop from the assessment of one node what only its own transient metrics cause, where others share its pattern."""
    if len(pattern.nodes) == 1 or not pattern.is_steady:
        return assessment
    pairs = list(zip(pattern.deviations, assessment.relevance, strict=True))
    caused: dict[bool, set[str]] = {True: set(), False: set()}
    for each, relevance in pairs:
        caused[each.rule.is_transient].update(relevance.settles if relevance else ())
    dropped = caused[True] - caused[False]
    findings = tuple(finding for finding in assessment.findings if finding.code not in dropped)
    return NodeAssessment(findings, tuple(None if each.rule.is_transient else own for each, own in pairs))


def select_own_part(
    pattern: DeviationPattern, deviations: Sequence[Deviation], whole: NodeAssessment
) -> NodeAssessment:
    """Select from the assessment of a node what a pattern has part in: another one may have the rest."""
    if len(pattern.deviations) == len(deviations):
        return whole
    relevance = dict(zip((each.path for each in deviations), whole.relevance, strict=True))
    own = tuple(relevance[each.path] for each in pattern.deviations)
    caused = {code for each in own if each is not None for code in each.settles}
    others = {code for each in whole.relevance if each is not None for code in each.settles} - caused
    return NodeAssessment(tuple(each for each in whole.findings if each.code not in others), own)


def find_covering_patterns(patterns: Iterable[DeviationPattern]) -> list[DeviationPattern]:
    """Choose some of the patterns, in which every reading of any of them occurs."""
    seen: set[Reading] = set()
    chosen = []
    for pattern in patterns:
        if not pattern.readings <= seen:
            chosen.append(pattern)
            seen |= pattern.readings
    return chosen


class _GroupBuilder:
    """Builds the result of one group from its counts."""

    def __init__(
        self,
        kind: ReportKind,
        hardware: HardwareClass,
        tally: Tally,
        names: Sequence[str],
        reread: Reread,
        *,
        keeps_all: bool,
    ) -> None:
        self._kind = kind
        self._hardware = hardware
        self._tally = tally
        self._names = names
        self._reread = reread
        self._keeps_all = keeps_all
        self._not_judged = 0

    def build(self) -> ComparisonGroup:
        """Return the group with its outliers, the worst first."""
        found = find_deviations(self._tally)
        if self._kind is ReportKind.FACTS:
            usual = self._choose_usual_node(found)
            ((_, document, facts),) = self._read([usual])
            found = self._compare_pair(found, usual=usual)
            if not self._keeps_all:
                found = self._compare_transient_splits(found, usual)
            undecided = {split.path for split in found.splits if not split.rule.is_transient}
            analysis = ImpactAnalysis(document, facts, undecided=undecided, keeps_all=self._keeps_all)
            outliers = [self._build_outlier(*assessed) for assessed in self._assess_patterns(found, analysis)]
            pairs = zip(found.splits, self._assess_splits(found.splits, analysis), strict=True)
            no_majority = [self._build_no_majority(split, own) for split, own in pairs if own is not None]
        else:
            # In reports each field's rule says how relevant it is.
            found = self._compare_pair(found, usual=self._tally.nodes[0])
            outliers = []
            for pattern in find_patterns(found):
                rules = (each.rule for each in pattern.deviations)
                relevance = tuple(Relevance(rule.grade, rule.subjects, ()) for rule in rules)
                outliers.append(self._build_outlier(pattern, NodeAssessment((), relevance)))
            no_majority = [
                self._build_no_majority(split, Relevance(split.rule.grade, split.rule.subjects, ()))
                for split in found.splits
            ]
        shown = [each for each in outliers if each.differences or each.findings]
        return ComparisonGroup(
            self._kind,
            self._hardware,
            tuple(self._names[node] for node in self._tally.nodes),
            tuple(sorted(shown, key=lambda each: each.weight, reverse=True)),
            tuple(sorted(no_majority, key=lambda each: (-each.grade, each.field))),
            self._not_judged,
        )

    def _read(self, nodes: Sequence[int]) -> Iterator[tuple[int, dict[str, Any], Facts]]:
        """Read documents of some nodes again, with their facts."""
        for node, document in self._reread(nodes):
            try:
                facts = parse_facts_document(document)
            except InvalidFacts as error:
                raise InvalidReport(f"{self._names[node]}: {error}") from error
            yield node, document, facts

    def _choose_usual_node(self, found: Deviations) -> int:
        """Choose a node to compare the others with: of the most usual ones the first with the fewest findings.

        Candidates are the node with the fewest differences, and one for each value that many nodes have; in a small
        group any node.
        """
        frequent: Counter[int] = Counter()
        for split in found.splits:
            frequent.update(split.values[0][1])
        ordered = sorted(self._tally.nodes, key=lambda node: (len(found.by_node.get(node, ())), -frequent[node], node))
        place = {node: number for number, node in enumerate(ordered)}
        steady = [split for split in found.splits if not split.rule.is_transient]
        best = [min(nodes, key=lambda node: place[node]) for split in steady for _, nodes in split.values[:MAX_VALUES]]
        others = ordered if len(ordered) <= MAX_CANDIDATES and found.splits else best
        candidates = list(dict.fromkeys([ordered[0], *others]))[:MAX_CANDIDATES]
        if len(candidates) == 1:
            return candidates[0]
        counts = {node: len(find_root_findings(facts)) for node, _, facts in self._read(candidates)}
        return min(candidates, key=lambda node: (counts[node], candidates.index(node)))

    def _compare_pair(self, found: Deviations, *, usual: int) -> Deviations:
        """Compare the other of two nodes with the `usual` one: of a pair no value has a majority."""
        if len(self._tally.nodes) != 2:
            return found
        other = next(node for node in self._tally.nodes if node != usual)
        deviations = []
        for split in found.splits:
            value_of = {node: value for value, nodes in split.values for node in nodes}
            deviations.append(Deviation(split.path, value_of[other], value_of[usual], 1, split.rule))
        return Deviations({other: tuple(deviations)} if deviations else {}, ())

    def _compare_transient_splits(self, found: Deviations, usual: int) -> Deviations:
        """Compare transient metrics without a majority with the usual node's, where its value is frequent at all."""
        by_node = dict(found.by_node)
        kept = []
        for split in found.splits:
            top, top_nodes = next((each for each in split.values if usual in each[1]), split.values[0])
            if not split.rule.is_transient:
                kept.append(split)
            elif len(top_nodes) * SPLIT_SHARE >= len(self._tally.nodes):
                for value, nodes in split.values:
                    if value == top or Mark.ABSENT in (value, top):
                        continue  # an absent field goes with the record around it, which is reported
                    deviation = Deviation(split.path, value, top, len(top_nodes), split.rule)
                    by_node.update({node: (*by_node.get(node, ()), deviation) for node in nodes})
        return Deviations(by_node, tuple(kept))

    def _assess_patterns(
        self, found: Deviations, analysis: ImpactAnalysis
    ) -> Iterator[tuple[DeviationPattern, NodeAssessment]]:
        """Yield every pattern with its assessment; those with few nodes first, where there are many.

        A transient metric is assessed on one node that has it, and where it causes a finding, on all of those.
        """

        def assess(patterns: Iterable[DeviationPattern]) -> Iterator[tuple[DeviationPattern, NodeAssessment]]:
            by_node = {pattern.nodes[0]: pattern for pattern in patterns}
            for node, document, facts in self._read(sorted(by_node)):
                pattern = by_node[node]
                whole = analysis.assess(document, facts, found.by_node[node])
                yield pattern, select_own_part(pattern, found.by_node[node], whole)

        patterns = sorted(find_patterns(found), key=lambda pattern: len(pattern.nodes))
        steady = [pattern for pattern in patterns if pattern.is_steady]
        causes: set[Reading] = set()
        for pattern, assessment in assess(steady[:MAX_ASSESSED]):
            causes |= pattern.find_causes(assessment)
            yield pattern, drop_own_transients(pattern, assessment)
        transient = [pattern for pattern in patterns if not pattern.is_steady]
        first = find_covering_patterns(transient)
        for pattern, assessment in assess(first[:MAX_TRANSIENT_ASSESSED]):
            causes |= pattern.find_causes(assessment)
            yield pattern, assessment
        assessed = {pattern.nodes[0] for pattern in first}
        rest = [each for each in transient if each.nodes[0] not in assessed and each.readings & causes]
        left_out = (*steady[MAX_ASSESSED:], *first[MAX_TRANSIENT_ASSESSED:], *rest[MAX_TRANSIENT_ASSESSED:])
        self._not_judged += sum(len(pattern.nodes) for pattern in left_out)
        yield from assess(rest[:MAX_TRANSIENT_ASSESSED])

    def _assess_splits(self, splits: Sequence[Split], analysis: ImpactAnalysis) -> list[Relevance | None]:
        """Return the relevance of each field without a majority, assessed on one node of each value."""
        places: dict[int, list[int]] = {}
        for place, split in enumerate(splits):
            for _, nodes in split.values[:MAX_NODES]:
                places.setdefault(nodes[0], []).append(place)
        found: list[Relevance | None] = [None] * len(splits)
        for node, document, facts in self._read(sorted(places)[:MAX_ASSESSED]):
            deviations = [Deviation(splits[place].path, None, None, 0, splits[place].rule) for place in places[node]]
            assessment = analysis.assess(document, facts, deviations)
            for place, own in zip(places[node], assessment.relevance, strict=True):
                one = found[place]
                if one is None or own is None:
                    found[place] = one or own
                    continue
                checks, settles = dict.fromkeys((*one.checks, *own.checks)), dict.fromkeys((*one.settles, *own.settles))
                found[place] = Relevance(max(one.grade, own.grade), tuple(checks), tuple(settles))
        return found

    def _build_outlier(self, pattern: DeviationPattern, assessment: NodeAssessment) -> Outlier:
        count = len(self._tally.nodes)
        differences = [
            Difference(each.path, each.value, each.usual, each.agreeing, count, own.grade, own.checks, own.settles)
            for each, own in zip(pattern.deviations, assessment.relevance, strict=True)
            if own is not None
        ]
        merged = merge_gpu_differences(differences)
        ordered = sorted(merged, key=lambda each: (-each.grade, each.field != "gpus", -len(each.settles), each.field))
        return Outlier(tuple(self._names[node] for node in pattern.nodes), tuple(ordered), assessment.findings)

    def _build_no_majority(self, split: Split, relevance: Relevance) -> NoMajority:
        values = tuple(
            (value, len(nodes), tuple(self._names[node] for node in nodes[:MAX_NODES])) for value, nodes in split.values
        )
        return NoMajority(split.path, values, relevance.grade, relevance.checks, relevance.settles)


_INDEX = re.compile(r"\[(\d+)\]")


def merge_gpu_differences(differences: Iterable[Difference]) -> list[Difference]:
    """Merge differences that are the same but for the first index: nvml.gpus[0-7].health.persistence."""
    sets: dict[tuple[object, ...], list[Difference]] = {}
    for each in differences:
        shape = _INDEX.sub("[]", each.field, count=1)
        sets.setdefault((shape, each.value, each.usual, each.grade, each.checks, each.settles), []).append(each)
    merged = []
    for first, *others in sets.values():
        if others:
            alike = (first, *others)
            indices = sorted(int(found[1]) for each in alike if (found := _INDEX.search(each.field)))
            field = _INDEX.sub(f"[{_format_ranges(indices)}]", first.field, count=1)
            merged.append(replace(first, field=field, agreeing=min(each.agreeing for each in alike)))
        else:
            merged.append(first)
    return merged


def _format_ranges(numbers: list[int]) -> str:
    """Format sorted numbers as ranges: 0-3,5."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
