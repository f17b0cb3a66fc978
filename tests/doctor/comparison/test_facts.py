"""Comparing facts: which fields differ and matter, what is usual, and what a field changes elsewhere."""

import json

import pytest

from devkit.doctor.comparison.deviations import find_usual_range
from devkit.doctor.comparison.documents import HardwareClass
from devkit.doctor.comparison.impact import replace_field, trace_facts, trace_reads
from devkit.doctor.comparison.leaves import FactsFlattener, Mark
from devkit.doctor.comparison.rules import ComparisonKind, FieldRule, Grade
from devkit.doctor.registry import CHECKS
from devkit.doctor.runner import run_on_host_and_container
from devkit.facts.store import parse_facts_document
from tests.doctor.comparison.cluster import cluster, put, recorded, varied
from tests.doctor.comparison.helpers import compare, differences_by_field, get_only_group, outlier_names
from tests.hosts import MACHINES

# Saved facts of many machines: which one is outlier, in what, and which check it matters to.


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


def with_outlier(*changes):
    """The cluster with one node changed: path and value in turns."""
    nodes = {name: varied(recorded(), number) if name == ODD else NODES[name] for number, name in enumerate(NODES, 1)}
    for path, value in changes:
        put(nodes[ODD], path, value)
    return nodes


def test_what_differs_between_healthy_machines_is_no_difference():
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
        pytest.param([("system.glibc", "2.36")], "system.glibc", ("2.36", "2.39"), set(), id="an old C library"),
    ],
)
def test_one_changed_field_makes_an_outlier(changes, field, seen, settles):
    comparison = compare(with_outlier(*changes))
    assert outlier_names(comparison) == [ODD]
    (outlier,) = get_only_group(comparison).outliers
    value, usual, settled = differences_by_field(outlier)[field]
    assert (value, usual) == seen
    assert settles is None or set(settled) == settles
    assert {finding.code for finding in outlier.findings} >= set(settled)


def test_a_harmless_version_still_names_the_checks_that_read_it():
    versions = ["driver.loaded", "driver.on_disk", "driver.libnvidia_ml", "driver.libcuda", "nvml.driver"]
    (outlier,) = get_only_group(compare(with_outlier(*((path, "570.172.09") for path in versions)))).outliers
    looked_at = {each.field: each.checks for each in outlier.differences}
    assert set(looked_at) == set(versions)
    assert "CUD001" in looked_at["nvml.driver"] and "DRV002" in looked_at["driver.loaded"]
    assert "GPU015" not in looked_at["driver.loaded"]
    assert outlier.differences[0].agreeing == 29 and outlier.differences[0].of == 30


@pytest.mark.parametrize(
    ("changes", "field", "code"),
    [
        pytest.param([("kernel_log.xids", [FELL_OFF])], "kernel_log.xids", "GPU006", id="an Xid of this boot"),
        pytest.param(
            [("nvml.gpus.2.free_bytes", 1 << 30), ("nvml.gpus.2.health.processes", [GUEST])],
            "nvml.gpus[2].free_bytes",
            "GPU019",
            id="a GPU whose memory another process holds",
        ),
        pytest.param([("storage.directories.0.free_bytes", 1 << 20)], None, "STO002", id="a full disk"),
    ],
)
def test_a_transient_metric_counts_where_it_causes_a_finding(changes, field, code):
    (outlier,) = get_only_group(compare(with_outlier(*changes))).outliers
    found = differences_by_field(outlier)
    field = field or next(iter(found))
    assert outlier.nodes == (ODD,)
    assert code in found[field][2]
    assert outlier.grade is Grade.DECIDES


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param([("nvml.gpus.5.health.temperature_c", 70)], id="warm"),
        pytest.param([("driver.upgraded_packages", ["2025-11-01 upgrade libnvidia 1 2"])], id="an upgrade long ago"),
    ],
)
def test_a_transient_metric_that_causes_nothing_is_no_difference(changes):
    comparison = compare(with_outlier(*changes))
    assert not comparison.has_differences and get_only_group(comparison).outliers == ()


def test_with_all_transient_metrics_are_listed_without_relevance():
    comparison = compare(with_outlier(("nvml.gpus.5.health.temperature_c", 70)), keeps_all=True)
    outlier = next(each for each in get_only_group(comparison).outliers if each.nodes == (ODD,))
    assert "nvml.gpus[5].health.temperature_c" in {each.field for each in outlier.differences}
    assert not comparison.has_differences
    assert any(each.field == "nvml.gpus[0].uuid" for each in get_only_group(comparison).no_majority)


def test_a_field_that_no_check_reads_is_listed_without_relevance():
    comparison = compare(with_outlier(("engine.root_dir", "/data")))
    (outlier,) = get_only_group(comparison).outliers
    assert [(each.field, each.grade, each.checks) for each in outlier.differences] == [
        ("engine.root_dir", Grade.NONE, ())
    ]
    assert not comparison.has_differences


def test_the_same_on_every_gpu_is_one_difference():
    changes = [(f"nvml.gpus.{index}.health.persistence", False) for index in (0, 1, 2, 5)]
    (outlier,) = get_only_group(compare(with_outlier(*changes))).outliers
    assert [each.field for each in outlier.differences] == ["nvml.gpus[0-2,5].health.persistence"]


def test_a_transient_metric_that_causes_a_finding_is_assessed_on_every_node_that_has_it():
    nodes = {f"node-{number}": recorded() for number in range(8)}
    for name in ("node-3", "node-5"):
        put(nodes[name], "kernel_log.xids", [FELL_OFF])
    put(nodes["node-3"], "nvml.gpus.0.health.clock_reasons", ["sync-boost"])
    assert sorted(outlier_names(compare(nodes))) == ["node-3", "node-5"]


def test_two_hot_gpus_do_not_mask_each_other():
    hot = [(f"nvml.gpus.{index}.health.temperature_c", 93) for index in (2, 5)]
    (outlier,) = get_only_group(compare(with_outlier(*hot))).outliers
    assert [finding.code for finding in outlier.findings] == ["GPU013"]
    assert {field: found[2] for field, found in differences_by_field(outlier).items()} == {
        "nvml.gpus[2].health.temperature_c": ("GPU013",),
        "nvml.gpus[5].health.temperature_c": ("GPU013",),
    }
    assert outlier.grade is Grade.DECIDES


def test_the_master_of_a_job_is_no_outlier():
    nodes = {f"node-{number}": recorded("in-container-two-nodes-ok") for number in range(4)}
    own = nodes["node-0"]["limits"]["nccl"]
    assert "MASTER_ADDR=another name" in own
    own[own.index("MASTER_ADDR=another name")] = "MASTER_ADDR=this machine"
    assert get_only_group(compare(nodes)).outliers == ()
    own.append("NCCL_IB_DISABLE=1")
    assert outlier_names(compare(nodes)) == ["node-0"]


def test_a_finding_of_all_nodes_is_not_reported_of_the_outlier():
    nodes = cluster(6)
    for document in nodes.values():
        put(document, "driver.fabric_manager", "inactive")
    put(nodes["node-0002"], "system.glibc", "2.36")
    (outlier,) = get_only_group(compare(nodes)).outliers
    assert outlier.nodes == ("node-0002",) and outlier.findings == ()


def test_different_values_on_several_gpus_are_separate_differences():
    changes = [("nvml.gpus.1.health.slowdown_c", 90), ("nvml.gpus.2.health.slowdown_c", 91)]
    (outlier,) = get_only_group(compare(with_outlier(*changes))).outliers
    assert {each.field: each.value for each in outlier.differences} == {
        "nvml.gpus[1].health.slowdown_c": 90,
        "nvml.gpus[2].health.slowdown_c": 91,
    }


def test_an_entry_that_is_missing_is_one_difference():
    (outlier,) = get_only_group(compare(with_outlier(("cdi", [])))).outliers
    fields = differences_by_field(outlier)
    assert fields["cdi[/etc/cdi/nvidia.json]"][:2] == (Mark.ABSENT, "CdiSpec")
    assert not [name for name in fields if "]." in name]


def test_an_entry_too_many_is_one_difference():
    more = [*recorded()["cdi"], {**recorded()["cdi"][0], "path": "/var/run/cdi/nvidia.yaml"}]
    (outlier,) = get_only_group(compare(with_outlier(("cdi", more)))).outliers
    fields = differences_by_field(outlier)
    assert fields["cdi[/var/run/cdi/nvidia.yaml]"][:2] == ("CdiSpec", Mark.ABSENT)
    assert not [name for name in fields if "]." in name]


def test_a_node_without_nvml_differs_in_nvml_alone():
    failure = {"type": "NvmlFailure", "end": "error", "code": 9, "message": "Driver Not Loaded", "call": "nvmlInit_v2"}
    (outlier,) = get_only_group(compare(with_outlier(("nvml", failure), ("driver.loaded", None)))).outliers
    fields = differences_by_field(outlier)
    assert fields["nvml"][:2] == ("NvmlFailure", "NvmlAnswer")
    assert not [name for name in fields if name.startswith("nvml.")]
    assert fields["gpus"][0] == "8 x GPU 0x2330 without NVML"
    assert [finding.code for finding in outlier.findings] == ["DRV001"]


def test_an_unknown_fact_differs_from_a_known_one():
    (outlier,) = get_only_group(compare(with_outlier(("engine", {"unknown": "it did not answer in 4.7 s"})))).outliers
    assert differences_by_field(outlier)["engine"][:2] == (Mark.UNREAD, "Engine")


def test_the_reason_of_an_unknown_fact_is_no_difference():
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

    def test_a_few_nodes_that_lost_a_gpu_are_outliers_and_no_group(self):
        nodes = cluster(30)
        for name in ("node-0003", "node-0004", "node-0005"):
            nodes[name]["nvml"]["gpus"].pop()
        comparison = compare(nodes)
        assert sorted(outlier_names(comparison)) == ["node-0003", "node-0004", "node-0005"]
        (outlier,) = get_only_group(comparison).outliers
        first = outlier.differences[0]
        assert (first.field, first.value) == ("gpus", "7 x NVIDIA H100 80GB HBM3")
        assert first.grade is Grade.DECIDES and first.agreeing == 27

    def test_a_third_of_the_nodes_with_fewer_gpus_are_still_outliers(self):
        nodes = cluster(8)
        for name in list(nodes)[:2]:
            nodes[name]["nvml"]["gpus"].pop()
        assert sorted(outlier_names(compare(nodes))) == ["node-0001", "node-0002"]

    def test_a_container_and_its_host_are_not_compared(self):
        nodes = {**cluster(3), **{f"inside-{n}": recorded("in-container-ok") for n in range(3)}}
        assert sorted(group.hardware.side for group in compare(nodes).groups) == ["", "in docker"]

    def test_one_machine_of_other_hardware_is_an_outlier_of_the_nearest_group(self):
        nodes = {**cluster(9), "guest": recorded("ubuntu-4090-ok")}
        comparison = compare(nodes)
        assert outlier_names(comparison) == ["guest"]
        assert len(get_only_group(comparison).outliers[0].differences) > 10

    def test_labels_name_the_gpus_of_a_machine(self):
        assert HardwareClass((("A", 2), ("B", 1)), "in docker").label == "2 x A and 1 x B, in docker"
        assert HardwareClass(()).label == "no GPU"


class TestWithoutMajority:
    def test_the_healthier_of_two_nodes_is_the_usual_one(self):
        nodes = cluster(2)
        put(nodes["node-0001"], "driver.fabric_manager", "inactive")
        (outlier,) = get_only_group(compare(nodes)).outliers
        assert outlier.nodes == ("node-0001",)
        assert differences_by_field(outlier)["driver.fabric_manager"] == ("inactive", "active", ("GPU004",))

    def test_two_nodes_that_agree_do_not_differ(self):
        assert not compare(cluster(2)).has_differences

    def test_halves_are_listed_as_values_with_their_nodes(self):
        nodes = cluster(6)
        for name in list(nodes)[:3]:
            put(nodes[name], "system.glibc", "2.36")
        comparison = compare(nodes)
        (division,) = get_only_group(comparison).no_majority
        assert division.field == "system.glibc" and division.grade is Grade.READ
        assert {(value, count) for value, count, _ in division.values} == {("2.36", 3), ("2.39", 3)}
        assert comparison.has_differences and outlier_names(comparison) == []

    def test_a_finding_that_one_half_causes_is_named(self):
        nodes = cluster(6)
        for name in list(nodes)[:3]:
            put(nodes[name], "driver.fabric_manager", "inactive")
        (division,) = get_only_group(compare(nodes)).no_majority
        assert division.settles == ("GPU004",)

    def test_a_finding_of_one_half_is_not_reported_of_an_outlier_in_another_field(self):
        nodes = cluster(6)
        for name in list(nodes)[:3]:
            put(nodes[name], "driver.fabric_manager", "inactive")
        put(nodes["node-0001"], "system.glibc", "2.36")
        (outlier,) = get_only_group(compare(nodes)).outliers
        assert outlier.nodes == ("node-0001",) and outlier.findings == ()

    def test_three_nodes_with_three_xids_are_assessed_without_a_majority(self):
        nodes = cluster(3)
        put(nodes["node-0001"], "kernel_log.xids", [FELL_OFF])
        put(nodes["node-0002"], "kernel_log.xids", [{**FELL_OFF, "number": 48}])
        assert sorted(outlier_names(compare(nodes))) == ["node-0001", "node-0002"]


def test_nodes_that_differ_in_the_same_way_are_one_outlier():
    nodes = cluster(20)
    for name in ("node-0002", "node-0009"):
        put(nodes[name], "system.kernel", "6.5.0-1")
    put(nodes["node-0009"], "nvml.gpus.5.health.temperature_c", 93)
    outlier = {each.nodes: each for each in get_only_group(compare(nodes)).outliers}
    assert set(outlier) == {("node-0002", "node-0009"), ("node-0009",)}
    assert not outlier["node-0002", "node-0009"].findings
    assert [finding.code for finding in outlier["node-0009",].findings] == ["GPU013"]


def test_a_node_with_a_finding_comes_before_one_that_only_differs():
    nodes = cluster(20)
    put(nodes["node-0002"], "system.glibc", "2.36")
    put(nodes["node-0015"], "driver.fabric_manager", "inactive")
    assert outlier_names(compare(nodes)) == ["node-0015", "node-0002"]


@pytest.mark.full
def test_outliers_beyond_the_limit_are_counted():
    nodes = cluster(250)
    for number, name in enumerate(list(nodes)[:120]):
        put(nodes[name], "system.glibc", f"2.36.{number + 1}")
    group = get_only_group(compare(nodes))
    assert len(group.outliers) == 100 and group.not_judged == 20
    assert compare(nodes).has_differences


# What lies far from the middle of a group's readings.


TENTH = FieldRule(ComparisonKind.MEASURED, relative_tolerance=0.1)
DEGREES = FieldRule(ComparisonKind.TRANSIENT, absolute_tolerance=10)
ALIKE = [100.0] * 20


@pytest.mark.parametrize(
    ("values", "rule", "outliers"),
    [
        pytest.param([*ALIKE, 50], TENTH, [50], id="half of what all the others have"),
        pytest.param([*ALIKE, 90], TENTH, [], id="at the tolerance"),
        pytest.param([*ALIKE, 89.9], TENTH, [89.9], id="below the tolerance"),
        pytest.param([*ALIKE, 110.1], TENTH, [110.1], id="above the tolerance"),
        pytest.param([80, 90, 100, 110, 120, 130, 75], TENTH, [], id="widely scattered readings have no outlier"),
        pytest.param([80, 90, 100, 110, 120, 130, 400], TENTH, [400], id="but for one that is beyond all scatter"),
        pytest.param([30, 31, 32, 40, 42], DEGREES, [], id="within the absolute tolerance"),
        pytest.param([30, 31, 31, 31, 42], DEGREES, [42], id="beyond the absolute tolerance"),
        pytest.param(
            [0, 0, 0, 0, 1],
            FieldRule(ComparisonKind.TRANSIENT, absolute_tolerance=0.5),
            [1],
            id="around zero the absolute tolerance counts",
        ),
        pytest.param([100, 89], TENTH, [100, 89], id="two readings"),
        pytest.param([100, 91], TENTH, [], id="a pair within the tolerance of the larger"),
    ],
)
def test_outliers_among_readings(values, rule, outliers):
    around = find_usual_range(values, rule)
    assert [value for value in values if not around.contains(value)] == outliers


def test_one_in_a_thousand_with_half_the_rate_does_not_move_the_median():
    values = [2600 + step % 50 for step in range(999)] + [1300]
    around = find_usual_range(values, TENTH)
    assert around.median == pytest.approx(2624, abs=2) and not around.contains(1300) and around.contains(2649)


# Noting which fields a check reads changes nothing of what it says.


def finds_the_same_when_traced(name):
    facts = parse_facts_document(recorded(name))
    noted = run_on_host_and_container(CHECKS, trace_facts(facts, "", set()), clock=float)
    return noted == run_on_host_and_container(CHECKS, facts, clock=float)


@pytest.mark.parametrize("name", ["dgx-h100-ok", "in-container-small-shm", "wsl2-linux-driver-inside"])
def test_checks_find_the_same_on_traced_facts(name):
    assert finds_the_same_when_traced(name)


@pytest.mark.full
def test_checks_find_the_same_on_traced_facts_of_every_machine():
    assert [name for name in MACHINES if not finds_the_same_when_traced(name)] == []


def test_a_traced_record_equals_the_plain_one():
    facts = parse_facts_document(recorded("dgx-h100-ok"))
    watched = trace_facts(facts, "", set())
    assert watched == facts and facts.driver == watched.driver
    assert watched != parse_facts_document(recorded("ubuntu-4090-ok"))


def test_a_read_has_the_path_of_its_leaf():
    document = recorded("dgx-h100-ok")
    reads = trace_reads(CHECKS, parse_facts_document(document))
    leaves = {path for path, _, _ in FactsFlattener().flatten(document)}
    noted = set().union(*reads.values())
    assert "nvml.gpus[7].health.remap_failed" in noted & leaves
    assert len(noted & leaves) > 200
    strays = {path for path in noted - leaves if "." in path and not path.startswith("inside")}
    assert not strays


@pytest.mark.parametrize(
    ("code", "path", "is_read"),
    [
        ("GPU022", "driver.fabric_manager_version", True),
        ("GPU015", "nvml.gpus[3].health.pcie_width", True),
        ("GPU015", "driver.fabric_manager_version", False),
        ("STO001", "storage.directories", True),
        ("STO001", "nvml", False),
    ],
)
def test_each_check_reads_its_fields_and_no_others(code, path, is_read):
    assert (path in trace_reads(CHECKS, parse_facts_document(recorded("dgx-h100-ok")))[code]) is is_read


def test_reads_of_the_facts_inside_a_container_are_below_inside():
    document = {**recorded("ubuntu-4090-ok"), "inside": {"type": "Facts", **recorded("in-container-ok")}}
    reads = trace_reads(CHECKS, parse_facts_document(document))
    assert any(path.startswith("inside.container.") for path in set().union(*reads.values()))


# One field put to what it is elsewhere, and everything else left alone.


HERE = recorded("dgx-h100-ok")


def leaves(document):
    return {path: value for path, _, value in FactsFlattener().flatten(document)}


def other(*changes):
    document = recorded("dgx-h100-ok")
    for path, value in changes:
        put(document, path, value)
    return document


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        pytest.param([("system.kernel", "6.5")], "system.kernel", id="a text"),
        pytest.param([("driver.modules", [])], "driver.modules", id="a list of texts"),
        pytest.param([("engine", {"unknown": "not read"})], "engine", id="a record that was not read"),
        pytest.param([("cdi", [])], "cdi[/etc/cdi/nvidia.json]", id="an entry that is missing here"),
    ],
)
def test_the_field_is_as_usual_and_the_rest_unchanged(changes, path):
    document = other(*changes)
    before = json.dumps(document)
    changed = replace_field(document, path, HERE)
    assert leaves(changed) == leaves(HERE)
    assert json.dumps(document) == before
    parse_facts_document(changed)


def test_an_entry_that_the_usual_document_lacks_is_removed():
    document = other()
    document["nvml"]["gpus"].append({**document["nvml"]["gpus"][0], "index": 8})
    assert leaves(replace_field(document, "nvml.gpus[8]", HERE)) == leaves(HERE)


def test_only_the_named_field_is_replaced():
    document = other(("system.kernel", "6.5"), ("driver.loaded", "1.2"))
    changed = replace_field(document, "system.kernel", HERE)
    assert changed["system"]["kernel"] == HERE["system"]["kernel"] and changed["driver"]["loaded"] == "1.2"


@pytest.mark.parametrize(
    ("document", "path"),
    [
        pytest.param(HERE, "system.color", id="a field of neither"),
        pytest.param(other(("nvml", {"unknown": "not read"})), "nvml.gpus[3].name", id="nothing to put it into"),
    ],
)
def test_a_field_without_a_parent_cannot_be_replaced(document, path):
    assert replace_field(document, path, HERE) is None
