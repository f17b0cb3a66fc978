"""The table of failures agrees with what checks say that they recognise, and recorded machines that they show."""

import tomllib
from collections import Counter
from pathlib import Path

import pytest

from devkit.doctor.registry import CHECKS
from tests.hosts import MACHINES, description_of

TABLE = tomllib.loads((Path(__file__).parents[2] / "docs" / "failures.toml").read_text(encoding="utf-8"))
ROWS = {row["id"]: row for row in TABLE["failure"]}
COVERED = {failure: check.code for check in CHECKS for failure in check.covers}
SHOWN = {failure: name for name in MACHINES for failure in description_of(name).get("shows", ())}

FEWEST_RECOGNISED = 120


def test_every_failure_stands_once_in_the_order_of_its_group():
    ids = [row["id"] for row in TABLE["failure"]]
    assert [name for name, times in Counter(ids).items() if times > 1] == []
    assert ids == sorted(ids)
    assert len(ids) == 142
    assert {name[0] for name in ids} == set(TABLE["groups"])


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_failure_is_recognised_or_says_why_not(row):
    assert (row["id"] in COVERED) != bool(row.get("not_seen")), "a row has a check or a reason, never both"


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_recognised_failure_is_shown_or_says_why_not(row):
    if row["id"] in COVERED:
        assert (row["id"] in SHOWN) != bool(row.get("no_recording")), "a row has a machine or a reason, never both"


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_row_says_what_is_seen_and_where_it_was_reported(row):
    assert row["name"]
    assert row["symptom"]
    assert row["sources"]
    assert set(row) <= {"id", "name", "symptom", "sources", "not_seen", "no_recording"}


def test_what_checks_cover_stands_in_the_table():
    assert sorted(set(COVERED) - set(ROWS)) == []


def test_what_machines_show_stands_in_the_table():
    assert sorted(set(SHOWN) - set(ROWS)) == []


def test_most_failures_are_recognised():
    assert len(set(COVERED) & set(ROWS)) >= FEWEST_RECOGNISED
