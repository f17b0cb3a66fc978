"""Schedules are pure functions of the step, and weights decay only where they should."""

import pytest
import torch

pytestmark = pytest.mark.workload

from devkit.errors import DevkitError
from devkit.estimate.settings import Optimizer
from devkit.workload.finetune.optimizers import build_optimizer, build_parameter_groups, compute_learning_rate
from devkit.workload.finetune.settings import Schedule


def rates(schedule, *, steps=10, warmup=0.2):
    return [compute_learning_rate(step, steps=steps, warmup=warmup, schedule=schedule) for step in range(steps)]


@pytest.mark.parametrize(
    ("schedule", "after_warmup"),
    [
        pytest.param(Schedule.CONSTANT, [1.0] * 8, id="constant stays"),
        pytest.param(Schedule.LINEAR, [1 - n / 8 for n in range(8)], id="linear falls in equal strides"),
        pytest.param(Schedule.COSINE, [1.0, 0.962, 0.854, 0.691, 0.5, 0.309, 0.146, 0.038], id="cosine falls softly"),
    ],
)
def test_the_rate_rises_in_the_warmup_and_then_follows_its_schedule(schedule, after_warmup):
    assert rates(schedule) == pytest.approx([0.5, 1.0, *after_warmup], abs=1e-3)


def test_a_run_that_only_warms_up_reaches_the_highest_rate_last():
    assert rates(Schedule.LINEAR, warmup=1.0) == pytest.approx([n / 10 for n in range(1, 11)])


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2, bias=False))


def test_matrices_decay_and_norms_and_biases_do_not():
    decaying, others = build_parameter_groups(model(), weight_decay=0.1)
    assert [tuple(each.shape) for each in decaying["params"]] == [(8, 4), (2, 8)]
    assert [tuple(each.shape) for each in others["params"]] == [(8,), (8,), (8,)]
    assert (decaying["weight_decay"], others["weight_decay"]) == (0.1, 0.0)


def test_frozen_weights_are_left_out_and_nothing_to_train_is_refused():
    frozen = model().requires_grad_(requires_grad=False)
    with pytest.raises(DevkitError, match="nothing in the model can be trained"):
        build_parameter_groups(frozen, weight_decay=0.0)


@pytest.mark.filterwarnings("ignore:Paged optimizers are not supported on CPU")
@pytest.mark.parametrize("kind", list(Optimizer))
def test_every_optimizer_reduces_the_loss(kind):
    moved = model()
    optimizer = build_optimizer(moved, kind, learning_rate=0.05, weight_decay=0.0)
    inputs, losses = torch.ones(3, 4), []
    for _ in range(5):
        optimizer.zero_grad()
        loss = moved(inputs).square().sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2
