"""`devkit plan` from the outside: what it prints and ends with."""

import json
import subprocess

import pytest

from tests.forked_commands import run_devkit
from tests.hosts.golden import facts_file

PASCAL_ON_580 = ("--gpu", "Tesla P40", "--driver", "580.95.05")


def plan(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return run_devkit("plan", *words, **{"NO_COLOR": "1", "COLUMNS": "100", **environ})


def test_a_plan_ends_with_0_and_says_why():
    done = plan(*PASCAL_ON_580)
    assert (done.returncode, done.stderr) == (0, "")
    assert "cu126" in done.stdout and "Tesla P40 (6.1)" in done.stdout


def test_a_conflict_ends_with_1_in_text_and_json():
    text, document = plan(*PASCAL_ON_580, "--torch", "2.15"), plan(*PASCAL_ON_580, "--torch", "2.15", "--json")
    assert (text.returncode, document.returncode) == (1, 1)
    assert "✗ conflict" in text.stdout and "--torch 2.14.1+cu126" in text.stdout
    assert json.loads(document.stdout)["verdict"] == "conflict"
    assert document.stderr == ""


@pytest.mark.parametrize(
    ("words", "says"),
    [
        pytest.param(("--gpu", "RTX 9090"), "unknown GPU 'RTX 9090'", id="an unknown GPU"),
        pytest.param(("--driver", "newest"), "--driver 'newest' is not a version", id="a driver in words"),
        pytest.param(("--torch", "abc"), "--torch 'abc' is not a version", id="a torch in words"),
        pytest.param(("--facts", "/nowhere.json"), "cannot read /nowhere.json", id="facts that are not there"),
        pytest.param(("--facts", __file__), "holds no facts of a machine", id="facts that are something else"),
        pytest.param((*PASCAL_ON_580, "--why", "moon"), "no choice named 'moon'", id="a choice that is not made"),
    ],
)
def test_wrong_input_ends_with_2_one_line_and_a_hint(words, says):
    done = plan(*words)
    assert (done.returncode, done.stdout) == (2, "")
    first, *hint = done.stderr.splitlines()
    assert first.startswith("Error: ") and says in first
    assert hint and "Traceback" not in done.stderr


def test_binary_facts_are_wrong_input_too(tmp_path):
    (tmp_path / "facts.json").write_bytes(b"\xff\xfe\x00")
    done = plan("--facts", str(tmp_path / "facts.json"))
    assert (done.returncode, done.stdout) == (2, "")


def test_saved_machines_are_planned_for_together():
    one = plan("--facts", str(facts_file("ubuntu-4090-ok")), "--json")
    both = plan("--facts", str(facts_file("ubuntu-4090-ok")), *PASCAL_ON_580, "--json")
    assert json.loads(one.stdout)["plan"]["variant"] == "cu130"
    assert json.loads(both.stdout)["plan"]["variant"] == "cu126"


def test_why_explains_one_choice():
    done = plan(*PASCAL_ON_580, "--why", "base_image")
    assert done.returncode == 0
    assert done.stdout.startswith("base_image python:3.12-slim-bookworm: slim")
    assert "source: https://" in done.stdout


def test_why_lists_what_was_not_chosen_in_text_and_json():
    text, document = plan(*PASCAL_ON_580, "--why", "torch"), plan(*PASCAL_ON_580, "--why", "torch", "--json")
    assert (text.returncode, document.returncode) == (0, 0)
    assert "torch 2.15.0+cu132  A1" in text.stdout
    assert json.loads(document.stdout)["others"][0]["choice"] == "torch 2.15.0+cu132"


def test_why_explains_a_conflict_too():
    done = plan(*PASCAL_ON_580, "--torch", "2.15", "--why", "torch")
    assert done.returncode == 1
    assert "✗ conflict" in done.stdout and "torch 2.15.0+cu130  A5" in done.stdout


def test_how_gpus_are_passed_on_decides_what_an_image_may_demand():
    words = ("--gpu", "A100", "--driver", "555.42.06", "--image", "nvidia/cuda:12.8.1-base-ubuntu24.04")
    assert plan(*words).returncode == plan(*words, "--gpu-runtime", "legacy").returncode == 1
    assert plan(*words, "--gpu-runtime", "cdi").returncode == 0


def test_amd_gpus_are_planned_for():
    done = plan("--gpu", "MI300X", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["plan"]
    assert (found["vendor"], found["cuda"], found["rocm"], found["gpu_request"]) == ("rocm", None, "7.14", "rocm")


def test_without_flags_it_plans_for_this_machine():
    done = plan("--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["plan"]["vendor"] in ("cpu", "nvidia")
