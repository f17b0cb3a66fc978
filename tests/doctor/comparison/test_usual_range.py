"""What lies far from the middle of a group's readings."""

import pytest

from devkit.doctor.comparison.deviations import find_usual_range
from devkit.doctor.comparison.rules import ComparisonKind, FieldRule

TENTH = FieldRule(ComparisonKind.MEASURED, relative_tolerance=0.1)
DEGREES = FieldRule(ComparisonKind.TRANSIENT, absolute_tolerance=10)
ALIKE = [100.0] * 20


@pytest.mark.parametrize(
    ("values", "rule", "outliers"),
    [
        pytest.param([*ALIKE, 50], TENTH, [50], id="half of what all the others have"),
        pytest.param([*ALIKE, 90], TENTH, [], id="at the tolerance"),
        pytest.param([*ALIKE, 89.9], TENTH, [89.9], id="below the tolerance"),
        pytest.param([*ALIKE, 110.1], TENTH, [110.1], id="above the tolerance"),
        pytest.param([80, 90, 100, 110, 120, 130, 75], TENTH, [], id="widely scattered readings have no outlier"),
        pytest.param([80, 90, 100, 110, 120, 130, 400], TENTH, [400], id="but for one that is beyond all scatter"),
        pytest.param([30, 31, 32, 40, 42], DEGREES, [], id="within the absolute tolerance"),
        pytest.param([30, 31, 31, 31, 42], DEGREES, [42], id="beyond the absolute tolerance"),
        pytest.param(
            [0, 0, 0, 0, 1],
            FieldRule(ComparisonKind.TRANSIENT, absolute_tolerance=0.5),
            [1],
            id="around zero the absolute tolerance counts",
        ),
        pytest.param([100, 89], TENTH, [100, 89], id="two readings"),
        pytest.param([100, 91], TENTH, [], id="a pair within the tolerance of the larger"),
        pytest.param([-100, -50], TENTH, [-100, -50], id="two negative readings"),
    ],
)
def test_outliers_among_readings(values, rule, outliers):
    around = find_usual_range(values, rule)
    assert [value for value in values if not around.contains(value)] == outliers


def test_one_in_a_thousand_with_half_the_rate_does_not_move_the_median():
    values = [2600 + step % 50 for step in range(999)] + [1300]
    around = find_usual_range(values, TENTH)
    assert around.median == pytest.approx(2624, abs=2) and not around.contains(1300) and around.contains(2649)
