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
from devkit.facts.model import Facts, NvmlAnswer, NvmlEnd
from devkit.facts.store import format_facts, parse_facts
from devkit.facts.values import Unknown
from devkit.probe.gather import gather_facts
from devkit.probe.host import CachingHost, LocalHost
from tests.hosts import MACHINES, facts_of, machine
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


def test_the_moment_is_in_universal_time():
    assert gather_facts(machine("ubuntu-4090-ok")).taken_at.endswith("+00:00")


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


@pytest.mark.parametrize("name", MACHINES)
def test_the_probes_read_what_the_machine_is_known_to_be(name):
    facts = facts_of(name)
    assert json.loads(format_facts(facts)) == expected_document(name)
    assert parse_facts(format_facts(facts)) == facts


def telling(name, path, value, meaning):
    return pytest.param(name, path, value, id=f"{name}: {meaning}")


NOT_ON_GEFORCE = {"unknown": "nvmlDeviceGetMigMode: Not Supported"}
WSL_LIBRARY = "/usr/lib/wsl/lib/libnvidia-ml.so.1"
NOT_HERE = {"unknown": "only a Docker daemon installed on this system looks for the hook here"}


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        telling("ubuntu-4090-ok", "driver.libnvidia_ml", "580.95.05", "the library is as new as the module"),
        telling("ubuntu-4090-ok", "nvml.gpus.0.mig_enabled", NOT_ON_GEFORCE, "a desktop GPU has no MIG"),
        telling("ubuntu-4090-ok", "engine.hook_on_path", True, "the daemon finds the hook"),
        telling("cdi-only-h100x8", "nvml.gpus.7.name", "NVIDIA H100 80GB HBM3", "eight GPUs"),
        telling("cdi-only-h100x8", "driver.nvswitch_present", True, "behind an NVSwitch"),
        telling("cdi-only-h100x8", "driver.fabric_manager", "active", "with its manager"),
        telling("cdi-only-h100x8", "engine.hook_on_path", False, "no hook"),
        telling("cdi-only-h100x8", "cdi.0.driver", "570.172.08", "the specification names its driver"),
        telling("wsl2-desktop", "system.platform", "wsl2", "known by its kernel"),
        telling("wsl2-desktop", "wsl.libnvidia_ml_path", WSL_LIBRARY, "Windows brings the library"),
        telling(
            "wsl2-linux-driver-inside",
            "wsl.linux_driver_packages",
            ["libnvidia-compute-580:amd64", "nvidia-utils-580"],
            "neither removed packages nor the toolkit count",
        ),
        telling(
            "wsl2-linux-driver-inside",
            "wsl.libnvidia_ml_path",
            "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
            "the Linux library hides the one of Windows",
        ),
        telling("mig-a100", "nvml.gpus.0.mig_enabled", True, "MIG is on"),
        telling("mig-a100", "engine.has_selinux", True, "SELinux is on"),
        telling("rootless-docker", "engine.endpoint.chosen_by", "context rootless", "chosen by a context"),
        telling("rootless-docker", "engine.is_rootless", True, "rootless"),
        telling("podman-behind-docker-socket", "engine.kind", "podman", "Podman answers"),
        telling("podman-behind-docker-socket", "compose", None, "without Compose"),
        telling("no-gpu-laptop", "driver.pci_gpus", [], "no GPU is a fact"),
        telling("no-gpu-laptop", "driver.on_disk", None, "no module is a fact"),
        telling("driver-lib-mismatch", "driver.loaded", "580.95.05", "an older module is loaded"),
        telling("driver-lib-mismatch", "driver.libnvidia_ml", "580.105.08", "under newer libraries"),
        telling("driver-lib-mismatch", "nvml.code", 18, "as NVML says"),
        telling("nouveau-holds-gpu", "driver.pci_gpus.0.kernel_driver", "nouveau", "another driver owns the GPU"),
        telling("snap-docker", "engine.is_snap", True, "from snap"),
        telling("snap-docker", "engine.hook_on_path", NOT_HERE, "which looks elsewhere"),
        telling("desktop-linux-context", "engine.kind", "docker-desktop", "the context leads to Desktop"),
        telling("in-container-no-gpu-injected", "driver.nvidiactl", "absent", "no device on this side"),
        telling("in-container-no-gpu-injected", "driver.loaded", "580.95.05", "but a driver behind it"),
        telling("in-container-no-gpu-injected", "container.shm_bytes", 64 << 20, "Docker's default shared memory"),
        telling("in-container-ok", "container.libcuda_in_cache", True, "Triton can link"),
        telling("in-container-ok", "container.python_headers", True, "and compile"),
        telling("in-container-ok", "engine.end", "not-installed", "there is no engine inside"),
        telling("macos-desktop", "system.machine", "aarch64", "named as Linux names it"),
        telling("macos-desktop", "nvml.end", "library-not-found", "has no NVML"),
        telling("windows", "system.platform", "windows", "known by its environment"),
        telling("windows", "engine.end", "not-running", "Docker is installed but not started"),
    ],
)
def test_the_telling_fact_is_there(name, path, value):
    found = json.loads(format_facts(facts_of(name)))
    for step in path.split("."):
        found = found[int(step) if step.isdigit() else step]
    assert found == value


def test_no_probe_crashes_anywhere():
    texts = [json.dumps(expected_document(name)) for name in MACHINES]
    assert len(texts) >= 16
    assert not [text for text in texts if "probe crashed" in text]
