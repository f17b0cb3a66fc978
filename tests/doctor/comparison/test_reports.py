"""Reports of proofs and of the doctor: slow nodes, failed stages, other losses, hashes and versions."""

import json

import pytest

from devkit.doctor.comparison.documents import InvalidReport, ReportKind, parse_report_kind
from devkit.doctor.comparison.outliers import ComparisonBuilder
from devkit.doctor.comparison.rules import Grade
from devkit.doctor.registry import CHECKS
from devkit.doctor.report.report import build_report
from devkit.doctor.runner import run_on_host_and_container
from devkit.facts.store import parse_facts_document
from devkit.verify.report import REPORT_SCHEMA as VERIFY_SCHEMA
from devkit.verify.report import add_hash
from devkit.verify.report_check import CHECK_SCHEMA, build_check_document, check_report
from tests.doctor.comparison.cluster import cluster, put
from tests.doctor.comparison.helpers import compare, differences_by_field, get_only_group, outlier_names
from tests.doctor.comparison.proofs import changed, proof, proofs

ODD = "node-0007"


def with_outlier(stage, **changes):
    nodes = proofs(12)
    nodes[ODD] = changed(nodes[ODD], stage, **changes)
    return nodes


def doctor_report(document):
    facts = parse_facts_document(document)
    return build_report(facts, run_on_host_and_container(CHECKS, facts, clock=float), devkit="0.1.0").to_document()


def test_the_schemas_are_those_of_whoever_writes_them():
    assert {ReportKind.VERIFY, ReportKind.VERIFY_CHECK} == {VERIFY_SCHEMA, CHECK_SCHEMA}
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
            pytest.param("lora-memorises", {"steps": 79}, "stages.lora-memorises.steps", 1, id="other steps"),
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
            pytest.param("lora-memorises", {"last_loss": 0.05}, id="a loss near zero"),
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

    def test_checks_of_reports_are_compared_by_their_points(self):
        right = build_check_document(check_report(proof(1)))
        wrong = build_check_document(check_report({**proof(2), "conclusion": "proved on a toaster"}))
        comparison = compare({"a": right, "b": right, "c": wrong})
        assert outlier_names(comparison) == ["c"]
        assert set(differences_by_field(get_only_group(comparison).outliers[0])) == {"hash", "conclusion"}


class TestDoctorReports:
    def test_times_and_numbers_in_messages_are_no_difference(self):
        assert not compare({name: doctor_report(each) for name, each in cluster(3).items()}).has_differences

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
        pytest.param("x", "not a JSON object", id="a text"),
        pytest.param(None, "not a JSON object", id="null"),
        pytest.param({}, "names no schema", id="no schema"),
        pytest.param({"schema": 1}, "names no schema", id="a number for a schema"),
        pytest.param({"schema": "devkit.facts/2"}, "its schema is 'devkit.facts/2'", id="a schema of tomorrow"),
        pytest.param(
            {"schema": "devkit.plan/1"}, "this devkit compares devkit.facts/1", id="another document of devkit"
        ),
        pytest.param({"schema": "x" * 9999}, "xxx…'", id="a schema without end"),
        pytest.param({"schema": "devkit.facts/1"}, "taken_at: missing", id="facts of nothing"),
        pytest.param({**cluster(1)["node-0001"], "engine": 3}, "engine: expected", id="facts with a wrong field"),
        pytest.param({"schema": "devkit.doctor/1"}, "outcomes: expected a list", id="a report of nothing"),
        pytest.param({"schema": "devkit.doctor/1", "outcomes": [1]}, "outcomes[0]", id="an outcome that is a number"),
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
        pytest.param(
            {
                "schema": "devkit.verify/1",
                "device": {},
                "environment": {},
                "stages": [{"name": "a", "status": "passed"}],
            },
            "measured is missing",
            id="a stage that measured nothing",
        ),
        pytest.param({"schema": "devkit.verify-check/1", "points": [{}]}, "points[0]", id="a point without a name"),
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
