"""Trackers get the numbers of a run by transformers' own callbacks; one that fails never ends a run."""

import sys

import pytest

from devkit.errors import DevkitError
from devkit.workload.finetune import trainer
from devkit.workload.finetune.events import require_trackers
from devkit.workload.finetune.program import run_finetuning
from tests.workload.finetune.run_factory import RunFactory

pytestmark = [pytest.mark.workload, pytest.mark.filterwarnings("ignore")]


def test_a_tracker_that_is_not_installed_is_named_before_the_run(monkeypatch):
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    with pytest.raises(DevkitError) as refused:
        require_trackers(("wandb",))
    assert refused.value.hint == "pip install wandb"


def run(settings, trackers):
    events = []
    assert run_finetuning(settings, listeners=(events.append,), trackers=trackers) == 0
    return [(each["step"], each["loss"]) for each in events if each["event"] == "step"]


@pytest.fixture
def settings(tmp_path):
    return RunFactory(tmp_path).settings(eval_share=0.25, eval_every=3, save_every=1)


def test_a_tracker_that_fails_is_said_once_and_the_run_goes_on(settings, monkeypatch, capsys):
    class Failing:
        def on_train_begin(self, args, *_, **__):
            sys.stderr.write(f"started {args.run_name}\n")

        def on_log(self, *_, **__):
            raise ConnectionError("no route to host")

    monkeypatch.setattr(trainer, "get_reporting_integration_callbacks", lambda _: [Failing])
    assert len(run(settings, ("mlflow",))) == 3
    assert capsys.readouterr().err.splitlines() == [
        f"started {settings.output.name}",
        "note: reporting to mlflow stopped: no route to host",
    ]


def read(folder, tag):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    steps = found.Scalars(tag)
    return [each.step for each in steps], [pytest.approx(each.value, rel=1e-6) for each in steps]


def test_tensorboard_has_losses_and_speed(settings):
    losses = run(settings, ("tensorboard",))
    (folder,) = (settings.output / "runs").iterdir()
    assert read(folder, "train/loss") == ([1, 2, 3], [loss for _, loss in losses])
    assert read(folder, "train/tokens_per_s")[0] == [1, 2, 3]
    assert read(folder, "eval/loss")[0] == [3]


@pytest.mark.full
def test_mlflow_has_the_run_with_its_losses(settings, tmp_path, monkeypatch):
    import mlflow

    # mlflow-skinny has no database.
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    losses = run(settings, ("mlflow",))
    mlflow.flush_async_logging()
    client = mlflow.MlflowClient()
    (found,) = client.search_runs(["0"])
    assert (found.info.run_name, found.info.status) == (settings.output.name, "FINISHED")
    logged = client.get_metric_history(found.info.run_id, "loss")
    assert [(each.step, each.value) for each in logged] == losses
