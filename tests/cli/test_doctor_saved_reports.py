"""`devkit doctor` on what the workload left behind: a report of verify, the folder of a finetune run."""

import json

import pytest
from click.testing import CliRunner

from devkit.cli.doctor import doctor
from devkit.errors import DevkitError
from devkit.facts.store import format_facts, parse_facts
from devkit.verify.report import ProofLocation, VerificationReport
from devkit.workload.proof.stages import StageResult, StageStatus
from tests.doctor.machines import inside


@pytest.fixture
def ask(tmp_path):
    """Runs `devkit doctor` on a healthy machine's facts and what is named beside them."""
    facts = tmp_path / "facts.json"
    facts.write_text(format_facts(inside()), encoding="utf-8")

    def run(*words):
        return CliRunner().invoke(doctor, ["--facts", str(facts), *map(str, words)])

    return run


@pytest.fixture
def report(tmp_path):
    stage = StageResult("kernel", StageStatus.FAILED, reason="RuntimeError: CUDA error: no kernel image is available")
    file = tmp_path / "report.json"
    file.write_text(json.dumps(VerificationReport(ProofLocation.HERE, {"kind": "cuda"}, {}, (stage,)).to_document()))
    return file


@pytest.fixture
def run_folder(tmp_path):
    """A run on a GPU that stood still for most of each step."""
    folder = tmp_path / "run"
    folder.mkdir()
    step = {"event": "step", "seconds": 1.0, "waited_s": 0.6, "peak_allocated_bytes": 2**30}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(step | {"step": n}) + "\n" for n in range(1, 9)))
    sample = {"gpu": 0, "name": "NVIDIA H200", "utilisation_percent": 30, "memory_bytes": 141 << 30}
    (folder / "gpu.jsonl").write_text("".join(json.dumps(sample | {"at_s": n}) + "\n" for n in range(20)))
    return folder


def test_a_failed_stage_is_a_problem_that_names_the_check_behind_it(ask, report):
    result = ask("--verification", report, "--json")
    assert result.exit_code == 1
    (finding,) = next(each for each in json.loads(result.stdout)["outcomes"] if each["code"] == "PYT021")["findings"]
    assert "(see PYT002)" in finding["message"]


def test_a_run_that_waited_for_its_data_is_a_warning_with_its_evidence(ask, run_folder):
    result = ask("--run", run_folder, "--only", "STO006", "--only", "GPU029", "--json")
    outcomes = {each["code"]: each for each in json.loads(result.stdout)["outcomes"]}
    (finding,) = outcomes["STO006"]["findings"]
    assert (finding["severity"], outcomes["GPU029"]["findings"][0]["follows_from"]) == ("warning", "STO006")
    assert "NVIDIA H200: utilization 30 %" in finding["evidence"]


def test_saved_facts_keep_what_was_left_behind(ask, report, run_folder, tmp_path):
    saved = tmp_path / "saved.json"
    ask("--verification", report, "--run", run_folder, "--save-facts", saved)
    facts = parse_facts(saved.read_text())
    assert facts.verification.stages[0].name == "kernel"
    assert facts.training.waiting_percent == 60


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(("--verification", "/nowhere.json"), "cannot read /nowhere.json", id="no such report"),
        pytest.param(("--verification", __file__), "holds no report of devkit verify", id="a file that is no report"),
        pytest.param(("--run", "/nowhere"), "holds no steps of a run", id="no such run"),
    ],
)
def test_what_is_not_there_is_refused_in_one_line(ask, words, said):
    result = ask(*words)
    assert isinstance(result.exception, DevkitError)
    assert said in result.exception.message and result.exception.hint
