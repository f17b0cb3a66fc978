"""What deviates in a group: from the value that most nodes have, or from the middle of the readings."""

from array import array
from collections.abc import Hashable, Iterable, Iterator

from devkit.doctor.comparing.leaves import Mark
from devkit.doctor.comparing.rules import EQUAL, How, Rule
from devkit.doctor.comparing.spread import Usual, usual
from devkit.doctor.comparing.tally import Field, Tally
from devkit.facts.record import record

CLIP = 3.0
"""How many tolerances the scatter of a group may add up to: beyond, the readings have no middle to be near to."""


@record
class Deviation:
    """A field in which a node differs from what is usual. `agreeing` of the group's nodes have the usual value."""

    path: str
    value: Hashable
    usual: Hashable
    agreeing: int
    rule: Rule


@record
class Split:
    """A field without a value that most nodes have: the values with their nodes, the most frequent first."""

    path: str
    values: tuple[tuple[Hashable, tuple[int, ...]], ...]
    rule: Rule


@record
class Deviations:
    """Everything that is not the same in a group: by node, and what no majority is found for."""

    by_node: dict[int, tuple[Deviation, ...]]
    splits: tuple[Split, ...]


def deviations_of(tally: Tally) -> Deviations:
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


def _of_field(path: str, field: Field, tally: Tally) -> Iterator[Split | tuple[int, Deviation]]:
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


def _shown(field: Field, value: Hashable, nodes: "array[int]") -> tuple[Hashable, tuple[int, ...]]:
    """A value with its nodes; several numbers stay one entry, a single one is shown."""
    return (field.number_of(nodes[0]) if value is float and len(nodes) == 1 else value), tuple(nodes)


def _heaviest(counted: "Iterable[tuple[Hashable, Rule, array[int]]]") -> Rule:
    return max((rule for _, rule, _ in counted), key=lambda rule: (rule.grade, -rule.how))


def _middle(field: Field) -> Usual:
    rule = field.number_rule or EQUAL
    around = usual(field.numbers, rule)
    if rule.how is not How.MEASURED:
        return around
    allowed = CLIP * max(rule.tolerance * abs(around.middle), rule.span)
    return Usual(around.middle, min(around.reach, allowed))


def _outliers(path: str, field: Field, tally: Tally) -> Iterator[Split | tuple[int, Deviation]]:
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
