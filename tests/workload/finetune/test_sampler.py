"""Which rows a step learns from, and how they are dealt: functions of the seed and the step alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devkit.workload.finetune.dataset import BatchLoader, Example, epoch_permutation, micro_batches_of_rank
from tests.fuzz.profile import FUZZ

lengths = st.lists(st.integers(min_value=1, max_value=50), max_size=40)
worlds = st.integers(min_value=1, max_value=5)
micro_batches = st.integers(min_value=1, max_value=7)


@FUZZ
@given(rows=st.integers(1, 60), batch=st.integers(1, 20), seed=st.integers(0, 3), epoch=st.integers(0, 3))
def test_an_epoch_meets_each_row_once(rows, batch, seed, epoch):
    loader = BatchLoader([Example([row], [1]) for row in range(rows)], batch=batch, sequence=1, seed=seed)
    steps = range(epoch * loader.steps_per_epoch, (epoch + 1) * loader.steps_per_epoch)
    met = [each.ids.item() for step in steps for each in loader.load_step(step)]
    assert sorted(met) == list(range(rows))


def test_the_order_stays_the_same_from_one_release_to_the_next():
    """A resumed run continues the order that an older Python, or an older devkit, began."""
    assert epoch_permutation(8, seed=0, epoch=0) == (4, 5, 6, 3, 1, 7, 2, 0)


@FUZZ
@given(lengths, worlds, micro_batches)
def test_ranks_have_equally_many_micro_batches_within_the_given_size(rows, world, micro_batch):
    shares = [
        micro_batches_of_rank(rows, rank=rank, world_size=world, micro_batch=micro_batch) for rank in range(world)
    ]
    assert len({len(share) for share in shares}) == 1
    assert all(len(each) <= micro_batch for share in shares for each in share)
    assert len(shares[0]) == max(1, -(-len(rows) // (world * micro_batch)))


@FUZZ
@given(lengths, worlds, micro_batches)
def test_rows_of_a_pass_are_neighbors_in_length(rows, world, micro_batch):
    """Else rows would be padded to the length of one that could have gone elsewhere."""
    passes = [
        each
        for rank in range(world)
        for each in micro_batches_of_rank(rows, rank=rank, world_size=world, micro_batch=micro_batch)
    ]
    for one in passes:
        shortest, longest = min((rows[i] for i in one), default=0), max((rows[i] for i in one), default=0)
        others = [index for each in passes if each is not one for index in each]
        assert not any(shortest < rows[index] < longest for index in others)


@pytest.mark.parametrize(
    ("rank", "share"),
    [
        pytest.param(0, [[0], [3]], id="the first process begins with the longest and goes on with a shorter one"),
        pytest.param(1, [[1], [2]], id="the second takes the two between"),
    ],
)
def test_processes_take_turns_at_the_longest(rank, share):
    assert micro_batches_of_rank([40, 30, 20, 10], rank=rank, world_size=2, micro_batch=1) == share
