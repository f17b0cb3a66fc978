"""Values that are not finite are skipped and counted; three in a row end the run, and are never saved."""

import pytest
import torch

pytestmark = pytest.mark.workload

from devkit.workload.finetune.trainer import FiniteGuard, StepVerdict
from tests.workload.finetune.small_run import ALONE

INF, NAN = float("inf"), float("nan")
GOOD = [torch.ones(3)]


def judged(guard, loss=1.0, norm=1.0, scale=None):
    return guard.judge(ALONE, loss=loss, gradient_norm=norm, scale=scale)


def not_asked():
    raise AssertionError("a forward pass for nothing")


def test_a_good_step_in_between_starts_the_count_anew():
    guard = FiniteGuard()
    verdicts = [judged(guard, loss) for loss in (NAN, NAN, 1.0, NAN, NAN, 1.0)]
    assert StepVerdict.STOP not in verdicts
    assert (guard.skipped, guard.in_a_row) == (4, 0)


def test_a_scaler_may_look_for_its_size_as_long_as_it_takes():
    guard = FiniteGuard()
    assert {judged(guard, norm=INF, scale=2.0**power) for power in range(16, 0, -1)} == {StepVerdict.SKIP}
    assert (guard.skipped, guard.skipped_since_step) == (0, 16)
    assert guard.may_save(ALONE, GOOD, not_asked)


def test_a_scaler_that_has_nothing_left_to_halve_counts():
    guard = FiniteGuard()
    assert [judged(guard, norm=INF, scale=1.0) for _ in range(3)][-1] is StepVerdict.STOP


def test_after_a_bad_step_the_texts_of_the_last_good_one_tell_whether_the_weights_are_at_fault():
    guard = FiniteGuard()
    assert guard.may_save(ALONE, GOOD, not_asked)
    judged(guard, NAN)
    assert not guard.may_save(ALONE, GOOD, lambda: NAN)
    assert guard.may_save(ALONE, GOOD, lambda: 1.0)
    judged(guard)
    assert guard.may_save(ALONE, GOOD, not_asked)


@pytest.mark.parametrize("bad", [NAN, INF])
def test_weights_that_a_finite_step_broke_are_not_saved(bad):
    guard = FiniteGuard()
    judged(guard)
    assert not guard.may_save(ALONE, [torch.ones(3), torch.tensor([1.0, bad])], not_asked)


def test_a_step_is_skipped_for_either_number_that_is_not_finite_and_taken_however_large():
    for loss, norm in ((NAN, 1.0), (-INF, 1.0), (1.0, NAN), (1.0, INF)):
        assert judged(FiniteGuard(), loss, norm) is StepVerdict.SKIP
    for loss, norm in ((0.0, 0.0), (1e38, 1e38), (-1.0, 5e-324)):
        assert judged(FiniteGuard(), loss, norm) is StepVerdict.STEP
    guard = FiniteGuard()
    judged(guard, NAN, scale=1024.0)
    assert guard.in_a_row == 1
