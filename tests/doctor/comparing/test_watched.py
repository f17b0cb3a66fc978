"""Noting which fields a check reads changes nothing of what it says."""

import pytest

from devkit.doctor.comparing.facts_leaves import FactsLeaves
from devkit.doctor.comparing.watched import _watched, reads_of
from devkit.doctor.registry import CHECKS
from devkit.doctor.sides import judge
from devkit.facts.store import from_document
from tests.amount import every
from tests.doctor.comparing.cluster import recorded
from tests.hosts import MACHINES


@pytest.mark.parametrize("name", every(4, MACHINES))
def test_checks_say_the_same_of_facts_that_note_every_look(name):
    facts = from_document(recorded(name))
    noted = judge(CHECKS, _watched(facts, "", set()), clock=float)
    assert noted == judge(CHECKS, facts, clock=float)


def test_a_record_that_notes_looks_equals_the_plain_one():
    facts = from_document(recorded("dgx-h100-ok"))
    watched = _watched(facts, "", set())
    assert watched == facts and facts.driver == watched.driver
    assert watched != from_document(recorded("ubuntu-4090-ok"))


def test_a_look_is_noted_with_the_path_that_the_leaf_has():
    document = recorded("dgx-h100-ok")
    reads = reads_of(CHECKS, from_document(document))
    leaves = {path for path, _, _ in FactsLeaves().of(document)}
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
def test_each_check_reads_what_it_judges_and_no_more(code, path, is_read):
    assert (path in reads_of(CHECKS, from_document(recorded("dgx-h100-ok")))[code]) is is_read


def test_facts_of_the_inside_are_noted_below_inside():
    document = {**recorded("ubuntu-4090-ok"), "inside": {"type": "Facts", **recorded("in-container-ok")}}
    reads = reads_of(CHECKS, from_document(document))
    assert any(path.startswith("inside.container.") for path in set().union(*reads.values()))
