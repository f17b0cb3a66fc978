"""Every probe on every file and program that it reads: typed facts, no exception, in bounded time."""

import dataclasses
import time

import pytest
from hypothesis import given, settings

from devkit.facts.model import Facts, format_facts, parse_facts
from tests.faults.damage import Damaged, Watched
from tests.faults.probes import PROBES
from tests.fuzz.profile import FUZZ, SLOWEST_S
from tests.fuzz.texts import nearly
from tests.hosts import facts_of, machine

NOT_PROBED = {"taken_at", "devkit", "inside", "trials", "expected_gpus"}
MACHINES = (
    "ubuntu-4090-ok",
    "in-container-ok",
    "wsl2-small-memory",
    "project-with-compose",
    "compose-project-resolved",
    "unpinned-cuda-project",
    "xid-79-lost-gpu",
    "secure-boot-unsigned",
    "in-container-deep-ok",
    "hub-model-gated",
    "hub-ok",
    "jetson-ok",
    "snap-docker",
    "rootless-docker",
    "mig-a100",
    "dgx-h100-ok",
    "podman-behind-docker-socket",
    "windows-ok",
    "amd-mi300x",
)

SAMPLES = {
    "token": "hf_" + "aB3" * 11,
    "version.json": '{"cuda": {"version": "12.8.1"}}',
    "nccl.conf": "NCCL_DEBUG=INFO",
}
"""Of files that no recorded machine has."""


def list_cases(field):
    """What one probe reads, with a text of its own to begin with; once for each name of a file or program."""
    seen = set()
    for name in MACHINES:
        watched = Watched(machine(name))
        PROBES[field](watched)
        asked = [(question, what) for question in ("read", "run") for what in sorted(watched.asked[question])]
        for question, what in asked:
            said = getattr(machine(name), question)(what)
            sound = said.out if question == "run" else said or SAMPLES.get(what.rpartition("/")[2])
            key = what[1:] if question == "run" else what.rpartition("/")[2]
            if sound and key not in seen:
                seen.add(key)
                yield name, question, what, sound


def test_every_probe_is_tried():
    assert set(PROBES) | NOT_PROBED == {field.name for field in dataclasses.fields(Facts)}


@pytest.mark.parametrize("field", PROBES)
def test_any_text_becomes_typed_facts(field):
    cases = list(list_cases(field))
    assert cases
    for case in cases:
        assert_that_edits_become_facts(field, *case)


def assert_that_edits_become_facts(field, name, question, what, sound):
    @settings(FUZZ, max_examples=10)
    @given(nearly(sound))
    def becomes_facts(text):
        def answer(said):
            return dataclasses.replace(said, out=text) if question == "run" else text

        started_s = time.thread_time()
        value = PROBES[field](Damaged(machine(name), question, what, answer))
        assert time.thread_time() - started_s < SLOWEST_S, what
        facts = dataclasses.replace(facts_of(name), **{field: value})
        assert parse_facts(format_facts(facts)) == facts, what

    becomes_facts()
