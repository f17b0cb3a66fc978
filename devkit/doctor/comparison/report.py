"""The report of a comparison: the document devkit.compare/1, and the text for people."""

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from devkit.doctor.comparison.leaves import Mark
from devkit.doctor.comparison.model import Comparison, ComparisonGroup, Difference, NoMajority, Outlier
from devkit.doctor.comparison.outliers import ComparisonBuilder
from devkit.doctor.comparison.rules import Grade
from devkit.doctor.report.lines import MAX_WIDTH, MIN_WIDTH, Line, Marks, Tone
from devkit.facts import model
from devkit.text import format_bytes, format_count, join_words, to_one_line, wrap_text

SCHEMA = "devkit.compare/1"

MAX_CODES = 6
MAX_NAMES = 4
MAX_FIELDS = 8
MAX_OUTLIERS = 20
MAX_VALUES = 4
MAX_QUIET = 5
MAX_VALUE_LENGTH = 60

_GRADE_WORDS = {Grade.NONE: "no", Grade.READ: "read", Grade.DECIDES: "decides"}


def build_comparison_document(comparison: Comparison) -> dict[str, Any]:
    """Return the document behind `--json`; its fields are a contract."""
    return {
        "schema": SCHEMA,
        "verdict": "differ" if comparison.has_differences else "alike",
        "nodes": comparison.node_count,
        "groups": [
            {
                "kind": group.kind.value,
                "of": group.hardware.label,
                "nodes": len(group.nodes),
                "odd": [
                    {
                        "nodes": list(outlier.nodes),
                        "matters": _GRADE_WORDS[outlier.grade],
                        "findings": [{"code": each.code, "message": each.message} for each in outlier.findings],
                        "differences": [
                            {
                                "field": each.field,
                                "value": to_json_value(each.value),
                                "usual": to_json_value(each.usual),
                                "agreeing": each.agreeing,
                                "of": each.of,
                                **_build_relevance_document(each),
                            }
                            for each in outlier.differences
                        ],
                    }
                    for outlier in group.outliers
                ],
                "without_majority": [
                    {
                        "field": each.field,
                        "values": [
                            {"value": to_json_value(value), "nodes": count, "such_as": list(names)}
                            for value, count, names in each.values
                        ],
                        **_build_relevance_document(each),
                    }
                    for each in group.no_majority
                ],
                "not_judged": group.not_judged,
            }
            for group in comparison.groups
        ],
        "unreadable": [{"name": each.name, "problem": each.problem} for each in comparison.unreadable],
    }


def _build_relevance_document(each: Difference | NoMajority) -> dict[str, Any]:
    return {"matters": _GRADE_WORDS[each.grade], "checks": list(each.checks), "settles": list(each.settles)}


def to_json_value(value: Hashable) -> Any:  # noqa: ANN401 - a value of JSON
    """Return a counted value as JSON; what was not read and what is absent as words in an object."""
    if isinstance(value, Mark):
        return {"is": value.value}
    if value is float:
        return {"is": "a number"}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no such number
    return [to_json_value(each) for each in value] if isinstance(value, tuple) else value


def format_comparison(comparison: Comparison, *, width: int, marks: Marks, shows_all: bool = False) -> tuple[Line, ...]:
    """Format the comparison in lines of at most `width` columns; names and values without a space are never broken.

    Long lists are shortened, and of differences that no check reads few are shown, unless `shows_all`.
    """
    page = _Page(max(MIN_WIDTH, min(width, MAX_WIDTH)), marks, shows_all=shows_all)
    page.add_headline(comparison)
    for group in comparison.groups:
        page.add_group(group)
    for each in comparison.unreadable:
        page.add(f"{marks.error} not read: {each.name}: {each.problem}", tone=Tone.BAD)
    return tuple(page.lines)


class _Page:
    def __init__(self, width: int, marks: Marks, *, shows_all: bool) -> None:
        self.lines: list[Line] = []
        self._width = width
        self._marks = marks
        self._shows_all = shows_all

    def add(self, text: str, *, indent: str = "", tone: Tone = Tone.PLAIN) -> None:
        """Add a text, wrapped, with nothing in it that a terminal would act on: names come from files."""
        wrapped = wrap_text(to_one_line(text), width=self._width, indent=indent, hanging="  ") if text else ""
        self.lines += [Line(line, tone) for line in wrapped.split("\n")]

    def add_headline(self, comparison: Comparison) -> None:
        """Add the answer in one line: the worst outlier, or that there is none."""
        outliers = [each for group in comparison.groups for each in group.outliers if each.grade > Grade.NONE]
        total = f"{comparison.node_count} compared"
        if outliers and any(len(group.nodes) > 2 for group in comparison.groups):
            worst = max(outliers, key=lambda each: each.weight)
            left = sum(len(each.nodes) for each in outliers) - len(worst.nodes)
            more = f"; {left} more differ{'s' * (left == 1)}" if left else ""
            self.add(f"{self._marks.error} outlier: {_join_names(worst.nodes)} ({total}{more})", tone=Tone.BAD)
        elif comparison.has_differences:
            self.add(f"{self._marks.warning} they differ ({total})", tone=Tone.WARN)
        else:
            self.add(f"{self._marks.passed} no relevant difference ({total})", tone=Tone.GOOD)

    def add_group(self, group: ComparisonGroup) -> None:
        """Add one group: its hardware, its outliers, and the fields without a majority."""
        count = len(group.nodes)
        heading = ", ".join([*([group.hardware.label] if group.hardware.label else []), f"{count} {group.kind.plural}"])
        if count >= 3:
            differing = sum(len(each.nodes) for each in group.outliers if each.grade > Grade.NONE)
            heading += f", {count - differing} without a relevant difference"
        self.add("")
        self.add(f"{heading}:", tone=Tone.QUIET)
        if count == 1:
            self.add("nothing of its kind and hardware to compare it with", indent="  ")
        shown = [each for each in group.outliers if each.grade > Grade.NONE or self._shows_all]
        for outlier in shown if self._shows_all else shown[:MAX_OUTLIERS]:
            self._add_outlier(outlier, group)
        for each in group.no_majority:
            if each.grade > Grade.NONE or self._shows_all:
                self.add(f"{self._marks.warning} no majority: {each.field}", indent="  ", tone=Tone.WARN)
                for value, count, names in each.values[:MAX_VALUES]:
                    more = f" and {count - len(names)} more" if count > len(names) else ""
                    self.add(f"{format_value(value, each.field)}: {', '.join(names)}{more}", indent="      ")
                if left := each.values[MAX_VALUES:]:
                    nodes = format_count(sum(count for _, count, _ in left), "node")
                    self.add(f"{format_count(len(left), 'more value')} on {nodes}", indent="      ")
                self._add_relevance(each.settles, each.checks)
        quiet = [] if self._shows_all else [each for each in group.outliers if each.grade is Grade.NONE]
        for outlier in quiet[:MAX_QUIET]:
            first, others = outlier.differences[0], len(outlier.differences) - 1
            value = format_value(first.value, first.field, first.usual)
            usual = format_value(first.usual, first.field, first.value)
            many = f" and {format_count(others, 'more field')}" if others else ""
            text = f"{_join_names(outlier.nodes)}: {first.field} is {value}, not {usual}{many}; no check reads it"
            self.add(f"{self._marks.note} {text}", indent="  ", tone=Tone.QUIET)
        self._add_omitted(group, len(shown), quiet)

    def _add_outlier(self, outlier: Outlier, group: ComparisonGroup) -> None:
        is_pair = len(group.nodes) == 2
        is_bad = outlier.grade is Grade.DECIDES
        mark = self._marks.error if is_bad else self._marks.warning if outlier.grade is Grade.READ else self._marks.note
        names = _join_names(outlier.nodes)
        if is_pair:
            names += f" beside {_join_names([name for name in group.nodes if name not in outlier.nodes])}"
        count = f" ({format_count(len(outlier.nodes), 'node')})" if len(outlier.nodes) > 1 else ""
        self.add(f"{mark} {names}{count}", indent="  ", tone=Tone.BAD if is_bad else Tone.WARN)
        for finding in outlier.findings:
            self.add(f"{finding.code}: {finding.message}", indent="      ")
        relevant = merge_same_text([each for each in outlier.differences if each.grade > Grade.NONE or self._shows_all])
        shown = relevant if self._shows_all else relevant[:MAX_FIELDS]
        for each in shown:
            self._add_difference(each, is_pair=is_pair)
        quiet = len(outlier.differences) - len(relevant)
        more = [f"{format_count(len(relevant) - len(shown), 'more difference')}"] * (len(relevant) > len(shown))
        more += [f"{format_count(quiet, 'difference')} that no check reads"] * bool(quiet)
        if more:
            self.add(f"and {join_words(more)} (--all)", indent="      ", tone=Tone.QUIET)

    def _add_difference(self, each: Difference, *, is_pair: bool) -> None:
        field, number = each.field, f"{each.agreeing} of {each.of}"
        if each.value is Mark.ABSENT:
            self.add(f"{field} is missing; {'the other has' if is_pair else f'{number} have'} it", indent="      ")
        elif each.usual is Mark.ABSENT:
            self.add(f"{field} is present; {'the other lacks' if is_pair else f'{number} lack'} it", indent="      ")
        elif lists := compare_lists(each):
            self.add(f"{field} {lists}, unlike {'the other' if is_pair else number}", indent="      ")
        else:
            value = format_value(each.value, field, each.usual)
            usual = format_value(each.usual, field, each.value)
            many = f"{number} are near" if isinstance(each.usual, float) else f"{number} have"
            self.add(f"{field} is {value}; {'the other has' if is_pair else many} {usual}", indent="      ")
        self._add_relevance(each.settles, each.checks)

    def _add_relevance(self, settles: Sequence[str], checks: Sequence[str]) -> None:
        others = [code for code in checks if code not in settles]
        left = len(others) - MAX_CODES
        codes = join_words([*others[:MAX_CODES], *([f"{left} more"] if left > 0 else [])])
        words = [f"causes {join_words(settles)}"] * bool(settles)
        words += [f"{'also ' * bool(settles)}read by {codes}"] * bool(others)
        if words:
            self.add("; ".join(words), indent="        ", tone=Tone.QUIET)

    def _add_omitted(self, group: ComparisonGroup, shown: int, quiet: list[Outlier]) -> None:
        if shown > MAX_OUTLIERS and not self._shows_all:
            text = f"and {shown - MAX_OUTLIERS} more kinds of outliers (--all, --json)"
            self.add(text, indent="  ", tone=Tone.QUIET)
        if group.not_judged:
            count = format_count(group.not_judged, "node")
            self.add(f"{count} more differ: too many to run the checks on each", indent="  ", tone=Tone.WARN)
        nodes = sum(len(each.nodes) for each in quiet[MAX_QUIET:])
        fields = sum(each.grade is Grade.NONE for each in group.no_majority)
        words = [f"{format_count(nodes, 'more node')} in what no check reads"] * bool(nodes)
        words += [f"{format_count(fields, 'field')} without a majority that no check reads"] * bool(fields)
        if words and not self._shows_all:
            self.add(f"also different: {join_words(words)} (--all)", indent="  ", tone=Tone.QUIET)


def merge_same_text(differences: Iterable[Difference]) -> list[Difference]:
    """Merge fields with the same text against the same usual one: a driver's version is read in many places."""
    merged: dict[Hashable, Difference] = {}
    for each in differences:
        is_text = isinstance(each.value, str) and isinstance(each.usual, str) and not isinstance(each.value, Mark)
        key: Hashable = (each.value, each.usual, each.agreeing) if is_text else each.field
        if key in merged:
            first = merged[key]
            each = replace(
                first,
                field=f"{first.field}, {each.field}",
                grade=max(first.grade, each.grade),
                checks=tuple(dict.fromkeys((*first.checks, *each.checks))),
                settles=tuple(dict.fromkeys((*first.settles, *each.settles))),
            )
        merged[key] = each
    return list(merged.values())


def _join_names(names: Sequence[str]) -> str:
    shown = list(names[:MAX_NAMES])
    left = len(names) - len(shown)
    return join_words([*shown, f"{left} more"] if left else shown)


def compare_lists(each: Difference) -> str:
    """Return what one of two lists has and the other lacks; "" for anything else, and for another order."""
    value, usual = each.value, each.usual
    if not isinstance(value, tuple) or not isinstance(usual, tuple):
        return ""
    more = tuple(entry for entry in value if entry not in usual)
    less = tuple(entry for entry in usual if entry not in value)
    words = [f"lacks {format_value(less, each.field)}"] * bool(less)
    return "; ".join(words + [f"also has {format_value(more, each.field)}"] * bool(more))


def format_value(value: Hashable, field: str, other: Hashable = None) -> str:
    """Format a value. A record is only called by its type where the `other` value is one, too."""
    match value:
        case str() if isinstance(other, Mark) and hasattr(model, value):
            return "present"
        case Mark():
            text = value.value
        case bool():
            text = "true" if value else "false"
        case None:
            text = "none"
        case tuple():
            text = join_words(format_value(entry, field) for entry in value) or "empty"
        case int() | float() if field.endswith("_bytes"):
            text = format_bytes(round(value))
        case float():
            text = f"{value:.6g}"
        case _:
            text = "a number" if value is float else str(value) or '""'
    return text if len(text) <= MAX_VALUE_LENGTH else f"{text[: MAX_VALUE_LENGTH - 1]}…"


# What changed between two readings of one machine.

_NAMES = ("before", "now")


@dataclass(frozen=True)
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
