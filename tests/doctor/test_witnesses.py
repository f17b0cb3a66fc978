"""Causes of an error text ranked by a machine: this one at a glance, or the one that the text comes from."""

from dataclasses import replace

import pytest

from devkit.doctor.known_errors import find_known_errors
from devkit.doctor.model import Confidence
from devkit.doctor.signatures.witnesses import describe_circumstances, describe_facts
from devkit.facts.circumstances import Circumstances
from devkit.probe.circumstances import LocalFiles, read_circumstances
from tests.hosts import MACHINES, facts_of
from tests.hosts import machine as host_of

NO_GPU = "RuntimeError: No CUDA GPUs are available"
ERROR_35 = "CUDA driver version is insufficient for CUDA runtime version"
SM_61 = "GeForce GTX 1080 Ti with CUDA capability sm_61 is not compatible with the current PyTorch installation."

LAPTOP = Circumstances(driver="", has_device=False, is_wsl=False, container="", docker="docker")
SERVER = Circumstances(driver="580.65.06", has_device=True, is_wsl=False, container="", docker="docker")
WSL = Circumstances(driver="", has_device=True, is_wsl=True, container="", docker="docker")
BLIND_CONTAINER = replace(LAPTOP, container="docker", docker="")


@pytest.mark.parametrize(
    ("text", "here", "code", "evidence"),
    [
        pytest.param(NO_GPU, BLIND_CONTAINER, "CON001", "this docker container has no GPU", id="a container without"),
        pytest.param(NO_GPU, SERVER, "PYT006", "", id="a server with a driver"),
        pytest.param(ERROR_35, LAPTOP, "CON001", "", id="no driver: then not its age"),
        pytest.param(ERROR_35, SERVER, "CUD004", "", id="a driver"),
    ],
)
def test_this_machine_ranks_what_the_text_leaves_open(text, here, code, evidence):
    (match,) = find_known_errors(text, machine=describe_circumstances(here))
    assert match.code == code
    assert evidence in " ".join(match.speaks_for)
    assert match.confidence is not Confidence.CERTAIN


def test_words_of_the_text_outrank_this_machine_but_not_the_one_it_comes_from():
    text = f"{ERROR_35}\nDriver Version: 470.57.02"
    assert find_known_errors(text, machine=describe_circumstances(LAPTOP))[0].code == "CUD004"
    assert find_known_errors(text, machine=describe_facts(facts_of("toolkit-missing")))[0].code in {"CUD004", "CON001"}


def test_a_certain_cause_stays_and_says_what_speaks_against_it():
    text = "Failed to initialize NVML: Driver/library version mismatch"
    alone = find_known_errors(text)[0]
    (match,) = find_known_errors(text, machine=describe_circumstances(LAPTOP))
    assert (match.code, match.confidence) == (alone.code, alone.confidence) == ("DRV002", Confidence.CERTAIN)
    assert match.speaks_against == ("on this machine: no NVIDIA driver is loaded",)


def test_checks_of_the_machine_speak_for_and_against():
    found = find_known_errors(NO_GPU, machine=describe_facts(facts_of("in-container-no-gpu-injected")))[0]
    assert found.code == "CON001"
    assert any(says.startswith("CON001 finds: ") for says in found.speaks_for)
    passed = find_known_errors(NO_GPU, machine=describe_facts(facts_of("in-container-ok")))[0]
    assert passed.code == "PYT006"


def test_the_fix_is_for_the_driver_of_the_machine_that_the_text_comes_from():
    alone = find_known_errors(SM_61)[0].fix.summary
    assert "driver of" in alone
    joined = find_known_errors(SM_61, machine=describe_facts(facts_of("ubuntu-4090-ok")))[0].fix.summary
    assert "on a driver of" not in joined


@pytest.mark.parametrize("name", sorted(MACHINES))
def test_every_recorded_machine_has_circumstances_and_answers(name):
    facts = facts_of(name)
    here = read_circumstances(host_of(name))
    if name not in {"wsl2-own-kernel", "wsl1"}:
        assert here.is_wsl == (facts.wsl is not None)
    assert bool(here.container) == (getattr(facts.container, "kind", "") != "")
    for machine in (describe_circumstances(here), describe_facts(facts)):
        assert find_known_errors(NO_GPU, machine=machine)[0].code in {"CON001", "PYT006"}


def test_podman_behind_the_name_docker_is_seen(tmp_path, monkeypatch):
    (tmp_path / "docker").write_text('#!/bin/sh\nexec /usr/bin/podman "$@"\n')

    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_circumstances(LocalFiles()).docker == "podman"


def test_this_machine_can_be_read():
    assert read_circumstances(LocalFiles()).docker in {"docker", "podman", "snap", ""}


def test_kubernetes_is_not_told_to_run_docker():
    text = f"kubectl logs trainer\n{NO_GPU}"
    (match,) = find_known_errors(text)
    commands = [command for cause in (match, *match.alternatives) for command in cause.fix.commands]
    assert not any("docker run" in command for command in commands)
    assert any("nvidia.com/gpu" in command for command in commands)
