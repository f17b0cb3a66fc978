"""Rows to batches: the same texts for any number of processes and passes, and nothing counted that must not be."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from devkit.errors import DevkitError
from tests.fuzz.profile import FUZZ

pytestmark = pytest.mark.workload

from devkit.workload.finetune.dataset import IGNORE_INDEX, BatchLoader, BatchRow, Example, collate

SEQUENCE = 16


def example(length, *, first=1, prompt=1):
    """Ids that count up from `first`; the first `prompt` of them are not learned."""
    return Example.compact(range(first, first + length), [index >= prompt for index in range(length)])


def examples_of(lengths):
    return [example(length, first=1 + 100 * number) for number, length in enumerate(lengths)]


examples_strategy = st.lists(st.integers(min_value=2, max_value=SEQUENCE), min_size=1, max_size=20).map(examples_of)
layouts = pytest.mark.parametrize(
    ("flat", "pack"),
    [
        pytest.param(True, True, id="packed, flat"),
        pytest.param(True, False, id="one text a row, flat"),
        pytest.param(False, False, id="padded"),
    ],
)


def predictions(batches):
    """Every counted prediction: the token, the one asked for, and the place of the token in its text."""
    found = []
    for batch in batches:
        counted = batch.labels != IGNORE_INDEX
        places = zip(batch.ids[counted].tolist(), batch.labels[counted].tolist(), strict=True)
        found += list(zip(places, batch.positions[counted].tolist(), strict=True))
    return sorted(found)


@layouts
@FUZZ
@given(
    examples=examples_strategy,
    world=st.integers(1, 4),
    micro_batch=st.integers(1, 5),
    batch=st.integers(1, 8),
    step=st.integers(0, 9),
)
def test_a_step_has_the_same_targets_for_any_world_size_and_micro_batch(
    flat, pack, examples, world, micro_batch, batch, step
):
    feed = BatchLoader(examples, batch=batch, sequence=SEQUENCE, pack=pack, flat=flat)
    alone = feed.load_step(step, micro_batch=batch)
    shares = [feed.load_step(step, rank=rank, world_size=world, micro_batch=micro_batch) for rank in range(world)]
    shared = [each for share in shares for each in share]
    assert predictions(shared) == predictions(alone)
    assert sum(each.target_count for each in shared) == feed.count_targets(step) == len(predictions(alone))
    assert sum(each.token_count for each in shared) == sum(each.token_count for each in alone)
    assert len({len(share) for share in shares}) == 1


def test_packed_rows_lie_flat_with_their_borders():
    rows = [BatchRow((example(3), example(2, first=11))), BatchRow((example(4, first=21, prompt=2),))]
    batch = collate(rows, flat=True)
    assert batch.ids.tolist() == [[1, 2, 3, 11, 12, 21, 22, 23, 24]]
    assert batch.labels.tolist() == [[2, 3, IGNORE_INDEX, 12, IGNORE_INDEX, IGNORE_INDEX, 23, 24, IGNORE_INDEX]]
    assert batch.positions.tolist() == [[0, 1, 2, 0, 1, 0, 1, 2, 3]]
    assert batch.cu_seqlens is not None
    assert (batch.cu_seqlens.tolist(), batch.cu_seqlens.dtype) == ([0, 3, 5, 9], torch.int32)
    assert (batch.attention_mask, batch.target_count, batch.token_count) == (None, 5, 9)


def test_padding_and_prompts_are_masked_in_padded_rows():
    batch = collate([BatchRow((example(4, prompt=3),)), BatchRow((example(2, first=11),))], flat=False)
    assert batch.ids.tolist() == [[1, 2, 3, 4], [11, 12, 0, 0]]
    assert batch.labels.tolist() == [
        [IGNORE_INDEX, IGNORE_INDEX, 4, IGNORE_INDEX],
        [12, IGNORE_INDEX, IGNORE_INDEX, IGNORE_INDEX],
    ]
    assert batch.attention_mask is not None
    assert batch.attention_mask.tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert (batch.cu_seqlens, batch.target_count, batch.token_count) == (None, 2, 6)


def test_the_first_token_of_a_text_is_never_a_prediction_even_where_it_is_marked():
    marked = Example([1, 2], [1, 1])
    batch = collate([BatchRow((marked, marked))], flat=True)
    assert batch.labels.tolist() == [[2, IGNORE_INDEX, 2, IGNORE_INDEX]]
    assert batch.target_count == marked.target_count * 2 == 2


@pytest.mark.parametrize("flat", [True, False])
def test_a_process_without_rows_holds_a_token_that_counts_for_nothing(flat):
    feed = BatchLoader([example(3)], batch=4, sequence=SEQUENCE, flat=flat)
    shares = [feed.load_step(0, rank=rank, world_size=2) for rank in range(2)]
    assert [[(each.target_count, each.token_count) for each in share] for share in shares] == [[(0, 0)], [(2, 3)]]
    assert shares[0][0].ids.shape == (1, 1)


def test_the_loader_notes_packing_efficiency_and_a_smaller_last_step():
    feed = BatchLoader(examples_of([8, 8, 16, 4]), batch=2, sequence=16, pack=True, flat=True)
    assert feed.notes == [
        "packed 4 texts into 3 rows of at most 16 tokens, 75.0% full",
        "the last step of each epoch trains on 1 row instead of 2: no row is left out",
    ]
    assert BatchLoader(examples_of([8, 8]), batch=2, sequence=16).notes == []
    assert BatchLoader(examples_of([8, 8]), batch=3, sequence=16).notes == [
        "each step trains on 2 rows instead of 3: the data set has no more"
    ]


def test_no_example_is_the_users_error():
    with pytest.raises(DevkitError, match="nothing to train on"):
        BatchLoader([], batch=1, sequence=8)
