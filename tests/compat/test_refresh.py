"""How old the tables are, without a clock."""

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devkit.compat.refresh import count_days, format_stale_warning


@given(st.dates(), st.dates())
def test_days_are_those_of_the_calendar(one: date, other: date):
    assert count_days(one.isoformat(), other.isoformat()) == (other - one).days


@pytest.mark.parametrize(
    ("today", "is_stale"),
    [("2026-11-21", False), ("2027-05-20", False), ("2027-05-21", True), ("2026-01-01", False)],
    ids=["the same day", "180 days", "181 days", "a clock that is behind"],
)
def test_tables_are_stale_after_half_a_year(today, is_stale):
    assert (format_stale_warning("2026-11-21", today) is not None) is is_stale
