"""The Python interface: the values are those that the commands print with --json."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import devkit
from devkit.errors import DevkitError
from devkit.facts.model import format_facts
from tests.forked_commands import run_devkit
from tests.hosts import facts_of


def run_json(*words: str | Path) -> dict:
    return json.loads(run_devkit(*words, "--json").stdout)


def without_times(document: dict) -> dict:
    for outcome in document["outcomes"]:
        del outcome["ms"]
    return document


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "facts.json"
    path.write_text(format_facts(facts_of("toolkit-missing")), encoding="utf-8")
    return path


def test_diagnose_returns_what_doctor_prints(saved):
    diagnosis = devkit.diagnose(devkit.load_facts(saved))
    printed = run_json("doctor", "--facts", saved)
    assert without_times(diagnosis.to_document()) == without_times(printed)
    assert (diagnosis.verdict, list(diagnosis.root_causes)) == (printed["verdict"], printed["root_causes"])
    assert "NVIDIA Container Toolkit" in str(diagnosis)


def test_diagnose_takes_some_checks_and_refuses_unknown_ones(saved):
    facts = devkit.load_facts(saved)
    assert [each["code"] for each in devkit.diagnose(facts, codes=["drv001"]).to_document()["outcomes"]] == ["DRV001"]
    with pytest.raises(DevkitError, match="DRV999"):
        devkit.diagnose(facts, codes=["DRV999"])


def test_diagnose_reads_this_machine(tmp_path):
    facts = devkit.diagnose(project=tmp_path, codes=["GPU001"]).facts
    assert facts.devkit == devkit.__version__


def test_load_facts_takes_a_host_and_its_container(tmp_path):
    for name, machine in (("inside", "conda-libstdcxx-too-old"), ("host", "a100-ok")):
        (tmp_path / name).write_text(format_facts(facts_of(machine)), encoding="utf-8")
    assert devkit.load_facts(tmp_path / "inside", tmp_path / "host").inside == devkit.load_facts(tmp_path / "inside")
    with pytest.raises(DevkitError, match="a host and a container"):
        devkit.load_facts(tmp_path / "host", tmp_path / "host")
    with pytest.raises(DevkitError, match="cannot read"):
        devkit.load_facts(tmp_path / "nothing")


ERROR = 'could not select device driver "" with capabilities: [[gpu]]'


@pytest.mark.parametrize("text", [ERROR, "DRV001"])
def test_explain_returns_what_the_command_prints(text):
    explanation = devkit.explain(text)
    assert explanation.is_known
    assert explanation.to_document() == run_json("explain", text)


def test_plan_returns_what_the_command_prints(tmp_path):
    answer = devkit.plan(driver="580.95.05", gpus=["H100"])
    printed = run_json("plan", "--driver", "580.95.05", "--gpu", "H100", tmp_path, "--no-resolve")
    assert answer.plan is not None
    document = answer.to_document()
    assert document == {name: printed[name] for name in document}


def test_plan_refuses_two_machines():
    with pytest.raises(DevkitError, match="different machines"):
        devkit.plan(facts_of("a100-ok"), driver="580.95.05")


def test_estimate_returns_what_the_command_prints():
    answer = devkit.estimate_memory("llama-3.1-8b", gpus=["RTX 4090"], method="qlora", sequence=4096)
    printed = run_json("estimate", "llama-3.1-8b", "--gpu", "RTX 4090", "--method", "qlora", "--max-length", "4096")
    assert printed.pop("command").startswith("devkit finetune --model llama-3.1-8b --data DATA --method qlora ")
    assert json.loads(json.dumps(answer.to_document())) == printed
    assert answer.peak_bytes == printed["device_peak_bytes"]["point"]


def test_commands_start_without_the_interface():
    code = "import sys, devkit.cli; sys.exit('devkit.api' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    with pytest.raises(AttributeError, match="nothing_like_it"):
        devkit.nothing_like_it  # noqa: B018
