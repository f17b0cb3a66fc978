"""One fault on one node of many: it is found and named, whether a check knows it or not."""

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
