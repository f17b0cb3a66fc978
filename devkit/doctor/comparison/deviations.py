"""Deviations in a group: from the value that most nodes have, or from the usual range of a measured number."""

from array import array
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from devkit.doctor.comparison.leaves import Leaf, Mark, Section
from devkit.doctor.comparison.rules import EQUAL, ComparisonKind, FieldRule

_IGNORED, _EQUAL = ComparisonKind.IGNORED, ComparisonKind.EQUAL

MAX_NUMBER = 1e300
"""Beyond this no median can be computed."""
MAX_SCATTER = 3.0
"""Tolerances that the scatter of a group may add up to: beyond, deviations are always flagged."""
MAX_Z_SCORE = 3.5
MAD_FACTOR = 0.6745
"""Modified z-score: 0.6745 * |x - median| / MAD, an outlier above 3.5.

Source: B. Iglewicz and D. Hoaglin, "How to Detect and Handle Outliers", 1993, as in the NIST/SEMATECH e-Handbook of
Statistical Methods, 1.3.5.17, https://www.itl.nist.gov/div898/handbook/eda/section3/eda35h.htm
"""


class FieldTally:
    """One field over many nodes: the nodes of each value, and the numbers of measured ones."""

    __slots__ = ("number_nodes", "number_rule", "numbers", "values")

    def __init__(self) -> None:
        self.values: dict[Hashable, tuple[FieldRule, array[int]]] = {}
        self.numbers: array[float] = array("d")
        self.number_nodes: array[int] = array("I")
        self.number_rule: FieldRule | None = None

    def absorb(self, other: "FieldTally") -> None:
        """Take over the readings of other nodes."""
        for value, (rule, nodes) in other.values.items():
            self.values.setdefault(value, (rule, array("I")))[1].extend(nodes)
        self.numbers.extend(other.numbers)
        self.number_nodes.extend(other.number_nodes)
        self.number_rule = self.number_rule or other.number_rule

    def get_number(self, node: int) -> float:
        """Return the number of a node that has one."""
        return self.numbers[self.number_nodes.index(node)]


class Tally:
    """Counts of values by field: all that is kept of a thousand reports, four bytes for each reading.

    Nodes are numbers in the order of reading.
    """

    def __init__(self) -> None:
        self.nodes: array[int] = array("I")
        self.fields: dict[str, FieldTally] = {}
        self._sizes: set[int] = set()
        self._shared: dict[int, tuple[list[Leaf], array[int]]] = {}

    def has_news(self, sections: Sequence[Section]) -> bool:
        """Return True for leaves that no node had so far: another path, another value, or fewer of them.

        A transient or ignored field is no news where it is a number or text, as it was before.
        """
        if sum(len(each.leaves) for each in sections) not in self._sizes:
            return True
        return any(id(each.leaves) not in self._shared and self._has_new_leaf(each.leaves) for each in sections)

    def _has_new_leaf(self, leaves: list[Leaf]) -> bool:
        fields = self.fields
        for path, rule, value in leaves:
            kind = rule.kind
            if kind is _IGNORED:
                continue
            field = fields.get(path)
            if field is None:
                return True
            if kind is _EQUAL:
                if value not in field.values:
                    return True
            elif not field.number_nodes and _is_measured(rule, value):
                return True
        return False

    def add(self, node: int, sections: Sequence[Section]) -> None:
        """Count the leaves of one node, without the ignored ones. Of a repeated section only the node is kept for now."""
        self.nodes.append(node)
        for each in sections:
            if each.is_repeated:
                self._shared.setdefault(id(each.leaves), (each.leaves, array("I")))[1].append(node)
            else:
                self._count(node, each.leaves)
        self._sizes.add(sum(len(each.leaves) for each in sections))

    def count_repeated(self) -> None:
        """Count the repeated sections, once for all their nodes."""
        touched: set[str] = set()
        for leaves, nodes in self._shared.values():
            for node in nodes[:1]:
                self._count(node, leaves)
            for path, rule, value in leaves:
                if rule.kind is ComparisonKind.IGNORED:
                    continue
                touched.add(path)
                field, rest = self.fields[path], nodes[1:]
                if _is_measured(rule, value):
                    field.numbers.extend([value] * len(rest))  # type: ignore[list-item]  # a number, as was just checked
                    field.number_nodes.extend(rest)
                else:
                    field.values[value][1].extend(rest)
        self._shared.clear()
        for path in touched:
            values = self.fields[path].values
            for value, (rule, nodes) in values.items():
                values[value] = rule, array("I", sorted(nodes))

    def _count(self, node: int, leaves: Iterable[Leaf]) -> None:
        fields = self.fields
        for path, rule, value in leaves:
            kind = rule.kind
            if kind is _IGNORED:
                continue
            field = fields.get(path)
            if field is None:
                field = fields[path] = FieldTally()
            if kind is not _EQUAL and _is_measured(rule, value):
                field.numbers.append(value)  # type: ignore[arg-type]  # a number, as was just checked
                field.number_nodes.append(node)
                field.number_rule = rule
                continue
            counted = field.values.get(value)
            if counted is None:
                counted = field.values[value] = (rule, array("I"))
            counted[1].append(node)

    def set_field(self, path: str, rule: FieldRule, value: str) -> None:
        """Give all nodes so far the same value of one more field."""
        self.fields[path] = field = FieldTally()
        field.values[value] = (rule, array("I", self.nodes))

    def absorb(self, other: "Tally") -> None:
        """Take over another group's nodes."""
        self.nodes.extend(other.nodes)
        for path, field in other.fields.items():
            self.fields.setdefault(path, FieldTally()).absorb(field)

    def count_values(self, field: FieldTally) -> Iterator[tuple[Hashable, FieldRule, "array[int]"]]:
        """Yield each value of a field with its rule and nodes.

        Numbers are one value, `float`, and so are the nodes without any, `Mark.ABSENT`.
        """
        present = 0
        for value, (rule, nodes) in field.values.items():
            present += len(nodes)
            yield value, rule, nodes
        if field.number_rule is not None:
            present += len(field.number_nodes)
            yield float, field.number_rule, field.number_nodes
        if present < len(self.nodes):
            having = {node for _, nodes in field.values.values() for node in nodes} | set(field.number_nodes)
            rule = field.number_rule or next(iter(field.values.values()))[0]
            if not rule.is_optional:
                yield Mark.ABSENT, rule, array("I", (node for node in self.nodes if node not in having))


def _is_measured(rule: FieldRule, value: object) -> bool:
    """Return True for a number that is compared by its distance from the usual range."""
    if rule.kind is ComparisonKind.EQUAL or not (rule.relative_tolerance or rule.absolute_tolerance):
        return False
    # NaN, infinity and what no decimal number holds are values as any other.
    return isinstance(value, int | float) and not isinstance(value, bool) and -MAX_NUMBER < value < MAX_NUMBER


@dataclass(frozen=True)
class UsualRange:
    """The median of a group's readings, and the distance from it that is no difference yet."""

    median: float
    tolerance: float

    def contains(self, value: float) -> bool:
        """Return True for a usual reading."""
        return abs(value - self.median) <= self.tolerance


def find_usual_range(values: Sequence[float], rule: FieldRule) -> UsualRange:
    """Return the usual range of readings: the rule's tolerance, or the scatter of the group where that is larger.

    A few outliers do not move the median and the median absolute deviation, as they do the mean and the standard
    deviation.
    """
    middle = float(median(values))
    tolerance = max(rule.relative_tolerance * abs(middle), rule.absolute_tolerance)
    if len(values) > 2:
        scatter = float(median(abs(value - middle) for value in values))
        return UsualRange(middle, max(tolerance, MAX_Z_SCORE * scatter / MAD_FACTOR))
    # The median of two readings is between them: a difference is their whole distance.
    largest = max(abs(value) for value in values)
    return UsualRange(middle, max(rule.relative_tolerance * largest, rule.absolute_tolerance) / 2)


@dataclass(frozen=True)
class Deviation:
    """A field in which a node differs from the usual value, which `agreeing` of the group's nodes have."""

    path: str
    value: Hashable
    usual: Hashable
    agreeing: int
    rule: FieldRule


@dataclass(frozen=True)
class Split:
    """A field without a value that most nodes have: the values with their nodes, the most frequent first."""

    path: str
    values: tuple[tuple[Hashable, tuple[int, ...]], ...]
    rule: FieldRule


@dataclass(frozen=True)
class Deviations:
    """Everything that is not the same in a group: by node, and the fields without a majority."""

    by_node: dict[int, tuple[Deviation, ...]]
    splits: tuple[Split, ...]


def find_deviations(tally: Tally) -> Deviations:
    """Find the deviations in a group of nodes. Of two nodes neither is usual: every difference is a split."""
    by_node: dict[int, list[Deviation]] = {}
    splits = []
    for path, field in tally.fields.items():
        if field.number_rule is None and len(field.values) == 1:
            (_, nodes), *_ = field.values.values()
            if len(nodes) == len(tally.nodes):
                continue  # the same everywhere, as most are
        for found in _compare_field(path, field, tally):
            if isinstance(found, Split):
                splits.append(found)
            else:
                node, deviation = found
                by_node.setdefault(node, []).append(deviation)
    return Deviations({node: _drop_nested(found) for node, found in by_node.items()}, _drop_nested(splits))


def _compare_field(path: str, field: FieldTally, tally: Tally) -> Iterator[Split | tuple[int, Deviation]]:
    counted = sorted(tally.count_values(field), key=lambda each: -len(each[2]))
    top, top_rule, top_nodes = counted[0]
    if len(counted) > 1 and len(top_nodes) * 2 <= sum(len(nodes) for _, _, nodes in counted):
        # Several numbers are one entry; a single one is shown.
        values = tuple(
            (field.get_number(nodes[0]) if value is float and len(nodes) == 1 else value, tuple(nodes))
            for value, _, nodes in counted
        )
        rules = (rule for _, rule, _ in counted)
        yield Split(path, values, max(rules, key=lambda rule: (rule.grade, -rule.kind)))
        return
    usual, number_rule = None, field.number_rule or EQUAL
    if top is float:
        usual = find_usual_range(field.numbers, number_rule)
        if number_rule.kind is ComparisonKind.MEASURED:
            # A wide scatter does not excuse any distance.
            tolerance = max(number_rule.relative_tolerance * abs(usual.median), number_rule.absolute_tolerance)
            usual = UsualRange(usual.median, min(usual.tolerance, MAX_SCATTER * tolerance))
    for value, rule, nodes in counted[1:]:
        higher = max(rule, top_rule, key=lambda each: each.grade)
        for node in nodes:
            own = field.get_number(node) if value is float else value
            yield node, Deviation(path, own, usual.median if usual else top, len(top_nodes), higher)
    if usual is None:
        return
    far = [place for place, number in enumerate(field.numbers) if not usual.contains(number)]
    if far and len(far) * 2 >= len(tally.nodes):
        by_number = sorted(zip(field.numbers, field.number_nodes, strict=True))
        yield Split(path, tuple((number, (node,)) for number, node in by_number), number_rule)
        return
    for place in far:
        agreeing = len(field.numbers) - len(far)
        yield field.number_nodes[place], Deviation(path, field.numbers[place], usual.median, agreeing, number_rule)


def _drop_nested(found: Iterable[Deviation | Split]) -> tuple:  # type: ignore[type-arg]  # of what came in
    """Drop fields that are present or absent only because the record around them differs."""
    kept: list[Deviation | Split] = []
    paths: set[str] = set()
    for each in sorted(found, key=lambda one: len(one.path)):
        # Keys with dots bring some outer paths that nothing has.
        outer = (each.path[:place] for place, char in enumerate(each.path) if char in ".[")
        values = (each.value, each.usual) if isinstance(each, Deviation) else [value for value, _ in each.values]
        if not (Mark.ABSENT in values and any(path in paths for path in outer)):
            kept.append(each)
            paths.add(each.path)
    return tuple(kept)
