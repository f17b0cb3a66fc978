"""One field put to what it is elsewhere, and everything else left alone."""

import json

import pytest

from devkit.doctor.comparison.impact import replace_field
from devkit.doctor.comparison.leaves import FactsFlattener
from devkit.facts.store import parse_facts_document
from tests.doctor.comparison.cluster import put, recorded

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
        pytest.param([("nvml.gpus.3.health.pcie_width", 8)], "nvml.gpus[3].health.pcie_width", id="on one GPU"),
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
        pytest.param(HERE, "system.colour", id="a field of neither"),
        pytest.param(other(("nvml", {"unknown": "not read"})), "nvml.gpus[3].name", id="nothing to put it into"),
    ],
)
def test_a_field_without_a_parent_cannot_be_replaced(document, path):
    assert replace_field(document, path, HERE) is None
