from itertools import accumulate

import pytest

from benchmarks.tracing.stream import Allocation

pytestmark = pytest.mark.workload


def told(stream):
    return [("+" if isinstance(event, Allocation) else "-", getattr(event, "bytes", 0)) for event in stream]


def test_views_and_in_place_changes_allocate_nothing():
    import torch

    from benchmarks.tracing.model import AllocationRecorder

    with AllocationRecorder() as ledger:
        made = torch.zeros(256)
        view = made.view(16, 16).T
        view.add_(1)
    assert len(ledger.stream) == 1


def test_what_autograd_saves_lives_until_the_backward_pass():
    import torch

    from benchmarks.tracing.model import AllocationRecorder

    weight = torch.ones(256, requires_grad=True)
    with AllocationRecorder() as ledger:
        loss = (weight * 2).exp().sum()
        kept = sum(event.bytes if isinstance(event, Allocation) else -1024 for event in ledger.stream)
        loss.backward()
        del loss
    assert kept == 1024 + 4  # exp's result and the loss; not what went into exp


def test_scratch_memory_of_gpu_kernels_is_recorded():
    import torch

    from benchmarks.tracing.model import AllocationRecorder

    gradient, output = torch.ones(8, 32), torch.ones(8, 32)
    with AllocationRecorder() as ledger:
        made = torch._softmax_backward_data(gradient, output, -1, torch.float32)
    assert told(ledger.stream) == [("+", 1024), ("+", 1024), ("-", 0)]
    assert ledger.stream[2].allocation is ledger.stream[0]
    assert made.nbytes == 1024


def test_half_precision_scores_become_fp32_inside_softmax_as_on_a_gpu():
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.nn import functional

    from benchmarks.tracing.emulation import emulate_gpu
    from benchmarks.tracing.model import AllocationRecorder

    before = functional.softmax
    with FakeTensorMode(), emulate_gpu(), AllocationRecorder() as ledger:
        scores = torch.empty(8, 32, dtype=torch.float16)
        made = functional.softmax(scores, dim=-1, dtype=torch.float32)
        assert made.dtype is torch.float32
    assert [event.bytes for event in ledger.stream if isinstance(event, Allocation)] == [512, 1024]
    assert functional.softmax is before


@pytest.mark.parametrize("is_divided", [False, True])
def test_log_probabilities_hold_as_many_copies_of_the_logits_as_the_estimate_counts(is_divided):
    """As TRL 1.0 to 1.9 compute them for DPO and, divided by a temperature, for GRPO, of logits that were cast to fp32.

    The profiler and not the recorder: under a dispatch mode autograd adds into new tensors, not in place.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    from devkit.estimate.activations import COPIES, DIVIDED_COPIES

    head, states = torch.randn(2048, 4, dtype=torch.bfloat16), torch.randn(8, 65, 4, dtype=torch.bfloat16)
    picked = torch.zeros(8, 64, 1, dtype=torch.long)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        logits = (states.requires_grad_() @ head.T).float()[:, :-1]
        if is_divided:
            logits.div_(0.5)
        selected = logits.gather(-1, picked).squeeze(-1)
        loss = (selected - torch.stack([torch.logsumexp(row, dim=-1) for row in logits])).sum()
        del logits
        loss.backward()
    events = (each for each in found.profiler.kineto_results.events() if each.name() == "[memory]")
    live = accumulate(each.nbytes() for each in sorted(events, key=lambda each: each.start_ns()))
    copies = DIVIDED_COPIES if is_divided else COPIES
    assert max(live) / (8 * 64 * 2048 * 4) == pytest.approx(copies, rel=0.03)
