"""Comparing reports: what is kept of each, and the text and JSON of the result."""

import json
import random
import tracemalloc
from collections import Counter

import pytest

from devkit.doctor.comparison.documents import InvalidReport, ReportKind, parse_report_kind
from devkit.doctor.comparison.leaves import FactsFlattener, mask_numbers
from devkit.doctor.comparison.model import Outlier, OutlierFinding
from devkit.doctor.comparison.outliers import ComparisonBuilder
from devkit.doctor.comparison.report import build_comparison_document, format_comparison
from devkit.doctor.comparison.rules import EQUAL, FACTS_RULES, Grade, find_facts_rule
from devkit.doctor.registry import CHECKS
from devkit.doctor.report.lines import ASCII_MARKS
from devkit.doctor.report.report import build_report
from devkit.doctor.runner import run_on_host_and_container
from devkit.facts.store import parse_facts_document
from devkit.verify.report import REPORT_SCHEMA as VERIFY_SCHEMA
from devkit.verify.report import add_hash
from tests.doctor.comparison.cluster import cluster, put, recorded, varied
from tests.doctor.comparison.helpers import compare, differences_by_field, get_only_group, outlier_names
from tests.doctor.comparison.proofs import changed, proof, proofs
from tests.hosts import MACHINES

# Reports of proofs and of the doctor: slow nodes, failed stages, other losses, hashes and versions.


ODD = "node-0007"


def with_outlier(stage, **changes):
    nodes = proofs(12)
    nodes[ODD] = changed(nodes[ODD], stage, **changes)
    return nodes


def doctor_report(document):
    facts = parse_facts_document(document)
    return build_report(facts, run_on_host_and_container(CHECKS, facts, clock=float), devkit="0.1.0").to_document()


def test_the_schemas_are_those_of_whoever_writes_them():
    assert ReportKind.VERIFY == VERIFY_SCHEMA
    assert doctor_report(cluster(1)["node-0001"])["schema"] == ReportKind.DOCTOR


class TestProofs:
    def test_times_and_the_scatter_of_rates_are_no_difference(self):
        comparison = compare(proofs(12))
        assert not comparison.has_differences and get_only_group(comparison).outliers == ()

    @pytest.mark.parametrize(
        ("stage", "changes", "field", "grade"),
        [
            pytest.param(
                "memory-rate",
                {"gpu_1_copy_gb_per_s": 1300.0},
                "stages.memory-rate.gpu_1_copy_gb_per_s",
                2,
                id="half the rate",
            ),
            pytest.param("nccl", {"bus_gb_per_s": 41.5}, "stages.nccl.bus_gb_per_s", 2, id="a slow link between nodes"),
            pytest.param("reference", {"last_loss": 0.7}, "stages.reference.last_loss", 1, id="another loss"),
            pytest.param("torch", {"version": "2.8.0+cu128"}, "stages.torch.version", 1, id="another torch"),
        ],
    )
    def test_the_outlier_is_found_with_the_stage_that_it_affects(self, stage, changes, field, grade):
        comparison = compare(with_outlier(stage, **changes))
        assert outlier_names(comparison) == [ODD]
        (difference,) = get_only_group(comparison).outliers[0].differences
        assert (difference.field, difference.grade, difference.checks) == (field, grade, (stage,))
        assert difference.agreeing == 11

    @pytest.mark.parametrize(
        ("stage", "changes"),
        [
            pytest.param("nccl", {"bus_gb_per_s": 290.0}, id="a rate within a tenth"),
            pytest.param("reference", {"last_loss": 0.68237}, id="a loss within rounding"),
            pytest.param("kernel", {"matmul_bf16_error": 4e-6}, id="an error of rounding"),
        ],
    )
    def test_what_scatters_by_its_nature_is_no_difference(self, stage, changes):
        assert not compare(with_outlier(stage, **changes)).has_differences

    def test_another_hash_of_the_reference_counts_on_the_same_processor_and_software(self):
        (outlier,) = get_only_group(compare(with_outlier("reference", adapter_sha256="0" * 64))).outliers
        (difference,) = outlier.differences
        assert difference.value == "0" * 64 and difference.checks == ("reference",)

    def test_on_another_processor_another_hash_is_expected(self):
        nodes = with_outlier("reference", adapter_sha256="0" * 64, processor="AMD EPYC 9654")
        (outlier,) = get_only_group(compare(nodes)).outliers
        assert [each.field for each in outlier.differences] == ["stages.reference.processor"]

    def test_a_failed_stage_names_the_check_behind_it(self):
        (outlier,) = get_only_group(
            compare(with_outlier("nccl", status="failed", reason="it did not finish within 25 s"))
        ).outliers
        first = outlier.differences[0]
        assert (first.value, first.usual) == ("failed: it did not finish within # s", "passed")
        assert first.checks == ("nccl", "NET001") and first.grade is Grade.DECIDES

    def test_a_report_that_was_changed_later_is_an_outlier(self):
        nodes = list(proofs(4).items())
        builder = ComparisonBuilder()
        for name, document in nodes:
            builder.add(name, document, is_changed=name == "node-0003")
        (group,) = builder.finish(lambda numbers: ((number, nodes[number][1]) for number in numbers))
        (outlier,) = group.outliers
        assert outlier.nodes == ("node-0003",) and differences_by_field(outlier)["report_sha256"][:2] == (
            "not its own",
            "its own",
        )

    def test_machines_with_another_number_of_gpus_are_another_group(self):
        nodes = {**proofs(4), **{f"four-{n}": proof(n, count=4) for n in range(3)}}
        assert [group.hardware.label for group in compare(nodes).groups] == [
            "2 x NVIDIA H100 80GB HBM3, container",
            "4 x NVIDIA H100 80GB HBM3, container",
        ]

    def test_not_a_number_as_a_rate_is_a_difference_and_no_error(self):
        nodes = json.loads(json.dumps(with_outlier("nccl", bus_gb_per_s="nan")))
        assert outlier_names(compare(nodes)) == [ODD]

    def test_half_of_the_nodes_at_half_of_the_rate_is_no_majority(self):
        nodes = proofs(8)
        for name in list(nodes)[:4]:
            nodes[name] = changed(nodes[name], "nccl", bus_gb_per_s=155.0)
        comparison = compare(nodes)
        assert [each.field for each in get_only_group(comparison).no_majority] == ["stages.nccl.bus_gb_per_s"]
        assert comparison.has_differences


class TestDoctorReports:
    def test_times_and_numbers_in_messages_are_no_difference(self):
        assert not compare({name: doctor_report(each) for name, each in cluster(3).items()}).has_differences
        assert mask_numbers(("only 5.4 GiB free",)) == mask_numbers(("only 5 GiB free",))

    def test_a_finding_of_one_node_makes_it_an_outlier(self):
        nodes = cluster(4)
        put(nodes["node-0003"], "driver.fabric_manager", "inactive")
        comparison = compare({name: doctor_report(each) for name, each in nodes.items()})
        assert outlier_names(comparison) == ["node-0003"]
        found = differences_by_field(get_only_group(comparison).outliers[0])
        assert found["GPU004"][:2] == ("found: error", "passed")

    def test_a_finding_that_follows_from_another_is_less_relevant(self):
        nodes = {name: doctor_report(each) for name, each in cluster(4).items()}
        cause, effect = nodes["node-0003"]["outcomes"][:2]
        cause.update(status="found", findings=[{"severity": "error", "message": "it is off", "follows_from": None}])
        effect.update(status="found", findings=[{"severity": "error", "message": "so", "follows_from": cause["code"]}])
        (outlier,) = get_only_group(compare(nodes)).outliers
        grades = {each.field: (each.value, each.grade) for each in outlier.differences if each.grade}
        assert grades == {
            cause["code"]: ("found: error", Grade.DECIDES),
            effect["code"]: (f"found: error, by {cause['code']}", Grade.READ),
        }

    def test_another_devkit_or_older_tables_are_differences(self):
        report = doctor_report(cluster(1)["node-0001"])
        nodes = {"a": report, "b": report, "c": {**report, "devkit": "0.0.9"}}
        assert outlier_names(compare(nodes)) == ["c"]


@pytest.mark.parametrize(
    ("document", "says"),
    [
        pytest.param([], "not a JSON object", id="a list"),
        pytest.param({}, "names no schema", id="no schema"),
        pytest.param({"schema": "devkit.facts/2"}, "its schema is 'devkit.facts/2'", id="a schema of tomorrow"),
        pytest.param(
            {"schema": "devkit.plan/1"}, "this devkit compares devkit.facts/1", id="another document of devkit"
        ),
        pytest.param({"schema": "x" * 9999}, "xxx…'", id="a schema without end"),
        pytest.param({"schema": "devkit.facts/1"}, "taken_at: missing", id="facts of nothing"),
        pytest.param({**cluster(1)["node-0001"], "engine": 3}, "engine: expected", id="facts with a wrong field"),
        pytest.param({"schema": "devkit.doctor/1"}, "outcomes: expected a list", id="a report of nothing"),
        pytest.param(
            {"schema": "devkit.doctor/1", "outcomes": [{"code": "A", "status": "found"}]},
            "findings is missing",
            id="found what",
        ),
        pytest.param(
            {"schema": "devkit.doctor/1", "outcomes": [{"code": "A", "status": "found", "findings": [1]}]},
            "holds something other than a finding",
            id="a finding that is a number",
        ),
        pytest.param({"schema": "devkit.verify/1", "stages": {}}, "stages: expected a list", id="stages by name"),
        pytest.param({"schema": "devkit.verify/1", "stages": []}, "device: expected an object", id="no device"),
    ],
)
def test_what_cannot_be_compared_is_refused_with_the_reason(document, says):
    with pytest.raises(InvalidReport) as refused:
        compare({"a": document})
    assert says in str(refused.value) and len(str(refused.value)) < 300


def test_a_wrong_document_after_many_right_ones_is_refused_all_the_same():
    nodes = cluster(4)
    put(nodes["node-0004"], "system.platform", "amiga")
    with pytest.raises(InvalidReport, match=r'system\.platform: expected "linux", "wsl2"'):
        compare(nodes)


def test_a_wrong_value_is_refused_when_it_is_added_so_that_the_others_can_be_compared():
    builder = ComparisonBuilder()
    nodes = cluster(4)
    put(nodes["node-0004"], "engine.kind", "hypervisor")
    *right, wrong = nodes.values()
    for document in right:
        builder.add("right", document)
    with pytest.raises(InvalidReport, match=r'engine\.kind: expected "docker", "docker-desktop"'):
        builder.add("wrong", wrong)
    assert sum(builder.kinds.values()) == 3


def test_a_field_missing_after_many_right_ones_is_refused():
    nodes = cluster(4)
    del nodes["node-0004"]["system"]["kernel"]
    with pytest.raises(InvalidReport, match=r"system\.kernel: missing"):
        compare(nodes)


def test_kinds_are_compared_each_by_itself():
    nodes = {**cluster(3), **{f"proof-{name}": each for name, each in proofs(3).items()}}
    assert [group.kind for group in compare(nodes).groups] == [ReportKind.FACTS, ReportKind.VERIFY]
    assert parse_report_kind(add_hash({"schema": "devkit.verify/1"})) is ReportKind.VERIFY


# What is kept of a report, and that it does not grow to the report's own size.


KEPT_BYTES = 8192
"""Of a report that takes a hundred and fifty thousand once it is read."""


@pytest.mark.full
def test_a_report_more_takes_a_few_bytes_for_each_field():
    builder, document = ComparisonBuilder(), recorded()
    for number in range(20):
        builder.add(f"node-{number}", varied(document, number))
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for number in range(20, 140):
        builder.add(f"node-{number}", varied(document, number))
    after, _ = tracemalloc.get_traced_memory()
    one = len(json.dumps(document))
    tracemalloc.stop()
    assert (after - before) / 120 < KEPT_BYTES < one


def test_only_outliers_are_read_again():
    builder, document = ComparisonBuilder(), recorded()
    own = [varied(document, number) for number in range(50)]
    own[7]["driver"]["fabric_manager"] = "inactive"
    for number, each in enumerate(own):
        builder.add(f"node-{number}", each)
    asked = []

    def reread(numbers):
        asked.extend(numbers)
        return ((number, own[number]) for number in numbers)

    builder.finish(reread)
    assert 7 in asked and len(set(asked)) <= 12


def patterns():
    """The pattern of every field of every recorded machine."""
    cut = FactsFlattener()
    for name in MACHINES:
        cut.flatten(recorded(name))

    def below(place):
        for each in place.below.values():
            yield each.pattern
            yield from below(each)

    return set(below(cut._root))


def test_what_is_in_common_with_others_is_the_same_leaves():
    """Of reports whose fields come, go, and change in turn."""
    flattener, chance = FactsFlattener(), random.Random(1)
    for number in range(20):
        document = varied(recorded(), number % 10)
        gpu = document["nvml"]["gpus"][chance.randrange(8)]
        gpu["health"][chance.choice(sorted(gpu["health"]))] = chance.choice([None, 1, {"unknown": "lost"}, [], [{}]])
        if number % 5 == 0:
            del gpu[chance.choice(sorted(gpu))]
        sections = flattener.flatten_sections(document)
        assert Counter(leaf for each in sections for leaf in each.leaves) == Counter(FactsFlattener().flatten(document))


@pytest.mark.full
def test_every_rule_is_for_an_existing_field():
    found = patterns()
    unused = [words.pattern for words, _ in FACTS_RULES if not any(words.fullmatch(each) for each in found)]
    assert not unused


def test_the_inside_of_a_container_is_compared_by_the_same_rules():
    for pattern in patterns():
        if not pattern.startswith(("inside", "taken_at", "schema", "training", "verification")):
            assert find_facts_rule(f"inside.{pattern}") == find_facts_rule(pattern)


def test_a_field_without_a_rule_is_compared_for_equality():
    assert find_facts_rule("driver.loaded") == find_facts_rule("a.field.of.tomorrow") == EQUAL


# The comparison for people and for programs.


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
