"""A real run that is watched: its curves are drawn, and doctor reads what it left."""

import xml.etree.ElementTree as ET

import pytest

torch = pytest.importorskip("torch", reason="the workload extra is not installed")

from devkit.probe.host import LocalHost  # noqa: E402
from devkit.probe.training_run import read_training_run  # noqa: E402
from devkit.workload.watching.watchers import watching  # noqa: E402
from tests.workload.finetune.kitchen import Kitchen  # noqa: E402

pytestmark = [pytest.mark.workload, pytest.mark.filterwarnings("ignore")]


def test_a_run_draws_its_curves_and_leaves_what_doctor_reads(tmp_path):
    from devkit.workload.finetune.program import run

    torch.set_num_threads(1)
    settings, picture = Kitchen(tmp_path).settings(steps=6), tmp_path / "curves.svg"
    with watching(settings.output, plot=picture, tensorboard=None) as listen:
        assert run(settings, listeners=(listen,)) == 0
    kinds = {each.get("class") for each in ET.parse(picture).iter("{http://www.w3.org/2000/svg}polyline")}
    assert {"line loss", "line pace"} <= kinds
    found = read_training_run(LocalHost(), str(settings.output))
    assert (found.steps, found.on_cuda, found.checkpointing) == (6, torch.cuda.is_available(), False)
    assert isinstance(found.waiting_percent, int) and found.attention
