"""The patches in a script that is not ours: transformers' Trainer learns the same with them, without logits."""

import pytest
import torch

pytestmark = pytest.mark.workload

from transformers import Trainer, TrainingArguments

from devkit.workload.models import LoraConfig, adapter_injection, get_peft_model
from devkit.workload.patches import patch
from tests.workload.finetune.small_run import VOCABULARY, tiny_llama

LAYERS = 14
"""Seven projections in each of two layers."""


def adapted():
    base = tiny_llama()
    torch.manual_seed(1)
    config = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    with adapter_injection(base):
        return get_peft_model(base, config)


def rows(count=12):
    drawn = torch.Generator().manual_seed(3)
    for _ in range(count):
        ids = torch.randint(0, VOCABULARY, (10,), generator=drawn)
        # The first half is a prompt.
        yield {"input_ids": ids, "labels": torch.where(torch.arange(10) < 5, -100, ids)}


def trained(model, folder):
    arguments = TrainingArguments(
        str(folder), max_steps=3, per_device_train_batch_size=2, gradient_accumulation_steps=2, learning_rate=1e-2,
        logging_steps=1, report_to="none", disable_tqdm=True, use_cpu=True, save_strategy="no",
    )  # fmt: skip
    trainer = Trainer(model=model, args=arguments, train_dataset=list(rows()), eval_dataset=list(rows(4)))
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return [*losses, trainer.evaluate()["eval_loss"]]


def test_a_trainer_learns_the_same_in_two_more_lines(tmp_path):
    plain = trained(adapted(), tmp_path)
    model = adapted()
    found = patch(model)
    assert (found.lora_layers, found.has_chunked_loss) == (LAYERS, True)
    # Two norms and a gated MLP in each layer, and the last norm.
    assert found.lean_modules == 7
    assert trained(model, tmp_path) == pytest.approx(plain, rel=1e-4)
    assert plain[2] < plain[0]


def test_without_labels_the_model_answers_as_before():
    model = adapted()
    ids = torch.arange(8).unsqueeze(0)
    before = model(input_ids=ids).logits
    patch(model)
    assert torch.allclose(model(input_ids=ids).logits, before, atol=1e-6)
    assert model(input_ids=ids, labels=ids).logits is None
    assert model.generate(input_ids=ids, max_new_tokens=3, do_sample=False).shape == (1, 11)


def test_a_head_that_is_not_reproduced_keeps_its_own_loss():
    model = adapted()
    base = model.get_base_model()
    whole = base.forward

    def scaled(*given, **named):
        found = whole(*given, **named)
        found.logits = found.logits * 3
        return found

    base.forward = scaled
    assert patch(model).has_chunked_loss is False
    assert base.forward is scaled
