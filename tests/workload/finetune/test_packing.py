"""Texts into rows: nothing lost, nothing too long, little room wasted, and always the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devkit.workload.finetune.dataset import pack_rows
from tests.fuzz.profile import FUZZ

ROOM = 64
lengths = st.lists(st.integers(min_value=1, max_value=ROOM), max_size=120)


@FUZZ
@given(lengths)
def test_each_text_is_in_exactly_one_row_and_no_row_is_too_long(texts):
    rows = pack_rows(texts, ROOM)
    assert sorted(index for row in rows for index in row) == list(range(len(texts)))
    assert all(row and sum(texts[index] for index in row) <= ROOM for row in rows)


@FUZZ
@given(lengths)
def test_the_rows_stay_within_the_bound_of_best_fit_decreasing(texts):
    fewest = -(-sum(texts) // ROOM)
    largest = sum(2 * each > ROOM for each in texts)
    assert len(pack_rows(texts, ROOM)) <= max(3 * fewest / 2 + 1, 11 / 9 * max(fewest, largest) + 4)


@pytest.mark.parametrize(
    ("texts", "room", "rows"),
    [
        pytest.param([], 8, [], id="no text, no row"),
        pytest.param([4, 4, 4], 8, [[0, 1], [2]], id="two fit, the third opens a row"),
        pytest.param([5, 6, 2, 3], 8, [[1, 2], [0, 3]], id="each into the row that it fills best"),
        pytest.param([6, 5, 2], 8, [[0, 2], [1]], id="into the fuller row where two have room"),
        pytest.param([1, 1], 1, [[0], [1]], id="room for one token"),
    ],
)
def test_texts_are_packed(texts, room, rows):
    assert pack_rows(texts, room) == rows


@pytest.mark.parametrize("texts", [[9], [3, 0]], ids=["longer than a row", "empty"])
def test_a_text_that_goes_into_no_row_is_an_error(texts):
    with pytest.raises(ValueError, match="does not fit into rows of 8"):
        pack_rows(texts, 8)


def test_short_texts_of_many_lengths_fill_rows_almost_wholly():
    texts = [1 + (index * 7919) % 300 for index in range(2000)]
    rows = pack_rows(texts, 1024)
    assert sum(texts) / (len(rows) * 1024) > 0.99
