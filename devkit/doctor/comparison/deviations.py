"""What deviates in a group: from the value that most nodes have, or from the middle of the readings."""

from array import array
from collections.abc import Hashable, Iterable, Iterator, Sequence
from statistics import median

from devkit.doctor.comparison.leaves import Leaf, Mark
from devkit.doctor.comparison.rules import EQUAL, ComparisonKind, FieldRule
from devkit.facts.values import record

# What is usual among measured numbers, and what lies far from it.

MOST_DEVIATIONS = 3.5
NORMAL = 0.6745
"""Modified z-score: 0.6745 * |x - median| / MAD, an outlier above 3.5.

Source: B. Iglewicz and D. Hoaglin, "How to Detect and Handle Outliers", 1993, as in the NIST/SEMATECH e-Handbook of
Statistical Methods, 1.3.5.17, https://www.itl.nist.gov/div898/handbook/eda/section3/eda35h.htm
"""


@record
class UsualRange:
    """The middle of a group's readings, and how far from it a reading still is no difference."""

    middle: float
    reach: float

    def has(self, value: float) -> bool:
        """Whether a reading is as usual."""
        return abs(value - self.middle) <= self.reach


def find_usual_range(values: Sequence[float], rule: FieldRule) -> UsualRange:
    """What is usual among readings: within the rule's tolerance, and within the scatter of the group itself.

    The median and the median deviation from it do not move for a few odd readings, as mean and standard deviation do.
    """
    middle = float(median(values))
    scatter = float(median(abs(value - middle) for value in values))
    allowed = max(rule.tolerance * abs(middle), rule.span)
    if len(values) > 2:
        allowed = max(allowed, MOST_DEVIATIONS * scatter / NORMAL)
        return UsualRange(middle, allowed)
    # Of two readings the middle lies between them: a difference is their whole distance.
    largest = max(abs(value) for value in values)
    return UsualRange(middle, max(rule.tolerance * largest, rule.span) / 2)


# Counts of values by field: all that is kept of a thousand reports, four bytes for each reading.

MAX_NUMBER = 1e300
"""Beyond this no median can be taken."""


class FieldTally:
    """One field over many nodes: which value stands on which nodes, and the numbers of measured ones."""

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

    def number_of(self, node: int) -> float:
        """The number that stands here on a node that has one."""
        return self.numbers[self.number_nodes.index(node)]


class Tally:
    """Every field of a group of nodes. Nodes are numbers in the order of reading."""

    def __init__(self) -> None:
        self.nodes: array[int] = array("I")
        self.fields: dict[str, FieldTally] = {}
        self._sizes: set[int] = set()

    def has_news(self, leaves: list[Leaf]) -> bool:
        """Whether these leaves hold what no node had so far: another path, another value, or fewer of them.

        What is live or left out is no news where it is a number or text, as it was before.
        """
        if len(leaves) not in self._sizes:
            return True
        for path, rule, value in leaves:
            field = self.fields.get(path)
            if field is None:
                if rule.how is not ComparisonKind.LEFT_OUT:
                    return True
            elif rule.how is ComparisonKind.EQUAL:
                if value not in field.values:
                    return True
            elif is_measured(rule, value) and not field.number_nodes:
                return True
        return False

    def add(self, node: int, leaves: Iterable[Leaf]) -> None:
        """Count the leaves of one node; those left out are only known to be there."""
        self.nodes.append(node)
        size = 0
        for path, rule, value in leaves:
            size += 1
            if rule.how is ComparisonKind.LEFT_OUT:
                continue
            field = self.fields.get(path)
            if field is None:
                field = self.fields[path] = FieldTally()
            if is_measured(rule, value):
                field.numbers.append(value)  # type: ignore[arg-type]  # a number, as was just asked
                field.number_nodes.append(node)
                field.number_rule = rule
                continue
            kept = field.values.get(value)
            if kept is None:
                kept = field.values[value] = (rule, array("I"))
            kept[1].append(node)
        self._sizes.add(size)

    def label(self, path: str, rule: FieldRule, value: str) -> None:
        """Give all nodes so far the same value of one more field."""
        self.fields[path] = field = FieldTally()
        field.values[value] = (rule, array("I", self.nodes))

    def absorb(self, other: "Tally") -> None:
        """Take over another group's nodes."""
        self.nodes.extend(other.nodes)
        for path, field in other.fields.items():
            self.fields.setdefault(path, FieldTally()).absorb(field)

    def counted(self, field: FieldTally) -> Iterator[tuple[Hashable, FieldRule, "array[int]"]]:
        """Each value of a field with its rule and nodes; numbers are one value, and so are the nodes without any."""
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
            if rule.is_optional:
                return
            yield Mark.ABSENT, rule, array("I", (node for node in self.nodes if node not in having))


def is_measured(rule: FieldRule, value: object) -> bool:
    """Whether a leaf is a number that is compared by how far it is from what is usual."""
    if rule.how is ComparisonKind.EQUAL or not (rule.tolerance or rule.span):
        return False
    # Not a number, infinity and what no decimal number holds are values as any other.
    return isinstance(value, int | float) and not isinstance(value, bool) and -MAX_NUMBER < value < MAX_NUMBER


MAX_SCATTER_TOLERANCES = 3.0
"""How many tolerances the scatter of a group may add up to: beyond, the readings have no middle to be near to."""


@record
class Deviation:
    """A field in which a node differs from what is usual. `agreeing` of the group's nodes have the usual value."""

    path: str
    value: Hashable
    usual: Hashable
    agreeing: int
    rule: FieldRule


@record
class Split:
    """A field without a value that most nodes have: the values with their nodes, the most frequent first."""

    path: str
    values: tuple[tuple[Hashable, tuple[int, ...]], ...]
    rule: FieldRule


@record
class Deviations:
    """Everything that is not the same in a group: by node, and what no majority is found for."""

    by_node: dict[int, tuple[Deviation, ...]]
    splits: tuple[Split, ...]


def find_deviations(tally: Tally) -> Deviations:
    """What deviates in a group of nodes. In a pair nothing is usual: every difference is a split."""
    by_node: dict[int, list[Deviation]] = {}
    splits = []
    for path, field in tally.fields.items():
        if field.number_rule is None and len(field.values) == 1:
            (_, nodes), *_ = field.values.values()
            if len(nodes) == len(tally.nodes):
                continue  # the same everywhere, as most are
        for found in _of_field(path, field, tally):
            if isinstance(found, Split):
                splits.append(found)
            else:
                node, deviation = found
                by_node.setdefault(node, []).append(deviation)
    kept = {node: _without_consequences(found) for node, found in by_node.items()}
    return Deviations(kept, _without_consequences(splits))


def _of_field(path: str, field: FieldTally, tally: Tally) -> Iterator[Split | tuple[int, Deviation]]:
    counted = sorted(tally.counted(field), key=lambda each: -len(each[2]))
    top, top_rule, top_nodes = counted[0]
    if len(counted) > 1 and len(top_nodes) * 2 <= sum(len(nodes) for _, _, nodes in counted):
        yield Split(path, tuple(_shown(field, value, nodes) for value, _, nodes in counted), _heaviest(counted))
        return
    is_number = top is float
    middle = _middle(field).middle if is_number else None
    for value, rule, nodes in counted[1:]:
        weight = max(rule, top_rule, key=lambda each: each.grade)
        for node in nodes:
            own = field.number_of(node) if value is float else value
            yield node, Deviation(path, own, middle if is_number else top, len(top_nodes), weight)
    if is_number:
        yield from _outliers(path, field, tally)


def _shown(field: FieldTally, value: Hashable, nodes: "array[int]") -> tuple[Hashable, tuple[int, ...]]:
    """A value with its nodes; several numbers stay one entry, a single one is shown."""
    return (field.number_of(nodes[0]) if value is float and len(nodes) == 1 else value), tuple(nodes)


def _heaviest(counted: "Iterable[tuple[Hashable, FieldRule, array[int]]]") -> FieldRule:
    return max((rule for _, rule, _ in counted), key=lambda rule: (rule.grade, -rule.how))


def _middle(field: FieldTally) -> UsualRange:
    rule = field.number_rule or EQUAL
    around = find_usual_range(field.numbers, rule)
    if rule.how is not ComparisonKind.MEASURED:
        return around
    allowed = MAX_SCATTER_TOLERANCES * max(rule.tolerance * abs(around.middle), rule.span)
    return UsualRange(around.middle, min(around.reach, allowed))


def _outliers(path: str, field: FieldTally, tally: Tally) -> Iterator[Split | tuple[int, Deviation]]:
    rule, around = field.number_rule or EQUAL, _middle(field)
    far = [place for place, number in enumerate(field.numbers) if not around.has(number)]
    if not far:
        return
    if len(far) * 2 >= len(tally.nodes):
        by_number = sorted(zip(field.numbers, field.number_nodes, strict=True))
        yield Split(path, tuple((number, (node,)) for number, node in by_number), rule)
        return
    for place in far:
        node, number = field.number_nodes[place], field.numbers[place]
        yield node, Deviation(path, number, around.middle, len(field.numbers) - len(far), rule)


def _without_consequences(found: Iterable[Deviation | Split]) -> tuple:  # type: ignore[type-arg]  # of what came in
    """Without fields that are there or not only because the record around them is another one."""
    kept: list[Deviation | Split] = []
    paths: set[str] = set()
    for each in sorted(found, key=lambda one: len(one.path)):
        if not (_comes_or_goes(each) and any(outer in paths for outer in _around(each.path))):
            kept.append(each)
            paths.add(each.path)
    return tuple(kept)


def _comes_or_goes(found: Deviation | Split) -> bool:
    if isinstance(found, Deviation):
        return Mark.ABSENT in (found.value, found.usual)
    return any(value is Mark.ABSENT for value, _ in found.values)


def _around(path: str) -> Iterator[str]:
    """Every path that this one may stand in; keys with dots bring some that nothing has."""
    return (path[:place] for place, char in enumerate(path) if char in ".[")
