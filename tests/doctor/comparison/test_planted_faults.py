"""One fault on one node of many: it is found and named, whether a check knows it or not."""

import copy

import pytest

from .cluster import cluster, put
from .helpers import compare, get_only_group, outlier_names

COUNT = 24
ODD = "node-0013"
GPU = "nvml.gpus.3.health"


def every_gpu(field, value):
    return tuple((f"nvml.gpus.{index}.{field}", value) for index in range(8))


FAULTS = {
    "half of the memory": (("system.memory_bytes", 33_656_143_872),),
    "another kernel": (("system.kernel", "6.5.0-44-generic"),),
    "ECC off on one GPU": ((f"{GPU}.ecc_enabled", False),),
    "ECC off on all GPUs": every_gpu("health.ecc_enabled", False),
    "a GPU in a slot of PCIe 4": ((f"{GPU}.pcie_generation", 4), (f"{GPU}.pcie_max_generation", 4)),
    "a link that trained at PCIe 4": ((f"{GPU}.pcie_generation", 4),),
    "half of the PCIe lanes": ((f"{GPU}.pcie_width", 8),),
    "a lower power limit": ((f"{GPU}.power_limit_mw", 500_000),),
    "lower application clocks": ((f"{GPU}.application_clock_mhz", 1200),),
    "another driver": (("driver.loaded", "550.54.15"), ("driver.on_disk", "550.54.15")),
    "no Fabric Manager": (("driver.fabric_manager", "inactive"),),
    "a failed row remapping": ((f"{GPU}.remap_failed", True),),
    "uncorrected memory errors": ((f"{GPU}.ecc_uncorrected", 40),),
    "too hot": ((f"{GPU}.temperature_c", 91), (f"{GPU}.clock_reasons", ["hw-thermal-slowdown"])),
}


PORTS = tuple(f"mlx5_{number}/1 ACTIVE 400 Gb/sec (4X NDR), NUMA node {number // 4}" for number in range(8))
NCCL = {"type": "Package", "name": "nvidia-nccl-cu12", "version": "2.19.3", "tag": "", "requires": []}
USUAL = (
    ("limits.fabric_ports", list(PORTS)),
    ("limits.link_mtus", ["ens1 9000", "eno1 1500"]),
    ("limits.numa_balancing", False),
    ("python.packages", [NCCL]),
    *((f"nvml.gpus.{index}.health.nvlink_active", 18) for index in range(8)),
)
PUBLIC = {
    "https://github.com/AlexeyAB/darknet/issues/2807": ((f"{GPU}.pcie_width", 1),),
    "https://github.com/tatsu-lab/stanford_alpaca/issues/32": every_gpu("health.nvlink_active", 0),
    "https://github.com/deepseek-ai/DeepEP/issues/624": (("limits.numa_balancing", True),),
    "https://github.com/NVIDIA/nccl/issues/489": (
        ("limits.fabric_ports.1", "mlx5_1/1 DOWN 10 Gb/sec (4X), NUMA node 0"),
    ),
    "https://github.com/NVIDIA/nccl/issues/709": (
        ("limits.fabric_ports.5", PORTS[5].replace("400 Gb/sec (4X NDR)", "25 Gb/sec (1X EDR)")),
    ),
    "https://github.com/NVIDIA/nccl/issues/1524": (("limits.link_mtus", ["ens1 4200", "eno1 1500"]),),
    "https://github.com/NVIDIA/nccl/issues/1267": (("python.packages", [NCCL | {"version": "2.20.5"}]),),
    "https://github.com/l4rz/reverse-engineering-dell-idrac-to-get-rid-of-gpu-throttling/issues/3": (
        (f"{GPU}.power_limit_mw", 350_000),
    ),
    "https://github.com/leptonai/gpud/pull/330": ((f"{GPU}.clock_reasons", ["hw-slowdown"]),),
    "https://github.com/NVIDIA/nccl/issues/412": (("driver.modules", ["ib_core", "nvidia", "nvidia_uvm"]),),
}
"""Nodes that others found to be unlike the rest: the thread, and what it changes in the facts."""


@pytest.fixture(scope="module")
def nodes():
    return cluster(COUNT)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_the_outlier(fault):
    nodes = cluster(COUNT)
    for path, value in FAULTS[fault]:
        put(nodes[ODD], path, value)
    comparison = compare(nodes)
    assert comparison.has_differences
    assert outlier_names(comparison) == [ODD]


@pytest.mark.full
@pytest.mark.parametrize("thread", PUBLIC)
def test_a_fault_of_a_public_thread_is_the_outlier(thread):
    nodes = cluster(COUNT)
    for document in nodes.values():
        for path, value in USUAL:
            put(document, path, copy.deepcopy(value))
    assert outlier_names(compare(nodes)) == []
    for path, value in PUBLIC[thread]:
        put(nodes[ODD], path, value)
    comparison = compare(nodes)
    assert comparison.has_differences
    assert outlier_names(comparison) == [ODD]


def test_there_are_fourteen_and_a_healthy_fleet_has_none(nodes):
    assert len(FAULTS) == 14
    assert outlier_names(compare(nodes)) == []


def test_gpus_that_save_power_on_their_link_are_no_outliers():
    nodes = cluster(COUNT)
    for number, document in enumerate(nodes.values()):
        if number % 2:
            for path, value in every_gpu("health.pcie_generation", 1):
                put(document, path, value)
    comparison = compare(nodes)
    assert outlier_names(comparison) == []
    assert not comparison.has_differences


def test_a_rollout_is_said_once_and_not_again_for_each_node():
    nodes = cluster(COUNT)
    new = [f"node-{number:04d}" for number in range(1, 10)]
    for name in new:
        for field in ("loaded", "on_disk", "libnvidia_ml", "libcuda", "fabric_manager_version"):
            put(nodes[name], f"driver.{field}", "580.95.05")
    put(nodes[new[4]], "driver.fabric_manager", "inactive")
    put(nodes[new[6]], "system.kernel", "6.5.0-44-generic")
    outliers = {outlier.nodes: outlier for outlier in get_only_group(compare(nodes)).outliers if outlier.grade}
    assert sorted(map(len, outliers)) == [1, 1, 9]
    rollout = next(each for names, each in outliers.items() if len(names) == 9)
    assert {"driver.loaded", "driver.on_disk"} <= {each.field for each in rollout.differences}
    assert [each.field for each in outliers[(new[4],)].differences] == ["driver.fabric_manager"]
    assert [each.code for each in outliers[(new[4],)].findings] == ["GPU004"]
    assert [each.field for each in outliers[(new[6],)].differences] == ["system.kernel"]
    assert not any(each.code == "GPU004" for each in rollout.findings)
