import json

import pytest
from hypothesis import HealthCheck, given, settings

from devkit.facts.machine import System
from devkit.facts.model import FACTS_SCHEMA, Facts, InvalidFacts, format_facts, parse_facts
from devkit.facts.values import Unknown
from tests.facts.samples import FACTS

EVERY_SHAPE = settings(
    max_examples=15,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    deadline=None,
)
UNREAD = Unknown("not looked at")
NOTHING = Facts("2026-01-01T00:00:00+00:00", "0.1.0", *([UNREAD] * 11))


@EVERY_SHAPE
@given(FACTS)
def test_what_is_saved_is_read_back_exactly(facts):
    saved = format_facts(facts)
    again = parse_facts(saved)
    assert again == facts
    # Releases compare by number; their text must survive too.
    assert repr(again) == repr(facts)
    assert format_facts(again) == saved


def document(**changes):
    return {**json.loads(format_facts(NOTHING)), **changes}


def test_the_schema_is_named_first():
    assert format_facts(NOTHING).startswith(f'{{\n  "schema": "{FACTS_SCHEMA}"')


def test_a_newer_files_extra_fields_are_ignored():
    assert parse_facts(json.dumps(document(quantum={"type": "Qubit"}))) == NOTHING


def test_an_older_files_missing_fields_become_unknown():
    older = document()
    del older["wsl"]
    assert parse_facts(json.dumps(older)).wsl == Unknown("not recorded")


SYSTEM = {
    "type": "System",
    "platform": "linux",
    "kernel": "6.8.0",
    "machine": "x86_64",
    "distribution": {"unknown": "no file"},
    "glibc": "2.36",
    "memory_bytes": 1,
    "is_root": False,
    "in_docker_group": True,
    "docker_group_is_active": True,
    "runs_systemd": True,
}


def test_a_record_inside_is_read():
    facts = parse_facts(json.dumps(document(system=SYSTEM)))
    assert isinstance(facts.system, System)
    assert str(facts.system.glibc) == "2.36"


@pytest.mark.parametrize(
    ("text", "path", "problem"),
    [
        pytest.param("{", "", "not JSON", id="cut off"),
        pytest.param("[]", "", "expected an object, got a list", id="a list"),
        pytest.param("{}", "schema", "got none", id="no schema"),
        pytest.param('{"schema": "devkit.facts/2"}', "schema", "devkit.facts/2", id="a schema from the future"),
        pytest.param(f'{{"schema": "{FACTS_SCHEMA}"}}', "taken_at", "missing", id="a required field is missing"),
    ],
)
def test_a_document_that_is_no_facts_file_is_named_so(text, path, problem):
    with pytest.raises(InvalidFacts, match=problem) as caught:
        parse_facts(text)
    assert caught.value.path == path


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        pytest.param({"kernel": 6}, "system.kernel", id="a number where text belongs"),
        pytest.param({"is_root": 1}, "system.is_root", id="a number is not true"),
        pytest.param({"memory_bytes": True}, "system.memory_bytes", id="true is not a number"),
        pytest.param({"memory_bytes": -1}, "system.memory_bytes", id="fewer bytes than none"),
        pytest.param({"glibc": "new"}, "system.glibc", id="a version without numbers"),
        pytest.param({"platform": "beos"}, "system.platform", id="an unknown platform"),
        pytest.param({"platform": {"unknown": "x"}}, "system.platform", id="unknown where it cannot be"),
        pytest.param({"distribution": {"type": "System"}}, "system.distribution", id="a record of the wrong type"),
        pytest.param({"distribution": {"unknown": 3}}, "system.distribution.unknown", id="a reason that is no text"),
    ],
)
def test_a_wrong_value_is_named_by_its_path(changes, path):
    with pytest.raises(InvalidFacts) as caught:
        parse_facts(json.dumps(document(system={**SYSTEM, **changes})))
    assert caught.value.path == path


def test_a_wrong_value_in_a_list_is_named_by_its_place():
    nvml = {"type": "NvmlAnswer", "driver": "580.95.05", "cuda": "13.0", "gpus": [{"type": "Gpu"}]}
    with pytest.raises(InvalidFacts) as caught:
        parse_facts(json.dumps(document(nvml=nvml)))
    assert caught.value.path == "nvml.gpus[0].index"
