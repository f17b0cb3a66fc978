"""Processes find each other through what torchrun sets, agree, and say in one line when they cannot."""

import os
import sys
import time

import pytest
import torch

pytestmark = pytest.mark.workload

from devkit import folder_lock
from devkit.errors import DevkitError
from devkit.estimate.settings import Method, Optimizer, Sharding
from devkit.workload.finetune.distributed import join_process_group
from devkit.workload.finetune.run_folder import lock_run_folder
from devkit.workload.finetune.settings import require_sharding_supported
from tests.loopback import find_free_port
from tests.workload.finetune.small_run import ALONE

WHOLE = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


@pytest.fixture
def environment(monkeypatch):
    def given(**values):
        for name in WHOLE:
            monkeypatch.delenv(name, raising=False)
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    given()
    return given


def test_without_a_launcher_a_process_is_alone(environment):
    with join_process_group("cpu") as ranks:
        assert (ranks.rank, ranks.world_size, ranks.is_rank0, ranks.device) == (0, 1, True, torch.device("cpu"))
        assert (ranks.sum(2.5), ranks.max(3.0), ranks.any(True), ranks.any(False)) == (2.5, 3.0, True, False)
        assert ranks.on_rank0_broadcast(lambda: "mine") == "mine"


def test_a_port_that_somebody_exported_starts_no_group(environment):
    environment(MASTER_ADDR="10.0.0.1", MASTER_PORT="29500")
    with join_process_group("cpu") as ranks:
        assert ranks.world_size == 1


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"RANK": None}, "expected RANK, WORLD_SIZE and LOCAL_RANK as whole numbers, got .*'WORLD_SIZE': '2'"),
        ({"WORLD_SIZE": ""}, "as whole numbers, got .*'WORLD_SIZE': ''"),
        ({"RANK": "first"}, "as whole numbers, got {'RANK': 'first'"),
        ({"RANK": "-1"}, "RANK is -1 and WORLD_SIZE 2: ranks start at 0"),
        ({"RANK": "2"}, "RANK is 2 and WORLD_SIZE 2: ranks start at 0"),
    ],
)
def test_what_no_launcher_sets_is_refused(environment, changed, says):
    environment(**{name: value for name, value in {**WHOLE, **changed}.items() if value is not None})
    with pytest.raises(DevkitError, match=says) as told, join_process_group("cpu", timeout_s=1):
        pass
    assert "torchrun --nproc-per-node" in told.value.hint


@pytest.mark.full
def test_absent_ranks_are_awaited_no_longer_than_the_timeout(environment):
    environment(**{**WHOLE, "MASTER_PORT": str(find_free_port())})
    started_s = time.monotonic()
    says = r"process 1 of 2 did not find the others at 127\.0\.0\.1:"
    with pytest.raises(DevkitError, match=says), join_process_group("cpu", timeout_s=1):
        pass
    assert time.monotonic() - started_s < 30


def test_more_processes_than_gpus_are_refused(environment):
    environment(**{**WHOLE, "LOCAL_RANK": "1"})
    with pytest.raises(DevkitError, match=r"LOCAL_RANK is 1, but torch sees 0 GPUs here"), join_process_group("cuda"):
        pass


def test_several_processes_do_not_share_an_apple_gpu(environment):
    environment(**WHOLE)
    with pytest.raises(DevkitError, match="several processes cannot share mps"), join_process_group("mps"):
        pass


@pytest.mark.parametrize(
    ("sharding", "method", "optimizer", "says"),
    [
        (Sharding.ZERO1, Method.FULL, None, "devkit does not train with zero1"),
        (Sharding.ZERO3, Method.INT8_LORA, None, "int8-lora does not work with zero3: FSDP2 shards weights of one"),
        (Sharding.ZERO2, Method.INT8_LORA, None, "int8-lora does not work with zero2"),
        (Sharding.ZERO3, Method.FULL, Optimizer.PAGED_ADAMW, "--optimizer paged-adamw does not work with zero3"),
    ],
)
def test_unsupported_sharding_is_refused_with_the_reason(sharding, method, optimizer, says):
    with pytest.raises(DevkitError, match=says):
        require_sharding_supported(sharding, method, optimizer)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows gives no lock on a folder")
def test_a_second_run_into_the_same_folder_is_refused_until_the_first_has_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_lock, "LOCK_TIMEOUT_S", 0.2)
    with lock_run_folder(tmp_path, ALONE):
        child = os.fork()
        if child == 0:
            try:
                with lock_run_folder(tmp_path, ALONE):
                    os._exit(0)
            except DevkitError:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    with lock_run_folder(tmp_path, ALONE):
        pass
