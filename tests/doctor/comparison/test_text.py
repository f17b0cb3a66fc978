"""The comparison for people and for programs."""

import json

import pytest

from devkit.doctor.comparison.model import Outlier, OutlierFinding
from devkit.doctor.comparison.report import build_comparison_document, format_comparison
from devkit.doctor.comparison.rules import Grade
from devkit.doctor.report.lines import ASCII_MARKS
from tests.doctor.comparison.cluster import cluster, put
from tests.doctor.comparison.helpers import compare
from tests.doctor.comparison.proofs import changed, proofs

HOSTILE = "node\n\x1b[31m‮`$(reboot)`{{x}}${HOME}#"


def text_of(comparison, *, width=80, shows_all=False):
    lines = format_comparison(comparison, width=width, marks=ASCII_MARKS, shows_all=shows_all)
    return "\n".join(line.text for line in lines)


def many():
    nodes = cluster(20)
    put(nodes["node-0004"], "driver.fabric_manager", "inactive")
    put(nodes["node-0009"], "driver.modules", ["ib_core", "nvidia", "nvidia_uvm", "zram"])
    put(nodes["node-0011"], "engine.root_dir", "/data")
    return nodes


def test_the_worst_outlier_comes_first_with_its_findings_and_fields():
    assert text_of(compare(many())) == (
        "x outlier: node-0004 (20 compared; 1 more differs)\n"
        "\n"
        "8 x NVIDIA H100 80GB HBM3, 20 saved facts, 18 without a relevant difference:\n"
        "  x node-0004\n"
        "      GPU004: this machine has an NVSwitch, but nvidia-fabricmanager is\n"
        "        inactive: CUDA ends with error 802\n"
        "      driver.fabric_manager is inactive; 19 of 20 have active\n"
        "        causes GPU004\n"
        "  ! node-0009\n"
        "      driver.modules lacks nvidia_peermem; also has zram, unlike 19 of 20\n"
        "        read by GPU024\n"
        "  i node-0011: engine.root_dir is /data, not /var/lib/docker; no check reads it"
    )


def test_two_nodes_are_compared_with_each_other():
    nodes = cluster(2)
    put(nodes["node-0002"], "driver.fabric_manager", "inactive")
    text = text_of(compare(nodes))
    assert text.startswith("! they differ (2 compared)\n")
    assert "  x node-0002 beside node-0001\n" in text
    assert "driver.fabric_manager is inactive; the other has active\n" in text


def test_a_finding_counts_even_where_no_field_is_known_to_cause_it():
    assert Outlier(("node-1",), (), (OutlierFinding("GPU013", "it is hot"),)).grade is Grade.DECIDES
    assert Outlier(("node-1",), ()).grade is Grade.NONE


def test_no_difference_takes_a_line():
    text = text_of(compare(cluster(3)))
    assert text.splitlines()[0] == "+ no relevant difference (3 compared)"


def test_the_median_of_measured_numbers_is_shown():
    nodes = proofs(8)
    nodes["node-0002"] = changed(nodes["node-0002"], "nccl", bus_gb_per_s=41.5)
    assert "stages.nccl.bus_gb_per_s is 41.5; 7 of 8 are near 30" in text_of(compare(nodes))


def test_halves_are_shown_with_their_nodes():
    nodes = cluster(16)
    for name in list(nodes)[:8]:
        put(nodes[name], "system.glibc", "2.36")
    text = text_of(compare(nodes))
    assert "! no majority: system.glibc\n" in text
    assert "2.36: node-0001, node-0002, node-0003, node-0004, node-0005 and 3 more" in text


@pytest.mark.parametrize("width", [1, 40, 57, 80, 100, 400])
def test_no_line_is_wider_than_the_terminal_but_for_one_long_word(width):
    nodes = {**many(), **{f"p-{name}": each for name, each in proofs(5).items()}}
    nodes["p-node-0002"] = changed(nodes["p-node-0002"], "reference", adapter_sha256="0" * 64)
    for line in text_of(compare(nodes), width=width).splitlines():
        assert len(line) <= max(40, min(width, 100)) or len(line.split()) <= 2


def test_names_and_values_from_outside_reach_no_terminal_as_they_are():
    nodes = cluster(4)
    nodes[HOSTILE] = nodes.pop("node-0004")
    put(nodes[HOSTILE], "system.glibc", "2.36")
    put(nodes[HOSTILE], "system.kernel", HOSTILE)
    nodes[HOSTILE]["nvml"]["gpus"][3]["name"] = HOSTILE
    nodes |= {f"p-{name}": each for name, each in proofs(4).items()}
    for each in nodes["p-node-0002"]["stages"]:
        each["name"] = f"{each['name']}{HOSTILE}"
    text = text_of(compare(nodes), shows_all=True)
    assert "\x1b" not in text and "‮" not in text
    assert all(line.isprintable() for line in text.splitlines())


def test_of_many_differences_the_first_are_shown_and_the_others_counted():
    nodes = cluster(5)
    paths = ("engine.version", "toolkit.version", "system.glibc", "nvml.cuda", "compose.version")
    paths += ("driver.loaded", "driver.on_disk", "driver.libcuda", "driver.libnvidia_ml", "nvml.driver")
    for number, path in enumerate(paths):
        put(nodes["node-0002"], path, f"99.{number}")
    text = text_of(compare(nodes))
    assert text.count(" of 5 have ") == 8
    assert "and 2 more differences (--all)" in text


def test_with_all_nothing_is_left_out():
    nodes = cluster(60)
    for number, name in enumerate(list(nodes)[:29]):
        put(nodes[name], "system.glibc", f"2.36.{number + 1}")
    short, long = text_of(compare(nodes)), text_of(compare(nodes), shows_all=True)
    assert "and 9 more kinds of outliers (--all, --json)" in short
    assert "more kinds" not in long and long.count("system.glibc is") == 29


@pytest.mark.parametrize("keeps_all", [False, True], ids=["what matters", "all"])
def test_the_document_is_json_with_everything_in_it(keeps_all):
    nodes = many()
    put(nodes["node-0005"], "engine", {"unknown": "it did not answer"})
    document = json.loads(json.dumps(build_comparison_document(compare(nodes, keeps_all=keeps_all)), allow_nan=False))
    assert (document["schema"], document["verdict"], document["nodes"]) == ("devkit.compare/1", "differ", 20)
    (group,) = document["groups"]
    assert group["kind"] == "devkit.facts/1" and group["of"] == "8 x NVIDIA H100 80GB HBM3"
    by_node = {tuple(each["nodes"]): each for each in group["odd"]}
    outlier = by_node["node-0004",]
    assert outlier["matters"] == "decides" and outlier["findings"][0]["code"] == "GPU004"
    wanted = {
        "field": "driver.fabric_manager",
        "value": "inactive",
        "usual": "active",
        "agreeing": 19,
        "of": 20,
        "matters": "decides",
        "checks": ["GPU004"],
        "settles": ["GPU004"],
    }
    assert wanted in outlier["differences"]
    unread = {each["field"]: each["value"] for each in by_node["node-0005",]["differences"]}
    assert unread["engine"] == {"is": "not read"}


def test_the_verdict_of_the_document_is_that_of_the_exit_code():
    assert build_comparison_document(compare(cluster(3)))["verdict"] == "alike"
