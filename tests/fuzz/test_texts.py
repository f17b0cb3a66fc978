"""Parsers of text that no probe asks for: saved facts, pasted errors, versions, documents, and variables."""

import dataclasses
import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devkit.doctor.known_errors import find_known_errors
from devkit.facts.model import InvalidFacts, format_facts, parse_facts
from devkit.facts.values import ComputeCapability, Release
from devkit.probe.documents import (
    InvalidDocument,
    parse_json,
    parse_jsonc_tree,
    parse_toml,
    parse_yaml,
    parse_yaml_tree,
    strip_url_credentials,
)
from devkit.text import to_one_line
from tests.doctor.machines import healthy, inside
from tests.faults.probes import PROBES
from tests.faults.test_transcripts import places, reshaped
from tests.fuzz.profile import FUZZ, SLOWEST_S
from tests.fuzz.texts import TOKENS, anything, nearly
from tests.hosts import facts_of, machine

SAVED = json.loads(format_facts(inside()))
PLACES = list(places(SAVED))
VALUES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), anything(), st.just([]), st.just({}))


@FUZZ
@given(st.sampled_from(PLACES), VALUES)
def test_saved_facts_with_another_value_are_facts_or_said_to_be_wrong(path, value):
    try:
        facts = parse_facts(json.dumps(reshaped(SAVED, path, value)))
    except InvalidFacts as wrong:
        assert wrong.problem
    else:
        assert parse_facts(format_facts(facts)) == facts


@FUZZ
@given(nearly(format_facts(healthy())))
def test_saved_facts_that_were_edited_are_facts_or_said_to_be_wrong(text):
    try:
        facts = parse_facts(text)
    except InvalidFacts:
        return
    assert parse_facts(format_facts(facts)) == facts


ERRORS = "\n".join(
    (
        "Failed to initialize NVML: Driver/library version mismatch",
        'docker: could not select device driver "" with capabilities: [[gpu]].',
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        "NVRM: Xid (PCI:0000:01:00): 79, pid=1234, GPU has fallen off the bus.",
        "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.8",
    )
)


@FUZZ
@given(nearly(ERRORS))
def test_a_pasted_error_has_causes_or_none(text):
    started_s = time.thread_time()
    found = find_known_errors(text)
    assert time.thread_time() - started_s < SLOWEST_S
    assert all(match.cause for match in found)


@FUZZ
@given(anything())
def test_a_version_is_read_back_as_it_was(text):
    release = Release.find(text)
    if release is None:
        with pytest.raises(ValueError, match="no version"):
            Release.parse(text)
    else:
        assert Release.parse(str(release)) == release
        assert release.text in text


@FUZZ
@given(nearly("sm_120"))
def test_a_capability_is_one_or_a_value_error(text):
    try:
        found = ComputeCapability.parse(text)
    except ValueError:
        return
    assert ComputeCapability.parse(found.sm) == found


@pytest.mark.parametrize("read", [parse_json, parse_toml, parse_yaml], ids=["JSON", "TOML", "YAML"])
def test_a_document_is_one_or_a_value_error(read):
    @FUZZ
    @given(nearly('{"a": [1, {"b": null}], "c": "d"}\n'))
    def is_document(text):
        try:
            read(text)
        except ValueError:
            return

    is_document()


@pytest.mark.parametrize("read", [parse_jsonc_tree, parse_yaml_tree], ids=["JSON with comments", "YAML"])
def test_a_document_with_lines_is_one_or_says_where_not(read):
    @FUZZ
    @given(nearly('// a note\n{"a": [1, {"b": null},], /* x */ "c": "d",}\n'))
    def is_document(text):
        try:
            read(text, file="x")
        except InvalidDocument as wrong:
            assert wrong.line >= 1

    is_document()


@FUZZ
@given(nearly("https://user:secret@proxy.example.com:8080/path?query=1#part"))
def test_an_address_never_keeps_its_login(text):
    assert "secret@" not in strip_url_credentials(text)


@FUZZ
@given(anything())
def test_a_line_is_printable(text):
    assert to_one_line(text).isprintable() or any(ord(letter) > 0x9F for letter in text)


class WithVariable:
    """A recorded machine with one variable set to something else."""

    def __init__(self, host, name, value):
        self._host, self._variables = host, {**host.env, name: value}

    def __getattr__(self, name):
        return getattr(self._host, name)

    @property
    def env(self):
        return self._variables


class Noted(dict):
    """Variables that remember which were looked up."""

    def __init__(self, variables, names):
        super().__init__(variables)
        self._names = names

    def get(self, name, default=None):
        self._names.add(name)
        return super().get(name, default)

    def __contains__(self, name):
        self._names.add(name)
        return super().__contains__(name)


def looked_up():
    names = set()
    for name in ("ubuntu-4090-ok", "in-container-ok", "windows-ok", "project-with-compose"):
        host = machine(name)
        noting = WithVariable(host, "_", "_")
        noting._variables = Noted(host.env, names)
        for probe in PROBES.values():
            probe(noting)
    return sorted(names)


def test_a_variable_may_hold_anything():
    host, sound = machine("in-container-ok"), facts_of("in-container-ok")
    variables = looked_up()
    tokens = st.sampled_from([token for token in TOKENS if "\0" not in token])

    @settings(FUZZ, max_examples=100)
    @given(st.sampled_from(variables), st.one_of(tokens, nearly("/usr/local/cuda:/x,0,1")))
    def is_taken(variable, value):
        changed = WithVariable(host, variable, value.replace("\0", ""))
        readings = {field: probe(changed) for field, probe in PROBES.items()}
        facts = dataclasses.replace(sound, **readings)
        assert parse_facts(format_facts(facts)) == facts

    is_taken()
