"""AdamW on fp32 copies of 16-bit weights: what fp32 AdamW does, rounded once, and the same after a stop."""

import pytest
import torch

pytestmark = pytest.mark.workload

from devkit.workload.finetune.optimizers import MasterWeightAdamW


def weights(dtype):
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape).to(torch.bfloat16).to(dtype)) for shape in ((4, 3), (5,))]


def moved(parameters, optimizer, steps, *, start=0):
    for number in range(start, start + steps):
        for parameter in parameters:
            draw = torch.Generator().manual_seed(number)
            # Large gradients at first: their mean must fall again afterwards.
            size = 10.0 if number < 3 else 0.01
            gradient = torch.randn(parameter.shape, generator=draw).mul(size).to(torch.bfloat16)
            parameter.grad = gradient.to(parameter.dtype)
        optimizer.step()
    return parameters


def groups(parameters):
    return [{"params": parameters, "weight_decay": 0.1}]


def test_the_weights_are_those_of_adamw_in_fp32_rounded_once():
    exact = weights(torch.float32)
    moved(exact, torch.optim.AdamW(groups(exact), lr=1e-3), 200)
    rounded = weights(torch.bfloat16)
    optimizer = MasterWeightAdamW(groups(rounded), lr=1e-3)
    moved(rounded, optimizer, 200)
    for one, other in zip(rounded, exact, strict=True):
        assert torch.allclose(optimizer.state[one]["master"], other, rtol=1e-5, atol=1e-7)
        assert torch.equal(one, other.to(torch.bfloat16))


def test_a_stopped_run_resumes_bitwise_identically():
    straight = weights(torch.bfloat16)
    moved(straight, MasterWeightAdamW(groups(straight), lr=1e-3), 20)
    first = weights(torch.bfloat16)
    optimizer = MasterWeightAdamW(groups(first), lr=1e-3)
    moved(first, optimizer, 10)
    second = [torch.nn.Parameter(each.detach().clone()) for each in first]
    again = MasterWeightAdamW(groups(second), lr=1e-3)
    again.load_state_dict(optimizer.state_dict())
    moved(second, again, 10, start=10)
    assert all(map(torch.equal, second, straight))
