"""What changed between two readings of one machine."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from devkit.doctor.comparison.leaves import Mark
from devkit.doctor.comparison.model import Difference
from devkit.doctor.comparison.outliers import ComparisonBuilder
from devkit.doctor.comparison.report import compare_lists, format_value, merge_same_text, to_json_value
from devkit.facts.values import record
from devkit.text import to_one_line

_NAMES = ("before", "now")


@record
class Changes:
    """The fields in which a machine differs from its earlier facts, those that cause a finding first."""

    since: str
    """When the earlier facts were taken."""
    differences: tuple[Difference, ...]
    """`value` is that of now, `usual` the earlier one."""

    def to_document(self) -> dict[str, Any]:
        """Return the part of a JSON document about the changes."""
        return {
            "since": self.since,
            "fields": [
                {
                    "field": each.field,
                    "before": to_json_value(each.usual),
                    "now": to_json_value(each.value),
                    "checks": list(each.checks),
                    "causes": list(each.settles),
                }
                for each in self.differences
            ],
        }

    def describe(self) -> Iterator[str]:
        """Describe each change in a line."""
        for each in merge_same_text(self.differences):
            causes = f" (causes {', '.join(each.settles)})" if each.settles else ""
            yield to_one_line(f"{each.field}: {_describe(each)}{causes}")


def find_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> Changes:
    """Compare two documents of saved facts as `devkit compare` does. Raises InvalidReport for other documents."""
    builder = ComparisonBuilder()
    documents = [dict(before), dict(now)]
    for name, document in zip(_NAMES, documents, strict=True):
        builder.add(name, document)
    groups = builder.finish(lambda numbers: ((number, documents[number]) for number in numbers))
    found = [
        each if "now" in outlier.nodes else replace(each, value=each.usual, usual=each.value)
        for group in groups
        for outlier in group.outliers
        for each in outlier.differences
    ]
    return Changes(str(before.get("taken_at", "")), tuple(sorted(found, key=lambda each: -each.grade)))


def _describe(each: Difference) -> str:
    if each.value is Mark.ABSENT:
        return "gone"
    if each.usual is Mark.ABSENT:
        return "new"
    if lists := compare_lists(each):
        return lists.replace("lacks", "lost").replace("also has", "gained")
    before, now = (
        format_value(*pair) for pair in ((each.usual, each.field, each.value), (each.value, each.field, each.usual))
    )
    return f"{before} before, now {now}"
