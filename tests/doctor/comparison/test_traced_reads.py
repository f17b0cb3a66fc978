"""Noting which fields a check reads changes nothing of what it says."""

import pytest

from devkit.doctor.comparison.impact import trace_facts, trace_reads
from devkit.doctor.comparison.leaves import FactsFlattener
from devkit.doctor.registry import CHECKS
from devkit.doctor.runner import run_on_host_and_container
from devkit.facts.store import parse_facts_document
from tests.amount import every
from tests.doctor.comparison.cluster import recorded
from tests.hosts import MACHINES


@pytest.mark.parametrize("name", every(4, MACHINES))
def test_checks_find_the_same_on_traced_facts(name):
    facts = parse_facts_document(recorded(name))
    noted = run_on_host_and_container(CHECKS, trace_facts(facts, "", set()), clock=float)
    assert noted == run_on_host_and_container(CHECKS, facts, clock=float)


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
