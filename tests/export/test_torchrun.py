"""torchrun's own variables, by torchrun's own parser."""

from dataclasses import replace

import pytest

from devkit.export.task import build_rendezvous_variables

from .subjects import JOB, made

pytestmark = [pytest.mark.full, pytest.mark.workload]


def test_every_variable_is_a_flag_of_torchruns(monkeypatch):
    from torch.distributed import run

    task = made(job=replace(JOB, gpus=4, nodes=2, grace="5m")).task
    variables = dict(task.environment) | dict(build_rendezvous_variables(task, address="first", rank="1"))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = run.get_args_parser().parse_args(["-m", "devkit"])
    assert {
        "nnodes": "2",
        "nproc_per_node": "4",
        "node_rank": 1,
        "master_addr": "first",
        "master_port": 29500,
        "signals_to_handle": "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1",
        "shutdown_timeout": 300,
    }.items() <= vars(found).items()
    assert {name for name in variables if name.startswith("PET_")} <= {f"PET_{name.upper()}" for name in vars(found)}
