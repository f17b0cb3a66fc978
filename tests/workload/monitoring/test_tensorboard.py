"""TensorBoard's event files, read back by TensorBoard itself where it is installed."""

import importlib.util
import threading

import pytest

from devkit.errors import DevkitError
from devkit.workload.finetune.events import TrackerListener, monitor_run
from tests.workload.finetune.disks import mounted

HAS_TENSORBOARD = importlib.util.find_spec("tensorboard") is not None


def events(steps, loss=2.0):
    for step in steps:
        yield {"event": "step", "step": step, "loss": loss / step, "learning_rate": 1e-3, "tokens_per_s": 100.0}


@pytest.mark.skipif(HAS_TENSORBOARD, reason="TensorBoard is installed")
def test_without_tensorboard_it_says_what_to_install_before_the_run(tmp_path):
    with pytest.raises(DevkitError) as refused, monitor_run(tmp_path, tensorboard=tmp_path / "tb"):
        pass
    assert refused.value.hint == "pip install tensorboard"


def read(folder, tag):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return [(each.step, pytest.approx(each.value, rel=1e-6)) for each in found.Scalars(tag)]


@pytest.mark.workload
@pytest.mark.filterwarnings("ignore")
def test_losses_and_throughput_are_scalars_and_repeated_steps_count_once(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("tensorboard")
    for steps in ((1, 2, 3), (3, 4)):
        board = TrackerListener("tensorboard", tmp_path)
        for event in [{"event": "start", "step": 0}, *events(steps)]:
            board(event)
        board({"event": "eval", "step": steps[-1], "loss": 0.25})
        board.finish(None)
    assert read(tmp_path, "train/loss") == [(1, 2.0), (2, 1.0), (3, 2 / 3), (4, 0.5)]
    assert read(tmp_path, "eval/loss")[-1] == (4, 0.25)


@pytest.mark.workload
def test_a_folder_that_cannot_be_written_is_refused_before_the_run(tmp_path):
    pytest.importorskip("tensorboard")
    (tmp_path / "file").touch()
    with pytest.raises(DevkitError, match=r"cannot write .*file/tb: Not a directory"):
        TrackerListener("tensorboard", tmp_path / "file" / "tb")


@pytest.mark.workload
@pytest.mark.filterwarnings("ignore")
def test_a_full_disk_ends_the_event_files_and_not_the_run(tmp_path, capsys, monkeypatch):
    pytest.importorskip("torch")
    pytest.importorskip("tensorboard")
    told = []
    monkeypatch.setattr(threading, "excepthook", told.append)
    with mounted(tmp_path / "disk", "size=64k") as disk:
        board = TrackerListener("tensorboard", disk)
        for event in events(range(1, 3000)):
            board(event)
        board.finish(None)
    assert capsys.readouterr().err.count("reporting to tensorboard stopped") == 1
    assert [each.exc_type for each in told] == []
