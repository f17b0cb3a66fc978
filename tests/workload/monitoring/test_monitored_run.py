"""A real run that is watched: doctor reads what it left."""

import pytest

torch = pytest.importorskip("torch", reason="the workload extra is not installed")

from devkit.probe.host import LocalHost
from devkit.probe.reports import read_training_run
from devkit.workload.finetune.events import monitor_gpus
from tests.workload.finetune.run_factory import RunFactory

pytestmark = [pytest.mark.workload, pytest.mark.filterwarnings("ignore")]


def test_a_run_writes_samples_for_the_doctor(tmp_path):
    from devkit.workload.finetune.program import run_finetuning

    torch.set_num_threads(1)
    settings = RunFactory(tmp_path).settings(steps=6)
    with monitor_gpus(settings.output) as listen:
        assert run_finetuning(settings, listeners=(listen,)) == 0
    found = read_training_run(LocalHost(), str(settings.output))
    assert (found.steps, found.on_cuda, found.checkpointing) == (6, torch.cuda.is_available(), False)
    assert isinstance(found.waiting_percent, int) and found.attention
