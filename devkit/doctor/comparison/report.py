"""The comparison for people: who is the odd one out, in what, and which check it matters to."""

import math
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from devkit.doctor.comparison.leaves import Mark
from devkit.doctor.comparison.model import Comparison, ComparisonGroup, Difference, NoMajority, Outlier
from devkit.doctor.comparison.rules import Grade
from devkit.doctor.report.lines import MAX_WIDTH, MIN_WIDTH, Line, Marks, Tone
from devkit.facts import model
from devkit.text import format_bytes, format_count, join_words, to_one_line, wrap_text

# The comparison as the document devkit.compare/1.

SCHEMA = "devkit.compare/1"


def build_comparison_document(comparison: Comparison) -> dict[str, Any]:
    """The document behind `--json`; its fields are a contract."""
    return {
        "schema": SCHEMA,
        "verdict": "differ" if comparison.differs else "alike",
        "nodes": comparison.node_count,
        "groups": [_group(group) for group in comparison.groups],
        "unreadable": [{"name": each.name, "problem": each.problem} for each in comparison.unreadable],
    }


def _group(group: ComparisonGroup) -> dict[str, Any]:
    return {
        "kind": group.kind.value,
        "of": group.make.label,
        "nodes": len(group.nodes),
        "odd": [_odd(each) for each in group.odd],
        "without_majority": [_division(each) for each in group.divisions],
        "not_judged": group.not_judged,
    }


def _odd(odd: Outlier) -> dict[str, Any]:
    return {
        "nodes": list(odd.nodes),
        "matters": name_grade(odd.grade),
        "findings": [{"code": each.code, "message": each.message} for each in odd.findings],
        "differences": [_difference(each) for each in odd.differences],
    }


def _difference(each: Difference) -> dict[str, Any]:
    return {
        "field": each.field,
        "value": to_json_value(each.value),
        "usual": to_json_value(each.usual),
        "agreeing": each.agreeing,
        "of": each.of,
        "matters": name_grade(each.grade),
        "checks": list(each.checks),
        "settles": list(each.settles),
    }


def _division(each: NoMajority) -> dict[str, Any]:
    values = [
        {"value": to_json_value(value), "nodes": count, "such_as": list(names)} for value, count, names in each.values
    ]
    return {
        "field": each.field,
        "values": values,
        "matters": name_grade(each.grade),
        "checks": list(each.checks),
        "settles": list(each.settles),
    }


def name_grade(grade: Grade) -> str:
    """A grade as the document has it."""
    return {Grade.NONE: "no", Grade.READ: "read", Grade.DECIDES: "decides"}[grade]


def to_json_value(value: Hashable) -> Any:  # noqa: ANN401 - a value of JSON
    """A counted value as JSON; what was not read and what is not there as words in an object."""
    if isinstance(value, Mark):
        return {"is": value.value}
    if value is float:
        return {"is": "a number"}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no such number
    return [to_json_value(each) for each in value] if isinstance(value, tuple) else value


MOST_CODES = 6
MOST_NAMES = 4
MOST_FIELDS = 8
MOST_ODD = 20
MOST_VALUES = 4
MOST_QUIET = 5
LONGEST_VALUE = 60


def format_comparison(comparison: Comparison, *, width: int, marks: Marks, shows_all: bool = False) -> tuple[Line, ...]:
    """The comparison in lines of at most `width` columns; names and values without a blank are never broken.

    Of what is long the first are shown, and of what no check looks at little, unless `shows_all`.
    """
    page = _Page(max(MIN_WIDTH, min(width, MAX_WIDTH)), marks, shows_all=shows_all)
    page.headline(comparison)
    for group in comparison.groups:
        page.group(group)
    for each in comparison.unreadable:
        page.say(f"{marks.error} not read: {each.name}: {each.problem}", tone=Tone.BAD)
    return tuple(page.lines)


class _Page:
    def __init__(self, width: int, marks: Marks, *, shows_all: bool) -> None:
        self.lines: list[Line] = []
        self._width = width
        self._marks = marks
        self._shows_all = shows_all

    def say(self, text: str, *, indent: str = "", tone: Tone = Tone.PLAIN) -> None:
        """Add `text`, folded, with nothing in it that a terminal would act on: names come from files."""
        folded = wrap_text(to_one_line(text), width=self._width, indent=indent, hanging="  ") if text else ""
        self.lines += [Line(line, tone) for line in folded.split("\n")]

    def headline(self, comparison: Comparison) -> None:
        """The answer in one line: the odd one out, or that there is none."""
        odd = [each for group in comparison.groups for each in group.odd if each.grade > Grade.NONE]
        total = f"{comparison.node_count} compared"
        if odd and any(len(group.nodes) > 2 for group in comparison.groups):
            worst = max(odd, key=lambda each: each.weight)
            count = sum(len(each.nodes) for each in odd)
            left = count - len(worst.nodes)
            more = f"; {left} more differ{'s' * (left == 1)}" if left else ""
            said = f"odd one out: {_names(worst.nodes)} ({total}{more})"
            self.say(f"{self._marks.error} {said}", tone=Tone.BAD)
        elif comparison.differs:
            self.say(f"{self._marks.warning} they differ ({total})", tone=Tone.WARN)
        else:
            self.say(f"{self._marks.passed} nothing differs that matters ({total})", tone=Tone.GOOD)

    def group(self, group: ComparisonGroup) -> None:
        """One group: what it is of, its odd nodes, and the fields without a usual value."""
        self.say("")
        self.say(f"{_of(group)}:", tone=Tone.QUIET)
        if len(group.nodes) == 1:
            self.say("nothing of its kind and make to compare it with", indent="  ")
        shown = [each for each in group.odd if each.grade > Grade.NONE or self._shows_all]
        for odd in shown if self._shows_all else shown[:MOST_ODD]:
            self._odd(odd, group)
        self._divisions(group)
        quiet = [] if self._shows_all else [each for each in group.odd if each.grade is Grade.NONE]
        for odd in quiet[:MOST_QUIET]:
            self._quiet(odd)
        self._left_out(group, shown, quiet)

    def _odd(self, odd: Outlier, group: ComparisonGroup) -> None:
        is_bad = odd.grade is Grade.DECIDES
        mark = self._marks.error if is_bad else self._marks.warning if odd.grade is Grade.READ else self._marks.note
        what = (
            _names(odd.nodes) if len(group.nodes) > 2 else f"{_names(odd.nodes)} beside {_names(_others(odd, group))}"
        )
        count = f" ({format_count(len(odd.nodes), 'node')})" if len(odd.nodes) > 1 else ""
        self.say(f"{mark} {what}{count}", indent="  ", tone=Tone.BAD if is_bad else Tone.WARN)
        for finding in odd.findings:
            self.say(f"{finding.code}: {finding.message}", indent="      ")
        heavy = [each for each in odd.differences if each.grade > Grade.NONE or self._shows_all]
        shown = heavy if self._shows_all else heavy[:MOST_FIELDS]
        for each in shown:
            self._difference(each, is_pair=len(group.nodes) == 2)
        quiet = len(odd.differences) - len(heavy)
        more = [f"{format_count(len(heavy) - len(shown), 'more difference')}"] * (len(heavy) > len(shown))
        more += [f"{format_count(quiet, 'difference')} at which no check looks"] * bool(quiet)
        if more:
            self.say(f"and {join_words(more)} (--all)", indent="      ", tone=Tone.QUIET)

    def _difference(self, each: Difference, *, is_pair: bool) -> None:
        field, number = each.field, f"{each.agreeing} of {each.of}"
        if each.value is Mark.ABSENT:
            self.say(f"{field} is missing; {'the other has' if is_pair else f'{number} have'} it", indent="      ")
        elif each.usual is Mark.ABSENT:
            self.say(f"{field} is there; {'the other lacks' if is_pair else f'{number} lack'} it", indent="      ")
        elif lists := _beside(each):
            self.say(f"{field} {lists}, beside {'the other' if is_pair else number}", indent="      ")
        else:
            value, usual = _shown(each.value, each.field, each.usual), _shown(each.usual, each.field, each.value)
            many = f"{number} are near" if isinstance(each.usual, float) else f"{number} have"
            who = "the other has" if is_pair else many
            self.say(f"{field} is {value}; {who} {usual}", indent="      ")
        self._matters(each.settles, each.checks)

    def _matters(self, settles: Sequence[str], checks: Sequence[str]) -> None:
        others = [code for code in checks if code not in settles]
        said = [f"{join_words(settles)} hang{'s' * (len(settles) == 1)} on it"] * bool(settles)
        said += [f"{'also ' * bool(settles)}matters to {_codes(others)}"] * bool(others)
        if said:
            self.say("; ".join(said), indent="        ", tone=Tone.QUIET)

    def _divisions(self, group: ComparisonGroup) -> None:
        for each in group.divisions:
            if each.grade > Grade.NONE or self._shows_all:
                self.say(f"{self._marks.warning} no usual value: {each.field}", indent="  ", tone=Tone.WARN)
                for line in _division_lines(each):
                    self.say(line, indent="      ")
                self._matters(each.settles, each.checks)

    def _quiet(self, odd: Outlier) -> None:
        """A node that differs in nothing that any check looks at, in a line."""
        first, more = odd.differences[0], len(odd.differences) - 1
        value, usual = _shown(first.value, first.field, first.usual), _shown(first.usual, first.field, first.value)
        many = f" and {format_count(more, 'more field')}" if more else ""
        said = f"{_names(odd.nodes)}: {first.field} is {value}, not {usual}{many}; no check looks at it"
        self.say(f"{self._marks.note} {said}", indent="  ", tone=Tone.QUIET)

    def _left_out(self, group: ComparisonGroup, shown: list[Outlier], quiet: list[Outlier]) -> None:
        if len(shown) > MOST_ODD and not self._shows_all:
            self.say(
                f"and {len(shown) - MOST_ODD} more ways of being odd (--all, --json)", indent="  ", tone=Tone.QUIET
            )
        if group.not_judged:
            count = format_count(group.not_judged, "node")
            self.say(f"{count} more differ: too many for the checks to be asked of each", indent="  ", tone=Tone.WARN)
        quiet_count = sum(len(each.nodes) for each in quiet[MOST_QUIET:])
        fields = sum(each.grade is Grade.NONE for each in group.divisions)
        said = [f"{format_count(quiet_count, 'more node')} in what no check looks at"] * bool(quiet_count)
        said += [f"{format_count(fields, 'field')} without a usual value at which none looks"] * bool(fields)
        if said and not self._shows_all:
            self.say(f"different too: {join_words(said)} (--all)", indent="  ", tone=Tone.QUIET)


def _of(group: ComparisonGroup) -> str:
    count = len(group.nodes)
    odd = sum(len(each.nodes) for each in group.odd if each.grade > Grade.NONE)
    heading = ", ".join([*([group.make.label] if group.make.label else []), f"{count} {group.kind.plural}"])
    return heading if count < 3 else f"{heading}, {count - odd} alike in all that matters"


def _others(odd: Outlier, group: ComparisonGroup) -> tuple[str, ...]:
    return tuple(name for name in group.nodes if name not in odd.nodes)


def _names(names: Sequence[str]) -> str:
    shown = list(names[:MOST_NAMES])
    left = len(names) - len(shown)
    return join_words([*shown, f"{left} more"] if left else shown)


def _codes(codes: Sequence[str]) -> str:
    left = len(codes) - MOST_CODES
    return join_words([*codes[:MOST_CODES], *([f"{left} more"] if left > 0 else [])])


def _beside(each: Difference) -> str:
    """Of two lists what the one has and the other has not; "" for anything else, and for another order."""
    value, usual = each.value, each.usual
    if not isinstance(value, tuple) or not isinstance(usual, tuple):
        return ""
    more = tuple(entry for entry in value if entry not in usual)
    less = tuple(entry for entry in usual if entry not in value)
    words = [f"lacks {_shown(less, each.field)}"] * bool(less) + [f"also has {_shown(more, each.field)}"] * bool(more)
    return "; ".join(words)


def _shown(value: Hashable, field: str, other: Hashable = None) -> str:
    """A value in words. A record is only called by its kind where the `other` value is one, too."""
    if isinstance(value, str) and isinstance(other, Mark) and hasattr(model, value):
        return "there"
    text = _in_words(value, field)
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…"


def _in_words(value: Hashable, field: str) -> str:
    match value:
        case Mark():
            return value.value
        case bool():
            return "true" if value else "false"
        case None:
            return "none"
        case tuple():
            return join_words(_shown(entry, field) for entry in value) or "empty"
        case int() | float() if field.endswith("_bytes"):
            return format_bytes(round(value))
        case float():
            return f"{value:.6g}"
        case _:
            return "a number" if value is float else str(value) or '""'


def _division_lines(each: NoMajority) -> Iterator[str]:
    for value, count, names in each.values[:MOST_VALUES]:
        more = f" and {count - len(names)} more" if count > len(names) else ""
        yield f"{_shown(value, each.field)}: {', '.join(names)}{more}"
    left = each.values[MOST_VALUES:]
    if left:
        yield f"{format_count(len(left), 'more value')} on {format_count(sum(count for _, count, _ in left), 'node')}"
