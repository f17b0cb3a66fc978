"""Every probe on every file and program that it reads: typed facts, no exception, in bounded time."""

import dataclasses
import functools
import time

import pytest
from hypothesis import given

from devkit.facts.model import Facts
from devkit.facts.store import from_json, to_json
from devkit.probe.cdi import read_cdi
from devkit.probe.clients import read_clients
from devkit.probe.compose import read_compose
from devkit.probe.container import read_container
from devkit.probe.deep import read_deep
from devkit.probe.docker import read_engine
from devkit.probe.driver import read_driver
from devkit.probe.hub import read_hub
from devkit.probe.kernel_log import read_kernel_log
from devkit.probe.limits import read_limits
from devkit.probe.nvml import read_nvml
from devkit.probe.project import read_project
from devkit.probe.python import read_python
from devkit.probe.storage import read_storage
from devkit.probe.system import read_system
from devkit.probe.toolkit import read_toolkit
from devkit.probe.wsl import read_wsl
from tests.faults.damage import Damaged, Watched
from tests.fuzz.profile import FUZZ, SLOWEST_S
from tests.fuzz.texts import nearly
from tests.hosts import facts_of, machine

PROBES = {
    "system": read_system,
    "driver": read_driver,
    "nvml": functools.partial(read_nvml, deadline_s=4.5),
    "engine": functools.partial(read_engine, deadline_s=4.5),
    "compose": read_compose,
    "toolkit": read_toolkit,
    "cdi": read_cdi,
    "wsl": read_wsl,
    "container": read_container,
    "python": read_python,
    "storage": functools.partial(read_storage, project="/home/dev/project"),
    "kernel_log": read_kernel_log,
    "clients": read_clients,
    "limits": read_limits,
    "project": functools.partial(read_project, project="/home/dev/project"),
    "hub": read_hub,
    "deep": functools.partial(read_deep, deadline_s=60.0),
}
NOT_PROBED = {"taken_at", "devkit", "inside", "smoke"}
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
)


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
                    sound = said.out if question == "run" else said
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
def test_any_text_becomes_typed_facts(name, field, question, what, sound):
    host, probe = machine(name), PROBES[field]

    @FUZZ
    @given(nearly(sound))
    def becomes_facts(text):
        def answer(said):
            return dataclasses.replace(said, out=text) if question == "run" else text

        started_s = time.monotonic()
        value = probe(Damaged(host, question, what, answer))
        assert time.monotonic() - started_s < SLOWEST_S
        facts = dataclasses.replace(sound_facts(name), **{field: value})
        assert from_json(to_json(facts)) == facts

    becomes_facts()
