"""What several tests of fine-tuning share because it is dear to make."""

import pytest


@pytest.fixture(scope="session")
def zygote(tmp_path_factory):
    """The process from which runs are forked; see tests/workload/finetune/zygote.py."""
    from tests.workload.finetune.zygote import Zygote

    with Zygote(tmp_path_factory.mktemp("logs")) as started:
        yield started


@pytest.fixture(scope="module")
def run_factory(tmp_path_factory):
    """One base and its texts, and a new output folder for each run."""
    import torch

    from tests.workload.finetune.run_factory import RunFactory

    torch.set_num_threads(1)
    return RunFactory(tmp_path_factory.mktemp("run_factory"))
