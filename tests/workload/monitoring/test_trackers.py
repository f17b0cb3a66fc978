"""MLflow's own store, read back by MLflow where it is installed; a tracker that fails never ends a run."""

import sys
from importlib.util import module_from_spec, spec_from_file_location

import pytest

from devkit.errors import DevkitError
from devkit.workload.finetune.events import monitor_run

STEPS = [{"event": "start", "step": 0}, *({"event": "step", "step": step, "loss": 2.0 / step} for step in (1, 2))]
FAILING = """
import sys
def start_run(run_name): print("started", run_name, file=sys.stderr)
def log_metrics(numbers, step): raise ConnectionError("no route to host")
"""


def test_without_the_tracker_it_says_what_to_install_before_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    with pytest.raises(DevkitError) as refused, monitor_run(tmp_path, tensorboard=None, trackers=("wandb",)):
        pass
    assert refused.value.hint == "pip install wandb"


def test_a_tracker_that_fails_is_said_once_and_the_run_goes_on(tmp_path, monkeypatch, capsys):
    file = tmp_path / "mlflow.py"
    file.write_text(FAILING)
    spec = spec_from_file_location("mlflow", file)
    failing = module_from_spec(spec)
    spec.loader.exec_module(failing)
    monkeypatch.setitem(sys.modules, "mlflow", failing)
    with monitor_run(tmp_path / "run-7", tensorboard=None, trackers=("mlflow",)) as listen:
        for event in STEPS[1:]:
            listen(event)
    assert capsys.readouterr().err == "started run-7\nnote: reporting to mlflow stopped: no route to host\n"


@pytest.mark.full
@pytest.mark.workload
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("ends", "status"), [(None, "FINISHED"), (RuntimeError, "FAILED")])
def test_mlflow_has_the_run_with_its_losses(tmp_path, monkeypatch, ends, status):
    mlflow = pytest.importorskip("mlflow")
    # mlflow-skinny has no database.
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    with (
        pytest.raises(ends) if ends else monitor_run(tmp_path / "none", tensorboard=None),
        monitor_run(tmp_path / "run-7", tensorboard=None, trackers=("mlflow",)) as listen,
    ):
        for event in [*STEPS[1:], {"event": "eval", "step": 2, "loss": 0.25}]:
            listen(event)
        if ends:
            raise ends
    client = mlflow.MlflowClient()
    (run,) = client.search_runs(["0"])
    assert (run.info.run_name, run.info.status) == ("run-7", status)
    assert [(each.step, each.value) for each in client.get_metric_history(run.info.run_id, "train/loss")] == [
        (1, 2.0),
        (2, 1.0),
    ]
    assert run.data.metrics["eval/loss"] == 0.25
