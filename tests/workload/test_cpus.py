"""A container's CPU quota counts, not the machine's cores."""

import os

import pytest

from devkit.workload.environment import count_usable_cpus
from devkit.workload.finetune.process import configure_libraries
from tests.hosts import written

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


GROUP = "/sys/fs/cgroup/job/step"


@pytest.mark.parametrize(
    ("quota", "cpus"),
    [
        pytest.param("max 100000", CORES, id="no quota"),
        pytest.param("50000 100000", 1, id="half a core is still one thread"),
        pytest.param("nonsense", CORES, id="a file that is no quota"),
    ],
)
def test_usable_cpus(tmp_path, quota, cpus):
    files = f"""'/proc/self/cgroup' = "0::/job/step"\n'{GROUP}/cpu.max' = "{quota}"\n"""
    assert count_usable_cpus(written(tmp_path, f"[files]\n{files}")) == cpus


@pytest.mark.workload
@pytest.mark.parametrize(
    ("limit", "free"),
    [("max", 3 << 30), (f"{2 << 30}", 2 << 30), (f"{4 << 30}", 3 << 30)],
    ids=["no limit", "a limit of the job above it", "a limit above what is free"],
)
def test_free_memory_is_that_of_the_machine_or_of_a_control_group(tmp_path, limit, free):
    from devkit.workload.device import read_free_ram_bytes

    files = f"""'/proc/meminfo' = "MemAvailable: {3 << 20} kB"\n'/proc/self/cgroup' = "0::/job/step"\n"""
    host = written(tmp_path, f"""[files]\n{files}'/sys/fs/cgroup/job/memory.max' = "{limit}"\n""")
    assert read_free_ram_bytes(host) == free


@pytest.mark.workload
@pytest.mark.parametrize(("chosen", "counts"), [(None, "1000"), ("7", "7")])
def test_threads_that_wait_let_others_compute_unless_the_user_chose(monkeypatch, chosen, counts):
    monkeypatch.setenv("GOMP_SPINCOUNT", chosen or "")
    if chosen is None:
        monkeypatch.delenv("GOMP_SPINCOUNT")
    configure_libraries()
    assert os.environ["GOMP_SPINCOUNT"] == counts
