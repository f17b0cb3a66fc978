"""Comparing machines: what the majority has, who deviates, and which check it matters to."""

import copy

import pytest

from devkit.doctor.comparison import InvalidReport, compare_nodes, read_node
from devkit.verify.report import ProofLocation, VerificationReport
from devkit.workload.proof.stages import StageResult, StageStatus
from tests.cases import cases
from tests.doctor.cluster import cluster, put, recorded, varied

COUNT = 24
ODD = "node-0013"
GPU = "nvml.gpus.3.health"
NODES = cluster(COUNT)


def with_odd(*changes, usual=()):
    """The cluster with one node changed; `usual` is what all have."""
    nodes = copy.deepcopy(NODES)
    for document in nodes.values():
        for path, value in usual:
            put(document, path, copy.deepcopy(value))
    for path, value in changes:
        put(nodes[ODD], path, value)
    return nodes


def compare(nodes):
    return compare_nodes(read_node(name, document) for name, document in nodes.items())


def only_group(nodes):
    (group,) = compare(nodes)
    return group


def odd_in(nodes):
    """The nodes of each outlier, the worst first."""
    return [outlier.nodes for group in compare(nodes) for outlier in group.odd]


def every_gpu(field, value):
    return tuple((f"nvml.gpus.{index}.{field}", value) for index in range(8))


def test_what_differs_between_healthy_machines_of_a_kind_is_no_difference():
    group = only_group(NODES)
    assert (group.odd, group.without_majority, group.nodes) == ((), (), COUNT)
    assert group.of == "NVIDIA H100 80GB HBM3"


FELL_OFF = {"type": "Xid", "number": 79, "address": "0000:18:00.0", "line": "NVRM: Xid: 79", "count": 1}
XID = ("kernel_log.xids", [FELL_OFF | {"at": "2026-03-30T00:00:00+00:00"}])
FAULTS = {
    "half of the memory": ((("system.memory_bytes", 33_656_143_872),), ()),
    "another kernel": ((("system.kernel", "6.5.0-44-generic"),), ()),
    "ECC off on one GPU": (((f"{GPU}.ecc_enabled", False),), ()),
    "a GPU in a slot of PCIe 4": (((f"{GPU}.pcie_max_generation", 4),), ()),
    "half of the PCIe lanes": (((f"{GPU}.pcie_width", 8),), ()),
    "a lower power limit": (((f"{GPU}.power_limit_mw", 500_000),), ()),
    "lower application clocks": (((f"{GPU}.application_clock_mhz", 1200),), {"GPU016"}),
    "another driver": ((("driver.loaded", "550.54.15"), ("driver.on_disk", "550.54.15")), {"DRV012", "GPU022"}),
    "no Fabric Manager": ((("driver.fabric_manager", "inactive"),), {"GPU004"}),
    "a failed row remapping": (((f"{GPU}.remap_failed", True),), {"GPU010"}),
    "too hot": (((f"{GPU}.temperature_c", 93), (f"{GPU}.clock_reasons", ["hw-thermal-slowdown"])), {"GPU013"}),
    "an Xid of this boot": ((XID,), {"GPU006"}),
    "a full disk": ((("storage.directories.0.free_bytes", 1 << 20),), {"STO002"}),
    "a setting of NCCL": ((("limits.nccl", ["NCCL_IB_DISABLE=1"]),), {"NET004"}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_on_one_of_many_is_the_outlier_with_the_checks_that_find_it(fault):
    changes, codes = FAULTS[fault]
    (outlier,) = only_group(with_odd(*changes, usual=[("limits.nccl", [])])).odd
    assert outlier.nodes == (ODD,)
    assert {each.code for each in outlier.findings} == set(codes)
    assert outlier.matters == ("decides" if codes else "no")


PORTS = [f"mlx5_{number}/1 ACTIVE 400 Gb/sec (4X NDR), NUMA node {number // 4}" for number in range(8)]
NCCL = {"type": "Package", "name": "nvidia-nccl-cu12", "version": "2.19.3", "tag": "", "requires": []}
USUAL = (
    ("limits.fabric_ports", PORTS),
    ("limits.link_mtus", ["ens1 9000", "eno1 1500"]),
    ("limits.numa_balancing", False),
    ("python.packages", [NCCL]),
    *every_gpu("health.nvlink_active", 18),
)
PUBLIC = {
    "https://github.com/AlexeyAB/darknet/issues/2807": ((f"{GPU}.pcie_width", 1),),
    "https://github.com/tatsu-lab/stanford_alpaca/issues/32": every_gpu("health.nvlink_active", 0),
    "https://github.com/deepseek-ai/DeepEP/issues/624": (("limits.numa_balancing", True),),
    "https://github.com/NVIDIA/nccl/issues/489": (("limits.fabric_ports", ["mlx5_1/1 DOWN", *PORTS[1:]]),),
    "https://github.com/NVIDIA/nccl/issues/1524": (("limits.link_mtus", ["ens1 4200", "eno1 1500"]),),
    "https://github.com/NVIDIA/nccl/issues/1267": (("python.packages", [NCCL | {"version": "2.20.5"}]),),
    "https://github.com/leptonai/gpud/pull/330": ((f"{GPU}.clock_reasons", ["hw-slowdown"]),),
    "https://github.com/NVIDIA/nccl/issues/412": (("driver.modules", ["ib_core", "nvidia", "nvidia_uvm"]),),
}
"""Nodes that others found to be unlike the rest: the thread, and what it changes in the facts."""


@pytest.mark.full
@pytest.mark.parametrize("thread", PUBLIC)
def test_a_fault_of_a_public_thread_is_the_outlier(thread):
    assert odd_in(with_odd(usual=USUAL)) == []
    assert odd_in(with_odd(*PUBLIC[thread], usual=USUAL)) == [(ODD,)]


def shown(*changes):
    """The differences of the changed node by field: its value, the usual one, the findings it causes."""
    (outlier,) = only_group(with_odd(*changes)).odd
    said = {each.field: str(each.value) if isinstance(each.value, str) else each.value for each in outlier.differences}
    return {each.field: (said[each.field], each.usual, each.settles) for each in outlier.differences}


@cases(
    "changes, expected",
    {
        "only the field by which a finding comes and goes causes it": (
            [("driver.fabric_manager", "inactive"), ("system.glibc", "2.36")],
            {"driver.fabric_manager": ("inactive", "active", ("GPU004",)), "system.glibc": ("2.36", "2.39", ())},
        ),
        "the same on several GPUs is one difference": (
            every_gpu("health.persistence", False)[2:4],
            {"nvml.gpus[2,3].health.persistence": (False, True, ())},
        ),
        "different values on several GPUs are several": (
            [(f"{GPU}.slowdown_c", 90), ("nvml.gpus.2.health.slowdown_c", 91)],
            {"nvml.gpus[3].health.slowdown_c": (90, 92, ()), "nvml.gpus[2].health.slowdown_c": (91, 92, ())},
        ),
        "a list that lacks an entry": ([("cdi", [])], {"cdi": ((), ("/etc/cdi/nvidia.json",), ())}),
        "a fact that was lost": (
            [("engine", {"unknown": "it did not answer in 4.7 s", "is_lost": True})],
            {"engine": ("not read (it did not answer in 4.7 s)", "present", ())},
        ),
        "a fact that does not apply is no difference": (
            [("driver.secure_boot", {"unknown": "not visible here"}), ("system.kernel", "6.5")],
            {"system.kernel": ("6.5", "6.8.0-87-generic", ())},
        ),
        "NVML that fails is one difference, and in words": (
            [
                (
                    "nvml",
                    {"type": "NvmlFailure", "end": "error", "code": 9, "message": "Driver Not Loaded", "call": "x"},
                ),
                ("driver.loaded", None),
            ],
            {
                "nvml": ("failing (Driver Not Loaded)", "present", ()),
                "driver.loaded": (None, "570.172.08", ("DRV001",)),
            },
        ),
    },
)
def test_differences_of_one_node(changes, expected):
    found = shown(*changes)
    assert {field: found.get(field) for field in expected} == expected
    assert found.keys() - expected.keys() <= {"driver.libcuda"}


def test_entries_that_few_machines_have_are_differences_of_their_list_alone():
    nodes = cluster(6)
    for name, kind in (("node-0001", "nvidia.com/gpu"), ("node-0002", "other/gpu")):
        nodes[name]["cdi"].append({**nodes[name]["cdi"][0], "path": "/etc/cdi/more.json", "kind": kind})
    group = only_group(nodes)
    fields = {each.field for outlier in group.odd for each in outlier.differences}
    assert (fields, group.without_majority) == ({"cdi"}, ())


def test_reasons_of_lost_facts_the_master_of_a_job_and_times_in_a_container_are_no_difference():
    nodes = cluster(4)
    for number, document in enumerate(nodes.values()):
        inside = {"type": "Facts", **recorded("in-container-ok"), "taken_at": f"2026-03-01T00:00:0{number}+00:00"}
        put(document, "inside", inside)
        put(document, "engine", {"unknown": f"it did not answer in 4.{number} s", "is_lost": True})
        put(document, "limits.nccl", [f"MASTER_ADDR={'this machine' if number else 'another name'}"])
    group = only_group(nodes)
    assert (group.odd, group.without_majority) == ((), ())


@pytest.mark.parametrize(("mebibytes", "is_odd"), [(40, False), (30_000, True)])
def test_memory_may_differ_a_little(mebibytes, is_odd):
    memory = NODES[ODD]["system"]["memory_bytes"]
    assert bool(odd_in(with_odd(("system.memory_bytes", memory - (mebibytes << 20))))) is is_odd


def test_a_rollout_is_said_once_beside_what_single_nodes_of_it_have():
    nodes = cluster(COUNT)
    new = [f"node-{number:04d}" for number in range(1, 10)]
    for name in new:
        for field in ("loaded", "on_disk", "libnvidia_ml", "libcuda", "fabric_manager_version"):
            put(nodes[name], f"driver.{field}", "580.95.05")
    put(nodes[new[4]], "driver.fabric_manager", "inactive")
    put(nodes[new[6]], "system.kernel", "6.5.0-44-generic")
    fields = {outlier.nodes: {each.field for each in outlier.differences} for outlier in only_group(nodes).odd}
    assert fields.keys() == {tuple(new), (new[4],), (new[6],)}
    assert {"driver.loaded", "driver.on_disk"} <= fields[tuple(new)]
    assert (fields[(new[4],)], fields[(new[6],)]) == ({"driver.fabric_manager"}, {"system.kernel"})


def test_an_outlier_with_a_finding_comes_first():
    nodes = with_odd(("driver.fabric_manager", "inactive"))
    put(nodes["node-0020"], "driver.fabric_manager", "inactive")
    put(nodes["node-0001"], "system.kernel", "6.5")
    assert odd_in(nodes) == [(ODD, "node-0020"), ("node-0001",)]


class TestGroups:
    def test_machines_with_other_gpus_are_compared_apart(self):
        nodes = {**cluster(6), **{f"small-{n}": varied(recorded("ubuntu-4090-ok"), n) for n in range(4)}}
        assert [(group.of, group.nodes, group.odd) for group in compare(nodes)] == [
            ("NVIDIA H100 80GB HBM3", 6, ()),
            ("NVIDIA GeForce RTX 4090", 4, ()),
        ]

    def test_containers_and_hosts_are_compared_apart(self):
        nodes = {**cluster(3), **{f"inside-{n}": recorded("in-container-ok") for n in range(2)}}
        assert [group.nodes for group in compare(nodes)] == [3, 2]

    def test_machines_that_lost_some_or_all_gpus_are_outliers_and_no_group(self):
        nodes = cluster(8)
        nodes["node-0001"]["nvml"]["gpus"].pop()
        for name in ("node-0002", "node-0003"):
            put(nodes[name], "nvml", {"unknown": "no answer", "is_lost": True})
        assert set(odd_in(nodes)) == {("node-0001",), ("node-0002", "node-0003")}

    def test_a_single_machine_is_compared_with_the_largest_group(self):
        assert odd_in({**cluster(3), "guest": recorded("ubuntu-4090-ok")}) == [("guest",)]


class TestWithoutMajority:
    @pytest.mark.parametrize("odd", ["node-0001", "node-0002"])
    def test_of_two_machines_the_one_with_more_findings_deviates(self, odd):
        nodes = cluster(2)
        put(nodes[odd], "driver.fabric_manager", "inactive")
        assert odd_in(nodes) == [(odd,)]
        assert odd_in(cluster(2)) == []

    def test_halves_are_listed_as_values_with_their_nodes(self):
        nodes = cluster(6)
        for name in list(nodes)[:3]:
            put(nodes[name], "system.glibc", "2.36")
        group = only_group(nodes)
        (split,) = group.without_majority
        assert (split.field, group.odd) == ("system.glibc", ())
        assert {(each.value, each.nodes, each.such_as[0]) for each in split.values} == {
            ("2.36", 3, "node-0001"),
            ("2.39", 3, "node-0004"),
        }


def proof(rate, status=StageStatus.PASSED):
    """A report of `devkit verify`, as that command writes it."""
    stages = [
        StageResult(
            "torch", status, {"version": "2.9.1"}, reason="no kernel image" * (status is not StageStatus.PASSED)
        ),
        StageResult("memory-rate", StageStatus.PASSED, {"gpu_0_copy_gb_per_s": rate, "error": rate * 1e-9}, ms=rate),
    ]
    device = {"kind": "cuda", "name": "NVIDIA H100 80GB HBM3", "count": 1}
    return VerificationReport(ProofLocation.HERE, device, {"torch": "2.9.1"}, tuple(stages), taken_at="").to_document()


@cases(
    "odd, field",
    {
        "the scatter of rates, times and rounding errors": (proof(2640.0), None),
        "half of the rate": (proof(1300.0), "stages[memory-rate].measured.gpu_0_copy_gb_per_s"),
        "a stage that failed": (proof(2600.0, StageStatus.FAILED), "stages[torch].status"),
    },
)
def test_proofs_are_compared(odd, field):
    nodes = {f"node-{number}": proof(2600.0 + number) for number in range(5)} | {"odd": odd}
    outliers = only_group(nodes).odd
    assert [(each.nodes, each.differences[0].field) for each in outliers] == ([(("odd",), field)] if field else [])


@cases(
    "document, says",
    {
        "a list": ([], "its schema is missing"),
        "an object without one": ({}, "its schema is missing"),
        "a schema of tomorrow": ({"schema": "devkit.facts/2"}, "its schema is devkit.facts/2"),
        "facts with a field of another form": ({**recorded(), "driver": {"type": "Driver"}}, "driver"),
        "another list of outcomes": ({"schema": "devkit.doctor/1", "outcomes": [1]}, "not in the format of"),
        "another form of a proof": ({"schema": "devkit.verify/1", "device": []}, "not in the format of"),
    },
)
def test_what_cannot_be_compared_is_refused_with_the_reason(document, says):
    with pytest.raises(InvalidReport, match=says):
        read_node("odd", document)


def test_numbers_beyond_all_measure_and_deep_unknown_fields_are_compared_too():
    deep = 1
    for _ in range(5000):
        deep = {"": deep}
    assert odd_in(with_odd(("system.memory_bytes", 10**400), ("driver.odd", deep))) == [(ODD,)]
