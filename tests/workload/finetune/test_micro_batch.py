"""Running out of memory: the step is taken again in halves, and reported.

No memory runs out here: a hook on the model raises torch's own exception for passes above a size. That stands in for a
GPU, and shows what the program does, not how large a pass fits.
"""

import gc
import weakref

import pytest
import torch

pytestmark = pytest.mark.workload

from devkit.workload.device import free_after_oom, is_out_of_memory
from devkit.workload.finetune import program
from devkit.workload.finetune.forward import ModelWithLoss

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), True),
        (RuntimeError("MPS backend out of memory (MPS allocated: 9 GB)"), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_only_memory_that_ran_out_counts_as_that(error, is_one):
    assert is_out_of_memory(error) is is_one


def test_the_tensors_of_a_failed_pass_are_freed():
    seen = []

    def failing():
        held = torch.zeros(10)
        seen.append(weakref.ref(held))
        raise torch.OutOfMemoryError("for the test")

    try:
        failing()
    except torch.OutOfMemoryError as error:
        kept = error
    assert seen[0]() is not None
    free_after_oom(kept, CPU)
    gc.collect()
    assert seen[0]() is None


class Narrow:
    """Passes of more texts than `fits` run out of memory, from the pass number `since` on, at most `times`."""

    def __init__(self, monkeypatch, *, fits, since=0, times=1000):
        self.passes = 0
        whole = ModelWithLoss.compute_micro_batch_loss

        def forward(module, batch):
            self.passes += 1
            texts = len(batch.cu_seqlens) - 1
            if texts > fits and self.passes > since and self.times > 0:
                self.times -= 1
                raise torch.OutOfMemoryError("for the test")
            return whole(module, batch)

        self.times = times
        monkeypatch.setattr(ModelWithLoss, "compute_micro_batch_loss", forward)


@pytest.mark.parametrize(
    ("fits", "since", "halvings"), [(2, 0, [(1, 4), (1, 2)]), (4, 1, [(2, 4)])], ids=["first step", "later step"]
)
def test_a_step_is_retried_in_halves_until_it_fits(run_factory, monkeypatch, fits, since, halvings):
    straight = run_factory.run(micro_batch=8)
    Narrow(monkeypatch, fits=fits, since=since)
    found = run_factory.run(micro_batch=8)
    assert found.code == 0
    assert [(each["step"], each["next_micro_batch"]) for each in found.named("out-of-memory")] == halvings
    assert found.losses == pytest.approx(straight.losses, rel=2e-6)


def test_when_halving_does_not_help_the_run_saves_and_reports_it(run_factory, monkeypatch):
    Narrow(monkeypatch, fits=0, since=1)
    found = run_factory.run(micro_batch=8)
    assert found.code == 1
    assert [each["next_micro_batch"] for each in found.named("out-of-memory")] == [4, 2, 1, None]
    assert found.named("stopped")[0] | {"how": "out-of-memory", "step": 1, "saved": 1} == found.named("stopped")[0]
    assert (found.output / "step-1").is_dir()


def test_when_not_one_row_fits_nothing_is_trained(run_factory, monkeypatch):
    Narrow(monkeypatch, fits=0)
    found = run_factory.run(micro_batch=2)
    assert found.code == 1
    assert found.named("stopped")[0]["step"] == 0
    assert found.losses == []


def test_oom_while_loading_is_reported_and_not_as_a_bug(run_factory, monkeypatch):
    def too_large(*_):
        raise torch.OutOfMemoryError("for the test")

    monkeypatch.setattr(program, "load_base_model", too_large)
    found = run_factory.run()
    assert found.code == 1
    assert found.named("stopped")[0]["how"] == "out-of-memory"
