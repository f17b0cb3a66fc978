"""The result of a comparison: groups of the same hardware, their outliers, and the fields in which they differ."""

from collections.abc import Hashable
from dataclasses import dataclass

from devkit.doctor.comparison.documents import HardwareClass, ReportKind
from devkit.doctor.comparison.rules import Grade


@dataclass(frozen=True)
class Difference:
    """A field in which a node differs from the usual value of its group.

    `checks` are the codes of the checks, or names of the stages, that read the field; `settles` those whose finding
    disappears when the field gets the usual value. `agreeing` of `of` nodes have the usual value.
    """

    field: str
    value: Hashable
    usual: Hashable
    agreeing: int
    of: int
    grade: Grade
    checks: tuple[str, ...] = ()
    settles: tuple[str, ...] = ()


@dataclass(frozen=True)
class OutlierFinding:
    """A finding of the doctor on a node that a usual one of its group does not have."""

    code: str
    message: str


@dataclass(frozen=True)
class Outlier:
    """Nodes that differ from their group in the same way, by name."""

    nodes: tuple[str, ...]
    differences: tuple[Difference, ...]
    findings: tuple[OutlierFinding, ...] = ()

    @property
    def grade(self) -> Grade:
        """The highest grade of its differences."""
        found = max((each.grade for each in self.differences), default=Grade.NONE)
        return Grade.DECIDES if self.findings else found

    @property
    def weight(self) -> tuple[int, int, float]:
        """The sort key of outliers: the grade, the findings and differences of it, and how few nodes there are."""
        highest = sum(each.grade is self.grade for each in self.differences)
        return self.grade, len(self.findings) + highest, 1 / len(self.nodes)


@dataclass(frozen=True)
class NoMajority:
    """A field without a usual value: values with their number of nodes and some of the nodes, most frequent first."""

    field: str
    values: tuple[tuple[Hashable, int, tuple[str, ...]], ...]
    grade: Grade
    checks: tuple[str, ...] = ()
    settles: tuple[str, ...] = ()


@dataclass(frozen=True)
class ComparisonGroup:
    """Nodes of the same hardware, and of one kind of document."""

    kind: ReportKind
    hardware: HardwareClass
    nodes: tuple[str, ...]
    outliers: tuple[Outlier, ...]
    no_majority: tuple[NoMajority, ...]
    not_judged: int = 0
    """Outliers on which the checks were not run, because there are too many."""

    @property
    def grade(self) -> Grade:
        """The highest grade in the group."""
        grades = [*(each.grade for each in self.outliers), *(each.grade for each in self.no_majority)]
        return max([*grades, Grade.READ if self.not_judged else Grade.NONE])


@dataclass(frozen=True)
class UnreadableReport:
    """A file or line that holds no report, and why."""

    name: str
    problem: str


@dataclass(frozen=True)
class Comparison:
    """The whole result."""

    groups: tuple[ComparisonGroup, ...]
    unreadable: tuple[UnreadableReport, ...] = ()

    @property
    def has_differences(self) -> bool:
        """True for a relevant difference, and for a node that could not be examined."""
        return bool(self.unreadable) or any(group.grade > Grade.NONE for group in self.groups)

    @property
    def node_count(self) -> int:
        """The number of documents that were compared."""
        return sum(len(group.nodes) for group in self.groups)
