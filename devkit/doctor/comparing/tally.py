"""Counts of values by field: all that is kept of a thousand reports, four bytes for each reading."""

from array import array
from collections.abc import Hashable, Iterable, Iterator

from devkit.doctor.comparing.leaves import Leaf, Mark
from devkit.doctor.comparing.rules import How, Rule

MOST = 1e300
"""Beyond this no median can be taken."""


class Field:
    """One field over many nodes: which value stands on which nodes, and the numbers of measured ones."""

    __slots__ = ("number_nodes", "number_rule", "numbers", "values")

    def __init__(self) -> None:
        self.values: dict[Hashable, tuple[Rule, array[int]]] = {}
        self.numbers: array[float] = array("d")
        self.number_nodes: array[int] = array("I")
        self.number_rule: Rule | None = None

    def absorb(self, other: "Field") -> None:
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
        self.fields: dict[str, Field] = {}
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
                if rule.how is not How.LEFT_OUT:
                    return True
            elif rule.how is How.EQUAL:
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
            if rule.how is How.LEFT_OUT:
                continue
            field = self.fields.get(path)
            if field is None:
                field = self.fields[path] = Field()
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

    def label(self, path: str, rule: Rule, value: str) -> None:
        """Give all nodes so far the same value of one more field."""
        self.fields[path] = field = Field()
        field.values[value] = (rule, array("I", self.nodes))

    def absorb(self, other: "Tally") -> None:
        """Take over another group's nodes."""
        self.nodes.extend(other.nodes)
        for path, field in other.fields.items():
            self.fields.setdefault(path, Field()).absorb(field)

    def counted(self, field: Field) -> Iterator[tuple[Hashable, Rule, "array[int]"]]:
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


def is_measured(rule: Rule, value: object) -> bool:
    """Whether a leaf is a number that is compared by how far it is from what is usual."""
    if rule.how is How.EQUAL or not (rule.tolerance or rule.span):
        return False
    # Not a number, infinity and what no decimal number holds are values as any other.
    return isinstance(value, int | float) and not isinstance(value, bool) and -MOST < value < MOST
