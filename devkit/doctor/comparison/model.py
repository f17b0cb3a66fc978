"""What a comparison says: groups of one make, the odd nodes of each, and the fields in which they differ."""

from collections.abc import Hashable

from devkit.doctor.comparison.documents import HardwareClass, ReportKind
from devkit.doctor.comparison.rules import Grade
from devkit.facts.values import record


@record
class Difference:
    """A field in which a node differs from what is usual in its group.

    `checks` are the codes of the checks, or names of the stages, that look at the field; `settles` those whose finding
    goes away when the field gets the usual value. `agreeing` of `of` nodes have the usual value.
    """

    field: str
    value: Hashable
    usual: Hashable
    agreeing: int
    of: int
    grade: Grade
    checks: tuple[str, ...] = ()
    settles: tuple[str, ...] = ()


@record
class OutlierFinding:
    """What the doctor finds on a node and not on a usual one of its group."""

    code: str
    message: str


@record
class Outlier:
    """Nodes that differ from their group in the same way, by name."""

    nodes: tuple[str, ...]
    differences: tuple[Difference, ...]
    findings: tuple[OutlierFinding, ...] = ()

    @property
    def grade(self) -> Grade:
        """The heaviest of its differences."""
        found = max((each.grade for each in self.differences), default=Grade.NONE)
        return Grade.DECIDES if self.findings else found

    @property
    def weight(self) -> tuple[int, int, float]:
        """What puts the oddest first: the grade, the findings and differences of it, and how few nodes are so."""
        heavy = sum(each.grade is self.grade for each in self.differences)
        return self.grade, len(self.findings) + heavy, 1 / len(self.nodes)


@record
class NoMajority:
    """A field without a usual value: values with their number of nodes and some of the nodes, most frequent first."""

    field: str
    values: tuple[tuple[Hashable, int, tuple[str, ...]], ...]
    grade: Grade
    checks: tuple[str, ...] = ()
    settles: tuple[str, ...] = ()


@record
class ComparisonGroup:
    """Nodes of one make, and of one kind of document."""

    kind: ReportKind
    make: HardwareClass
    nodes: tuple[str, ...]
    odd: tuple[Outlier, ...]
    divisions: tuple[NoMajority, ...]
    not_judged: int = 0
    """Nodes that differ, of which the checks were not asked, because too many differ."""

    @property
    def grade(self) -> Grade:
        """The heaviest difference in the group."""
        grades = [*(each.grade for each in self.odd), *(each.grade for each in self.divisions)]
        return max([*grades, Grade.READ if self.not_judged else Grade.NONE])


@record
class UnreadableReport:
    """A file or line that holds no report, and why."""

    name: str
    problem: str


@record
class Comparison:
    """The whole answer."""

    groups: tuple[ComparisonGroup, ...]
    unreadable: tuple[UnreadableReport, ...] = ()

    @property
    def differs(self) -> bool:
        """Whether anything differs that matters, or a node could not be looked at."""
        return bool(self.unreadable) or any(group.grade > Grade.NONE for group in self.groups)

    @property
    def node_count(self) -> int:
        """How many documents were compared."""
        return sum(len(group.nodes) for group in self.groups)
