"""A run that is taken up again goes on bit for bit as if it had never stopped; what is dropped shows."""

import pytest
import torch

pytestmark = pytest.mark.workload

from devkit.workload.finetune import checkpoint
from devkit.workload.finetune.checkpoint import TrainProgress
from devkit.workload.finetune.optimizers import MasterWeightAdamW
from devkit.workload.finetune.trainer import seed_generators
from tests.workload.finetune.small_run import ALONE, adapted, made, same, step, tiny_llama, trained

HALF, WHOLE = 3, 6


def adamw_8bit(parameters, lr):
    from bitsandbytes.optim import AdamW8bit

    return AdamW8bit(parameters, lr=lr, min_8bit_size=64)


def paged_adamw(parameters, lr):
    from bitsandbytes.optim import PagedAdamW32bit

    return PagedAdamW32bit(parameters, lr=lr)


def fused_adamw(parameters, lr):
    return torch.optim.AdamW(parameters, lr=lr, fused=True)


def adamw_on_masters(parameters, lr):
    return MasterWeightAdamW([{"params": parameters}], lr=lr)


KINDS = {
    "an adapter with AdamW": (adapted, torch.optim.AdamW),
    "an adapter with fused AdamW": (adapted, fused_adamw),
    "an adapter with 8-bit AdamW": (adapted, adamw_8bit),
    "an adapter with paged AdamW": (adapted, paged_adamw),
    "a bf16 adapter": (lambda: adapted().bfloat16(), torch.optim.AdamW),
    "a bf16 adapter with masters in fp32": (lambda: adapted().bfloat16(), adamw_on_masters),
    "a whole model": (lambda: tiny_llama().train(), torch.optim.AdamW),
    "a whole model with a tied head": (lambda: tiny_llama(tied=True).train(), torch.optim.AdamW),
}


@pytest.mark.filterwarnings("ignore:Paged optimizers are not supported on CPU")
@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_ends_with_the_same_losses_and_weights(tmp_path, kind):
    model, optimizer = KINDS[kind]
    straight = made(model(), optimizer)
    losses = [step(straight, number) for number in range(HALF)]
    checkpoint.save_checkpoint(tmp_path, straight, TrainProgress(step=HALF), settings={}, ranks=ALONE)
    losses += [step(straight, number) for number in range(HALF, WHOLE)]

    resumed = made(model(), optimizer)
    found = checkpoint.find_newest_checkpoint(tmp_path, settings={}, ranks=ALONE)
    checkpoint.load_checkpoint(found, resumed)
    again = [step(resumed, number) for number in range(found.manifest.progress.step, WHOLE)]
    assert again == losses[HALF:]
    assert same(trained(straight), trained(resumed))


def test_dropout_draws_by_the_step_alone(tmp_path):
    one, other = made(adapted(dropout=0.5)), made(adapted(dropout=0.5))
    torch.rand(1000)  # whatever was drawn before
    assert step(one, 4) == step(other, 4)
    assert step(one, 5) != step(made(adapted(dropout=0.5)), 5)


def test_all_generators_follow_the_step():
    import random

    import numpy

    def drawn():
        seed_generators(seed=1, step=2, rank=3)
        return random.random(), numpy.random.rand(), torch.rand(()).item()

    first = drawn()
    random.random(), numpy.random.rand(), torch.rand(3)
    assert drawn() == first


def test_a_scaler_resumes_with_its_scale(tmp_path):
    from dataclasses import replace

    def scaled(scale):
        return replace(made(adapted()), scaler=torch.amp.GradScaler("cpu", init_scale=scale))

    checkpoint.save_checkpoint(tmp_path, scaled(256.0), TrainProgress(step=1), settings={}, ranks=ALONE)
    resumed = scaled(65536.0)
    checkpoint.load_checkpoint(checkpoint.find_newest_checkpoint(tmp_path, settings={}, ranks=ALONE), resumed)
    assert resumed.scaler.get_scale() == 256.0
