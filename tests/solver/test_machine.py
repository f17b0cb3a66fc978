"""A machine for the solver, from facts or from flags."""

import dataclasses

import pytest

from devkit.errors import DevkitError
from devkit.facts.gpu import Driver, FailedGpu, Gpu, NvmlAnswer
from devkit.facts.machine import Platform, System
from devkit.facts.model import Facts
from devkit.facts.values import ComputeCapability, Release, Unknown
from devkit.solver.candidates import choose_vendor
from devkit.solver.plan import Request
from devkit.solver.request import build_machine_from_facts, build_machine_from_flags
from tests.hosts.golden import expected_facts


def saved(name: str) -> Facts:
    return expected_facts(name)


def test_a_healthy_machine():
    machine = build_machine_from_facts(saved("ubuntu-4090-ok"))
    assert str(machine.driver) == "580.95.05"
    assert machine.gpus == (("NVIDIA GeForce RTX 4090", ComputeCapability(8, 9)),)
    assert (machine.machine, machine.platform, machine.origin) == ("x86_64", "linux", "this machine")
    assert machine.glibc is None
    assert machine.notes == ()


@pytest.mark.parametrize(
    ("name", "platform", "machine"),
    [("wsl2-desktop", "wsl2", "x86_64"), ("windows", "wsl2", "x86_64"), ("macos-desktop", "linux", "aarch64")],
)
def test_containers_run_linux_whatever_the_host(name, platform, machine):
    found = build_machine_from_facts(saved(name))
    assert (found.platform, found.machine) == (platform, machine)


def test_a_gpu_that_does_not_answer_is_left_out_and_noted():
    facts = saved("ubuntu-4090-ok")
    assert isinstance(facts.nvml, NvmlAnswer)
    nvml = dataclasses.replace(facts.nvml, gpus=(*facts.nvml.gpus, FailedGpu(1, 15, "GPU is lost")))
    machine = build_machine_from_facts(dataclasses.replace(facts, nvml=nvml))
    assert len(machine.gpus) == 1
    assert machine.notes == ("GPU 1 does not answer (GPU is lost) and is ignored: run `devkit doctor`",)


@pytest.mark.parametrize(
    ("name", "capability"),
    [pytest.param("NVIDIA L4", "8.9", id="a known name"), pytest.param("NVIDIA X1", None, id="an unknown name")],
)
def test_a_capability_that_could_not_be_read_comes_from_the_name(name, capability):
    facts = saved("ubuntu-4090-ok")
    gpu = dataclasses.replace(facts.gpus[0], name=name, capability=Unknown("old driver"))
    assert isinstance(facts.nvml, NvmlAnswer) and isinstance(gpu, Gpu)
    machine = build_machine_from_facts(dataclasses.replace(facts, nvml=dataclasses.replace(facts.nvml, gpus=(gpu,))))
    assert [str(found) for _, found in machine.gpus] == ([capability] if capability else [])
    assert any("is ignored" in note for note in machine.notes) is (capability is None)


def test_a_driver_without_nvml_still_counts_and_its_gpus_are_noted():
    machine = build_machine_from_facts(saved("driver-lib-mismatch"))
    assert machine.driver is not None
    assert machine.gpus == ()
    assert any("PCI bus" in note for note in machine.notes)


def test_facts_that_say_nothing_make_a_plain_machine():
    facts = saved("no-gpu-laptop")
    nothing = {field.name: Unknown("not recorded") for field in dataclasses.fields(Facts)}
    nothing |= {"taken_at": facts.taken_at, "devkit": facts.devkit}
    machine = build_machine_from_facts(Facts(**nothing))
    assert (machine.driver, machine.gpus, machine.machine) == (None, (), "x86_64")


@pytest.mark.parametrize(("written", "meant"), [("arm64", "aarch64"), ("AMD64", "x86_64"), ("x86_64", "x86_64")])
def test_processors_have_one_name(written, meant):
    facts = saved("no-gpu-laptop")
    assert isinstance(facts.system, System)
    system = dataclasses.replace(facts.system, machine=written, platform=Platform.LINUX)
    assert build_machine_from_facts(dataclasses.replace(facts, system=system)).machine == meant


def test_a_driver_that_is_on_disk_but_not_loaded_is_none():
    facts = saved("no-gpu-laptop")
    assert isinstance(facts.driver, Driver)
    driver = dataclasses.replace(facts.driver, loaded=None, on_disk=Release.parse("580.95.05"))
    assert build_machine_from_facts(dataclasses.replace(facts, driver=driver)).driver is None


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        pytest.param({"gpus": ("RTX 9090",)}, "unknown GPU 'RTX 9090'", id="an unknown GPU"),
        pytest.param({"driver": "latest"}, "--driver 'latest' is not a version", id="a word"),
        pytest.param({"driver": "580.95.05; rm"}, "is not a version", id="more than a version"),
        pytest.param({"glibc": "two"}, "--glibc 'two' is not a version", id="a C library in words"),
    ],
)
def test_what_flags_cannot_say(flags, says):
    with pytest.raises(DevkitError) as raised:
        build_machine_from_flags(**flags)
    assert says in raised.value.message
    assert raised.value.hint


@pytest.mark.parametrize(
    ("name", "gpus", "vendor"),
    [
        pytest.param("amd-mi300x", (("AMD Instinct MI300X", "gfx942"),) * 2, "rocm", id="AMD alone: a plan for ROCm"),
        pytest.param("amd-radeon-closed", (("gfx1100", "gfx1100"),), "rocm", id="a GPU without a name"),
        pytest.param(
            "amd-graphics-beside-4090", (), "nvidia", id="a processor's own graphics beside a GPU of NVIDIA's"
        ),
    ],
)
def test_gpus_of_amd_count_where_none_of_nvidia_is(name, gpus, vendor):
    machine = build_machine_from_facts(saved(name))
    assert machine.amd_gpus == gpus
    assert choose_vendor(Request(machines=(machine,))).value == vendor


def test_a_gpu_without_rocm_code_is_left_out_and_said():
    facts = saved("amd-radeon-closed")
    (gpu,) = facts.amd.gpus
    amd = dataclasses.replace(facts.amd, gpus=(dataclasses.replace(gpu, target="gfx1036"),))
    machine = build_machine_from_facts(dataclasses.replace(facts, amd=amd))
    assert machine.amd_gpus == ()
    assert any("gfx1036) is ignored" in note for note in machine.notes)


def test_a_driver_of_nvidias_that_shows_no_gpu_makes_no_machine_of_amds():
    broken = dataclasses.replace(saved("driver-lib-mismatch"), amd=saved("amd-radeon-closed").amd)
    assert build_machine_from_facts(broken).amd_gpus == ()
