"""Saved facts of many machines: which one is odd, in what, and which check it matters to."""

import pytest

from devkit.doctor.comparison.documents import HardwareClass
from devkit.doctor.comparison.leaves import Mark
from devkit.doctor.comparison.rules import Grade
from tests.doctor.comparison.cluster import cluster, put, recorded, varied
from tests.doctor.comparison.helpers import compare, differences_by_field, get_only_group, outlier_names

NODES = cluster(30)
ODD = "node-0012"
AFTER_BOOT = "2026-03-30T00:00:00+00:00"
FELL_OFF = {
    "type": "Xid",
    "number": 79,
    "address": "0000:18:00.0",
    "line": "NVRM: Xid (PCI:0000:18:00): 79, pid=1, GPU has fallen off the bus.",
    "count": 1,
    "at": AFTER_BOOT,
}
GUEST = {"type": "GpuProcess", "pid": 71, "name": "python", "memory_bytes": 70 << 30}


def with_odd(*changes):
    """The cluster with one node changed: path and value in turns."""
    nodes = {name: varied(recorded(), number) if name == ODD else NODES[name] for number, name in enumerate(NODES, 1)}
    for path, value in changes:
        put(nodes[ODD], path, value)
    return nodes


def test_what_differs_on_all_machines_in_real_life_is_no_difference():
    comparison = compare(NODES)
    assert not comparison.has_differences
    assert outlier_names(comparison) == [] and get_only_group(comparison).outliers == ()


@pytest.mark.parametrize(
    ("changes", "field", "seen", "settles"),
    [
        pytest.param(
            [("driver.loaded", "570.124.06")],
            "driver.loaded",
            ("570.124.06", "570.172.08"),
            {"DRV002", "GPU022"},
            id="another module than the libraries",
        ),
        pytest.param(
            [("driver.fabric_manager", "inactive")],
            "driver.fabric_manager",
            ("inactive", "active"),
            {"GPU004"},
            id="fabric",
        ),
        pytest.param(
            [("nvml.gpus.3.health.remap_failed", True)],
            "nvml.gpus[3].health.remap_failed",
            (True, False),
            {"GPU010"},
            id="memory rows that cannot be remapped, on one GPU of eight",
        ),
        pytest.param([("engine.version", "20.10.7")], "engine.version", ("20.10.7", "28.5.1"), None, id="old engine"),
        pytest.param([("system.glibc", "2.36")], "system.glibc", ("2.36", "2.39"), set(), id="an old C library"),
    ],
)
def test_one_changed_field_makes_the_odd_one_out(changes, field, seen, settles):
    comparison = compare(with_odd(*changes))
    assert outlier_names(comparison) == [ODD]
    (odd,) = get_only_group(comparison).outliers
    value, usual, settled = differences_by_field(odd)[field]
    assert (value, usual) == seen
    assert settles is None or set(settled) == settles
    assert {finding.code for finding in odd.findings} >= set(settled)


def test_a_version_that_breaks_nothing_still_names_the_checks_that_look_at_it():
    versions = ["driver.loaded", "driver.on_disk", "driver.libnvidia_ml", "driver.libcuda", "nvml.driver"]
    (odd,) = get_only_group(compare(with_odd(*((path, "570.172.09") for path in versions)))).outliers
    looked_at = {each.field: each.checks for each in odd.differences}
    assert set(looked_at) == set(versions)
    assert "CUD001" in looked_at["nvml.driver"] and "DRV002" in looked_at["driver.loaded"]
    assert "GPU015" not in looked_at["driver.loaded"]
    assert odd.differences[0].agreeing == 29 and odd.differences[0].of == 30


@pytest.mark.parametrize(
    ("changes", "field", "code"),
    [
        pytest.param(
            [("nvml.gpus.5.health.temperature_c", 93)],
            "nvml.gpus[5].health.temperature_c",
            "GPU013",
            id="a GPU too hot",
        ),
        pytest.param([("kernel_log.xids", [FELL_OFF])], "kernel_log.xids", "GPU006", id="an Xid of this boot"),
        pytest.param(
            [("nvml.gpus.2.free_bytes", 1 << 30), ("nvml.gpus.2.health.processes", [GUEST])],
            "nvml.gpus[2].free_bytes",
            "GPU019",
            id="a GPU whose memory somebody holds",
        ),
        pytest.param([("storage.directories.0.free_bytes", 1 << 20)], None, "STO002", id="a full disk"),
    ],
)
def test_a_reading_of_the_moment_counts_where_a_finding_hangs_on_it(changes, field, code):
    (odd,) = get_only_group(compare(with_odd(*changes))).outliers
    found = differences_by_field(odd)
    field = field or next(iter(found))
    assert odd.nodes == (ODD,)
    assert code in found[field][2]
    assert odd.grade is Grade.DECIDES


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param([("nvml.gpus.5.health.temperature_c", 70)], id="warm"),
        pytest.param([("nvml.gpus.5.health.clock_reasons", ["sync-boost"])], id="a harmless reason of the clocks"),
        pytest.param([("nvml.gpus.5.health.power_mw", 310_000)], id="busy"),
        pytest.param([("driver.upgraded_packages", ["2025-11-01 upgrade libnvidia 1 2"])], id="an upgrade long ago"),
    ],
)
def test_a_reading_of_the_moment_on_which_nothing_hangs_is_no_difference(changes):
    comparison = compare(with_odd(*changes))
    assert not comparison.has_differences and get_only_group(comparison).outliers == ()


def test_with_all_readings_of_the_moment_are_told_and_weigh_nothing():
    comparison = compare(with_odd(("nvml.gpus.5.health.temperature_c", 70)), keeps_all=True)
    odd = next(each for each in get_only_group(comparison).outliers if each.nodes == (ODD,))
    assert "nvml.gpus[5].health.temperature_c" in {each.field for each in odd.differences}
    assert not comparison.has_differences
    assert any(each.field == "nvml.gpus[0].uuid" for each in get_only_group(comparison).no_majority)


def test_a_field_that_no_check_reads_is_told_and_weighs_nothing():
    comparison = compare(with_odd(("system.kernel", "6.5.0-1")))
    (odd,) = get_only_group(comparison).outliers
    assert [(each.field, each.grade, each.checks) for each in odd.differences] == [("system.kernel", Grade.NONE, ())]
    assert not comparison.has_differences


def test_the_same_on_every_gpu_is_one_difference():
    changes = [(f"nvml.gpus.{index}.health.persistence", False) for index in (0, 1, 2, 5)]
    (odd,) = get_only_group(compare(with_odd(*changes))).outliers
    assert [each.field for each in odd.differences] == ["nvml.gpus[0-2,5].health.persistence"]


def test_a_reading_on_which_a_finding_hangs_is_judged_on_every_node_that_has_it():
    nodes = {f"node-{number}": recorded() for number in range(8)}
    for name in ("node-3", "node-5"):
        put(nodes[name], "kernel_log.xids", [FELL_OFF])
    put(nodes["node-3"], "nvml.gpus.0.health.clock_reasons", ["sync-boost"])
    assert sorted(outlier_names(compare(nodes))) == ["node-3", "node-5"]


def test_two_hot_gpus_do_not_hide_each_other():
    hot = [(f"nvml.gpus.{index}.health.temperature_c", 93) for index in (2, 5)]
    (odd,) = get_only_group(compare(with_odd(*hot))).outliers
    assert [finding.code for finding in odd.findings] == ["GPU013"]
    assert {field: found[2] for field, found in differences_by_field(odd).items()} == {
        "nvml.gpus[2].health.temperature_c": ("GPU013",),
        "nvml.gpus[5].health.temperature_c": ("GPU013",),
    }
    assert odd.grade is Grade.DECIDES


def test_of_the_nodes_of_a_job_one_is_the_master_and_no_odd_one():
    nodes = {f"node-{number}": recorded("in-container-two-nodes-ok") for number in range(4)}
    own = nodes["node-0"]["limits"]["nccl"]
    assert "MASTER_ADDR=another name" in own
    own[own.index("MASTER_ADDR=another name")] = "MASTER_ADDR=this machine"
    assert get_only_group(compare(nodes)).outliers == ()
    own.append("NCCL_IB_DISABLE=1")
    assert outlier_names(compare(nodes)) == ["node-0"]


def test_what_is_found_on_all_is_not_said_of_the_odd_one():
    nodes = cluster(6)
    for document in nodes.values():
        put(document, "driver.fabric_manager", "inactive")
    put(nodes["node-0002"], "system.glibc", "2.36")
    (odd,) = get_only_group(compare(nodes)).outliers
    assert odd.nodes == ("node-0002",) and odd.findings == ()


def test_what_differs_from_gpu_to_gpu_is_told_for_each():
    changes = [("nvml.gpus.1.health.slowdown_c", 90), ("nvml.gpus.2.health.slowdown_c", 91)]
    (odd,) = get_only_group(compare(with_odd(*changes))).outliers
    assert {each.field: each.value for each in odd.differences} == {
        "nvml.gpus[1].health.slowdown_c": 90,
        "nvml.gpus[2].health.slowdown_c": 91,
    }


def test_an_entry_that_is_missing_is_one_difference():
    (odd,) = get_only_group(compare(with_odd(("cdi", [])))).outliers
    fields = differences_by_field(odd)
    assert fields["cdi[/etc/cdi/nvidia.json]"][:2] == (Mark.ABSENT, "CdiSpec")
    assert not [name for name in fields if "]." in name]


def test_an_entry_too_many_is_one_difference():
    more = [*recorded()["cdi"], {**recorded()["cdi"][0], "path": "/var/run/cdi/nvidia.yaml"}]
    (odd,) = get_only_group(compare(with_odd(("cdi", more)))).outliers
    fields = differences_by_field(odd)
    assert fields["cdi[/var/run/cdi/nvidia.yaml]"][:2] == ("CdiSpec", Mark.ABSENT)
    assert not [name for name in fields if "]." in name]


def test_a_node_without_nvml_differs_in_that_and_not_in_all_that_nvml_would_have_said():
    failure = {"type": "NvmlFailure", "end": "error", "code": 9, "message": "Driver Not Loaded", "call": "nvmlInit_v2"}
    (odd,) = get_only_group(compare(with_odd(("nvml", failure), ("driver.loaded", None)))).outliers
    fields = differences_by_field(odd)
    assert fields["nvml"][:2] == ("NvmlFailure", "NvmlAnswer")
    assert not [name for name in fields if name.startswith("nvml.")]
    assert fields["gpus"][0] == "8 x GPU 0x2330 without NVML"
    assert [finding.code for finding in odd.findings] == ["DRV001"]


def test_a_reading_that_could_not_be_taken_differs_from_one_that_was():
    (odd,) = get_only_group(compare(with_odd(("engine", {"unknown": "it did not answer in 4.7 s"})))).outliers
    assert differences_by_field(odd)["engine"][:2] == (Mark.UNREAD, "Engine")


def test_why_a_reading_could_not_be_taken_is_no_difference():
    nodes = cluster(4)
    for number, document in enumerate(nodes.values()):
        put(document, "engine", {"unknown": f"it did not answer in 4.{number} s"})
    assert not compare(nodes).has_differences


class TestMakes:
    def test_machines_with_other_gpus_are_groups_of_their_own(self):
        nodes = {**cluster(6), **{f"small-{n}": varied(recorded("ubuntu-4090-ok"), n) for n in range(4)}}
        comparison = compare(nodes)
        assert [(len(group.nodes), group.hardware.models) for group in comparison.groups] == [
            (6, (("NVIDIA H100 80GB HBM3", 8),)),
            (4, (("NVIDIA GeForce RTX 4090", 1),)),
        ]
        assert not comparison.has_differences

    def test_a_few_nodes_that_lost_a_gpu_are_odd_and_no_make_of_their_own(self):
        nodes = cluster(30)
        for name in ("node-0003", "node-0004", "node-0005"):
            nodes[name]["nvml"]["gpus"].pop()
        comparison = compare(nodes)
        assert sorted(outlier_names(comparison)) == ["node-0003", "node-0004", "node-0005"]
        (odd,) = get_only_group(comparison).outliers
        first = odd.differences[0]
        assert (first.field, first.value) == ("gpus", "7 x NVIDIA H100 80GB HBM3")
        assert first.grade is Grade.DECIDES and first.agreeing == 27

    def test_two_of_another_model_among_forty_are_odd_and_no_make_of_their_own(self):
        nodes = {**cluster(38), **{f"guest-{n}": varied(recorded("ubuntu-4090-ok"), n) for n in range(2)}}
        comparison = compare(nodes)
        fields = {each.field for odd in get_only_group(comparison).outliers for each in odd.differences}
        assert "gpus" in fields and not [name for name in fields if name.startswith("nvml.gpus[0].")]
        assert (
            sorted(outlier_names(comparison)) == ["guest-0", "guest-1"]
            and get_only_group(comparison).hardware.models[0][1] == 8
        )

    def test_a_third_of_the_nodes_with_fewer_gpus_are_still_the_odd_ones(self):
        nodes = cluster(8)
        for name in list(nodes)[:2]:
            nodes[name]["nvml"]["gpus"].pop()
        assert sorted(outlier_names(compare(nodes))) == ["node-0001", "node-0002"]

    def test_a_container_and_its_host_are_not_held_against_each_other(self):
        nodes = {**cluster(3), **{f"inside-{n}": recorded("in-container-ok") for n in range(3)}}
        assert sorted(group.hardware.side for group in compare(nodes).groups) == ["", "in docker"]

    def test_one_machine_of_another_make_is_the_odd_one_of_the_nearest_group(self):
        nodes = {**cluster(9), "guest": recorded("ubuntu-4090-ok")}
        comparison = compare(nodes)
        assert outlier_names(comparison) == ["guest"]
        assert len(get_only_group(comparison).outliers[0].differences) > 10

    def test_labels_say_what_stands_in_the_machine(self):
        assert HardwareClass((("A", 2), ("B", 1)), "in docker").label == "2 x A and 1 x B, in docker"
        assert HardwareClass(()).label == "no GPU"


class TestWithoutMajority:
    def test_two_are_held_against_each_other_and_the_healthier_one_is_the_measure(self):
        nodes = cluster(2)
        put(nodes["node-0001"], "driver.fabric_manager", "inactive")
        (odd,) = get_only_group(compare(nodes)).outliers
        assert odd.nodes == ("node-0001",)
        assert differences_by_field(odd)["driver.fabric_manager"] == ("inactive", "active", ("GPU004",))

    def test_two_of_one_kind_that_agree_do_not_differ(self):
        assert not compare(cluster(2)).has_differences

    def test_halves_are_told_as_values_with_their_nodes(self):
        nodes = cluster(6)
        for name in list(nodes)[:3]:
            put(nodes[name], "system.glibc", "2.36")
        comparison = compare(nodes)
        (division,) = get_only_group(comparison).no_majority
        assert division.field == "system.glibc" and division.grade is Grade.READ
        assert {(value, count) for value, count, _ in division.values} == {("2.36", 3), ("2.39", 3)}
        assert comparison.has_differences and outlier_names(comparison) == []

    def test_a_finding_that_hangs_on_one_of_the_halves_is_named(self):
        nodes = cluster(6)
        for name in list(nodes)[:3]:
            put(nodes[name], "driver.fabric_manager", "inactive")
        (division,) = get_only_group(compare(nodes)).no_majority
        assert division.settles == ("GPU004",)

    def test_a_finding_of_one_half_is_not_said_of_a_node_that_is_odd_otherwise(self):
        nodes = cluster(6)
        for name in list(nodes)[:3]:
            put(nodes[name], "driver.fabric_manager", "inactive")
        put(nodes["node-0001"], "system.glibc", "2.36")
        (odd,) = get_only_group(compare(nodes)).outliers
        assert odd.nodes == ("node-0001",) and odd.findings == ()

    def test_three_with_three_different_xids_are_judged_though_no_value_is_usual(self):
        nodes = cluster(3)
        put(nodes["node-0001"], "kernel_log.xids", [FELL_OFF])
        put(nodes["node-0002"], "kernel_log.xids", [{**FELL_OFF, "number": 48}])
        assert sorted(outlier_names(compare(nodes))) == ["node-0001", "node-0002"]


def test_nodes_odd_in_the_same_way_are_told_together():
    nodes = cluster(20)
    for name in ("node-0002", "node-0009"):
        put(nodes[name], "system.kernel", "6.5.0-1")
    put(nodes["node-0009"], "nvml.gpus.5.health.temperature_c", 93)
    odd = {each.nodes: each for each in get_only_group(compare(nodes)).outliers}
    assert set(odd) == {("node-0002", "node-0009"), ("node-0009",)}
    assert not odd["node-0002", "node-0009"].findings
    assert [finding.code for finding in odd["node-0009",].findings] == ["GPU013"]


def test_the_heat_of_the_node_that_is_judged_is_not_said_of_the_others():
    nodes = cluster(20)
    for name in ("node-0002", "node-0009"):
        put(nodes[name], "system.kernel", "6.5.0-1")
    put(nodes["node-0002"], "nvml.gpus.5.health.temperature_c", 93)
    odd = {each.nodes: each for each in get_only_group(compare(nodes)).outliers}
    assert not odd["node-0002", "node-0009"].findings
    assert [finding.code for finding in odd["node-0002",].findings] == ["GPU013"]


def test_the_node_with_a_finding_of_its_own_stands_before_one_that_only_differs():
    nodes = cluster(20)
    put(nodes["node-0002"], "system.glibc", "2.36")
    put(nodes["node-0015"], "driver.fabric_manager", "inactive")
    assert outlier_names(compare(nodes)) == ["node-0015", "node-0002"]


def test_of_a_thousand_different_ways_the_ones_that_nobody_judged_are_counted():
    nodes = cluster(250)
    for number, name in enumerate(list(nodes)[:120]):
        put(nodes[name], "system.glibc", f"2.36.{number + 1}")
    group = get_only_group(compare(nodes))
    assert len(group.outliers) == 100 and group.not_judged == 20
    assert compare(nodes).has_differences
