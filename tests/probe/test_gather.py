"""Gathering facts: each probe once, within its time, and the facts of every recorded machine."""

import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from devkit.doctor.preconditions import has_nvidia_gpu
from devkit.facts.gpu import NvmlAnswer, NvmlEnd
from devkit.facts.model import Facts, format_facts, parse_facts
from devkit.facts.values import Unknown
from devkit.probe.gather import gather_facts
from devkit.probe.host import CachingHost, LocalHost
from tests.golden import assert_golden
from tests.hosts import FOLDER, MACHINES, description_of, facts_of, machine
from tests.hosts.golden import expected_document, expected_facts
from tests.probe.engines import INFO, VERSION, engine, silent_socket


class Faulty:
    """A recorded machine on which one question fails in a way that no probe expects."""

    def __init__(self, *, path, act):
        self._machine, self._path, self._act = machine("ubuntu-4090-ok"), path, act

    def __getattr__(self, name):
        return getattr(self._machine, name)

    def read(self, path):
        return self._act() if path == self._path else self._machine.read(path)


def boom():
    raise RuntimeError("a bug")


def test_a_probe_that_crashes_costs_only_its_own_facts():
    facts = gather_facts(Faulty(path="/etc/docker/daemon.json", act=boom))
    assert facts.toolkit == Unknown("toolkit: probe crashed: RuntimeError: a bug", is_lost=True)
    others = [field.name for field in dataclasses.fields(Facts) if field.name != "toolkit"]
    assert not [name for name in others if "probe crashed" in repr(getattr(facts, name))]


@pytest.mark.clock
def test_a_probe_that_never_returns_costs_only_its_own_facts():
    started = time.monotonic()
    facts = gather_facts(Faulty(path="/etc/docker/daemon.json", act=lambda: time.sleep(5)), deadline_s=0.4)
    assert time.monotonic() - started < 1.5
    assert facts.toolkit == Unknown("toolkit: no answer within 0.4 s", is_lost=True)
    assert isinstance(facts.nvml, NvmlAnswer)


def test_a_program_that_hangs_costs_only_what_it_would_have_said(tmp_path, monkeypatch):
    for name in ("modinfo", "ldconfig"):
        (tmp_path / name).write_text("#!/bin/sh\nexec sleep 60\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    facts = gather_facts(CachingHost(deadline_s=3.0), deadline_s=3.0, only=("driver",))
    assert facts.driver.on_disk == Unknown("`modinfo -F version nvidia` did not answer in time", is_lost=True)
    assert facts.driver.libcuda is None or facts.driver.libcuda.is_lost
    assert facts.driver.nvidiactl
    assert parse_facts(format_facts(facts)) == facts


def test_a_driver_that_was_not_read_is_not_a_machine_without_a_gpu():
    lost = Unknown("driver: no answer within 4.7 s", is_lost=True)
    assert has_nvidia_gpu(dataclasses.replace(expected_facts("no-gpu-laptop"), driver=lost)) == lost


def test_this_machine_can_be_read_saved_and_read_back():
    facts = gather_facts(LocalHost())
    assert "probe crashed" not in repr(facts)
    assert parse_facts(format_facts(facts)) == facts


STUCK = """
import sys, time
sys.path.insert(0, {folder!r})
from tests.probe.test_gather import Faulty
from devkit.probe.gather import gather_facts
print(gather_facts(Faulty(path="/etc/docker/daemon.json", act=lambda: time.sleep(60)), deadline_s=0.3).toolkit.reason)
"""


def test_a_probe_that_never_returns_does_not_hold_up_the_exit():
    folder = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", STUCK.format(folder=folder)], capture_output=True, text=True, check=True, timeout=15
    )
    assert done.stdout == "toolkit: no answer within 0.3 s\n"


@pytest.mark.parametrize("project", [None, "/somewhere/else"], ids=["the current directory", "another directory"])
def test_the_workspace_is_the_project(project, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    facts = gather_facts(LocalHost(), project=project)
    paths = [directory.path for directory in facts.storage.directories if directory.purpose == "workspace"]
    assert paths == [project or str(tmp_path)]


@pytest.mark.clock
def test_a_hung_driver_and_a_hung_engine_together_end_within_the_deadline(with_nvml, tmp_path, monkeypatch):
    host = with_nvml(fail="nvmlInit_v2=hang")
    with silent_socket(tmp_path / "x.sock") as url:
        monkeypatch.setenv("DOCKER_HOST", url)
        started = time.monotonic()
        facts = gather_facts(host, deadline_s=4)
        assert time.monotonic() - started < 5
    assert facts.nvml.end is NvmlEnd.TIMED_OUT
    assert facts.engine.end == "timed-out"
    assert facts.system.kernel


LIGHT = "import sys, devkit.probe.gather; print([m for m in {0!r} if m in sys.modules])"


def test_reading_a_machine_imports_nothing_heavy_into_this_process():
    heavy = ["docker", "pynvml", "requests", "torch", "yaml", "asyncio", "email", "http.client", "importlib.metadata"]
    done = subprocess.run([sys.executable, "-c", LIGHT.format(heavy)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_project_cannot_put_its_own_modules_into_the_children(tmp_path, monkeypatch, with_nvml):
    trap = "import pathlib; pathlib.Path('trapped').touch(); raise SystemExit('not the real one')"
    for name in ("pynvml", "docker", "json", "requests"):
        (tmp_path / f"{name}.py").write_text(trap)
    monkeypatch.chdir(tmp_path)
    facts = gather_facts(with_nvml(gpus=2))
    assert len(facts.gpus) == 2
    assert not (tmp_path / "trapped").exists()


def test_specifications_in_the_engines_own_folder_are_read(tmp_path, monkeypatch):
    (tmp_path / "cdi").mkdir()
    (tmp_path / "cdi" / "x.json").write_text('{"cdiVersion": "0.7.0", "kind": "nvidia.com/gpu", "devices": []}')
    info = INFO | {"CDISpecDirs": ["/etc/cdi", str(tmp_path / "cdi")]}
    with engine(tmp_path / "x.sock", answers={"version": VERSION, "info": info}) as url:
        monkeypatch.setenv("DOCKER_HOST", url)
        facts = gather_facts(LocalHost())
    assert f"{tmp_path}/cdi/x.json" in [spec.path for spec in facts.cdi]


def readings(table, place=()):
    """Each reading that a machine's `reads` names, with its place in the saved facts."""
    for step, value in table.items():
        if isinstance(value, dict):
            yield from readings(value, (*place, step))
        else:
            yield (*place, step), None if value == "null" else value


def find_reading(document, place):
    for step in place:
        try:
            document = document[int(step) if isinstance(document, list) else step]
        except (KeyError, IndexError, TypeError):
            return "nothing is there"
    return document


def test_the_probes_read_what_each_machine_is_about():
    wrong = {}
    for name in MACHINES:
        document = expected_document(name)
        for place, value in readings(description_of(name).get("reads", {})):
            found = find_reading(document, place)
            # True is not 1, and 1 is not 1.0.
            if json.dumps(found) != json.dumps(value):
                wrong[f"{name}: {'.'.join(place)}"] = f"{found!r} instead of {value!r}"
    assert wrong == {}


def test_the_facts_of_every_machine_can_be_saved_and_read_back():
    assert [name for name in MACHINES if expected_facts(name) != facts_of(name)] == []


def test_no_probe_crashes_anywhere():
    assert [name for name in MACHINES if "probe crashed" in repr(facts_of(name))] == []


@pytest.mark.golden
def test_one_machine_is_read_in_whole():
    assert_golden(FOLDER / "ubuntu-4090-ok" / "facts.json", format_facts(facts_of("ubuntu-4090-ok")))
