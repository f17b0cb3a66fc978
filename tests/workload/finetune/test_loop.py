"""What may happen at a step: numbers that are none, signals, and what is told of it all."""

import json
import math
import os
import shutil
import signal
from types import SimpleNamespace

import pytest
import torch

pytestmark = pytest.mark.workload

from devkit.estimate.settings import Precision
from devkit.workload.finetune import trainer
from devkit.workload.finetune.checkpoint import TrainProgress
from devkit.workload.finetune.forward import ModelWithLoss


def before_pass(monkeypatch, number, action):
    """Call `action` with the loss of learning pass `number`, counted from 1, and take what it gives instead."""
    whole, passes = ModelWithLoss.compute_micro_batch_loss, []

    def forward(module, batch):
        loss = whole(module, batch)
        if torch.is_grad_enabled():
            passes.append(batch)
            return action(loss) if len(passes) in number else loss
        return loss

    monkeypatch.setattr(ModelWithLoss, "compute_micro_batch_loss", forward)


def test_a_step_with_a_nan_loss_is_skipped_and_reported(run_factory, monkeypatch):
    before_pass(monkeypatch, {2}, lambda loss: loss * math.nan)
    ran = run_factory.run(steps=4)
    assert ran.code == 0
    assert [each["step"] for each in ran.named("step")] == [1, 3, 4]
    skipped = ran.named("skipped")[0]
    assert (skipped["step"], skipped["loss"]) == (2, "nan")
    assert all(math.isfinite(loss) for loss in ran.losses)


def test_three_in_a_row_end_the_run_and_keep_the_last_good_checkpoint(run_factory, monkeypatch):
    before_pass(monkeypatch, {3, 4, 5}, lambda loss: loss * math.inf)
    ran = run_factory.run(steps=9, save_every=2)
    assert ran.code == 1
    assert ran.named("stopped")[0]["how"] == "not-finite"
    assert sorted(each.name for each in ran.output.glob("step-*")) == ["step-2", "step-4"]
    assert json.loads((ran.output / "run.json").read_text())["status"] == "not-finite"


def test_a_signal_right_after_a_skipped_step_loses_nothing(run_factory, monkeypatch):
    def broken_and_asked(loss):
        os.kill(os.getpid(), signal.SIGTERM)
        return loss * math.nan

    before_pass(monkeypatch, {3}, broken_and_asked)
    ran = run_factory.run(steps=9, save_every=100)
    assert ran.code == 75
    assert ran.named("stopped") == [{"event": "stopped", "step": 3, "how": "preempted", "saved": 3}]


@pytest.mark.parametrize(
    ("number", "code", "how"),
    [(signal.SIGTERM, 75, "preempted"), (signal.SIGUSR1, 75, "preempted"), (signal.SIGINT, 130, "interrupted")],
)
def test_a_signal_is_handled_between_passes_and_the_run_resumes_bitwise_identically(
    run_factory, monkeypatch, number, code, how
):
    straight = run_factory.run(steps=4, micro_batch=2)

    def signaled(loss):
        os.kill(os.getpid(), number)
        return loss

    with monkeypatch.context() as patched:
        before_pass(patched, {6}, signaled)  # the second of step 2's four passes
        stopped = run_factory.run(steps=4, micro_batch=2)
    assert stopped.code == code
    assert stopped.named("stopped")[0] | {"step": 1, "saved": 1, "how": how} == stopped.named("stopped")[0]
    again = run_factory.run(steps=4, micro_batch=2, output=stopped.output)
    assert again.code == 0
    assert stopped.losses + again.losses == straight.losses
    assert again.named("end")[0]["tokens"] == straight.named("end")[0]["tokens"]
    told = [json.loads(line) for line in (stopped.output / "metrics.jsonl").read_text().splitlines()]
    assert [each["step"] for each in told if each["event"] == "step"] == [1, 2, 3, 4]


def test_in_fp16_a_gradient_that_overflows_is_skipped_and_the_scale_falls(run_factory, monkeypatch):
    scales = []
    update = torch.amp.GradScaler.update

    def noted(scaler, *given):
        update(scaler, *given)
        scales.append(scaler.get_scale())

    monkeypatch.setattr(torch.amp.GradScaler, "update", noted)
    ran = run_factory.run(steps=4, precision=Precision.FP16, learning_rate=1e-3)
    assert ran.code == 0
    taken, skipped = ({each["step"] for each in ran.named(name)} for name in ("step", "skipped"))
    assert taken | skipped == {1, 2, 3, 4} and taken
    assert scales == sorted(scales, reverse=True)
    assert len({2.0**16, *scales}) - 1 == len(skipped)


@pytest.mark.full
def test_a_run_in_16_bits_resumes_bitwise_identically(run_factory):
    """The weights are the rounded image of what moves: that stands in the checkpoint as well."""
    straight = run_factory.run(steps=6, precision=Precision.BF16, learning_rate=1e-3)
    first = run_factory.run(steps=6, precision=Precision.BF16, learning_rate=1e-3, save_every=3)
    for each in (first.output / "step-6", first.output / "latest"):
        shutil.rmtree(each) if each.is_dir() and not each.is_symlink() else each.unlink()
    again = run_factory.run(steps=6, precision=Precision.BF16, learning_rate=1e-3, save_every=3, output=first.output)
    assert again.named("resumed")[0]["step"] == 3
    assert first.losses[:3] + again.losses == straight.losses


def test_repeated_steps_are_in_the_metrics_once(run_factory, monkeypatch):
    def killed(_):
        raise SystemError("the plug is pulled")

    with monkeypatch.context() as patched:
        before_pass(patched, {4}, killed)
        with pytest.raises(SystemError):
            run_factory.run(steps=5, save_every=2, output=run_factory.folder / "unplugged")
    again = run_factory.run(steps=5, save_every=2, output=run_factory.folder / "unplugged")
    assert [each["step"] for each in again.named("step")] == [3, 4, 5]
    told = [json.loads(line) for line in (again.output / "metrics.jsonl").read_text().splitlines()]
    assert [each["step"] for each in told if each["event"] == "step"] == [1, 2, 3, 4, 5]


def test_each_step_event_has_the_usual_metrics(run_factory):
    ran = run_factory.run(steps=2)
    first, last = ran.named("step")
    assert set(first) >= {
        "step", "loss", "learning_rate", "gradient_norm", "tokens", "tokens_per_s", "seconds", "eta_s", "waited_s",
        "peak_resident_bytes",
    }  # fmt: skip
    assert last["tokens"] == 2 * first["tokens"] == 2 * ran.named("start")[0]["tokens_per_epoch"]
    assert last["eta_s"] == 0
    assert 0 <= first["waited_s"] <= first["seconds"]


def test_gradients_are_clipped_and_their_norm_is_reported_before(run_factory):
    limited = run_factory.run(gradient_limit=1e-9, learning_rate=1e-2)
    free = run_factory.run(gradient_limit=0.0, learning_rate=1e-2)
    assert limited.named("step")[0]["gradient_norm"] == pytest.approx(free.named("step")[0]["gradient_norm"])
    assert limited.named("step")[0]["gradient_norm"] > 1
    assert limited.losses[1] != free.losses[1]


def test_a_run_whose_last_weights_are_nan_is_not_done(run_factory):
    """It used to end as done, with no result or with that of an earlier checkpoint."""
    ran = run_factory.run(steps=2, learning_rate=1e30, schedule="constant", warmup=0.0)
    assert ran.code == 1
    assert ran.named("stopped") == [{"event": "stopped", "step": 2, "how": "not-finite", "saved": -1}]
    assert ran.named("end")[0]["result"] is None
    assert not (ran.output / "adapter").exists()


def test_the_time_left_is_that_of_the_steps_of_this_process(monkeypatch):
    clock = iter([0.0, 4.0])
    monkeypatch.setattr(trainer, "perf_counter", lambda: next(clock))
    run = SimpleNamespace(progress=TrainProgress(step=5), _steps=12)
    trainer.RunTrainer.start_clock(run)
    run.progress.step = 7
    assert trainer.RunTrainer._tick(run, 20) == {"tokens_per_s": 5.0, "seconds": 4.0, "eta_s": 10.0}
