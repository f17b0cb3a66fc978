"""The comparison as the document devkit.compare/1."""

import math
from collections.abc import Hashable
from typing import Any

from devkit.doctor.comparing.comparison import Comparison, Difference, Division, Group, Odd
from devkit.doctor.comparing.leaves import Mark
from devkit.doctor.comparing.rules import Grade

SCHEMA = "devkit.compare/1"


def comparison_document(comparison: Comparison) -> dict[str, Any]:
    """The document behind `--json`; its fields are a contract."""
    return {
        "schema": SCHEMA,
        "verdict": "differ" if comparison.differs else "alike",
        "nodes": comparison.node_count,
        "groups": [_group(group) for group in comparison.groups],
        "unreadable": [{"name": each.name, "problem": each.problem} for each in comparison.unreadable],
    }


def _group(group: Group) -> dict[str, Any]:
    return {
        "kind": group.kind.value,
        "of": group.make.label,
        "nodes": len(group.nodes),
        "odd": [_odd(each) for each in group.odd],
        "without_majority": [_division(each) for each in group.divisions],
        "not_judged": group.not_judged,
    }


def _odd(odd: Odd) -> dict[str, Any]:
    return {
        "nodes": list(odd.nodes),
        "matters": word(odd.grade),
        "findings": [{"code": each.code, "message": each.message} for each in odd.findings],
        "differences": [_difference(each) for each in odd.differences],
    }


def _difference(each: Difference) -> dict[str, Any]:
    return {
        "field": each.field,
        "value": plain(each.value),
        "usual": plain(each.usual),
        "agreeing": each.agreeing,
        "of": each.of,
        "matters": word(each.grade),
        "checks": list(each.checks),
        "settles": list(each.settles),
    }


def _division(each: Division) -> dict[str, Any]:
    values = [{"value": plain(value), "nodes": count, "such_as": list(names)} for value, count, names in each.values]
    return {
        "field": each.field,
        "values": values,
        "matters": word(each.grade),
        "checks": list(each.checks),
        "settles": list(each.settles),
    }


def word(grade: Grade) -> str:
    """A grade as the document has it."""
    return {Grade.NONE: "no", Grade.READ: "read", Grade.DECIDES: "decides"}[grade]


def plain(value: Hashable) -> Any:  # noqa: ANN401 - a value of JSON
    """A counted value as JSON; what was not read and what is not there as words in an object."""
    if isinstance(value, Mark):
        return {"is": value.value}
    if value is float:
        return {"is": "a number"}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no such number
    return [plain(each) for each in value] if isinstance(value, tuple) else value
