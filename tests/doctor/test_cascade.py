import pytest

from devkit.doctor.model import Check, Finding, Fix, Found, Outcome, Passed, Severity
from devkit.doctor.runner import mark_root_causes

ERROR, WARNING, NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE


def nothing(facts):
    yield from ()


def outcome(code, *severities, causes=()):
    findings = tuple(Finding(severity, "m", Fix("f.")) for severity in severities)
    return Outcome(Check(code, "t", nothing, causes=causes), Found(findings) if findings else Passed())


def roots(outcomes):
    return {
        (result.check.code, finding.severity): finding.follows_from
        for result in mark_root_causes(outcomes)
        if isinstance(result.verdict, Found)
        for finding in result.verdict.findings
    }


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        pytest.param(
            [outcome("A", ERROR, causes=("B",)), outcome("B", ERROR)],
            {("A", ERROR): None, ("B", ERROR): "A"},
            id="a consequence follows from its cause",
        ),
        pytest.param(
            [outcome("A", causes=("B",)), outcome("B", ERROR)],
            {("B", ERROR): None},
            id="a cause that found nothing explains nothing",
        ),
        pytest.param(
            [outcome("A", ERROR, causes=("B",)), outcome("B", ERROR, causes=("C",)), outcome("C", ERROR)],
            {("A", ERROR): None, ("B", ERROR): "A", ("C", ERROR): "A"},
            id="a chain names its first link",
        ),
        pytest.param(
            [outcome("A", WARNING, causes=("B",)), outcome("B", ERROR)],
            {("A", WARNING): None, ("B", ERROR): None},
            id="a warning hides no error",
        ),
        pytest.param(
            [outcome("A", WARNING, causes=("B",)), outcome("B", ERROR, WARNING)],
            {("A", WARNING): None, ("B", ERROR): None, ("B", WARNING): "A"},
            id="a warning explains a warning beside an error",
        ),
        pytest.param(
            [outcome("A", NOTE, WARNING, causes=("B",)), outcome("B", WARNING)],
            {("A", NOTE): None, ("A", WARNING): None, ("B", WARNING): "A"},
            id="the heaviest finding of the cause counts",
        ),
        pytest.param(
            [outcome("C", ERROR), outcome("A", ERROR, causes=("C",))],
            {("C", ERROR): "A", ("A", ERROR): None},
            id="the order of printing does not matter",
        ),
    ],
)
def test_cause_and_consequence(outcomes, expected):
    assert roots(outcomes) == expected
