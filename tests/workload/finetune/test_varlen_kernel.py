"""torch's own kernel: its call without a GPU, by shapes alone, and its numbers where there is one."""

import pytest
import torch

pytestmark = pytest.mark.workload

from devkit.workload.finetune.forward import _attend_by_kernel, _attend_text_by_text

WINDOW = 4
LENGTHS = (9, 1, 5, 12, 2, 7)


@pytest.mark.parametrize("window", [None, WINDOW])
def test_it_is_called_as_it_wants_to_be(window):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        query = torch.empty(1, 4, 12, 8, dtype=torch.bfloat16, requires_grad=True)
        key, value = (torch.empty(1, 2, 12, 8, dtype=torch.bfloat16) for _ in range(2))
        computed = _attend_by_kernel(query, key, value, torch.empty(3, dtype=torch.int32), 7, None, window)
        assert tuple(computed.shape) == (1, 12, 4, 8)
        computed.sum().backward()
        assert query.grad is not None
        assert query.grad.shape == query.shape


@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU")
@pytest.mark.parametrize("window", [None, WINDOW, 100])
@pytest.mark.parametrize("heads", [2, 4])
def test_it_computes_what_each_text_by_itself_gives(window, heads):
    source = torch.Generator(device="cuda").manual_seed(1)
    total = sum(LENGTHS)

    def drawn(count):
        drawing = torch.randn(1, count, total, 16, device="cuda", generator=source, dtype=torch.float32)
        return drawing.bfloat16().requires_grad_()

    inputs = drawn(4), drawn(heads), drawn(heads)
    borders = torch.tensor([0, *LENGTHS], device="cuda").cumsum(0).int()
    weights = torch.randn(1, total, 4, 16, device="cuda", generator=source)
    found = []
    for computed in (
        _attend_by_kernel(*inputs, borders, max(LENGTHS), None, window),
        _attend_text_by_text(*inputs, list(LENGTHS), 0.0, None, window),
    ):
        gradients = torch.autograd.grad((computed.float() * weights).sum(), inputs)
        found.append([computed.float(), *(each.float() for each in gradients)])
    for kernel, alone in zip(*found, strict=True):
        torch.testing.assert_close(kernel, alone, rtol=2e-2, atol=2e-2)
