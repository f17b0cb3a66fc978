"""A container's CPU quota counts, not the machine's cores."""

import os

import pytest

from devkit.workload.environment import count_usable_cpus

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@pytest.mark.parametrize(
    ("quota", "cpus"),
    [
        pytest.param("max 100000", CORES, id="no quota"),
        pytest.param("100000 100000", 1, id="one core"),
        pytest.param("50000 100000", 1, id="half a core is still one thread"),
        pytest.param("99900000 100000", CORES, id="a quota above the cores that are there"),
        pytest.param("nonsense", CORES, id="a file that is no quota"),
        pytest.param(None, CORES, id="no such file"),
    ],
)
def test_usable_cpus(tmp_path, quota, cpus):
    file = tmp_path / "cpu.max"
    if quota is not None:
        file.write_text(quota)
    assert count_usable_cpus(file) == cpus
