"""Every probe on every file and program that it reads: typed facts, no exception, in bounded time."""

import dataclasses
import functools
import time

import pytest
from hypothesis import given

from devkit.facts.model import Facts
from devkit.facts.store import format_facts, parse_facts
from tests.faults.damage import Damaged, Watched
from tests.faults.probes import PROBES
from tests.fuzz.profile import FUZZ, SLOWEST_S
from tests.fuzz.texts import nearly
from tests.hosts import facts_of, machine

NOT_PROBED = {"taken_at", "devkit", "inside", "smoke", "training", "verification"}
MACHINES = (
    "ubuntu-4090-ok",
    "in-container-ok",
    "wsl2-small-memory",
    "project-with-compose",
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
    "wsl2-linux-driver-inside",
    "windows-ok",
    "amd-mi300x",
)

SAMPLES = {
    "token": "hf_" + "aB3" * 11,
    "version.json": '{"cuda": {"version": "12.8.1"}}',
    "nccl.conf": "NCCL_DEBUG=INFO",
}
"""Of files that no recorded machine has."""


def parsed():
    """What each probe reads, with a text of its own to begin with; once for each name."""
    seen = set()
    for name in MACHINES:
        host = machine(name)
        for field, probe in PROBES.items():
            watched = Watched(host)
            probe(watched)
            for question in ("read", "run"):
                for what in sorted(watched.asked[question]):
                    said = getattr(host, question)(what)
                    sound = said.out if question == "run" else said or SAMPLES.get(what.rpartition("/")[2])
                    shown = " ".join(what).replace(host.python, "python") if question == "run" else what
                    key = (field, shown.rpartition("/")[2])
                    if sound and key not in seen:
                        seen.add(key)
                        yield pytest.param(name, field, question, what, sound, id=f"{field}: {shown}")


CASES = list(parsed())


def test_every_probe_is_tried():
    assert set(PROBES) | NOT_PROBED == {field.name for field in dataclasses.fields(Facts)}
    assert {case.values[1] for case in CASES} == set(PROBES)


@functools.cache
def sound_facts(name):
    return facts_of(name)


@pytest.mark.parametrize(("name", "field", "question", "what", "sound"), CASES)
@pytest.mark.turns(3)
def test_any_text_becomes_typed_facts(name, field, question, what, sound):
    host, probe = machine(name), PROBES[field]

    @FUZZ
    @given(nearly(sound))
    def becomes_facts(text):
        def answer(said):
            return dataclasses.replace(said, out=text) if question == "run" else text

        started_s = time.thread_time()
        value = probe(Damaged(host, question, what, answer))
        assert time.thread_time() - started_s < SLOWEST_S
        facts = dataclasses.replace(sound_facts(name), **{field: value})
        assert parse_facts(format_facts(facts)) == facts

    becomes_facts()
