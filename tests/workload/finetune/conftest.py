"""What several tests of fine-tuning share because it is dear to make."""

import pytest


@pytest.fixture(scope="session")
def zygote(tmp_path_factory):
    """The process from which runs are forked; see tests/workload/finetune/zygote.py."""
    from tests.workload.finetune.zygote import Zygote

    with Zygote(tmp_path_factory.mktemp("logs")) as started:
        yield started
