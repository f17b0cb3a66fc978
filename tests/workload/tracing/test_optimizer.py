"""The optimizer's step on paper, against torch's own under the ledger."""

import pytest

from devkit.estimate.settings import Optimizer
from devkit.workload.tracing.optimizer import Trained, buckets, state_bytes, states, step
from devkit.workload.tracing.stream import Allocation, Kind, Release

LARGE = Trained(layer=0, numbers=8192, item_bytes=2)
SMALL = Trained(layer=None, numbers=1024, item_bytes=2)


@pytest.mark.parametrize(
    ("optimizer", "large", "small"),
    [
        pytest.param(Optimizer.ADAMW, [16384, 16384], [2048, 2048], id="as precise as the parameter"),
        pytest.param(Optimizer.PAGED_ADAMW, [32768, 32768], [4096, 4096], id="bitsandbytes keeps fp32"),
        pytest.param(
            Optimizer.ADAMW_8BIT, [8192, 128, 8192, 128], [4096, 4096], id="8 bits and a scale; small ones in fp32"
        ),
    ],
)
def test_the_state_of_a_parameter(optimizer, large, small):
    assert state_bytes(LARGE, optimizer) == large
    assert state_bytes(SMALL, optimizer) == small


def test_the_copies_that_devkit_moves_for_adapters_in_16_bits_are_in_fp32():
    assert state_bytes(LARGE, Optimizer.ADAMW, masters=True) == [32768, 32768, 32768]


def test_states_are_there_before_the_step_that_is_traced():
    made = list(states([LARGE, SMALL], Optimizer.ADAMW))
    assert [(each.section.layer, each.ordinal, each.kind) for each in made] == [
        (0, 0, Kind.OPTIMIZER_STATE),
        (0, 1, Kind.OPTIMIZER_STATE),
        (None, 0, Kind.OPTIMIZER_STATE),
        (None, 1, Kind.OPTIMIZER_STATE),
    ]


def test_ddp_has_a_copy_of_the_gradients():
    assert [each.bytes for each in buckets([LARGE, SMALL])] == [16384, 2048]


@pytest.mark.workload
@pytest.mark.parametrize("optimizer", [Optimizer.ADAMW, Optimizer.ADAMW_FOREACH])
def test_a_step_makes_what_torch_makes(optimizer):
    import torch

    from devkit.workload.tracing.ledger import Ledger

    parameters = [torch.nn.Parameter(torch.zeros(count, dtype=torch.bfloat16)) for count in (8192, 4096)]
    how = {"fused": True} if optimizer is Optimizer.ADAMW else {"foreach": True}
    real = torch.optim.AdamW(parameters, **how)
    for _ in range(2):  # the first step makes the state
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        with Ledger() as ledger:
            real.step()
    trained = [Trained(layer=None, numbers=each.numel(), item_bytes=2) for each in parameters]
    assert fullest(ledger.stream) == pytest.approx(fullest(list(step(trained, optimizer))), abs=64)


def fullest(stream):
    live, found = {}, 0
    for event in stream:
        if isinstance(event, Allocation):
            live[event.name] = event.bytes
            found = max(found, sum(live.values()))
        elif isinstance(event, Release):
            del live[event.name]
    return found
