"""The optimizer's step on paper, against torch's own under the ledger."""

import pytest

from benchmarks.tracing.steps import TrainableParameter, allocate_ddp_buckets, count_state_bytes, trace_optimizer_step
from benchmarks.tracing.stream import Allocation, Deallocation
from devkit.estimate.settings import Optimizer

LARGE = TrainableParameter(numbers=8192, item_bytes=2)
SMALL = TrainableParameter(numbers=1024, item_bytes=2)


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
    assert count_state_bytes(LARGE, optimizer) == large
    assert count_state_bytes(SMALL, optimizer) == small


def test_master_weights_of_16_bit_adapters_are_fp32():
    assert count_state_bytes(LARGE, Optimizer.ADAMW, masters=True) == [32768, 32768, 32768]


def test_ddp_buckets_copy_the_gradients():
    assert [each.bytes for each in allocate_ddp_buckets([LARGE, SMALL])] == [16384, 2048]


@pytest.mark.workload
@pytest.mark.parametrize("optimizer", [Optimizer.ADAMW, Optimizer.ADAMW_FOREACH])
def test_an_optimizer_step_allocates_what_torch_allocates(optimizer):
    import torch

    from benchmarks.tracing.model import AllocationRecorder

    parameters = [torch.nn.Parameter(torch.zeros(count, dtype=torch.bfloat16)) for count in (8192, 4096)]
    how = {"fused": True} if optimizer is Optimizer.ADAMW else {"foreach": True}
    real = torch.optim.AdamW(parameters, **how)
    for _ in range(2):  # the first step makes the state
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        with AllocationRecorder() as ledger:
            real.step()
    trained = [TrainableParameter(numbers=each.numel(), item_bytes=2) for each in parameters]
    assert fullest(ledger.stream) == pytest.approx(fullest(list(trace_optimizer_step(trained, optimizer))), abs=64)


def fullest(stream):
    live, found = {}, 0
    for event in stream:
        if isinstance(event, Allocation):
            live[event] = event.bytes
            found = max(found, sum(live.values()))
        elif isinstance(event, Deallocation):
            del live[event.allocation]
    return found
